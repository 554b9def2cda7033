"""Depthwise convolutions and their gradients against sums in float64, however images lie."""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.test_winograd import CANARY, compiled_for, dense
from tests.standalone import Done, Operand, run_standalone, write_kernels
from tests.sweep import few

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels import Depthwise, depthwise_text, emit_depthwise
from tilewright.program import KernelSource

KINDS = ("forward", "input", "weight")
Pair = tuple[int, int]
# images, channels, size, taps, stride, padding, dilation
CASES: dict[str, tuple[int, int, Pair, Pair, Pair, Pair, Pair]] = {
    "3 x 3": (2, 5, (11, 17), (3, 3), (1, 1), (1, 1), (1, 1)),
    "two apart": (2, 33, (13, 18), (3, 3), (2, 2), (1, 1), (1, 1)),
    "dilated and apart": (2, 3, (17, 19), (3, 4), (2, 3), (1, 3), (3, 2)),
    "windows with gaps": (1, 9, (17, 23), (2, 2), (4, 4), (0, 0), (1, 1)),
    "a wide border": (1, 17, (3, 4), (2, 3), (1, 1), (3, 9), (1, 1)),
    "a border beyond all taps": (1, 2, (4, 3), (2, 2), (2, 2), (5, 5), (1, 1)),
    "smaller than its window": (2, 16, (3, 2), (7, 7), (1, 1), (3, 3), (1, 1)),
    "more taps than registers": (1, 3, (14, 19), (9, 16), (1, 1), (4, 8), (1, 1)),
    "one row": (2, 8, (1, 70), (1, 4), (1, 1), (0, 3), (1, 1)),
    "one column": (1, 24, (30, 1), (5, 1), (2, 1), (2, 0), (1, 1)),
    "blocks of rows": (1, 4, (151, 70), (3, 3), (2, 2), (1, 1), (1, 1)),
    "taps of one phase": (1, 3, (151, 3), (1, 3), (2, 3), (1, 13), (3, 3)),
    "one element": (3, 7, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
}


def made(case: str, kind: str, order: str, dtype: DType) -> Depthwise:
    """Return a case whose images lie in an order of their dims; kernels row by row."""
    images, channels, size, taps, stride, padding, dilation = CASES[case]
    dims = zip(size, taps, stride, padding, dilation, strict=True)
    height, width = ((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in dims)

    def lie(h: int, w: int) -> tuple[int, ...]:
        extents = dict(zip("nchw", (images, channels, h, w), strict=True))
        strides = dict(zip(order, dense(*(extents[dim] for dim in order)), strict=True))
        return tuple(strides[dim] for dim in "nchw")

    kernels = (taps[0] * taps[1], taps[1], 1)
    y = lie(height, width)
    return Depthwise(
        kind, dtype, images, channels, size, taps, (height, width), stride, padding, dilation,
        lie(*size), kernels, y,
    )  # fmt: skip


ORDERS = ("nchw", "nhwc", "nhcw")
TARGETS = ("native", "x86-64")
SOME = few(CASES, "two apart", "smaller than its window")


@cache
def library(one: Depthwise, target: str = "native") -> ctypes.CDLL:
    """Compile a convolution for one kind of machine."""
    kernel = emit_depthwise(one)
    return compiled_for(target, dict([depthwise_text(one), (kernel.name, kernel.text)]))


def shapes(one: Depthwise) -> dict[str, tuple[int, ...]]:
    x = (one.images, one.channels, *one.image)
    return {"x": x, "k": (one.channels, *one.taps), "y": (*x[:2], *one.result)}


def view(one: Depthwise, part: str, memory: np.ndarray) -> np.ndarray:
    strides = [step * memory.itemsize for step in getattr(one, part)]
    return np.lib.stride_tricks.as_strided(memory, shapes(one)[part], strides)


def memories(one: Depthwise) -> dict[str, np.ndarray]:
    generator, dtype = np.random.default_rng(7), np.float32 if one.dtype == F32 else np.float64
    sizes = {part: int(np.prod(shape)) for part, shape in shapes(one).items()}
    return {part: generator.standard_normal(size).astype(dtype) for part, size in sizes.items()}


def run(
    one: Depthwise,
    given: dict[str, np.ndarray],
    cuts: Sequence[int] = (),
    target: str = "native",
) -> np.ndarray:
    """Return what is made, as it lies; cuts: where ranges of parts begin and end."""
    first, second, last = {"forward": "xky", "input": "ykx", "weight": "xyk"}[one.kind]
    result = np.full(given[last].size + 64, CANARY, given[last].dtype)
    pointers = (given[first].ctypes.data, given[second].ctypes.data, result.ctypes.data)
    kernel = emit_depthwise(one)
    function = library(one, target)[kernel.name]
    function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
    for begin, end in pairwise((0, *(at for at in cuts if at < kernel.parts), kernel.parts)):
        table = (ctypes.c_void_p * 3)(*pointers)
        assert function(table, begin, end, kernel.parts) == 0
    assert (result[-64:] == CANARY).all(), "it wrote beyond its output"
    return result[:-64]


def summed(one: Depthwise, given: dict[str, np.ndarray]) -> np.ndarray:
    """Return the same, tap by tap, in float64."""
    x, k, y = (view(one, part, given[part]).astype(np.float64) for part in "xky")
    (height, width), (down, right), (s, t) = one.result, one.padding, one.stride
    sides = [(side, side + (n - 1) * d) for side, n, d in
             zip(one.padding, one.taps, one.dilation, strict=True)]  # fmt: skip
    bordered = np.pad(x, [(0, 0), (0, 0), *sides])
    made, back, taps = np.zeros_like(y), np.zeros_like(bordered), np.zeros_like(k)
    for i, j in np.ndindex(*one.taps):
        rows = slice(i * one.dilation[0], i * one.dilation[0] + (height - 1) * s + 1, s)
        columns = slice(j * one.dilation[1], j * one.dilation[1] + (width - 1) * t + 1, t)
        read, factor = bordered[:, :, rows, columns], k[None, :, i, j, None, None]
        made += read * factor
        back[:, :, rows, columns] += y * factor
        taps[:, i, j] = (read * y).sum((0, 2, 3))
    inside = back[:, :, down : down + x.shape[2], right : right + x.shape[3]]
    return {"forward": made, "input": inside, "weight": taps}[one.kind]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize("case", SOME)
def test_a_depthwise_convolution_is_its_sum(case: str, order: str, kind: str, target: str) -> None:
    assert_sums(made(case, kind, order, F32), target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_so_it_is_in_float64_and_in_any_order(order: str, kind: str) -> None:
    assert_sums(made("3 x 3", kind, order, F64), "native")


def assert_sums(one: Depthwise, target: str) -> None:
    given = memories(one)
    expected = summed(one, given)
    part = {"forward": "y", "input": "x", "weight": "k"}[one.kind]
    found = view(one, part, run(one, given, target=target))
    limit = (1e-5 if one.dtype == F32 else 1e-13) * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize("case", few(("two apart", "blocks of rows"), "two apart"))
def test_parts_change_no_bit(case: str, order: str, kind: str) -> None:
    one = made(case, kind, order, F32)
    given = memories(one)
    assert np.array_equal(run(one, given), run(one, given, (1, 2, 5)))


@pytest.mark.sweep
def test_depthwise_convolutions_pass_the_sanitizers(tmp_path: Path) -> None:
    done, more = list[Done](), dict[str, KernelSource]()
    cases = ("dilated and apart", "windows with gaps", "a wide border", "taps of one phase")
    for case, order, kind in product(cases, ORDERS[:2], KINDS):
        one = made(case, kind, order, F32)
        given = memories(one)
        inputs = [Operand(given[part]) for part in {"forward": "xk", "input": "yk"}.get(kind, "xy")]
        done.append(Done(emit_depthwise(one), inputs, [Operand(run(one, given))]))
        name, text = depthwise_text(one)
        more[name] = KernelSource(name, text)
    write_kernels(done, tmp_path, list(more.values()))
    # Without optimisation sums may be rounded otherwise.
    told = run_standalone(tmp_path, "sanitize")
    assert "runtime error" not in told
    assert "Sanitizer" not in told


@pytest.mark.parametrize("order", ORDERS[:2])
def test_what_no_window_reaches_is_in_no_gradient_of_a_kernel(order: str) -> None:
    """The last row and the last columns are read with others, and may be infinite."""
    one = made("windows with gaps", "weight", order, F32)
    given = memories(one)
    expected = run(one, given)
    x = view(one, "x", given["x"])
    x[:, :, -3:], x[:, :, :, -1] = np.nan, np.inf
    assert np.array_equal(run(one, given), expected)
