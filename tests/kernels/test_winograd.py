"""Winograd's convolutions against sums in float64: any strides, any blocks, what is not finite."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.dtypes import F32
from tilewright.kernels import (
    MOST_INPUTS,
    Winograd,
    emit_winograd,
    emit_winograd_at_once,
    emit_winograd_weights,
    tiles,
    winograd_text,
)
from tilewright.runtime.toolchain import build, find_toolchain

CANARY = np.float32(-7.25)


def dense(*shape: int) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape)))


def made(
    images: int,
    outputs: int,
    inputs: int,
    height: int,
    width: int,
    order: str = "nchw",
    kernel: str = "ocij",
) -> Winograd:
    """Return a convolution whose x and y, and whose kernels, lie in an order of their dims."""

    def lie(channels: int, h: int, w: int) -> tuple[int, ...]:
        extents = dict(zip("nchw", (images, channels, h, w), strict=True))
        strides = dict(zip(order, dense(*(extents[dim] for dim in order)), strict=True))
        return tuple(strides[dim] for dim in "nchw")

    x, y = lie(inputs, height + 2, width + 2), lie(outputs, height, width)
    sides = dict(zip("ocij", (outputs, inputs, 3, 3), strict=True))
    steps = dict(zip(kernel, dense(*(sides[dim] for dim in kernel)), strict=True))
    kernels = tuple(steps[dim] for dim in "ocij")
    return Winograd(F32, images, outputs, inputs, height, width, x, kernels, y)


CASES = (
    made(2, 20, 17, 6, 10),
    made(1, 5, 1, 2, 2),
    made(3, 33, 40, 12, 66),
    made(2, 16, 16, 8, 14, order="nhwc"),
    made(1, 3, MOST_INPUTS, 4, 4),
    made(2, 3, MOST_INPUTS + 20, 4, 4),
    made(9, 70, 24, 16, 16, order="cnhw"),
    made(1, 45, 19, 2, 4, kernel="coij"),
    made(1, 30, 33, 6, 2, kernel="cijo"),
    made(2, 17, 5, 4, 8, kernel="ijco"),
    made(1, 1, 40, 8, 34, kernel="ocji"),
)
WAYS = ("before", "at once")


@pytest.fixture(scope="module", params=["native", "x86-64-v3", "x86-64"])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compile every convolution for one kind of machine; skip what this one cannot run."""
    kernels = {
        kernel.name: kernel.text
        for one in (*CASES, turned(CASES[0]))
        for kernel in (emit_winograd_weights(one), emit_winograd(one), emit_winograd_at_once(one))
    }
    return compiled_for(request.param, dict([winograd_text(F32), tiles(F32)]) | kernels)


def compiled_for(target: str, texts: dict[str, str]) -> ctypes.CDLL:
    """Return a library of C texts for one kind of machine; skip what this one cannot run."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    needed = {"native": "", "x86-64-v3": "avx2", "x86-64": "sse2"}[target]
    if needed not in flags:
        pytest.skip("this processor does not run such code")
    found = find_toolchain()
    given = (f"-march={target}" if "-march" in flag else flag for flag in found.flags)
    visible = ("-fvisibility=default" if "visibility" in flag else flag for flag in given)
    toolchain = replace(found, flags=tuple(visible))
    return build(toolchain, texts)


def turned(one: Winograd) -> Winograd:
    """Return the same with taps backwards and channels exchanged, as in the gradient of x."""
    o, c, i, j = dense(one.inputs, one.outputs, 3, 3)
    return Winograd(
        F32, one.images, one.outputs, one.inputs, one.height, one.width, one.x, (c, o, -i, -j),
        one.y,
    )  # fmt: skip


def run(
    library: ctypes.CDLL,
    one: Winograd,
    x: np.ndarray,
    k: np.ndarray,
    parts: Sequence[int] = (),
    first_tap: int = 0,
    way: str = "before",
) -> np.ndarray:
    """Return y's memory, with some behind it; parts: where ranges of parts begin and end.

    way: when kernels are transformed, one of WAYS.
    """
    u = np.full(int(np.prod(one.transformed)), np.nan, np.float32)
    size = sum((n - 1) * s for n, s in zip(shape_of(one), one.y, strict=True)) + 1
    y = np.full(size + 64, CANARY, np.float32)
    start = k[first_tap:].ctypes.data
    launches = {
        "before": (
            (emit_winograd_weights(one), (start, u.ctypes.data)),
            (emit_winograd(one), (x.ctypes.data, u.ctypes.data, start, y.ctypes.data)),
        ),
        "at once": ((emit_winograd_at_once(one), (x.ctypes.data, start, y.ctypes.data)),),
    }
    for kernel, pointers in launches[way]:
        function = library[kernel.name]
        function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
        cuts = (0, *(at for at in parts if at < kernel.parts), kernel.parts)
        for begin, end in pairwise(cuts):
            table = (ctypes.c_void_p * len(pointers))(*pointers)
            assert function(table, begin, end, kernel.parts) == 0
    assert (y[size:] == CANARY).all(), "it wrote beyond its output"
    return y[:size]


def shape_of(one: Winograd) -> tuple[int, int, int, int]:
    return one.images, one.outputs, one.height, one.width


def view(memory: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    steps = [step * memory.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(memory, shape, steps)


def operands(one: Winograd, seed: int) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    image = one.images * one.inputs * (one.height + 2) * (one.width + 2)
    return (
        source.standard_normal(image).astype(np.float32),
        source.standard_normal(one.outputs * one.inputs * 9).astype(np.float32),
    )


def exact(one: Winograd, x: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the sum as the definition says, of memory that k's strides go forward through."""
    image = view(x, (one.images, one.inputs, one.height + 2, one.width + 2), one.x)
    kernels = view(k, (one.outputs, one.inputs, 3, 3), one.k).astype(np.float64)
    total = np.zeros(shape_of(one))
    for i in range(3):
        for j in range(3):
            part = image[:, :, i : i + one.height, j : j + one.width].astype(np.float64)
            total += np.einsum("nchw,oc->nohw", part, kernels[:, :, i, j])
    return total


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("one", CASES, ids=range(len(CASES)))
def test_outputs_are_near_those_of_the_definition(
    one: Winograd, way: str, library: ctypes.CDLL
) -> None:
    x, k = operands(one, 0)
    found = view(run(library, one, x, k, way=way), shape_of(one), one.y)
    # Sums of n terms around 1 are rounded n times, and grow with the root of n; so do errors.
    bound = np.finfo(np.float32).eps * (9 * one.inputs + 32)
    assert abs(found - exact(one, x, k)).max() <= bound


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("one", CASES, ids=range(len(CASES)))
def test_blocks_change_no_bit(one: Winograd, way: str, library: ctypes.CDLL) -> None:
    x, k = operands(one, 1)
    whole = run(library, one, x, k)
    for parts in ((), (1,), (1, 2, 3, 5, 8), tuple(range(1, 16)), (7,)):
        assert np.array_equal(run(library, one, x, k, parts, way=way), whole)


@pytest.mark.parametrize("way", WAYS)
def test_taps_may_go_backwards(way: str, library: ctypes.CDLL) -> None:
    one = turned(CASES[0])
    x, k = operands(one, 2)
    found = view(run(library, one, x, k, first_tap=8, way=way), shape_of(one), one.y)
    forward = k.reshape(one.inputs, one.outputs, 3, 3)[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    expected = exact(CASES[0], x, np.ascontiguousarray(forward).reshape(-1))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["image", "kernels"])
def test_what_is_not_finite_is_seen_where_the_definition_has_it(
    where: str, value: float, library: ctypes.CDLL
) -> None:
    one = CASES[0]
    x, k = operands(one, 3)
    memory = x if where == "image" else k
    memory[[5, 700]] = value
    found = view(run(library, one, x, k), shape_of(one), one.y)
    with np.errstate(invalid="ignore"):
        expected = exact(one, x, k).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_transforms_that_overflow_do_not_make_sums_infinite(library: ctypes.CDLL) -> None:
    one = CASES[0]
    x, k = operands(one, 4)
    x[[5, 700]] = 3e38, -3e38
    found = view(run(library, one, x, k), shape_of(one), one.y)
    sizes = exact(one, abs(x), abs(k))
    bound = np.float64(np.finfo(np.float32).max)
    assert (sizes > 1e37).any()
    assert np.isfinite(found[sizes < bound]).all()
