"""Collectives are loops over the values of all ranks: values, gradients, batches, single ranks."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from tests.errors.ranks import SUM, program_of

from tilewright.autodiff import batch, forward, reverse
from tilewright.base.dtypes import BF16, BOOL, F32, F64
from tilewright.base.errors import CollectiveError, DTypeError, GraphError, Origin, ShapeError
from tilewright.compiler import build
from tilewright.graph import parse, text
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Graph, TensorType
from tilewright.graph.verify import verify
from tilewright.ops import TABLE, across
from tilewright.ops.operator import apply
from tilewright.parallel import evaluate_ranks

Array = np.ndarray
Attrs = Mapping[str, Attr]
GROUP = (0, 1, 2)
CASES: tuple[tuple[str, Attrs], ...] = (
    ("all_reduce", {}),
    ("all_reduce", {"op": "max"}),
    ("all_reduce", {"op": "min"}),
    ("all_reduce", {"op": "prod"}),
    ("reduce", {"root": 1}),
    ("broadcast", {"root": 2}),
    ("all_gather", {"dim": 0}),
    ("all_gather", {"dim": -1}),
    ("reduce_scatter", {"dim": 0}),
    ("reduce_scatter", {"dim": 1}),
    ("all_to_all", {"split": 0, "join": 1}),
    ("all_to_all", {"split": 1, "join": 1}),
    ("shift", {"by": 1}),
    ("shift", {"by": -2}),
)
IDS = [f"{name}-{'-'.join(map(str, attrs.values()))}" for name, attrs in CASES]


def graph_of(name: str, attrs: Attrs, type_: TensorType, group: tuple[int, ...] = GROUP) -> Graph:
    builder = Builder("rank")
    x = builder.input("x", type_)
    return builder.finish(apply(builder, TABLE[name], x, group=group, **attrs))


def ranks_values(shape: tuple[int, ...] = (3, 6), ranks: int = 3) -> list[Array]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape) for _ in range(ranks)]


def by_hand(name: str, attrs: Attrs, values: list[Array]) -> list[Array]:
    """What the collectives of torch.distributed give, rank by rank."""
    count, total = len(values), np.sum(values, axis=0)
    folds = {"max": np.maximum, "min": np.minimum, "prod": np.multiply, "sum": np.add}
    match name:
        case "all_reduce":
            return [folds[str(attrs.get("op", "sum"))].reduce(values)] * count
        case "reduce":
            return [total if rank == attrs["root"] else total * 0 for rank in range(count)]
        case "broadcast":
            return [values[int(str(attrs["root"]))]] * count
        case "all_gather":
            return [np.concatenate(values, axis=int(str(attrs["dim"])))] * count
        case "reduce_scatter":
            return np.split(total, count, axis=int(str(attrs["dim"])))
        case "all_to_all":
            split, join = int(str(attrs["split"])), int(str(attrs["join"]))
            parts = [np.split(value, count, axis=split) for value in values]
            return [np.concatenate([p[rank] for p in parts], axis=join) for rank in range(count)]
        case _:
            by = int(str(attrs["by"]))
            zero = np.zeros_like(values[0])
            inside = range(count)
            return [values[rank - by] if rank - by in inside else zero for rank in inside]


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_a_collective_gives_each_rank_what_it_says(name: str, attrs: Attrs) -> None:
    values = ranks_values()
    graph = graph_of(name, attrs, TensorType((3, 6), F64))
    found = evaluate_ranks([graph] * 3, [[value] for value in values])
    for (ours,), theirs in zip(found, by_hand(name, attrs, values), strict=True):
        assert ours.shape == graph.outputs[0].type.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_its_text_reads_back(name: str, attrs: Attrs) -> None:
    graph = graph_of(name, attrs, TensorType((3, 6), F64))
    verify(graph)
    assert parse.parse(text.show(graph)) == graph


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_its_gradient_is_that_of_its_loops_over_all_ranks(name: str, attrs: Attrs) -> None:
    """The derived gradient of the loops that hold all ranks is the oracle of the ranks' graphs."""
    graph = graph_of(name, attrs, TensorType((3, 6), F64))
    loops = across(graph.nodes[0])
    assert loops is not None, "a collective has loops"
    values = ranks_values()
    builder = Builder("above")
    x = builder.input("x", TensorType((3, 3, 6), F64))
    above = reverse(builder.finish([builder.formula(loops, x)]), ["x"])
    seeds = np.random.default_rng(1).standard_normal(loops.type.shape)
    given = [np.stack(values), seeds]
    ((_, whole),) = evaluate_ranks([above.graph], [given])
    joint = reverse(graph, ["x"])
    found = evaluate_ranks([joint.graph] * 3, [[values[r], seeds[r]] for r in range(3)])
    np.testing.assert_allclose(np.stack([g for _, g in found]), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_its_gradient_and_forward_mode_agree_with_finite_differences(
    name: str, attrs: Attrs
) -> None:
    """For all ranks together: the change of what they give, along a change of what they hold."""
    graph = graph_of(name, attrs, TensorType((3, 3), F64))
    values, changes = ranks_values((3, 3)), ranks_values((3, 3))[::-1]
    step = 1e-6

    def moved(sign: int) -> Array:
        given = [[v + sign * step * c] for v, c in zip(values, changes, strict=True)]
        return np.stack([result for (result,) in evaluate_ranks([graph] * 3, given)])

    expected = (moved(1) - moved(-1)) / (2 * step)
    pushed = forward(graph, ["x"])
    pairs = [list(pair) for pair in zip(values, changes, strict=True)]
    along = np.stack([change for _, change in evaluate_ranks([pushed.graph] * 3, pairs)])
    np.testing.assert_allclose(along, expected, rtol=1e-6, atol=1e-8)
    joint = reverse(graph, ["x"])
    seeds = np.random.default_rng(2).standard_normal(expected.shape)
    pulled = evaluate_ranks([joint.graph] * 3, [[values[r], seeds[r]] for r in range(3)])
    inner = sum(np.sum(g * c) for (_, g), c in zip(pulled, changes, strict=True))
    np.testing.assert_allclose(inner, np.sum(seeds * expected), rtol=1e-6)


def test_a_product_with_a_zero_has_a_gradient_all_the_same() -> None:
    graph = graph_of("all_reduce", {"op": "prod"}, TensorType((2,), F64))
    joint = reverse(graph, ["x"])
    values = [np.array([0.0, 2.0]), np.array([3.0, 0.0]), np.array([5.0, 0.0])]
    seeds = [np.ones(2), np.zeros(2), np.zeros(2)]
    found = evaluate_ranks([joint.graph] * 3, [list(p) for p in zip(values, seeds, strict=True)])
    assert [g.tolist() for _, g in found] == [[15.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_a_maximum_of_several_ranks_is_split_evenly() -> None:
    joint = reverse(graph_of("all_reduce", {"op": "max"}, TensorType((1,), F64)), ["x"])
    values = [np.array([2.0]), np.array([1.0]), np.array([2.0])]
    found = evaluate_ranks([joint.graph] * 3, [[v, np.ones(1)] for v in values])
    assert [g.tolist() for _, g in found] == [[1.5], [0.0], [1.5]]


@pytest.mark.parametrize("op", ["max", "min"])
def test_the_gradient_of_an_extreme_that_is_nan_or_infinite_is_torchs(op: str) -> None:
    """As of amax over the ranks: NaN where a rank holds NaN, shares where several are infinite."""
    infinity = np.inf if op == "max" else -np.inf
    values = [np.array([1.0, infinity]), np.array([np.nan, 2.0]), np.array([3.0, infinity])]
    stacked = torch.tensor(np.stack(values), requires_grad=True)
    (stacked.amax(0) if op == "max" else stacked.amin(0)).backward(torch.full((2,), 3.0).double())
    joint = reverse(graph_of("all_reduce", {"op": op}, TensorType((2,), F64)), ["x"])
    with np.errstate(invalid="ignore"):
        found = evaluate_ranks([joint.graph] * 3, [[v, np.ones(2)] for v in values])
    assert stacked.grad is not None
    np.testing.assert_array_equal(np.stack([g for _, g in found]), stacked.grad.numpy())


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_a_batch_is_a_collective_of_the_batch(name: str, attrs: Attrs) -> None:
    graph = graph_of(name, attrs, TensorType((3, 6), F64))
    samples = [ranks_values(), [v + 1 for v in ranks_values()]]
    batched = batch(graph, [True], 2).graph
    assert [node.op for node in batched.nodes] == [name]
    given = [[np.stack([s[rank] for s in samples])] for rank in range(3)]
    found = evaluate_ranks([batched] * 3, given)
    for at, sample in enumerate(samples):
        alone = evaluate_ranks([graph] * 3, [[value] for value in sample])
        for (one,), (many,) in zip(alone, found, strict=True):
            np.testing.assert_array_equal(many[at], one)


@pytest.mark.parametrize(("name", "attrs"), CASES, ids=IDS)
def test_alone_a_rank_keeps_what_it_has(name: str, attrs: Attrs) -> None:
    """A group of one compiles, and is the identity; only a shift finds nobody and gives 0."""
    alone = {key: 0 if key == "root" else value for key, value in attrs.items()}
    graph = graph_of(name, alone, TensorType((3, 6), F64), group=(0,))
    (value, *_) = ranks_values()
    ((found,),) = evaluate_ranks([graph], [[value]])
    np.testing.assert_array_equal(found, value * 0 if name == "shift" else value)

    (compiled,) = build(graph).run([torch.tensor(value)])
    np.testing.assert_array_equal(compiled.numpy(), found)


def test_ranks_meet_inside_of_control_flow() -> None:
    """A sum over ranks at each step of a scan: all ranks run their bodies in step."""
    graph = parse.parse("""
    graph rank(%c: f64[2], %xs: f64[3, 2]) {
      %last = scan(%c, %xs, length=3, carries=1, sequences=1, reverse=False) : f64[2]
        with graph body(%carry: f64[2], %x: f64[2]) {
          %s = all_reduce(%x, group=(0, 1), op="sum") : f64[2]
          %n = {y[i<2] = a[i] * b[i]}(%carry, %s) : f64[2]
          return %n
        }
      return %last
    }
    """)
    values = np.random.default_rng(0).standard_normal((2, 3, 2))
    found = evaluate_ranks([graph] * 2, [[np.ones(2), value] for value in values])
    for (last,) in found:
        np.testing.assert_allclose(last, values.sum(0).prod(0), rtol=1e-14)


def test_truth_values_and_half_types_are_reduced_as_such() -> None:
    graph = graph_of("all_reduce", {"op": "any"}, TensorType((2,), BOOL))
    given = [[np.array([False, True])], [np.array([False, False])], [np.array([False, True])]]
    assert [r.tolist() for (r,) in evaluate_ranks([graph] * 3, given)] == [[False, True]] * 3
    halves = graph_of("all_reduce", {}, TensorType((1,), BF16))
    brought = [[np.array([256.0], BF16.numpy)], *([np.array([0.75], BF16.numpy)],) * 2]
    ((found,), *_) = evaluate_ranks([halves] * 3, brought)
    # 256 + 1.5 is rounded once, in the end: each term alone would be lost.
    assert float(found[0]) == 258.0


def test_groups_that_share_no_rank_meet_on_their_own() -> None:
    graphs = []
    for rank in range(4):
        group = (0, 2) if rank % 2 == 0 else (1, 3)
        graphs.append(graph_of("all_reduce", {}, TensorType((), F64), group))
    found = evaluate_ranks(graphs, [[np.float64(2.0**rank)] for rank in range(4)])
    assert [float(r) for (r,) in found] == [5.0, 10.0, 5.0, 10.0]


# --------------------------------------------------------------------------------------- bad input


def refused(name: str, attrs: Attrs, type_: TensorType, group: object = GROUP) -> None:
    builder = Builder("rank")
    x = builder.input("x", type_)
    origin = Origin("model.py", 3, "y = f(x)")
    apply(builder, TABLE[name], x, origin=origin, group=group, **attrs)  # type: ignore[arg-type]


MATRIX = TensorType((4, 6), F32)


@pytest.mark.parametrize(
    ("name", "attrs", "type_", "group", "kind", "says"),
    [
        ("all_reduce", {"op": "mean"}, MATRIX, GROUP, CollectiveError, "sum, prod, max"),
        ("all_reduce", {"op": "sum"}, TensorType((2,), BOOL), GROUP, DTypeError, "any or all"),
        ("all_reduce", {"op": "any"}, MATRIX, GROUP, DTypeError, "any of f32"),
        ("all_reduce", {}, MATRIX, (), CollectiveError, "one rank or more"),
        ("all_reduce", {}, MATRIX, (0, 0), CollectiveError, "each once"),
        ("all_reduce", {}, MATRIX, (0, -1), CollectiveError, "numbers from 0"),
        ("all_reduce", {}, MATRIX, 3, CollectiveError, "group=3"),
        ("broadcast", {"root": 3}, MATRIX, GROUP, CollectiveError, "one of 0, 1, 2"),
        ("all_gather", {"dim": 2}, MATRIX, GROUP, ShapeError, "a dim of f32"),
        ("reduce_scatter", {"dim": 0}, MATRIX, GROUP, ShapeError, "a multiple of 3"),
        ("all_to_all", {"split": 0, "join": 1}, MATRIX, GROUP, ShapeError, "a multiple of 3"),
        ("shift", {"by": 0.5}, MATRIX, GROUP, CollectiveError, "an integer"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_users_line(
    name: str, attrs: Attrs, type_: TensorType, group: object, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=r"model\.py:3") as caught:
        refused(name, attrs, type_, group)
    assert says in str(caught.value)


def test_a_text_with_the_wrong_type_is_refused() -> None:
    graph = parse.parse("""
    graph rank(%x: f64[2]) {
      %y = all_gather(%x, group=(0, 1), dim=0) : f64[2]
      return %y
    }
    """)
    with pytest.raises(GraphError, match="all_gather does not give what its type says"):
        evaluate_ranks([graph] * 2, [[np.ones(2)]] * 2)


@pytest.mark.parametrize("other", ["shape", "dtype"])
def test_another_shape_or_element_type_on_one_rank_is_refused(other: str) -> None:
    first = program_of(SUM)
    if other == "dtype":
        second, given = program_of(SUM, dtype=F32), np.ones(4, np.float32)
    else:
        builder = Builder("rank")
        x = builder.input("x", TensorType((5,), F64))
        second = builder.finish(apply(builder, TABLE["all_reduce"], x, group=(0, 1), op="sum"))
        given = np.ones(5)
    with pytest.raises(CollectiveError, match="ranks 0 and 1 come to different collectives"):
        evaluate_ranks([first, second], [[np.ones(4)], [given]])


def test_a_rank_outside_of_the_group_that_it_names_is_refused() -> None:
    with pytest.raises(CollectiveError, match="rank 1 comes to a collective that does not fit it"):
        evaluate_ranks(
            [program_of(SUM), program_of(("all_reduce", (0, 2), {}))], [[np.ones(4)]] * 2
        )
