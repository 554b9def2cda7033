"""Convolutions whose channels have a kernel each: a kernel of ours, and it equals eager's."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compiler.threads import assert_threads_change_no_bit
from tests.sweep import few

import tilewright as tw
from tilewright.runtime import segments

# image, kernel, stride, padding, dilation
CASES: dict[str, tuple[Any, ...]] = {
    "3 x 3": ((2, 5, 11, 17), (3, 3), 1, 1, 1),
    "two apart": ((2, 4, 13, 18), (3, 3), 2, 1, 1),
    "three apart, not square": ((1, 4, 14, 25), (5, 2), (2, 3), (2, 0), 1),
    "dilated": ((2, 3, 15, 12), (3, 3), 1, 2, 2),
    "dilated and apart": ((2, 3, 17, 19), (3, 4), (2, 3), (1, 3), (3, 2)),
    "windows with gaps": ((2, 3, 17, 23), (2, 2), 4, 0, 1),
    "wide border": ((1, 3, 3, 4), (2, 3), 1, (3, 9), 1),
    "many taps": ((1, 3, 12, 20), (7, 7), 1, 3, 1),
    "one dim": ((2, 6, 70), (4,), 1, 3, 1),
    "one dim, many taps, apart": ((2, 3, 90), (31,), 2, 15, 1),
    "many rows": ((1, 2, 150, 70), (3, 3), 1, 1, 1),
    "many rows, apart": ((1, 2, 151, 70), (3, 3), 2, 1, 1),
    "one column": ((2, 3, 9, 1), (3, 1), 1, 1, 1),
    "one result": ((2, 3, 5, 5), (5, 5), 1, 0, 1),
}


def convolution(case: str, *, transposed: bool = False) -> Any:
    """Return the case's convolution of an image and a kernel, or the gradient of one as such."""
    shape, kernel, *settings = CASES[case]
    stride, padding, dilation = settings
    call: Any = getattr(F, f"conv{'_transpose' if transposed else ''}{len(kernel)}d")
    if transposed:
        return lambda x, w: call(x, w, None, stride, padding, 0, shape[1], dilation)
    return lambda x, w: call(x, w, None, stride, padding, dilation, shape[1])


def tensors(case: str, dtype: torch.dtype, *, last: bool = False) -> list[torch.Tensor]:
    """Return the image, row by row or with its channels last, and the kernels."""
    shape, kernel, *_ = CASES[case]
    generator = torch.Generator().manual_seed(random.Random(case).randrange(1000))
    made = (shape, (shape[1], 1, *kernel))
    image, weight = (torch.randn(s, generator=generator, dtype=dtype) for s in made)
    if last:
        image = image.to(memory_format=torch.channels_last)
    return [image.requires_grad_(), weight.requires_grad_()]


def with_gradients(function: Any, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    y = function(*operands)
    tangent = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).sin().reshape(y.shape)
    return [y.detach(), *torch.autograd.grad(y, operands, tangent)]


def exact(function: Any, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return eager's result and gradients in float64; skip what torch has not."""
    try:
        return with_gradients(function, [t.detach().double().requires_grad_() for t in operands])
    except RuntimeError:
        pytest.skip("torch has no transposed convolution whose border is wider than its result")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(
    "case", few(CASES, "dilated and apart", "many taps", "many rows, apart", "one dim")
)
def test_channel_by_channel_it_is_a_kernel_of_ours(
    case: str, transposed: bool, dtype: torch.dtype
) -> None:
    convolve, operands = convolution(case, transposed=transposed), tensors(case, dtype)
    expected = exact(convolve, operands)
    compiled = tw.compile(convolve, *operands)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for ours, true in zip(with_gradients(compiled, operands), expected, strict=True):
        limit = tolerance * max(1.0, float(true.abs().max()))
        torch.testing.assert_close(ours.double(), true, rtol=tolerance, atol=limit)
    text = compiled.explain()
    # What one result gives back to an image is a product of numbers, no sum.
    sums = 2 if case == "one result" and not transposed else 3
    assert text.count("depthwise convolution, ") == sums
    assert "library  " not in text


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(
    "case",
    few(
        [case for case in CASES if len(CASES[case][1]) == 2],
        "dilated and apart",
        "many taps",
        "one column",
    ),
)
def test_images_whose_channels_lie_last_are_read_so(case: str, transposed: bool) -> None:
    convolve = convolution(case, transposed=transposed)
    operands = tensors(case, torch.float32, last=True)
    expected = exact(convolve, operands)
    compiled = tw.compile(convolve, *operands)
    found = with_gradients(compiled, operands)
    for ours, true in zip(found, expected, strict=True):
        limit = 1e-5 * max(1.0, float(true.abs().max()))
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=limit)
    if 1 not in (*operands[0].shape, *found[0].shape):
        eager = with_gradients(convolve, operands)
        assert [t.stride() for t in found[:2]] == [t.stride() for t in eager[:2]]


def test_no_image_is_copied_whose_channels_lie_last() -> None:
    x = torch.randn(2, 24, 10, 12).to(memory_format=torch.channels_last)
    w, b = torch.randn(24, 1, 3, 3), torch.randn(24)
    compiled = tw.compile(lambda x: torch.relu(F.conv2d(x, w, b, 1, 1, 1, 24)), x)
    (image,) = (b for b in compiled.program.buffers if b.name == "x")
    (view,) = compiled.program.outputs
    assert image.strides == view.strides == x.stride()


def test_what_no_window_reaches_is_in_no_gradient_of_a_kernel() -> None:
    """Columns behind the last window are read along with it, and may be infinite."""
    x, w = torch.randn(2, 4, 10, 14), torch.randn(4, 1, 3, 3)
    spoiled = x.clone()
    spoiled[..., 12:], spoiled[:, :, 9:] = torch.inf, torch.nan
    asked = w.requires_grad_()
    convolve = tw.compile(lambda x, w: F.conv2d(x, w, None, (2, 3), 0, 1, 4), x, asked)
    found = [torch.autograd.grad(convolve(image, asked).sum(), asked)[0] for image in (x, spoiled)]
    assert torch.equal(*found)


def test_rows_too_long_to_be_copied_are_the_library_s() -> None:
    x, w = torch.randn(1, 2, 50_000), torch.randn(2, 1, 3)
    compiled = tw.compile(lambda x, w: F.conv1d(x, w, None, 1, 1, 1, 2), x, w)
    assert "1 library calls" in compiled.explain()
    torch.testing.assert_close(compiled(x, w), F.conv1d(x, w, None, 1, 1, 1, 2))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, order: torch.memory_format) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    x = torch.randn(3, 20, 40, 37).to(memory_format=order).requires_grad_()
    w = torch.randn(20, 1, 3, 3).requires_grad_()
    compiled = tw.compile(lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 20), x, w)
    assert segments.is_wide(compiled.program)
    assert_threads_change_no_bit(lambda: with_gradients(compiled, [x, w]))
