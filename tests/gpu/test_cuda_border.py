"""On CUDA tensors the result is eager's, or there is an error of ours: never a wrong number."""

from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import TilewrightError
from tilewright.models.mlp import example_batch, loss, mlp

pytestmark = pytest.mark.gpu


def _result_or_our_error(run: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    """Return what `run` returns, or None where it raised (or Dynamo wrapped) an error of ours."""
    try:
        return run()
    except Exception as error:
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, TilewrightError):
            seen = getattr(seen, "inner_exception", None) or seen.__cause__
        if seen is None:
            raise
        return None


def test_the_backend_on_cuda_is_right_or_refuses() -> None:
    model = mlp().cuda()
    inputs, target = (tensor.cuda() for tensor in example_batch(model))
    compiled = torch.compile(model, backend="tilewright")

    def gradients(run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        found = torch.autograd.grad(loss(run(inputs), target), list(model.parameters()))
        return torch.cat([gradient.flatten() for gradient in found])

    found = _result_or_our_error(lambda: gradients(compiled))
    if found is not None:
        torch.testing.assert_close(found, gradients(model))


def test_compile_on_cuda_is_right_or_refuses() -> None:
    model = mlp().cuda()
    inputs = example_batch(model)[0].cuda()
    found = _result_or_our_error(lambda: tw.compile(model, inputs)(inputs))
    if found is not None:
        torch.testing.assert_close(found, model(inputs))
