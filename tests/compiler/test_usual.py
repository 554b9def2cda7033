"""What is begun to be compiled before a model is known."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.compiler import usual
from tilewright.program import KernelSource


@pytest.mark.parametrize(
    ("layer", "shape", "grad", "begun"),
    [
        (nn.Linear(4, 4), (2, 4), True, ("contract",)),
        (nn.Conv2d(3, 4, 1), (1, 3, 6, 6), True, ("contract",)),
        (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 6, 6), True, ("contract",)),
        (nn.Conv2d(3, 4, 3).double(), (1, 3, 6, 6), True, ("contract",)),
        (nn.Conv2d(3, 4, 3), (1, 3, 6, 6), False, ("contract", "winograd_f32")),
        (nn.Conv2d(3, 4, 3), (1, 3, 6, 6), True, ("contract", "winograd_f32", "winograd_gradient")),
    ],
)
@pytest.mark.parametrize("how", ["tilewright", "torch"])
def test_what_convolutions_call_is_begun_where_a_parameter_has_the_shape_of_their_kernels(
    layer: nn.Module,
    shape: tuple[int, ...],
    grad: bool,
    begun: tuple[str, ...],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []

    def begin(_target: str, kernels: Sequence[KernelSource]) -> None:
        found.extend(kernel.name for kernel in kernels)

    monkeypatch.setattr(usual, "begin_early", begin)
    x = torch.randn(shape, dtype=next(layer.parameters()).dtype)
    torch.compiler.reset()
    with torch.set_grad_enabled(grad):
        if how == "torch":
            torch.compile(layer, backend="tilewright")(x)
        else:
            tw.compile(layer, x)
    assert len(found) == len(begun)
    assert all(name.startswith(start) for name, start in zip(found, begun, strict=True))
