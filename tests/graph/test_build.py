"""Making graphs and rewriting them."""

import numpy as np
import pytest

from tilewright.base.dtypes import BF16, BOOL, F32, I64
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph import notation
from tilewright.graph.build import (
    Builder,
    nest,
    producers,
    prune,
    replace_values,
    sort,
    users,
)
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Formula, Graph, Role, TensorType, Value
from tilewright.graph.verify import verify

VECTOR = TensorType((3,), F32)
HERE, THERE = Origin("model.py", 3, "y = f(x)", "a"), Origin("model.py", 9)


def pointwise(value: str) -> Formula:
    return notation.read(f"y[i<3] = {value}", VECTOR)


DOUBLE, NEGATE, ADD = pointwise("2 * a[i]"), pointwise("-a[i]"), pointwise("a[i] + b[i]")


def small() -> Graph:
    """x -> double -> (negate, unused), with one node that nothing needs."""
    builder = Builder("small")
    x = builder.input("x", VECTOR, Role("parameter", "w"))
    double = builder.formula(DOUBLE, x, name="double", origin=HERE)
    builder.formula(NEGATE, double, name="unused")
    negate = builder.formula(NEGATE, double, name="negate")
    return builder.finish([negate])


def test_a_name_is_given_out_once() -> None:
    builder = Builder()
    assert [builder.fresh("x") for _ in range(3)] == ["x", "x_1", "x_2"]
    builder.reserve(["y"])
    assert builder.fresh("y") == "y_1"
    assert builder.fresh("x_1") == "x_1_1"


def test_a_node_has_the_type_of_its_formula() -> None:
    graph = small()
    verify(graph)
    assert [value.name for value in graph.outputs] == ["negate"]
    assert graph.role("x") == Role("parameter", "w")
    assert producers(graph)["double"].origin == HERE


def test_multi_gives_all_results() -> None:
    builder = Builder()
    x = builder.input("x", VECTOR)
    values, at = builder.multi(
        "topk", [x], [VECTOR, TensorType((3,), I64)], attrs={"k": 3}, names=("values", "indices")
    )
    assert (values.name, at.name) == ("values", "indices")
    assert builder.finish([values, at]).nodes[0].attr("k") == 3


def test_a_constant_holds_numbers_of_its_type() -> None:
    builder = Builder()
    half = builder.constant([0.1, 1.0], BF16)
    flags = builder.constant(np.array([[1, 0]]), BOOL)
    scalar = builder.constant(3, I64)
    graph = builder.finish([half, flags, scalar])
    verify(graph)
    assert [node.attr("value") for node in graph.nodes] == [
        (0.10009765625, 1.0),
        ((True, False),),
        3,
    ]
    found = evaluate(graph, [])
    assert [array.dtype for array in found] == [BF16.numpy, np.bool_, np.int64]
    assert nest(np.zeros((2, 0)), F32) == ((), ())


def test_users_are_named_once_per_operand() -> None:
    builder = Builder()
    x = builder.input("x", VECTOR)
    total = builder.formula(ADD, x, x, name="total")
    graph = builder.finish([total])
    assert users(graph) == {"x": (graph.nodes[0], graph.nodes[0]), "total": ()}


def test_prune_drops_what_no_output_depends_on() -> None:
    pruned = prune(small())
    verify(pruned)
    assert [node.output.name for node in pruned.nodes] == ["double", "negate"]
    assert pruned.inputs == small().inputs


def test_replace_values_follows_chains_and_reaches_outputs() -> None:
    graph = small()
    x, double = graph.inputs[0], graph.nodes[0].output
    replaced = replace_values(graph, {"negate": double, "double": x})
    assert replaced.outputs == (x,)
    assert prune(replaced).nodes == ()


def test_replace_values_refuses_a_circle() -> None:
    graph = small()
    a, b = graph.nodes[0].output, graph.nodes[2].output
    with pytest.raises(AssertionError, match="in a circle"):
        replace_values(graph, {"double": b, "negate": a})


def test_inline_keeps_free_names_and_all_origins() -> None:
    builder = Builder()
    y = builder.input("double", VECTOR)
    (result,) = builder.inline(small(), [y], origin=THERE)
    graph = builder.finish([result])
    verify(graph)
    assert [node.output.name for node in graph.nodes] == ["double_1", "unused", "negate"]
    assert [node.origin for node in graph.nodes] == [HERE, THERE, THERE]
    assert UNKNOWN not in [node.origin for node in graph.nodes]


def test_sort_puts_producers_first_and_moves_nothing_else() -> None:
    graph = small()
    double, unused, negate = graph.nodes
    shuffled = Graph(graph.name, graph.inputs, (negate, unused, double), graph.outputs)
    assert sort(shuffled).nodes == (double, negate, unused)
    assert sort(graph) == graph


def test_sort_names_a_cycle() -> None:
    graph = small()
    a, b = Value("a", VECTOR), Value("b", VECTOR)
    builder = Builder()
    builder.formula(NEGATE, b, name="a")
    builder.formula(NEGATE, a, name="b")
    with pytest.raises(AssertionError, match="in a cycle"):
        sort(Graph("knot", graph.inputs, tuple(builder.nodes), (a,)))


def test_signature_of_and_extending_go_on_from_a_graph() -> None:
    graph = small()
    builder = Builder.extending(graph)
    last = builder.formula(NEGATE, graph.outputs[0], name="negate")
    grown = builder.finish([last])
    verify(grown)
    assert last.name == "negate_1"
    assert grown.nodes[:3] == graph.nodes
    empty = Builder.signature_of(graph)
    copies = empty.inline(graph, list(graph.inputs))
    assert empty.finish(copies) == graph
