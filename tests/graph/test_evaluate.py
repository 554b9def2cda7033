"""Whole graphs: constants, fused bodies, library calls, composites, named sizes, bad inputs."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph.formulas import POINTWISE, draw, fill_with

from tilewright.base.dtypes import BF16, F64, I64
from tilewright.base.errors import DTypeError, GraphError, IndexRangeError, Origin, ShapeError
from tilewright.base.expr import Read, Sym, call
from tilewright.graph import notation
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.evaluate_naive import dtype_of, evaluate_naive
from tilewright.graph.ir import FUSED, LIBRARY, Formula, Graph, Loop, Node, TensorType

Array = np.ndarray
HERE = Origin("model.py", 3, "y = f(x)", "a")
VECTOR = TensorType((3,), F64)
X = np.array([1.0, -2.0, 3.0])


def vector(text: str) -> Formula:
    return notation.read(text, VECTOR)


DOUBLE, ADD = vector("y[i<3] = 2 * a[i]"), vector("y[i<3] = a[i] + b[i]")


def unary(op: str, **attrs: str) -> Graph:
    """x -> op -> doubled."""
    builder = Builder("main")
    x = builder.input("x", VECTOR)
    y = builder.node(op, [x], VECTOR, attrs=attrs, origin=HERE, name="y")
    return builder.finish([builder.formula(DOUBLE, y, name="z")])


def test_a_graph_runs_in_order_and_gives_its_outputs() -> None:
    builder = Builder()
    x = builder.input("x", VECTOR)
    three = builder.constant([3, 3, 3], F64)
    y = builder.formula(ADD, x, three, name="y")
    graph = builder.finish([builder.formula(DOUBLE, y), x, y])
    z, same, total = evaluate(graph, [X])
    np.testing.assert_array_equal(total, X + 3)
    np.testing.assert_array_equal(z, 2 * (X + 3))
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(evaluate(graph, {"x": X})[0], z)


def test_a_fused_node_is_its_body() -> None:
    body = Builder("body")
    a = body.input("a", VECTOR)
    s = body.formula(DOUBLE, a, name="s")
    t = body.formula(ADD, a, s, name="t")
    builder = Builder()
    x = builder.input("x", VECTOR)
    outputs = builder.multi(FUSED, [x], [VECTOR, VECTOR], graphs=[body.finish([t, s])])
    found = evaluate(builder.finish(outputs), [X])
    np.testing.assert_array_equal(found, [3 * X, 2 * X])


def test_a_library_node_is_what_the_library_computes() -> None:
    def library(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        assert node.attr("target") == "aten.exp.default"
        return [np.exp(arrays[0])]

    graph = unary(LIBRARY, target="aten.exp.default")
    np.testing.assert_array_equal(evaluate(graph, [X], library=library)[0], 2 * np.exp(X))


def test_a_composite_is_its_expansion() -> None:
    def expand(node: Node) -> Graph | None:
        builder = Builder(node.op)
        a = builder.input("a", VECTOR)
        square = builder.formula(vector("y[i<3] = a[i] * a[i]"), a)
        return builder.finish([square]) if node.op == "square" else None

    np.testing.assert_array_equal(evaluate(unary("square"), [X], expand=expand)[0], 2 * X * X)
    with pytest.raises(GraphError, match="'cube' has no meaning"):
        evaluate(unary("cube"), [X], expand=expand)


def test_what_has_no_meaning_names_the_users_line() -> None:
    with pytest.raises(GraphError) as error:
        evaluate(unary(LIBRARY, target="aten.sort.default"), [X])
    assert str(error.value) == (
        "the library call aten.sort.default cannot be evaluated here\n"
        "  expected  a graph without library calls\n"
        "  found     aten.sort.default\n"
        "  where     model.py:3   y = f(x)   (in a)\n"
        "  mend      give `evaluate` a `library` that computes it"
    )


def test_an_index_outside_names_the_users_line() -> None:
    builder = Builder()
    table = builder.input("table", TensorType((4,), F64))
    ids = builder.input("ids", TensorType((3,), I64))
    y = builder.formula(vector("table, ids: y[i<3] = table[ids[i]]"), table, ids, origin=HERE)
    with pytest.raises(IndexRangeError, match=r"model.py:3   y = f\(x\)"):
        evaluate(builder.finish([y]), [np.zeros(4), np.array([0, 7, 1])])


def test_watch_sees_every_node_with_its_results() -> None:
    seen: dict[str, list[float]] = {}
    graph = tripled()
    evaluate(graph, [X], watch=lambda node, made: seen.update({node.output.name: made[0].tolist()}))
    assert seen == {"y": (2 * X).tolist(), "z": (3 * X).tolist()}


def tripled() -> Graph:
    builder = Builder()
    x = builder.input("x", VECTOR)
    y = builder.formula(DOUBLE, x, name="y")
    return builder.finish([builder.formula(ADD, y, x, name="z")])


def test_named_sizes_are_read_off_the_inputs() -> None:
    n = Sym("n")
    type_ = TensorType((n,), F64)
    wide = TensorType((call("mul", n, 2),), F64)
    double = Formula(
        ("a",),
        (Loop("i", call("mul", n, 2)),),
        (Sym("i"),),
        "=",
        call("mul", Read("a", (call("floordiv", Sym("i"), 2),)), n),
        wide,
    )
    builder = Builder()
    x = builder.input("x", type_)
    graph = builder.finish([builder.formula(double, x)])
    np.testing.assert_array_equal(evaluate(graph, [X])[0], np.repeat(X, 2) * 3)
    np.testing.assert_array_equal(evaluate(graph, [X[:1]])[0], np.repeat(X[:1], 2))


def test_half_types_round_between_nodes_and_wide_does_not() -> None:
    type_ = TensorType((3,), BF16)
    third = notation.read("y[i<3] = a[i] / 3", type_)
    builder = Builder()
    x = builder.input("x", type_)
    graph = builder.finish([builder.formula(third, builder.formula(third, x))])
    half = X.astype(BF16.numpy)
    (found,) = evaluate(graph, [half])
    once = (half.astype("f4") / np.float32(3)).astype(BF16.numpy)
    twice = (once.astype("f4") / np.float32(3)).astype(BF16.numpy)
    assert found.dtype == BF16.numpy
    np.testing.assert_array_equal(found, twice)
    (exact,) = evaluate(graph, [X], wide=True)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, X / 9, rtol=1e-15)


@pytest.mark.parametrize("wide", [False, True])
def test_a_graph_evaluates_the_same_with_naive_formulas(wide: bool) -> None:
    wanted = dataclasses.replace(POINTWISE, functions=("add", "mul", "sin", "tanh", "select"))
    for seed in range(20):
        builder = Builder()
        for number in range(4):
            formula, arrays = draw(10 * seed + number, wanted)
            known = [*builder.inputs, *(node.output for node in builder.nodes)]
            operands = []
            for array in arrays:
                type_ = TensorType(array.shape, dtype_of(array))
                fitting = [value for value in known if value.type == type_]
                operands.append(fitting[-1] if fitting else builder.input("x", type_))
            builder.formula(formula, *operands)
        graph = builder.finish([node.output for node in builder.nodes])
        rng = np.random.default_rng(seed)
        inputs = [fill_with(rng, value.type) for value in graph.inputs]
        fast = evaluate(graph, inputs, wide=wide)
        naive = evaluate(graph, inputs, wide=wide, formula=evaluate_naive)
        for a, b in zip(fast, naive, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------- bad inputs


def test_inputs_that_do_not_fit_are_refused() -> None:
    graph = tripled()
    with pytest.raises(ShapeError) as shape:
        evaluate(graph, [np.zeros(4)])
    assert str(shape.value) == (
        "input 'x' has the wrong shape\n  expected  f64[3]\n  found     float64[4]"
    )
    with pytest.raises(DTypeError, match="input 'x' has the wrong element type"):
        evaluate(graph, [X.astype("f4")])
    with pytest.raises(ShapeError, match="takes 1 inputs"):
        evaluate(graph, [X, X])
    with pytest.raises(GraphError, match="has no value for its input 'x'"):
        evaluate(graph, {})


def test_a_size_has_one_value() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((Sym("n"),), F64))
    y = builder.input("y", TensorType((Sym("n"),), F64))
    with pytest.raises(ShapeError, match="input 'y' has the wrong shape") as error:
        evaluate(builder.finish([x, y]), [np.zeros(2), np.zeros(3)])
    assert "known     n = 2" in str(error.value)
