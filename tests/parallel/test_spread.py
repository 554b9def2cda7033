"""The table of partitions says what ranks hold and tell each other, and each row is true."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph.formulas import Wanted, draw
from tests.sweep import few

from tilewright.autodiff import reverse
from tilewright.base.dtypes import BF16, BOOL, BY_TORCH_NAME, F32, F64, I64, DType
from tilewright.base.errors import ShapeError
from tilewright.graph import notation, parse, text
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate, evaluate_formula
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.partitions import Partition, Split, partitions
from tilewright.graph.verify import verify
from tilewright.parallel import Spread, evaluate_ranks, execute, show, spread
from tilewright.parallel.run import at

Typed = tuple[Formula, list[TensorType]]


def formula(text: str, *operands: tuple[str, tuple[int, ...], DType]) -> Typed:
    names = ", ".join(name for name, _, _ in operands)
    types = [TensorType(shape, dtype) for _, shape, dtype in operands]
    return notation.instantiate(notation.declare(f"f({names})  {text}"), types), types


def table(typed: Typed, ranks: int = 4) -> str:
    return "\n".join(show(*typed, ranks))


def row_of(typed: Typed, cut: str) -> Partition:
    return next(row for row in partitions(*typed) if row.cut == cut)


def collectives(made: Spread) -> list[list[str]]:
    """The collectives of each rank, in order."""
    known = ("all_reduce", "reduce_scatter", "shift")
    return [[node.op for node in graph.nodes if node.op in known] for graph in made.graphs]


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
        "cut  y        a        b        collectives                  a rank sends\n"
        "i<8  split 0  split 0  whole    none                         nothing\n"
        "m<6  split 1  split 1  whole    none                         nothing\n"
        "n<5  split 2  whole    split 1  none                         nothing\n"
        "k<4  partial  split 2  split 0  all_reduce(y, sum)           2 (R-1)/R |y| = 1,440 bytes\n"
        "                                or reduce_scatter(y, dim=0)  (R-1)/R |y| = 720 bytes"
    )


def test_what_is_shorter_than_the_ranks_says_so() -> None:
    assert [line.split("  ")[0] for line in table(MATMUL, 5).splitlines()] == [
        "cut", "i<8", "m<6", "n<5", "k<4 over 4", "",
    ]  # fmt: skip


def test_a_window_needs_a_halo_of_what_neighbours_share() -> None:
    typed = formula("y[h<4] += x[h*2+i-1] * k[i]", ("x", (8,), F64), ("k", (5,), F64))
    row = partitions(*typed)[0]
    assert row.operands[0] == (Split(0, step=2, offset=-1, width=4),)
    assert row.operands[0][0].halo == 3
    made = spread(*typed, row, 2)
    # Shares lie side by side; each rank fetches a part of the halo from either side.
    assert [windows[0] for windows in made.inputs] == [((0, 4),), ((4, 8),)]
    assert collectives(made) == [["shift", "shift"]] * 2
    generator = np.random.default_rng(0)
    check(typed, [generator.standard_normal(8), generator.standard_normal(5)], 2)


def test_a_halo_may_reach_beyond_the_neighbour() -> None:
    typed = formula("y[h<6] += x[h+i] * k[i]", ("x", (10,), F64), ("k", (5,), F64))
    made = spread(*typed, partitions(*typed)[0], 6)
    assert len(made.graphs) == 6
    assert collectives(made) == [["shift"] * 4] * 6
    generator = np.random.default_rng(0)
    check(typed, [generator.standard_normal(10), generator.standard_normal(5)], 6)


def test_results_that_overlap_are_handed_on_to_whom_they_belong() -> None:
    typed = formula("y[h+i] += x[h] * k[i]", ("x", (6,), F64), ("k", (3,), F64))
    made = spread(*typed, row_of(typed, "h"), 3)
    assert collectives(made) == [["shift", "shift"]] * 3
    assert made.outputs == ((((0, 3),),), (((3, 5),),), (((5, 8),),))
    generator = np.random.default_rng(0)
    check(typed, [generator.standard_normal(6), generator.standard_normal(3)])


def test_ranks_may_keep_a_share_of_a_sum() -> None:
    typed = formula("y[m] += a[m, k]", ("a", (6, 4), F64))
    data = np.random.default_rng(0).standard_normal((6, 4))
    row = row_of(typed, "k")
    made = spread(*typed, row, 3, share=0)
    assert collectives(made) == [["reduce_scatter"]] * 3
    assert made.outputs == ((((0, 2),),), (((2, 4),),), (((4, 6),),))
    found = execute(typed[0], [data], typed[1], row, 3, share=0)
    np.testing.assert_allclose(found, data.sum(1), rtol=1e-14)
    with pytest.raises(ShapeError, match="cannot be left in shares of dim 0"):
        spread(*typed, row, 4, share=0)


def test_the_graphs_are_legal_and_read_back() -> None:
    typed = formula("y[h<4] += x[h*2+i-1] * k[i]", ("x", (8,), F64), ("k", (5,), F64))
    for row in partitions(*typed):
        for graph in spread(*typed, row, 3).graphs:
            verify(graph)
            assert parse.parse(text.show(graph)) == graph


def test_a_table_is_split_by_values_and_each_part_makes_the_terms_it_can_read() -> None:
    typed = formula("y[i, d] = w[ids[i], d]", ("w", (7, 3), F64), ("ids", (4,), I64))
    lines = table(typed, 2).splitlines()
    assert lines[3].split("  ")[0] == "w[0]<7"
    assert "all_reduce(y, sum)" in lines[3]
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
    row = row_of(typed, "j")
    assert collectives(spread(*typed, row, 3)) == [["all_reduce", "all_reduce"]] * 3
    data = np.array([[1, 2, 0, 2, 1, 2], [0, 0, 0, 0, 0, 0], [1, np.nan, 5, np.nan, 9, 9]], float)
    assert execute(typed[0], [data], typed[1], row, 3).tolist() == [1, 0, 1]
    check(typed, [data], 2)


def test_what_no_term_reaches_keeps_its_fill() -> None:
    typed = formula("y[i] max= x[i, j] where j < i else 7", ("x", (3, 4), F64))
    data = -np.ones((3, 4))
    check(typed, [data])
    row = row_of(typed, "j")
    assert execute(typed[0], [data], typed[1], row, 2).tolist() == [7, -1, -1]


def test_a_dim_read_backwards_is_split_backwards() -> None:
    typed = formula("y[i<6] = x[5-i]", ("x", (6,), F64))
    assert table(typed).splitlines()[1] == "i<6  split 0  split 0 backwards  none         nothing"
    check(typed, [np.arange(6.0)])


def test_a_mask_is_the_same_in_parts() -> None:
    typed = formula(
        "y[i] = x[i] if uniform(seed[], i) >= 0.5 else 0", ("x", (32,), F64), ("seed", (), I64)
    )
    check(typed, [np.ones(32), np.array(5)])


def test_partial_results_of_half_types_are_kept_wide() -> None:
    typed = formula("y[i] += x[i, j]", ("x", (2, 4), BF16))
    row = row_of(typed, "j")
    for graph in spread(*typed, row, 2).graphs:
        (met,) = (node for node in graph.nodes if node.op == "all_reduce")
        assert met.output.type.dtype == F32
        assert graph.outputs[0].type.dtype == BF16


def test_a_loop_of_one_iteration_and_more_parts_than_iterations_are_nothing_special() -> None:
    typed = formula("y[i] += x[i, j]", ("x", (2, 1), F64))
    assert [row.cut for row in partitions(*typed)] == ["i"]
    check(typed, [np.ones((2, 1))], parts=5)


RANDOM = Wanted(dtypes=(F64, I64, BOOL), special=True)


@pytest.mark.parametrize("seed", few(range(250), *range(60)))
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
    return BY_TORCH_NAME[array.dtype.name]


SMOOTH: dict[str, Typed] = {
    "matmul": formula("y[m, n] += a[m, k] * b[k, n]", ("a", (4, 6), F64), ("b", (6, 3), F64)),
    "conv": formula(
        "y[n, o, h<4] += x[n, c, h*2+i-1] * k[o, c, i]",
        ("x", (2, 3, 8), F64),
        ("k", (3, 3, 3), F64),
    ),
    "transposed conv": formula(
        "y[n, h*2+i] += x[n, h] * k[i]", ("x", (3, 4), F64), ("k", (5,), F64)
    ),
    "embedding": formula("y[i, d] = w[ids[i], d]", ("w", (7, 3), F64), ("ids", (4,), I64)),
    "index_add": formula(
        "y[ids[i], d] += s[i, d] from x", ("x", (7, 3), F64), ("ids", (4,), I64), ("s", (4, 3), F64)
    ),
    "cumsum": formula("y[i, j] += x[i, t] where t <= j for j<5", ("x", (3, 5), F64)),
    "amax": formula("y[i] max= x[i, j]", ("x", (3, 6), F64)),
    "prod": formula("y[i] *= x[i, j]", ("x", (3, 6), F64)),
    "softmax's exp": formula("y[i, j] = exp(x[i, j] - m[i])", ("x", (3, 4), F64), ("m", (3,), F64)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_ranks_gradients_are_those_of_the_whole(name: str) -> None:
    """Reverse mode of each rank's graph alone: its collectives turn into their transposes."""
    made, types = SMOOTH[name]
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal([int(str(size)) for size in type_.shape])
        if type_.dtype == F64
        else generator.integers(0, 7, [int(str(size)) for size in type_.shape])
        for type_ in types
    ]
    wrt = [n for n, type_ in zip(made.operands, types, strict=True) if type_.dtype == F64]
    builder = Builder()
    operands = [builder.input(n, type_) for n, type_ in zip(made.operands, types, strict=True)]
    joint = reverse(builder.finish([builder.formula(made, *operands)]), wrt)
    seed = generator.standard_normal([int(str(size)) for size in made.type.shape])
    whole = evaluate(joint.graph, [*arrays, seed])[1:]
    for row in partitions(made, types):
        for ranks in (2, 3):
            found = _gradients(spread(made, types, row, ranks), wrt, made.operands, arrays, seed)
            for name_, expected in zip(wrt, whole, strict=True):
                np.testing.assert_allclose(
                    found[name_], expected, rtol=1e-12, atol=1e-12, err_msg=f"{row.cut}: {name_}"
                )


def _gradients(
    made: Spread, wrt: Sequence[str], operands: Sequence[str], arrays: Sequence[np.ndarray],
    seed: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """What several ranks hold is one value to the user: it has one tangent, and one gradient."""
    joints = [reverse(graph, wrt) for graph in made.graphs]
    given = []
    for rank, windows in enumerate(made.inputs):
        mine = [array[at(window)] for array, window in zip(arrays, windows, strict=True)]
        first = made.outputs.index(made.outputs[rank]) == rank
        given.append([*mine, seed[at(made.outputs[rank][0])] * first])
    results = evaluate_ranks([joint.graph for joint in joints], given)
    found = {name: np.zeros_like(arrays[operands.index(name)]) for name in wrt}
    for rank, joint in enumerate(joints):
        for name, place in zip(wrt, joint.gradients, strict=True):
            assert place is not None, f"{name} has a gradient on rank {rank}"
            window = made.inputs[rank][operands.index(name)]
            found[name][at(window)] += results[rank][place]
    return found
