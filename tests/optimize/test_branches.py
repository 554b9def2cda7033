"""A cond whose predicate is known when compiling becomes the branch that is taken."""

import numpy as np
import pytest
from tests.graph import scans

from tilewright.autodiff import reverse
from tilewright.base.dtypes import BOOL, F64
from tilewright.graph.build import Builder
from tilewright.graph.control import add_cond
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import COND, Graph, TensorType
from tilewright.graph.passes import run
from tilewright.graph.verify import verify
from tilewright.ops import TABLE
from tilewright.ops.operator import apply, write
from tilewright.optimize import simplifications
from tilewright.optimize.branches import PruneBranches


def _decided(truth: bool) -> Graph:
    """`branching` with a predicate that follows from constants, twice: one result is a branch's own
    operand."""
    inner = scans.branching()
    builder = Builder("decided")
    x, w = (builder.input(value.name, value.type) for value in inner.inputs[1:])
    flag = builder.constant(truth, BOOL)
    known = write(builder, "y[] = not f[]", f=flag, dtype=BOOL, name="known")
    first, passed = builder.inline(inner, (known, x, w))
    second, _ = builder.inline(inner, (flag, passed, w))
    return builder.finish((first, second, passed))


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("differentiated", [True, False])
def test_a_branch_that_is_never_taken_is_pruned(truth: bool, differentiated: bool) -> None:
    graph = _decided(truth)
    if differentiated:
        graph = reverse(graph, ("x", "w")).graph
    made = run(graph, simplifications(), verify=True)
    assert not any(node.op == COND for node in made.nodes)
    arrays = scans.arrays(graph)
    for ours, theirs in zip(evaluate(made, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-15)


def test_a_branch_inside_of_a_body_is_pruned_too() -> None:
    builder = Builder("outer")
    inner = _decided(True)
    p = builder.input("p", scans.branching().inputs[0].type)
    x, w = (builder.input(value.name, value.type) for value in inner.inputs)
    graph = builder.finish(add_cond(builder, p, inner, _decided(False), (x, w)))
    verify(graph)
    made = run(graph, simplifications(), verify=True)
    (left,) = [node for node in made.nodes if node.op == COND]
    assert not any(node.op == COND for body in left.graphs for node in body.nodes)


def test_a_predicate_that_is_not_known_keeps_both_branches() -> None:
    made = run(scans.branching(), simplifications(), verify=True)
    assert [node.op for node in made.nodes].count(COND) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_branch_in_which_ranks_meet_is_not_pruned(ranks: int) -> None:
    """Another rank may come to it all the same; alone, a rank meets nobody."""
    inner = Builder("meeting")
    x = inner.input("x", TensorType((4,), F64))
    total = apply(inner, TABLE["all_reduce"], x, group=tuple(range(ranks)))
    then = inner.finish(total)
    other = Builder("alone")
    (y,) = apply(other, TABLE["exp"], other.input("x", TensorType((4,), F64)))
    builder = Builder("rank")
    x = builder.input("x", TensorType((4,), F64))
    truth = builder.constant(True, BOOL)
    graph = builder.finish(add_cond(builder, truth, then, other.finish((y,)), (x,)))
    made = run(graph, (PruneBranches(),), verify=True)
    assert [node.op for node in made.nodes].count(COND) == ranks - 1
