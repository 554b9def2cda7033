"""The gradient of the largest of all elements where it is NaN."""

import math

import pytest
import torch

import tilewright as tw


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("row", [(1.0, math.nan, 2.0), (math.nan, 1.0, math.nan), (2.0, 1.0, 2.0)])
def test_what_is_nan_takes_the_gradient_of_the_extreme(name: str, row: tuple[float, ...]) -> None:
    x = torch.tensor(row, requires_grad=True)
    (wanted,) = torch.autograd.grad(getattr(x, name)(), x)
    (found,) = torch.autograd.grad(tw.compile(lambda x: getattr(x, name)(), x)(x), x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
