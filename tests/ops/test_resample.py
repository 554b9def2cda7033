"""Resizing between neighbours: PyTorch's in float64 is the oracle, of values and of gradients."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few

import tilewright as tw

MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
SIZES = [
    {"scale_factor": 2},
    {"scale_factor": 1.5},
    {"scale_factor": 3.3},
    {"scale_factor": 0.4},
    {"scale_factor": 2, "recompute_scale_factor": True},
    {"size": 1},
    {"size": 3},
    {"size": 17},
]
SHAPES = {
    "line": (2, 3, 5),
    "plane": (2, 1, 5, 7),
    "row": (1, 2, 1, 4),
    "solid": (1, 2, 3, 4, 5),
}


def resized(rank: int, aligned: bool, size: dict[str, float]) -> Callable[..., torch.Tensor]:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=MODES[rank], align_corners=aligned, **size)  # type: ignore[arg-type]

    return resize


def value_and_gradient(
    f: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor
) -> Sequence[torch.Tensor]:
    x = x.detach().requires_grad_()
    y = f(x)
    y.backward(weight.to(y.dtype))
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", few(SHAPES, "plane"))
def test_values_and_gradients_are_those_of_torch(
    name: str, size: dict[str, float], aligned: bool
) -> None:
    shape = SHAPES[name]
    if min(shape[2:]) * size.get("scale_factor", 1) < 1:
        pytest.skip("eager refuses a result without elements")
    f = resized(len(shape) - 2, aligned, size)
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    weight = torch.randn_like(f(x))
    expected = value_and_gradient(f, x, weight)
    found = value_and_gradient(tw.compile(f, x), x, weight)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)


def test_an_infinite_gradient_reaches_only_the_elements_that_were_read() -> None:
    f = resized(2, False, {"scale_factor": 2})
    x = torch.randn(1, 1, 6, 6)
    weight = torch.zeros(1, 1, 12, 12)
    weight[0, 0, 5, 5] = torch.inf  # its place is (2.25, 2.25)
    _, gradient = value_and_gradient(tw.compile(f, x), x, weight)
    expected = torch.zeros(1, 1, 6, 6)
    expected[0, 0, 2:4, 2:4] = torch.inf
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(
    "size", [{"scale_factor": 2}, {"scale_factor": 2.3}, {"scale_factor": 3}, {"size": (10, 28)},
             {"size": (5, 7)}, {"scale_factor": 1.5}, {"size": (205, 287)}], ids=str
)  # fmt: skip
def test_the_nearest_elements_are_those_of_eager(size: dict[str, float], last: bool) -> None:

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode="nearest", **size)  # type: ignore[arg-type]

    x = torch.randn(2, 3, 5, 7)
    x = x.to(memory_format=torch.channels_last) if last else x
    weight = torch.randn_like(resize(x))
    expected = value_and_gradient(resize, x, weight)
    found = value_and_gradient(tw.compile(resize, x), x, weight)
    assert torch.equal(found[0], expected[0])
    assert found[0].stride() == expected[0].stride()
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 2), (1, 2, 2, 3, 4)], ids=["line", "solid"])
@pytest.mark.parametrize("scale", [1.2, 2, 2.3, 3])
def test_lines_and_solids_have_the_nearest_elements(shape: tuple[int, ...], scale: float) -> None:

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale)

    x = torch.randn(shape)
    assert torch.equal(tw.compile(resize, x)(x), resize(x))


@pytest.mark.parametrize(
    ("size", "scale", "last", "dtype", "mode"),
    [
        ((3, 8), (2.1, 1.7), False, torch.bfloat16, "nearest"),  # small: a size that doubles
        ((6, 34), (1.7, 2.001), True, torch.float64, "nearest"),
        ((44, 2), (1.0, 1.2), True, torch.float64, "nearest"),
        ((43, 33), (1.1, 3.7), False, torch.float64, "nearest-exact"),
        ((43, 33), (1.1, 3.7), True, torch.float64, "nearest-exact"),
        ((3, 40), (2.3, 3.7), False, torch.float32, "nearest"),  # large, and by the scale then
        ((3, 40), (2.3, 3.7), True, torch.float32, "nearest"),  # pixel by pixel
        ((5, 8), (3.0, 1.0), True, torch.uint8, "nearest-exact"),
    ],
)
def test_places_are_those_of_the_kernel_that_eager_takes(
    size: tuple[int, int], scale: tuple[float, float], last: bool, dtype: torch.dtype, mode: str
) -> None:

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode)  # type: ignore[arg-type]

    x = torch.randint(0, 200, (2, 5, *size)).to(dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    found = tw.compile(resize, x)(x)
    assert torch.equal(found, resize(x))
    assert found.stride() == resize(x).stride()


def test_places_are_those_of_eager_where_sizes_vary() -> None:

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.3)

    varying = torch.compile(resize, backend="tilewright", dynamic=True)
    for size in ((6, 7), (4, 3), (60, 70), (3, 70)):
        x = torch.randn(2, 5, *size)
        assert torch.equal(varying(x), resize(x))


def test_places_in_float64_are_rounded_in_float64() -> None:

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=164)

    for dtype in (torch.float32, torch.float64):  # in one of them, 82 * (2 / 164) is below 1
        x = torch.randn(1, 1, 2, dtype=dtype)
        assert torch.equal(tw.compile(resize, x)(x), resize(x))
