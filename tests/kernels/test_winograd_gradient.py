"""Gradients of kernels by Winograd's algorithm against sums in float64."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.kernels.test_winograd import compiled_for, made, operands, shape_of, view

from tilewright.base.dtypes import F32
from tilewright.kernels import (
    Emitted,
    Tiling,
    Winograd,
    WinogradGradient,
    emit_gradient_of_kernels,
    emit_sums,
    emit_transformed_image,
    emit_transformed_tangent,
    tiles,
    winograd_gradient_text,
)

CANARY = np.float32(-7.25)
CASES = (
    made(2, 20, 17, 6, 10),
    made(1, 5, 1, 2, 2),
    made(3, 33, 40, 12, 66),
    made(2, 16, 16, 8, 14, order="nhwc"),
    made(9, 70, 24, 16, 16, order="cnhw"),
    made(1, 7, 150, 2, 4),
    made(5, 3, 33, 4, 2, kernel="ocji"),
    made(2, 6, 19, 6, 34, kernel="ijco"),
)


@pytest.fixture(scope="module", params=["native", "x86-64-v3", "x86-64"])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compile every gradient for one kind of machine; skip what this one cannot run."""
    texts = dict([winograd_gradient_text(F32), tiles(F32)])
    kernels = {kernel.name: kernel.text for one in CASES for kernel in kernels_of(one)}
    return compiled_for(request.param, {**texts, **kernels})


def kernels_of(one: Winograd) -> tuple[Emitted, ...]:
    gradient = WinogradGradient(one)
    return (
        emit_transformed_image(gradient),
        emit_transformed_tangent(gradient),
        emit_sums(gradient, Tiling()),
        emit_gradient_of_kernels(gradient),
    )


def run(
    library: ctypes.CDLL, one: Winograd, x: np.ndarray, y: np.ndarray, parts: Sequence[int] = ()
) -> np.ndarray:
    """Return the gradient; parts: where ranges of parts begin and end."""
    gradient = WinogradGradient(one)
    shapes = gradient.image, gradient.tangent, gradient.sums
    size = one.outputs * one.inputs * 9
    # Whatever lies in memory before, also what is no number, is not seen.
    v, d, m = (np.full(int(np.prod(shape)) + 64, np.nan, np.float32) for shape in shapes)
    k = np.full(size + 64, CANARY, np.float32)
    arrays = (x, v), (y, d), (d, v, m), (x, y, m, k)
    for kernel, given in zip(kernels_of(one), arrays, strict=True):
        function = library[kernel.name]
        function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
        cuts = (0, *(at for at in parts if at < kernel.parts), kernel.parts)
        for begin, end in pairwise(cuts):
            table = (ctypes.c_void_p * len(given))(*(array.ctypes.data for array in given))
            assert function(table, begin, end, kernel.parts) == 0
    for array, shape in zip((v, d, m), shapes, strict=True):
        assert np.isnan(array[int(np.prod(shape)) :]).all(), "it wrote beyond what it was given"
    assert (k[size:] == CANARY).all(), "it wrote beyond its output"
    return view(k[:size], (one.outputs, one.inputs, 3, 3), one.k).copy()


def tangent(one: Winograd, seed: int) -> np.ndarray:
    size = int(np.prod(shape_of(one)))
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def exact(one: Winograd, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sum as the definition says."""
    image = view(x, (one.images, one.inputs, one.height + 2, one.width + 2), one.x)
    outputs = view(y, shape_of(one), one.y).astype(np.float64)
    total = np.zeros((one.outputs, one.inputs, 3, 3))
    for i in range(3):
        for j in range(3):
            part = image[:, :, i : i + one.height, j : j + one.width].astype(np.float64)
            total[:, :, i, j] = np.einsum("nchw,nohw->oc", part, outputs)
    return total


@pytest.mark.parametrize("one", CASES, ids=range(len(CASES)))
def test_gradients_are_near_those_of_the_definition(one: Winograd, library: ctypes.CDLL) -> None:
    x, y = operands(one, 0)[0], tangent(one, 1)
    # Sums of n terms around 1 are rounded n times, and grow with the root of n; so do errors.
    terms = one.images * one.height * one.width
    bound = np.finfo(np.float32).eps * (terms + 32)
    assert abs(run(library, one, x, y) - exact(one, x, y)).max() <= bound


@pytest.mark.parametrize("one", CASES, ids=range(len(CASES)))
def test_blocks_change_no_bit(one: Winograd, library: ctypes.CDLL) -> None:
    x, y = operands(one, 2)[0], tangent(one, 3)
    whole = run(library, one, x, y)
    for parts in ((1,), (1, 2, 3, 5, 8), tuple(range(1, 64)), (7,)):
        assert np.array_equal(run(library, one, x, y, parts), whole)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["image", "tangent"])
@pytest.mark.parametrize("one", [CASES[0], CASES[5]], ids=["0", "5"])
def test_what_is_not_finite_is_seen_where_the_definition_has_it(
    one: Winograd, where: str, value: float, library: ctypes.CDLL
) -> None:
    x, y = operands(one, 4)[0], tangent(one, 5)
    memory = x if where == "image" else y
    memory[[5, -20]] = value
    with np.errstate(invalid="ignore"):
        expected = exact(one, x, y).astype(np.float32)
    assert np.isfinite(expected).any()
    assert not np.isfinite(expected).all()
    np.testing.assert_allclose(run(library, one, x, y), expected, rtol=0, atol=1e-4)


def test_transforms_that_overflow_do_not_make_sums_infinite(library: ctypes.CDLL) -> None:
    one = CASES[0]
    x, y = operands(one, 6)[0], tangent(one, 7)
    x[[5, 700]] = 3e38, -3e38
    y *= np.float32(0.1)
    sizes = exact(one, abs(x), abs(y))
    bound = np.float64(np.finfo(np.float32).max)
    assert (sizes > 1e37).any()
    assert np.isfinite(run(library, one, x, y)[sizes < bound]).all()
