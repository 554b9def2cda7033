"""Convolutions are products of our own or the library's calls; either way they equal eager's."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compiler.threads import assert_threads_change_no_bit
from tests.sweep import few

import tilewright as tw
from tilewright.autodiff import reverse
from tilewright.capture import capture
from tilewright.compiler.convolutions import WIDE, PlaceConvolutions, as_sums
from tilewright.compiler.faster import leads_convolutions
from tilewright.graph.ir import LIBRARY
from tilewright.optimize import DeadCode
from tilewright.runtime import segments
from tilewright.tune import this_processor

# name -> (image, kernel, stride, padding, dilation, groups); "transposed" ones are named so.
CASES: dict[str, tuple[Any, ...]] = {
    "many positions": ((2, 3, 12, 12), (4, 3, 3, 3), 1, 1, 1, 1),
    "few positions": ((2, 5, 4, 4), (64, 5, 3, 3), 1, 1, 1, 1),
    "few positions, strided": ((2, 6, 7, 7), (40, 6, 3, 3), 2, 1, 1, 1),
    "few positions, dilated": ((1, 3, 9, 8), (80, 3, 3, 2), 1, 0, 2, 1),
    "few positions, one dim": ((2, 3, 6), (32, 3, 3), 1, 1, 1, 1),
    "one position in a kernel": ((3, 4, 5, 5), (6, 4, 1, 1), 1, 0, 1, 1),
    "one position, strided": ((2, 4, 7, 6), (6, 4, 1, 1), 2, 0, 1, 1),
    "one position, bordered": ((2, 4, 7, 6), (6, 4, 1, 1), (2, 3), (1, 2), 1, 1),
    "one position, groups": ((2, 6, 9), (4, 3, 1), 4, 0, 1, 2),
    "windows apart": ((2, 3, 8, 8), (5, 3, 2, 2), 3, 0, 1, 1),
    "windows side by side": ((2, 3, 8, 12), (5, 3, 4, 4), 4, 0, 1, 1),
    "strided and dilated": ((2, 3, 13, 11), (4, 3, 3, 2), (3, 2), (2, 1), (2, 3), 1),
    "places apart": ((2, 6, 9, 12), (8, 6, 3, 3), 2, 1, 1, 1),
    "places apart, odd": ((1, 5, 7, 10), (4, 5, 4, 3), (3, 2), (0, 2), (1, 3), 1),
    "places apart, side by side": ((2, 7, 6, 9), (3, 7, 2, 3), (2, 3), 0, 1, 1),
    "places apart, without taps": ((2, 6, 8, 11), (3, 6, 1, 2), (3, 4), (1, 0), 1, 1),
    "places apart, dilated alike": ((2, 5, 15, 9), (3, 5, 3, 2), (2, 4), 1, (2, 2), 1),
    "places apart, one window": ((2, 5, 4, 3), (3, 5, 3, 3), 2, 0, 1, 1),
    "places apart, groups": ((2, 12, 9, 8), (4, 6, 3, 3), (2, 1), 1, 1, 2),
    "places apart, one dim": ((2, 5, 17), (4, 5, 5), 3, 2, 1, 1),
    "places apart, volume": ((1, 5, 5, 4, 6), (3, 5, 3, 2, 3), (2, 2, 1), 1, 1, 1),
    "wide border": ((1, 2, 4, 5), (3, 2, 2, 2), 1, 3, 1, 1),
    "groups": ((2, 6, 9, 8), (8, 3, 3, 3), (2, 1), 1, 1, 2),
    "a channel each": ((2, 6, 9, 8), (6, 1, 3, 3), 1, 1, 1, 6),
    "volume": ((1, 3, 4, 5, 6), (4, 3, 2, 3, 2), (1, 2, 1), 1, 1, 1),
    "transposed": ((2, 3, 5, 6), (3, 4, 3, 2), 2, 1, 1, 1),
    "transposed, many": ((2, 3, 4, 3), (3, 8, 3, 4), (2, 3), 1, 1, 1),
    "transposed, groups": ((2, 4, 5), (4, 3, 3), 3, 1, 2, 2),
}
KEPT = (
    "places apart",
    "places apart, odd",
    "places apart, without taps",
    "few positions",
    "one position, bordered",
    "strided and dilated",
    "groups",
    "a channel each",
    "transposed",
)


def convolution(case: str) -> Any:
    """Return the case's convolution of an image and a kernel."""
    shape, _, stride, padding, dilation, groups = CASES[case]
    rank = len(shape) - 2
    if case.startswith("transposed"):
        call: Any = getattr(F, f"conv_transpose{rank}d")
        return lambda x, w: call(x, w, None, stride, padding, 0, groups, dilation)
    call = getattr(F, f"conv{rank}d")
    return lambda x, w: call(x, w, None, stride, padding, dilation, groups)


def tensors(case: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    shape, kernel, *_ = CASES[case]
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype), torch.randn(kernel, dtype=dtype)


@pytest.mark.parametrize("library", [True, False], ids=["library", "ours"])
@pytest.mark.parametrize("wrt", ["both", "input", "weight"])
@pytest.mark.parametrize("case", few(CASES, *KEPT))
def test_gradients_of_a_convolution_are_eager_s(case: str, wrt: str, library: bool) -> None:
    x, w = tensors(case)
    x.requires_grad_(wrt != "weight")
    w.requires_grad_(wrt != "input")
    convolve = convolution(case)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = convolve(x, w)
        total: torch.Tensor = (y * y.sin()).sum()
        return total

    asked = [tensor for tensor in (x, w) if tensor.requires_grad]
    expected = torch.autograd.grad(loss(x, w), asked)
    compiled = tw.compile(loss, x, w, options=tw.Options(library=library))
    found = torch.autograd.grad(compiled(x, w), asked)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("case", few(CASES, *KEPT))
def test_without_the_library_convolutions_are_products(case: str) -> None:
    x, w = tensors(case, torch.float32)
    convolve = convolution(case)
    compiled = tw.compile(convolve, x, w, options=tw.Options(library=False))
    expected = convolve(x.double(), w.double())
    sizes = convolve(x.abs().double(), w.abs().double())
    assert ((compiled(x, w) - expected).abs() <= 1e-6 * sizes).all()
    assert ("contraction: " in compiled.explain()) == (case != "a channel each")


@pytest.mark.parametrize("case", few(CASES, *KEPT))
def test_without_the_library_convolutions_in_bfloat16_are_products_that_are_rounded_once(
    case: str,
) -> None:
    x, w = (value.bfloat16().requires_grad_() for value in tensors(case, torch.float32))
    convolve = convolution(case)
    dy = torch.randn_like(convolve(x, w))
    compiled = tw.compile(convolve, x, w, options=tw.Options(library=False))

    def all_three(function: Any, *given: torch.Tensor) -> list[torch.Tensor]:
        *inputs, tangent = (value.detach() for value in given)
        inputs = [value.requires_grad_() for value in inputs]
        y = function(*inputs)
        return [y, *torch.autograd.grad(y, inputs, tangent)]

    found = all_three(compiled, x, w, dy)
    exact = all_three(convolve, *(value.double() for value in (x, w, dy)))
    sizes = all_three(convolve, *(value.double().abs() for value in (x, w, dy)))
    for ours, right, size in zip(found, exact, sizes, strict=True):
        assert ((ours - right).abs() <= 2**-8 * right.abs() + 1e-6 * size).all()
    # Not those of an image of few channels whose windows are apart.
    assert compiled.explain().count("contraction: ") >= 2 * (case != "a channel each")


def test_threads_change_no_bit_of_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    torch.manual_seed(0)
    x = torch.randn(4, 16, 20, 20, requires_grad=True)
    w = torch.randn(40, 16, 3, 3, requires_grad=True)
    options = tw.Options(library=False)
    compiled = tw.compile(lambda x, w: F.conv2d(x, w, None, 2, 1), x, w, options=options)
    assert segments.is_wide(compiled.program)

    def step() -> list[torch.Tensor]:
        y = compiled(x, w)
        return [y, *torch.autograd.grad(y.square().sum(), (x, w))]

    assert_threads_change_no_bit(step)


def test_the_library_has_the_convolutions_that_it_is_faster_at() -> None:
    def explained(images: int, channels: int) -> str:
        x, w = torch.randn(images, channels, 9, 9), torch.randn(64, channels, 3, 3)
        gradient = tw.grad(lambda x, w: F.conv2d(x, w, padding=1).square().sum(), (0, 1))
        return gradient.explain(x, w)

    few, many, first = explained(1, 64), explained(8, 64), explained(8, 3)
    assert few.count("contraction: ") == 2
    assert "contraction: [64, 576] @ [576, 81]" in few  # forward
    assert "contraction: [64, 81] @ [81, 576]" in few  # the weight's gradient
    assert "1 library calls" in few
    assert "contraction: " not in many
    assert "1 library calls" in many  # the weight's gradient; the others are Winograd's
    assert "contraction: [64, 27] @ [27, 648]" in first  # forward
    assert "contraction: [64, 648] @ [648, 27]" in first  # the weight's gradient
    assert "0 library calls" in first


@pytest.mark.parametrize(("groups", "calls"), [(32, 0), (16, 0), (8, 2)])
def test_groups_of_few_channels_are_products(groups: int, calls: int) -> None:
    calls = 0 if leads_convolutions("") else calls
    x, w = torch.randn(4, 64, 14, 14), torch.randn(128, 64 // groups, 3, 3)
    gradient = tw.grad(lambda x, w: F.conv2d(x, w, None, 2, 1, 1, groups).square().sum(), (0, 1))
    assert f"{calls} library calls" in gradient.explain(x, w)
    asked = [tensor.requires_grad_() for tensor in (x, w)]
    exact = [tensor.detach().double().requires_grad_() for tensor in asked]
    compiled = tw.compile(lambda x, w: F.conv2d(x, w, None, 2, 1, 1, groups), *asked)
    found = torch.autograd.grad(compiled(*asked).square().sum(), asked)
    expected = torch.autograd.grad(F.conv2d(*exact, None, 2, 1, 1, groups).square().sum(), exact)
    for ours, theirs in zip(found, expected, strict=True):
        limit = 1e-5 * float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=limit)


@pytest.mark.parametrize(("side", "stride"), [(3, 2), (2, 3), (5, 2), (1, 2)])
def test_the_gradient_of_an_image_multiplies_no_zeros_between_places(
    side: int, stride: int
) -> None:
    x, w = torch.randn(4, 8, 12, 12), torch.randn(16, 8, side, side)
    gradient = tw.grad(lambda x, w: F.conv2d(x, w, None, stride, side // 2).sin().sum(), 0)
    _, *phases = re.findall(r"contraction: \[(\d+), (\d+)\]", gradient.explain(x, w))
    assert {int(rows) for rows, _ in phases} == {8}
    assert sum(int(terms) for _, terms in phases) == 16 * side * side


@pytest.mark.parametrize(
    ("kernel", "stride", "calls"),
    [(1, 1, 0), (1, 2, 0), (2, 2, 0), (3, 2, 0), (5, 2, 0), (5, 3, 1)],
)
def test_a_first_layer_is_the_library_s_where_it_is_faster(
    kernel: int, stride: int, calls: int
) -> None:
    """A weight's gradient where steps would add zeros, and forward where they are more than two."""
    x, w = torch.randn(16, 3, 20, 20), torch.randn(64, 3, kernel, kernel)
    gradient = tw.grad(lambda x, w: F.conv2d(x, w, None, stride).sin().sum(), 1)
    assert f"{calls} library calls" in gradient.explain(x, w)
    exact = w.double().requires_grad_()
    F.conv2d(x.double(), exact, None, stride).sin().sum().backward()
    torch.testing.assert_close(gradient(x, w).double(), exact.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "side", "stride", "calls"),
    [(16, 3, 2, 0), (8, 5, 2, 1), (24, 5, 1, 1), (24, 3, 3, 1), (200, 1, 1, 0)],
)
def test_wide_vectors_have_windows_two_apart_and_of_one_element(
    channels: int, side: int, stride: int, calls: int
) -> None:
    x, w = torch.randn(4, channels, 40, 40), torch.randn(40, channels, side, side)
    captured = tw.compile(lambda x, w: F.conv2d(x, w, None, stride), x, w).captured.graph
    graph = as_sums(captured)
    for vector, expected in ((WIDE, calls), (WIDE // 2, 1)):
        placed = PlaceConvolutions(vector=vector)(graph)
        assert sum(node.op == LIBRARY for node in placed.nodes) == expected


@pytest.mark.parametrize(
    ("places", "side", "squares", "calls"),
    [(32, 3, True, 0), (56, 5, True, 1), (56, 1, True, 0), (32, 3, False, 1)],
)
def test_in_bfloat16_squares_have_windows_two_apart_that_are_not_too_many(
    places: int, side: int, squares: bool, calls: int
) -> None:
    x, w = torch.randn(8, 64, places, places), torch.randn(64, 64, side, side)

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, None, 2, side // 2)

    graph = capture(convolve, x.bfloat16(), w.bfloat16()).graph
    joint = reverse(graph, [graph.inputs[1].name]).graph
    weight = replace(joint, outputs=joint.outputs[-1:])
    for one, called in ((graph, calls), (weight, side > 1)):
        placed = PlaceConvolutions(vector=WIDE, squares=squares)(DeadCode()(as_sums(one)))
        assert sum(node.op == LIBRARY for node in placed.nodes) == called


@pytest.mark.parametrize(
    ("sum_", "shape", "kernel", "stride", "groups", "dtype", "leads"),
    [
        ("forward", (4, 64, 48, 48), (32, 64, 3, 3), 2, 1, torch.float32, True),
        ("forward", (4, 8, 48, 48), (32, 8, 3, 3), 2, 1, torch.float32, True),
        ("forward", (4, 200, 24, 24), (32, 200, 1, 1), 1, 1, torch.float32, True),
        ("forward", (4, 64, 48, 48), (32, 32, 3, 3), 2, 2, torch.float32, True),
        ("forward", (4, 4, 48, 48), (32, 4, 3, 3), 2, 1, torch.float32, False),
        ("forward", (4, 24, 24, 24), (32, 24, 5, 5), 1, 1, torch.float32, False),
        ("forward", (4, 24, 49, 49), (32, 24, 5, 5), 2, 1, torch.float32, False),
        ("forward", (4, 24, 96, 96), (32, 24, 4, 4), 4, 1, torch.float32, True),
        ("forward", (4, 24, 24, 24), (32, 24, 5, 5), 1, 1, torch.float64, True),
        ("input", (4, 24, 24, 24), (32, 24, 5, 5), 1, 1, torch.float32, False),
        ("input", (4, 3, 95, 95), (32, 3, 11, 11), 4, 1, torch.float32, True),
        ("input", (4, 512, 9, 9), (512, 512, 3, 3), 2, 1, torch.float32, False),
        ("weight", (4, 24, 49, 49), (32, 24, 5, 5), 2, 1, torch.float32, True),
        ("weight", (4, 24, 24, 24), (32, 24, 5, 5), 1, 1, torch.float32, False),
    ],
)
def test_where_ours_lead_windows_apart_and_of_one_element_are_products(
    sum_: str,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int,
    groups: int,
    dtype: torch.dtype,
    *,
    leads: bool,
) -> None:
    """And everything in float64; who does not lead leaves all of these to the library."""
    x, w = torch.randn(shape, dtype=dtype), torch.randn(kernel, dtype=dtype)

    graph = capture(lambda x, w: F.conv2d(x, w, None, stride, 0, 1, groups), x, w).graph
    if sum_ != "forward":
        joint = reverse(graph, [graph.inputs[sum_ == "weight"].name]).graph
        graph = replace(joint, outputs=joint.outputs[-1:])
    graph = DeadCode()(as_sums(graph))
    for led in (True, False):
        placed = PlaceConvolutions(vector=WIDE // 2, leads=led)(graph)
        called = sum(node.op == LIBRARY for node in placed.nodes)
        assert called == (not (led and leads))


@pytest.mark.parametrize(
    ("stride", "padding"), [(1, 0), (1, 1), (2, 0), (3, 0), (2, 1), (3, 2), (2, 3)]
)
def test_gradients_of_windows_of_one_element_are_products(stride: int, padding: int) -> None:
    x, w = torch.randn(4, 200, 37, 40), torch.randn(160, 200, 1, 1)
    gradient = tw.grad(lambda x, w: F.conv2d(x, w, None, stride, padding).sin().sum(), (0, 1))
    text = gradient.explain(x, w)
    short = this_processor("").vector < WIDE and not leads_convolutions("")
    called = stride == 1 and short  # forward
    assert text.count("contraction: ") == 3 - called
    assert f"{int(called)} library calls" in text
    exact = [t.double().requires_grad_() for t in (x, w)]
    F.conv2d(*exact, None, stride, padding).sin().sum().backward()
    for found, one in zip(gradient(x, w), exact, strict=True):
        torch.testing.assert_close(found.double(), one.grad, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("library", [True, False], ids=["library", "ours"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(2, 8, 9, 12), (1, 8, 3, 12), (2, 8, 12)])
def test_a_bias_in_half_types_is_rounded_with_the_sum(
    dtype: torch.dtype, sizes: tuple[int, ...], groups: int, library: bool
) -> None:
    if dtype == torch.float16 and not library:
        pytest.skip("float16 has no products of ours")

    def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        call: Any = F.conv1d if len(sizes) == 3 else F.conv2d
        return call(x, weight, bias, groups=groups)

    x, bias = torch.randn(sizes).to(dtype), torch.randn(6).to(dtype)
    weight = torch.randn(6, 8 // groups, *(3 for _ in sizes[2:])).to(dtype)
    options = tw.Options(library=library)
    found = tw.compile(convolve, x, weight, bias, options=options)(x, weight, bias)
    exact = convolve(x.double(), weight.double(), bias.double())
    once = (convolve(x, weight, bias).double() - exact).square().mean()
    assert (found.double() - exact).square().mean() <= 1.05 * once


def test_a_bias_is_its_own_where_the_sums_without_it_are_read() -> None:
    x, weight, bias = torch.randn(2, 8, 9, 9), torch.randn(6, 8, 3, 3), torch.randn(6)

    def twice(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        made = F.conv2d(x, weight)
        return made + bias[:, None, None], made.tanh()

    given = [value.bfloat16() for value in (x, weight, bias)]
    for found, expected in zip(tw.compile(twice, *given)(*given), twice(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
