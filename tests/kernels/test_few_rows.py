"""Products of a few rows whose terms lie together: against NumPy, and each sum alone."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.products import product
from tests.kernels.test_contraction import (
    CANARY,
    MACHINES,
    assert_equal_numpy,
    assert_nothing_else_is_read,
    assert_parts_change_no_bit,
    compile_products,
    emitted,
    memory_of,
    run,
    sanitized,
    views,
)

from tilewright.base.dtypes import BF16
from tilewright.kernels import Product

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
    return compile_products(request.param, map(emitted, PRODUCTS))


def test_few_rows_equal_numpy_and_touch_nothing_else(library: ctypes.CDLL) -> None:
    assert_equal_numpy(library, PRODUCTS)


def test_few_rows_read_nothing_but_their_operands(library: ctypes.CDLL) -> None:
    assert_nothing_else_is_read(library, PRODUCTS)


def test_the_number_of_parts_changes_no_bit(library: ctypes.CDLL) -> None:
    assert_parts_change_no_bit(library, PRODUCTS)


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
