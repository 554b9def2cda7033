"""Control flow in a graph: what it means, what is legal, and that its text reads back."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.graph import scans

from tilewright.base.dtypes import F32, F64
from tilewright.base.errors import GraphError
from tilewright.graph.build import Builder
from tilewright.graph.control import Parts, add_cond, add_scan, add_while
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph, TensorType
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify
from tilewright.ops.operator import write

GRAPHS: dict[str, Graph] = {
    "recurrent": scans.recurrent(),
    "reversed": scans.recurrent(reverse=True),
    "nested": scans.nested(),
    "shifting": scans.shifting(),
    "branching": scans.branching(),
    "doubling": scans.doubling(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_text_of_control_flow_reads_back(name: str) -> None:
    verify(GRAPHS[name])
    assert parse(show(GRAPHS[name])) == GRAPHS[name]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_its_body_step_by_step(reverse: bool) -> None:
    graph = scans.recurrent(reverse=reverse)
    h, xs, w, s = scans.arrays(graph)
    last, out = evaluate(graph, [h, xs, w, s])
    expected = np.empty_like(xs)
    for at in range(len(xs))[:: -1 if reverse else 1]:
        h = np.tanh(xs[at] * s + h @ w)
        expected[at] = h * s
    np.testing.assert_allclose(last, h, rtol=1e-14)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_a_scan_of_no_steps_gives_its_first_carry() -> None:
    graph = scans.recurrent(steps=0)
    h, xs, w, s = scans.arrays(graph)
    last, out = evaluate(graph, [h, xs, w, s])
    assert np.array_equal(last, h)
    assert out.shape == (0, scans.BATCH, scans.WIDTH)


def test_carries_change_all_at_once() -> None:
    a, b, n, xs = scans.arrays(scans.shifting())
    found = evaluate(scans.shifting(), [a, b, n, xs])
    firsts, totals = [], []
    for at in range(len(xs)):
        total = a * b + xs[at] * float(n)
        firsts.append(a)
        totals.append(total)
        a, b, n = b, total, n + 1
    expected = [a, b, n, np.stack(firsts), xs, np.stack(totals)]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.parametrize("truth", [True, False])
def test_a_cond_is_one_of_its_branches(truth: bool) -> None:
    _, x, w = scans.arrays(scans.branching())
    y, same = evaluate(scans.branching(), [np.array(truth), x, w])
    np.testing.assert_allclose(y, np.exp(x @ w) if truth else x * x + x @ w, rtol=1e-14)
    assert np.array_equal(same, x)


@pytest.mark.parametrize(("limit", "times"), [(100.0, 5), (4.0, 0), (-1.0, 0), (np.nan, 0)])
def test_a_while_runs_as_long_as_its_test_says(limit: float, times: int) -> None:
    (found,) = evaluate(scans.doubling(), [np.ones(4), np.array(limit)])
    assert np.array_equal(found, np.ones(4) * 2**times)


# ---------------------------------------------------------------------------------------- legality


def _body(text: str, *types: TensorType, dtype: object = F64) -> Graph:
    builder = Builder("body")
    inputs = {f"x{k}": builder.input(f"x{k}", type_) for k, type_ in enumerate(types)}
    made = write(builder, text, dict(inputs), dtype=dtype, name="made")  # type: ignore[arg-type]
    return builder.finish((made,))


ROW, MATRIX, HALF = (
    TensorType((4,), F64),
    TensorType((3, 4), F64),
    TensorType((4,), F32),
)


def _wrong_carry_dtype(builder: Builder) -> None:
    body = _body("y[...] = f32(x0[...])", ROW, dtype=F32)
    add_scan(builder, body, Parts((builder.input("x", ROW),), (), ()), length=3)


def _wrong_carry_shape(builder: Builder) -> None:
    body = _body("y[j, i] = x0[i] for j<2", ROW)
    add_scan(builder, body, Parts((builder.input("x", ROW),), (), ()), length=3)


def _wrong_length(builder: Builder) -> None:
    body = _body("y[i] = x0[i] + x1[i]", ROW, ROW)
    row, xs = builder.input("x", ROW), builder.input("xs", MATRIX)
    add_scan(builder, body, Parts((row,), (xs,), ()), length=4)


def _other_branches(builder: Builder) -> None:
    then, otherwise = _body("y[...] = x0[...]", ROW), _body("y[] += x0[i]", ROW)
    p = builder.input("p", scans.branching().inputs[0].type)
    add_cond(builder, p, then, otherwise, (builder.input("x", ROW),))


def _no_predicate(builder: Builder) -> None:
    branch = _body("y[...] = x0[...]", ROW)
    x = builder.input("x", ROW)
    add_cond(builder, x, branch, branch, (x,))


def _while_changes(builder: Builder) -> None:
    test = scans.doubling().nodes[0].graphs[0]
    body = _body("y[i] = f32(x0[i] + x1[])", ROW, TensorType((), F64), dtype=F32)
    x, limit = builder.input("x", ROW), builder.input("limit", TensorType((), F64))
    add_while(builder, test, body, (x,), (limit,))


def _no_truth(builder: Builder) -> None:
    body = _body("y[i] = x0[i]", ROW)
    add_while(builder, body, body, (builder.input("x", ROW),))


WRONG: dict[str, Callable[[Builder], None]] = {
    "carry_of_another_dtype": _wrong_carry_dtype,
    "carry_of_another_shape": _wrong_carry_shape,
    "sequence_of_another_length": _wrong_length,
    "branches_of_other_types": _other_branches,
    "no_predicate": _no_predicate,
    "while_of_another_dtype": _while_changes,
    "test_without_truth": _no_truth,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str, golden: Callable[[str, str], None]) -> None:
    with pytest.raises(GraphError) as caught:
        WRONG[name](Builder())
    golden(f"control_{name}.txt", str(caught.value))


def test_the_verifier_judges_control_flow_made_by_hand() -> None:
    graph = scans.recurrent()
    (node,) = graph.nodes
    attrs = tuple((k, 7 if k == "length" else v) for k, v in node.attrs)
    with pytest.raises(GraphError, match="control flow"):
        verify(replace(graph, nodes=(replace(node, attrs=attrs),)))
    with pytest.raises(GraphError, match="exactly one body"):
        verify(replace(graph, nodes=(replace(node, graphs=()),)))
