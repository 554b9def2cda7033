"""Windows that hold no element, as torch's gradient writes past the row there."""

import math

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

# Two taps at 0 and 4 of a row of 3 with a border of 1; the same two dims deep; one between others.
CASES = [
    (F.max_pool1d, (1, 2, 3), {"kernel_size": 2, "stride": 3, "padding": 1, "dilation": 4}),
    (
        F.max_pool2d,
        (1, 1, 2, 2),
        {"kernel_size": (1, 2), "stride": 1, "padding": (0, 1), "dilation": (1, 3)},
    ),
    (F.max_pool1d, (2, 4), {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 5}),
]


@pytest.mark.parametrize(("pool", "shape", "attrs"), CASES)
def test_a_window_without_elements_is_infinitely_small_and_has_no_gradient(
    pool: object, shape: tuple[int, ...], attrs: dict[str, object]
) -> None:
    x = torch.randn(shape, requires_grad=True)
    expected = pool(x, **attrs)  # type: ignore[operator]
    assert (expected == -math.inf).any()
    found = tw.compile(lambda x: pool(x, **attrs), x)(x)  # type: ignore[operator]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
    assert gradient.sum() == (expected != -math.inf).sum()
