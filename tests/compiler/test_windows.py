"""Windows over images, beside torch in float64: edges, ties, NaN, types and layouts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

Compute = Callable[[torch.Tensor], torch.Tensor]
WINDOWS: dict[str, tuple[Compute, tuple[int, ...]]] = {
    "max 3/2": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 21, 34)),
    "max 2/2": (lambda x: F.max_pool2d(x, 2), (2, 3, 18, 20)),
    "max 3/1": (lambda x: F.max_pool2d(x, 3, 1, 1), (2, 3, 9, 17)),
    "max ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (2, 3, 20, 24)),
    "max apart": (lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2), (2, 3, 17, 29)),
    "max places": (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1].double(),
        (2, 3, 21, 34),
    ),
    "max of a line": (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 3, 67)),
    "max of a room": (lambda x: F.max_pool3d(x, 3, 2, 1), (1, 2, 7, 6, 20)),
    "max of no image": (lambda x: F.max_pool2d(x, 3, 2, 1), (0, 3, 21, 34)),
    "mean 3/1": (lambda x: F.avg_pool2d(x, 3, 1, 1), (2, 3, 9, 17)),
    "mean 3/2": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 18, 34)),
    "mean inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (2, 3, 18, 34),
    ),
    "mean ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 20, 35)),
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x, (7, 9)), (2, 3, 13, 30)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (7, 9)), (2, 3, 13, 30)),
    # One reduction after another over windows of one width, in one kernel.
    "max and min": (lambda x: F.max_pool2d(x, 3, 1, 1) + F.max_pool2d(-x, 3, 1, 1), (1, 2, 12, 40)),
    "variance": (
        lambda x: F.avg_pool2d(x * x, 3, 1, 1) - F.avg_pool2d(x, 3, 1, 1) ** 2,
        (1, 2, 12, 40),
    ),
    "means of parts": (
        lambda x: F.adaptive_avg_pool2d(x, (3, 30)) + F.adaptive_avg_pool2d(x * x, (3, 30)),
        (2, 3, 13, 50),
    ),
    "log of sums so far": (lambda x: torch.logcumsumexp(x, 0), (40, 7)),
    "two sums so far": (lambda x: torch.stack((x.cumsum(1), (x * x).cumsum(1))), (7, 40)),
}


def beside_torch(compute: Compute, x: torch.Tensor, tolerance: float) -> None:
    """Compare a function and its gradient with torch's own in float64."""
    wide = x.double().requires_grad_()
    near = x.clone(memory_format=torch.preserve_format).requires_grad_()
    expected = compute(wide)
    found = tw.compile(compute, near)(near)
    torch.testing.assert_close(
        found.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    if not expected.requires_grad:
        return
    change = torch.randn(expected.shape, dtype=torch.float64).to(x.dtype)
    (theirs,) = torch.autograd.grad(expected, wide, change.double())
    (ours,) = torch.autograd.grad(found, near, change.to(found.dtype))
    torch.testing.assert_close(
        ours.double(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("name", list(WINDOWS))
def test_a_window_computes_what_torch_does(name: str) -> None:
    compute, shape = WINDOWS[name]
    torch.manual_seed(0)
    beside_torch(compute, torch.randn(shape), 1e-5)


@pytest.mark.parametrize("name", ["max 3/2", "max places", "max apart", "mean 3/2"])
def test_a_window_keeps_ties_infinities_and_nan(name: str) -> None:
    compute, shape = WINDOWS[name]
    torch.manual_seed(1)
    x = torch.randint(0, 3, shape).float()  # many ties: the first of them wins
    x[0, 0] = float("-inf")
    x[0, 1, 3, 5] = float("nan")
    x[0, 1, 9, 12] = float("nan")  # in no window with the other: of two, torch says the last
    x[1, 2, 0, 0] = float("inf")
    beside_torch(compute, x, 1e-5)


@pytest.mark.parametrize("name", ["max 3/2", "mean 3/2", "mean 3/1"])
def test_a_window_reads_an_image_as_it_lies(name: str) -> None:
    compute, shape = WINDOWS[name]
    torch.manual_seed(2)
    batch, channels, height, width = shape
    beside_torch(compute, torch.randn(shape).to(memory_format=torch.channels_last), 1e-5)
    beside_torch(compute, torch.randn(batch, channels, width, height).mT, 1e-5)
    beside_torch(compute, torch.randn(batch, channels, height, 2 * width)[..., ::2], 1e-5)


@pytest.mark.parametrize("name", ["max 3/2", "mean 3/2"])
def test_a_window_of_bfloat16_is_rounded_once(name: str) -> None:
    compute, shape = WINDOWS[name]
    torch.manual_seed(3)
    beside_torch(compute, torch.randn(shape).bfloat16(), 2**-7)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (5, 6), return_indices=True),
        lambda x: F.max_pool3d(x, 2, 2, return_indices=True),
    ],
)
def test_of_ties_the_first_in_the_image_wins_however_it_lies(
    compute: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    torch.manual_seed(4)
    x = torch.randint(-2, 3, (2, 6, 20, 33)).float()

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return compute((x * 2).mT)

    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    (values, places), (true_values, true_places) = tw.compile(turned, ours)(ours), turned(theirs)
    assert torch.equal(places, true_places)
    assert torch.equal(values, true_values)
    for leaf, result in ((ours, values), (theirs, true_values)):
        result.sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_first_of_equal_numbers_over_two_dims_is_the_first_as_they_count() -> None:
    torch.manual_seed(5)
    x = torch.randint(-2, 3, (4, 5, 30, 7)).float()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).permute(0, 2, 3, 1).flatten(1).argmax(1)

    assert torch.equal(tw.compile(fn, x)(x), fn(x))
