"""Products of a few rows whose terms lie together: against NumPy, and each sum alone."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import runnable
from tests.kernels.test_contraction import (
    CANARY,
    MACHINES,
    emitted,
    memory_of,
    operands,
    product,
    run,
    sanitized,
    view,
    views,
)

from tilewright.base.dtypes import BF16, F32
from tilewright.kernels import Product, tiles
from tilewright.kernels.contraction import count
from tilewright.runtime.toolchain import build, find_toolchain

MANY = 8300  # terms: more than twice those that are summed at a time
ALONE = [product((), m, n, k, "NT") for m, n in ((16, 135), (1, 1)) for k in (259, MANY)]
PRODUCTS: list[Product] = [
    *(product((), m, 150, k, "NT") for m in (2, 3, 5, 8, 9, 13, 16) for k in (128, 259)),
    *(replace(product((3,), m, 7, 131, "NT"), scale=-3.7) for m in (1, 4, 6)),
    *(product((), m, 50, k, "NT", BF16) for m in (2, 7, 9, 16) for k in (256, 515)),
    product((), 3, 37, MANY, "NT"),
    product((), 16, 9, MANY, "NT"),
    product((), 5, 9, 2 * MANY + 1, "NT", BF16),
    replace(product((), 4, 90, 200, "NT"), columns=((90, 200, 3),), rows=((4, 64, 271),)),
    replace(product((), 4, 60, 70, "NT"), columns=((2, 4200, 30), (30, 70, 1))),
    *ALONE,
]


@pytest.fixture(scope="module", params=MACHINES)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compile every product for one kind of machine; skip what this one cannot run."""
    found = find_toolchain(runnable(request.param))
    visible = tuple("-fvisibility=default" if "visibility" in f else f for f in found.flags)
    kernels = {made.name: made.text for made in map(emitted, PRODUCTS)}
    texts = {**dict(map(tiles, (F32, BF16))), "products": "\n".join(kernels.values())}
    built = build(replace(found, flags=visible), texts)
    built.target = request.param  # type: ignore[attr-defined]
    return built


def test_few_rows_equal_numpy_and_touch_nothing_else(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(0)
    for one in PRODUCTS:
        memory = memory_of(one, source)
        run(library, one, memory)
        a, b, c = views(one, memory)
        exact = one.scale * np.matmul(a.astype(np.float64), b.astype(np.float64))
        sizes = abs(one.scale) * np.matmul(abs(a).astype(np.float64), abs(b).astype(np.float64))
        rounding = np.finfo(one.dtype.compute.numpy).eps * (2 + count(one.terms) / 16)
        assert (abs(c - exact) <= rounding * sizes).all(), one
        view(memory[2], *operands(one)[2])[...] = CANARY
        assert (memory[2] == memory[2].dtype.type(CANARY)).all(), f"{one} wrote beside its result"


def test_a_few_rows_times_columns_have_the_bits_of_each_alone(library: ctypes.CDLL) -> None:
    """What a lane sums is told by the terms alone."""
    source = np.random.default_rng(0)
    for terms in (259, MANY):
        one = product((), 16, 135, terms, "NT")
        memory = memory_of(one, source)
        run(library, one, memory)
        a, b, c = views(one, memory)
        for row, column in ((0, 0), (5, 3), (7, 134), (15, 131)):
            alone = [a[row].copy(), b[:, column].copy(), np.full(65, CANARY, np.float32)]
            run(library, product((), 1, 1, terms, "NT"), alone)
            assert alone[2][0] == c[row, column], (terms, row, column)


@pytest.mark.sweep
def test_few_rows_pass_the_sanitizers(library: ctypes.CDLL, tmp_path: Path) -> None:
    assert sanitized(library, PRODUCTS, tmp_path) == ""
