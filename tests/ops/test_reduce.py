"""Variances of as many elements as are subtracted, or fewer, of which eager warns."""

import pytest
import torch

import tilewright as tw


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("correction", [1, 2, 3, 4])
def test_spread_of_too_few_elements_has_eager_s_gradient(
    name: str, count: int, correction: int
) -> None:
    x = torch.arange(1.0, count + 1, requires_grad=True)
    expected = getattr(torch, name)(x, dim=0, correction=correction)
    found = tw.compile(lambda x: getattr(torch, name)(x, dim=0, correction=correction), x)(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    (wanted,) = torch.autograd.grad(expected, x)
    (gradient,) = torch.autograd.grad(found, x)
    torch.testing.assert_close(gradient, wanted, equal_nan=True)
