"""Convolutions are recognised, their gradients share a call, and few positions make a product."""

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

CASES = {
    "many positions": ((2, 3, 12, 12), (4, 3, 3, 3), 1, 1, 1),
    "few positions": ((2, 5, 4, 4), (64, 5, 3, 3), 1, 1, 1),
    "few positions, strided": ((2, 6, 7, 7), (40, 6, 3, 3), 2, 1, 1),
    "few positions, dilated": ((1, 3, 9, 8), (80, 3, 3, 2), 1, 0, 2),
    "few positions, one dim": ((2, 3, 6), (32, 3, 3), 1, 1, 1),
}


@pytest.mark.parametrize("wrt", ["both", "input", "weight"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_a_convolution_are_eager_s(case: str, wrt: str) -> None:
    shape, kernel, stride, padding, dilation = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=wrt != "weight")
    w = torch.randn(kernel, dtype=torch.float64, requires_grad=wrt != "input")
    convolve = F.conv2d if len(shape) == 4 else F.conv1d

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = convolve(x, w, None, stride, padding, dilation)  # type: ignore[operator]
        total: torch.Tensor = (y * y.sin()).sum()
        return total

    asked = [tensor for tensor in (x, w) if tensor.requires_grad]
    expected = torch.autograd.grad(loss(x, w), asked)
    found = torch.autograd.grad(tw.compile(loss, x, w)(x, w), asked)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)
