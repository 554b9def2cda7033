"""The table of partitions says what parts hold and tell each other, and each row is true."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import BF16, BOOL, F32, F64, I64, DType
from tilewright.graph import notation
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.partitions import Split, collectives, partitions, show
from tilewright.graph.spread import cut, execute

from .formulas import Wanted, draw

Typed = tuple[Formula, list[TensorType]]


def formula(text: str, *operands: tuple[str, tuple[int, ...], DType]) -> Typed:
    names = ", ".join(name for name, _, _ in operands)
    types = [TensorType(shape, dtype) for _, shape, dtype in operands]
    return notation.instantiate(notation.declare(f"f({names})  {text}"), types), types


def table(typed: Typed) -> str:
    return show(partitions(*typed), typed[0])


def check(typed: Typed, arrays: Sequence[np.ndarray], parts: int = 3) -> None:
    made, types = typed
    whole = evaluate_formula(made, arrays)
    for row in partitions(made, types):
        found = execute(made, arrays, types, row, parts)
        np.testing.assert_allclose(found, whole, rtol=1e-12, err_msg=row.cut)


MATMUL = formula(
    "y[..., m, n] += a[..., m, k] * b[..., k, n]", ("a", (8, 6, 4), F32), ("b", (4, 5), F32)
)


def test_a_product_is_split_by_rows_columns_batch_or_depth() -> None:
    assert table(MATMUL) == (
        "i  y split 0  a split 0, b whole    none\n"
        "m  y split 1  a split 1, b whole    none\n"
        "n  y split 2  a whole, b split 1    none\n"
        "k  y partial  a split 2, b split 0  all_reduce(sum) or reduce_scatter(sum)"
    )


def test_a_window_needs_a_halo_of_what_neighbours_share() -> None:
    typed = formula("y[h<4] += x[h*2+i-1] * k[i]", ("x", (8,), F64), ("k", (5,), F64))
    row = partitions(*typed)[0]
    assert row.operands[0] == (Split(0, step=2, offset=-1, width=4),)
    assert row.operands[0][0].halo == 3
    assert collectives(row, typed[0]) == "halo of 3 in x"
    parts = cut(*typed, row, 2)
    assert [part.operands[0] for part in parts] == [((0, 6),), ((3, 8),)]
    generator = np.random.default_rng(0)
    check(typed, [generator.standard_normal(8), generator.standard_normal(5)], 2)


def test_a_table_is_split_by_values_and_each_part_makes_the_terms_it_can_read() -> None:
    typed = formula("y[i, d] = w[ids[i], d]", ("w", (7, 3), F64), ("ids", (4,), I64))
    assert table(typed) == (
        "i     y split 0  w whole, ids split 0  none\n"
        "d     y split 1  w split 1, ids whole  none\n"
        "w[0]  y partial  w split 0, ids whole  all_reduce(sum) or reduce_scatter(sum)"
    )
    check(typed, [np.random.default_rng(0).standard_normal((7, 3)), np.array([6, 0, 3, 3])])


def test_a_scatter_is_split_by_where_terms_land() -> None:
    typed = formula(
        "y[ids[i], d] += s[i, d] from x",
        ("x", (5, 2), F64), ("ids", (4,), I64), ("s", (4, 2), F64),
    )  # fmt: skip
    rows = {row.cut: row for row in partitions(*typed)}
    assert rows["y[0]"].result == (Split(0),)
    assert rows["y[0]"].combine == ""
    assert rows["i"].combine == "sum"
    # The base is not added by the parts, but once.
    assert rows["i"].operands[0] == ()
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((5, 2)), np.array([4, 0, 4, 1]),
              generator.standard_normal((4, 2))]  # fmt: skip
    check(typed, arrays)


def test_a_row_holds_whole_groups_where_a_dim_is_divided() -> None:
    typed = formula("y[i<12, j] = x[i//4, j]", ("x", (3, 2), F64))
    (row, _) = partitions(*typed)
    assert row.align == 4
    assert row.operands[0] == (Split(0, step=1, per=4),)
    assert row.bounds(2) == [(0, 4), (4, 12)]
    check(typed, [np.arange(6.0).reshape(3, 2)])


def test_the_place_of_the_best_needs_its_value_and_of_equals_the_first_wins() -> None:
    typed = formula("y[i] argmax= x[i, j] at j", ("x", (3, 6), F64))
    row = next(row for row in partitions(*typed) if row.cut == "j")
    assert collectives(row, typed[0]) == "all_reduce(argmax of value and index)"
    data = np.array([[1, 2, 0, 2, 1, 2], [0, 0, 0, 0, 0, 0], [1, np.nan, 5, np.nan, 9, 9]], float)
    assert execute(typed[0], [data], typed[1], row, 3).tolist() == [1, 0, 1]
    check(typed, [data], 2)


def test_what_no_term_reaches_keeps_its_fill() -> None:
    typed = formula("y[i] max= x[i, j] where j < i else 7", ("x", (3, 4), F64))
    data = -np.ones((3, 4))
    check(typed, [data])
    row = next(row for row in partitions(*typed) if row.cut == "j")
    assert execute(typed[0], [data], typed[1], row, 2).tolist() == [7, -1, -1]


def test_a_dim_read_backwards_is_split_backwards() -> None:
    typed = formula("y[i<6] = x[5-i]", ("x", (6,), F64))
    assert table(typed) == "i  y split 0  x split 0 backwards  none"
    check(typed, [np.arange(6.0)])


def test_a_mask_is_the_same_in_parts() -> None:
    typed = formula(
        "y[i] = x[i] if uniform(seed[], i) >= 0.5 else 0", ("x", (32,), F64), ("seed", (), I64)
    )
    check(typed, [np.ones(32), np.array(5)])


def test_partial_results_of_half_types_are_kept_wide() -> None:
    typed = formula("y[i] += x[i, j]", ("x", (2, 4), BF16))
    row = next(row for row in partitions(*typed) if row.cut == "j")
    assert {part.formula.type.dtype for part in cut(*typed, row, 2)} == {F32}


def test_a_loop_of_one_iteration_and_more_parts_than_iterations_are_nothing_special() -> None:
    typed = formula("y[i] += x[i, j]", ("x", (2, 1), F64))
    assert [row.cut for row in partitions(*typed)] == ["i"]
    check(typed, [np.ones((2, 1))], parts=5)


RANDOM = Wanted(dtypes=(F64, I64, BOOL), special=True)


@pytest.mark.parametrize("seed", range(250))
def test_every_row_of_a_random_formula_is_true(seed: int) -> None:
    made, arrays = draw(seed, RANDOM)
    types = [TensorType(array.shape, _dtype(array)) for array in arrays]
    with np.errstate(all="ignore"):
        whole = evaluate_formula(made, arrays)
        # Parts combine in another order; a float32 result (of integers) rounds as one.
        tolerance = 1e-6 if whole.dtype == np.float32 else 1e-12
        for row in partitions(made, types):
            for parts in (2, 3):
                found = execute(made, arrays, types, row, parts)
                wide = (found.astype(np.float64), whole.astype(np.float64))
                what = f"{notation.show(made)} cut at {row.cut}"
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=what)


def _dtype(array: np.ndarray) -> DType:
    return {np.dtype(np.float64): F64, np.dtype(np.int64): I64}.get(array.dtype, BOOL)
