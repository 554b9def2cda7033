"""Clamping to bounds that are NaN, and the gradient at NaN, which no sample of the table says."""

import math

import pytest
import torch

import tilewright as tw

NAN = math.nan
ROW = (-3.0, NAN, 0.5, 3.0, -1.0, 1.0)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (None, 1.0), (-1.0, None), (NAN, 1.0), (-1.0, NAN), (None, NAN)]
)
def test_clamp_at_nan_is_eager_s_with_its_gradient(low: float | None, high: float | None) -> None:
    x = torch.tensor(ROW, requires_grad=True)
    expected = x.clamp(low, high)
    found = tw.compile(lambda x: x.clamp(low, high), x)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    given = torch.arange(1.0, 7.0)
    (wanted,) = torch.autograd.grad(expected, x, given)
    (gradient,) = torch.autograd.grad(found, x, given)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=0)


def test_clamp_between_tensors_gives_nan_where_one_of_them_is() -> None:
    given = (
        torch.tensor([NAN, 0.0, 3.0, 0.0, 2.0, -2.0]),
        torch.tensor([-1.0, NAN, -1.0, -1.0, NAN, -1.0]),
        torch.tensor([1.0, 1.0, NAN, 1.0, 3.0, 1.0]),
    )
    operands = [t.requires_grad_() for t in given]
    expected = torch.clamp(*operands)
    found = tw.compile(lambda x, low, high: torch.clamp(x, low, high), *operands)(*operands)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    wanted = torch.autograd.grad(expected.sum(), operands)
    for gradient, one in zip(torch.autograd.grad(found.sum(), operands), wanted, strict=True):
        torch.testing.assert_close(gradient, one, rtol=0, atol=0)
