"""Formulas: the naive loop against numbers worked out by hand, the fast ways against the naive."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.graph.formulas import EVERYTHING, POINTWISE, PRODUCTS, Wanted, draw
from tests.sweep import few

from tilewright.base.dtypes import BF16, BOOL, F32, F64, I64, DType
from tilewright.base.errors import IndexRangeError, Origin
from tilewright.graph import notation
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.evaluate_contraction import evaluate_contraction
from tilewright.graph.evaluate_grid import evaluate_grid
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import Formula, TensorType

Array = np.ndarray
NAN, INF = np.nan, np.inf


def read(text: str, *shape: int, dtype: DType = F64) -> Formula:
    return notation.read(text, TensorType(shape, dtype))


def f64(*values: float) -> Array:
    return np.array(values, dtype=np.float64)


def both_ways(formula: Formula, *arrays: Array) -> Any:
    """Return the result, the same by the naive loop and by the grid in blocks of any size."""
    found = evaluate_naive(formula, arrays)
    for block in (1, 3, 1 << 20):
        again = evaluate_grid(formula, arrays, block=block)
        np.testing.assert_array_equal(again, found)
        assert again.dtype == found.dtype
    return found.tolist()


# ------------------------------------------------------------------ the meaning, worked out by hand


def test_a_direct_read_outside_makes_the_whole_term_absent() -> None:
    # exp(0) is 1: absence is not a zero inside the value.
    shifted = read("y[i<3] = exp(x[i-1]) else 9", 3)
    assert both_ways(shifted, f64(0, 0, 0)) == [9, 1, 1]


def test_a_default_is_read_outside() -> None:
    assert both_ways(read("y[i<3] = 10 + (x[i-1] ?? 5)", 3), f64(1, 2, 3)) == [15, 11, 12]


def test_a_default_may_itself_be_absent() -> None:
    formula = read("x, z: y[i<3] = x[i-1] ?? z[i+2] else -1", 3)
    assert both_ways(formula, f64(1, 2, 3), f64(0, 0)) == [-1, 1, 2]


def test_an_exact_division_with_a_remainder_is_absent() -> None:
    assert both_ways(read("y[i<4] = x[i/2] else 7", 4), f64(1, 2)) == [1, 7, 2, 7]
    assert both_ways(read("y[i/2] = x[i<4]", 2), f64(1, 2, 3, 4)) == [1, 3]


def test_the_branch_not_taken_guards_its_reads() -> None:
    formula = read("y[i<3] = x[i-1] if i > 0 else -1", 3)
    assert both_ways(formula, f64(5, 6, 7)) == [-1, 5, 6]


def test_where_keeps_terms_out() -> None:
    formula = read("y[j<3] += x[i<3] where i <= j", 3)
    assert both_ways(formula, f64(1, 10, 100)) == [1, 11, 111]


def test_a_target_index_outside_is_absent() -> None:
    assert both_ways(read("y[i+1] += x[i<3]", 3), f64(1, 2, 3)) == [0, 1, 2]


def test_the_last_of_several_writes_stays() -> None:
    assert both_ways(
        read("x, p: y[p[i]] = x[i<4]", 2), f64(1, 2, 3, 4), np.array([0, 1, 0, 1])
    ) == [
        3,
        4,
    ]


def test_from_is_combined_with_and_overwritten_by_assignment() -> None:
    arrays = (f64(1, 2), np.array([2, 2]), f64(10, 20, 30))
    assert both_ways(read("x, p, t: y[p[i]] += x[i<2] from t", 3), *arrays) == [10, 20, 33]
    assert both_ways(read("x, p, t: y[p[i]] = x[i<2] from t", 3), *arrays) == [10, 20, 2]
    assert both_ways(read("x, p, t: y[p[i]] max= x[i<2] from t", 3), *arrays) == [10, 20, 30]


def test_nothing_reached_is_filled() -> None:
    empty = read("y[j<2] max= x[i<0, j] else -5", 2)
    assert both_ways(empty, np.zeros((0, 2))) == [-5, -5]


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        ("+=", (1, 2, 3), 6),
        ("*=", (2, 3, 4), 24),
        ("max=", (1, 3, 2), 3),
        ("min=", (2, 1, 3), 1),
        ("max=", (-INF, -INF, -INF), -INF),
    ],
)
def test_reductions(op: str, values: tuple[float, ...], expected: float) -> None:
    assert both_ways(read(f"y[] {op} x[i<3]"), f64(*values)) == expected


@pytest.mark.parametrize("op", ["max=", "min="])
def test_nan_wins_a_maximum(op: str) -> None:
    assert np.isnan(both_ways(read(f"y[] {op} x[i<3]"), f64(1, NAN, 3)))


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        ("argmax=", (1, 3, 3), 1),
        ("argmin=", (2, 1, 1), 1),
        ("argmax=", (1, NAN, NAN), 1),
        ("argmin=", (NAN, -INF, 0), 0),
        ("argmax=", (-INF, -INF, -INF), 0),
    ],
)
def test_the_first_of_equals_is_the_best_and_nan_wins(
    op: str, values: tuple[float, ...], expected: int
) -> None:
    assert both_ways(read(f"y[] {op} x[i<3] at i", dtype=I64), f64(*values)) == expected


def test_the_best_of_masked_terms_is_one_that_is_there() -> None:
    formula = read("y[] argmax= x[i<3] at i where i > 1", dtype=I64)
    assert both_ways(formula, f64(9, -INF, -INF)) == 2


def test_any_and_all() -> None:
    rows = np.array([[0.0, 2.0], [0.0, 0.0], [1.0, NAN]])
    assert both_ways(read("y[i<3] any= x[i, j<2]", 3, dtype=BOOL), rows) == [True, False, True]
    assert both_ways(read("y[i<3] all= x[i, j<2]", 3, dtype=BOOL), rows) == [False, False, True]


def test_a_half_type_is_computed_in_float32_and_rounded_once() -> None:
    x = np.array([1.0, 0.00390625, 0.00390625], dtype=BF16.numpy)
    formula = read("y[] += x[i<3]", dtype=BF16)
    # Rounded after each addition the sum would stay at 1.
    assert both_ways(formula, x) == 1.0078125


# --------------------------------------------------------------------------- indices out of range


WHERE = Origin("model.py", 12, "x = table[ids]", "embed")


def outcome(formula: Formula, arrays: tuple[Array, ...]) -> str:
    with pytest.raises(IndexError) as naive:
        evaluate_naive(formula, arrays, origin=WHERE)
    with pytest.raises(IndexError) as fast:
        evaluate_formula(formula, arrays, origin=WHERE)
    assert isinstance(naive.value, IndexRangeError)
    assert str(naive.value) == str(fast.value)
    return str(naive.value)


def test_an_indirect_index_outside_names_the_users_line() -> None:
    formula = read("table, ids: y[i<3, d<2] = table[ids[i], d]", 3, 2)
    message = outcome(formula, (np.zeros((4, 2)), np.array([0, 4, -1])))
    assert message == (
        "index 4 is outside dim 0 of 'table'\n"
        "  expected  an index of at least 0 and less than 4\n"
        "  found     4\n"
        "  where     model.py:12   x = table[ids]   (in embed)"
    )


def test_an_indirect_target_outside_is_an_error_too() -> None:
    formula = read("x, ids: y[ids[i]] += x[i<3]", 2)
    assert "index -1 is outside dim 0 of 'the target'" in outcome(
        formula, (f64(1, 2, 3), np.array([0, -1, 1]))
    )


@pytest.mark.parametrize(
    "text",
    [
        "table, ids: y[i<3] = table[ids[i]] where i < 2 else 0.5",
        "table, ids: y[i<3] = table[ids[i]] if i < 2 else 0.5",
        "table, ids: y[i<3] = table[ids[i]] + 0 * table[i+2] else 0.5",
    ],
)
def test_an_indirect_index_that_is_guarded_is_no_error(text: str) -> None:
    found = both_ways(read(text, 3), f64(1, 2, 3, 4), np.array([0, 1, 99]))
    assert isinstance(found, list)
    assert found[2] == 0.5


# ------------------------------------------------------------------------- the fast ways are equal


def agree(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-9}[found.dtype.itemsize]
    if expected.dtype == np.float64:
        tolerance = 2e-5  # a float64 result of values computed in float32
    a, b = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


KINDS = {
    "everything": EVERYTHING,
    "stray indices": dataclasses.replace(EVERYTHING, stray=True),
    "special numbers": dataclasses.replace(EVERYTHING, special=True),
    "empty loops": dataclasses.replace(EVERYTHING, extents=(0, 1, 2, 3)),
    "pointwise": POINTWISE,
    "products": PRODUCTS,
    "products of special numbers": dataclasses.replace(PRODUCTS, special=True),
}


def result_or_error(evaluate: Callable[[], Array]) -> Array | str:
    try:
        return evaluate()
    except IndexRangeError as error:
        return str(error)


@pytest.mark.parametrize("wide", few([False, True], True))
@pytest.mark.parametrize("kind", few(KINDS, "everything", "stray indices", "empty loops"))
def test_the_grid_is_equal_to_the_naive_loop(kind: str, wide: bool) -> None:
    for seed in range(80):
        formula, arrays = draw(seed, KINDS[kind])
        expected = result_or_error(partial(evaluate_naive, formula, arrays, wide=wide))
        for block in (7, 1 << 20):
            grid = partial(evaluate_grid, formula, arrays, wide=wide, block=block)
            found = result_or_error(grid)
            if isinstance(expected, str) or isinstance(found, str):
                assert found == expected
            else:
                agree(found, expected)


# Kind -> how many of the formulas drawn must have gone this way for the test to mean something.
CONTRACTED = {"products": 20, "products of special numbers": 2}


@pytest.mark.parametrize("wide", few([False, True], False))
@pytest.mark.parametrize("kind", CONTRACTED)
def test_a_contraction_is_equal_to_the_naive_loop(kind: str, wide: bool) -> None:
    contracted = 0
    for seed in range(150):
        formula, arrays = draw(seed, KINDS[kind])
        for limit in (5, 1 << 20):
            found = evaluate_contraction(formula, arrays, wide=wide, limit=limit)
            if found is not None:
                agree(found, evaluate_naive(formula, arrays, wide=wide))
                contracted += 1
    assert contracted >= CONTRACTED[kind]


MATMULS = (
    ("a, b: y[m<5, n<4] += a[m, k<6] * b[k, n]", (5, 6), (6, 4), "mk,kn->mn"),
    ("a, b: y[m<5, n<4] += a[k<6, m] * b[n, k]", (6, 5), (4, 6), "km,nk->mn"),
    ("a, b: y[i<3, m<5, n<4] += a[i, m, k<6] * b[i, k, n]", (3, 5, 6), (3, 6, 4), "imk,ikn->imn"),
    ("a, b: y[i<3, m<5, n<4] += a[i, m, k<6] * b[0, k, n]", (3, 5, 6), (1, 6, 4), "imk,jkn->imn"),
    ("a, b: y[n<4] += a[m<5] * b[m, n] * 0.5", (5,), (5, 4), "m,mn->n"),
    ("a, b: y[] += a[m<5] * b[m, n<4] for k<2", (5,), (5, 4), "m,mn->"),
)


@pytest.mark.parametrize(("text", "a", "b", "letters"), MATMULS)
def test_sums_of_products_are_einsum(
    text: str, a: tuple[int, ...], b: tuple[int, ...], letters: str
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    factor = 0.5 if "0.5" in text else 2 if "k<2" in text else 1
    expected = np.einsum(letters, x, y) * factor
    formula = read(text, *expected.shape)
    found = evaluate_contraction(formula, (x, y))
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(evaluate_grid(formula, (x, y)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("stride", "pad", "dilation"), [(1, 0, 1), (1, 1, 1), (2, 1, 1), (1, 2, 2), (3, 0, 2)]
)
def test_a_convolution_is_what_torch_computes(stride: int, pad: int, dilation: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, k = rng.normal(size=(2, 3, 9, 8)), rng.normal(size=(4, 3, 3, 2))
    expected = torch.nn.functional.conv2d(
        torch.tensor(x), torch.tensor(k), stride=stride, padding=pad, dilation=dilation
    ).numpy()
    n, o, h, w = expected.shape
    rows, columns = (f"{a}*{stride}+{b}*{dilation}-{pad}" for a, b in ("hi", "wj"))
    formula = read(
        f"x, k: y[n<{n}, o<{o}, h<{h}, w<{w}] += x[n, c<3, {rows}, {columns}] * k[o, c, i<3, j<2]",
        *expected.shape,
    )
    for limit in (100, 1 << 25):
        found = evaluate_contraction(formula, (x, k), limit=limit)
        assert found is not None
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_product_with_an_infinity_beside_the_padding_is_left_to_the_grid() -> None:
    formula = read("x, k: y[h<3] += x[h+i-1] * k[i<3]", 3)
    x, k = f64(1, 2, 3), f64(INF, 1, 1)
    assert evaluate_contraction(formula, (x, k)) is None
    # The first window has no left neighbour: absent, not 0 times infinity.
    assert evaluate_formula(formula, (x, k)).tolist() == [3, INF, INF]
    assert evaluate_naive(formula, (x, k)).tolist() == [3, INF, INF]


def test_wide_is_the_result_in_float64() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4, 300)).astype("f4"), rng.normal(size=(300, 5)).astype("f4")
    formula = read("x, w: y[i<4, j<5] += x[i, k<300] * w[k, j]", 4, 5, dtype=F32)
    exact = x.astype("f8") @ w.astype("f8")
    np.testing.assert_allclose(evaluate_formula(formula, (x, w), wide=True), exact, rtol=1e-13)
    assert evaluate_formula(formula, (x, w)).dtype == np.float32


def test_drawing_is_the_same_for_the_same_seed() -> None:
    one, two = draw(5, Wanted()), draw(5, Wanted())
    assert one[0] == two[0]
    assert all(np.array_equal(a, b) for a, b in zip(one[1], two[1], strict=True))
