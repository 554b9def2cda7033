"""Every way to split every operator gives what the unsplit one gives, in 2 and in 3 parts."""

import numpy as np
import pytest

from tilewright.autodiff import reverse
from tilewright.base.expr import Sym
from tilewright.graph.evaluate import evaluate, evaluate_formula
from tilewright.graph.partitions import number, partitions
from tilewright.graph.verify import verify
from tilewright.ops import TABLE, Operator, Sample
from tilewright.parallel import courses, execute, execute_graph

from .cases import Array, Case, expanded, formula_values, make, parameters


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_every_partition_equals_the_unsplit_formula(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    for node, arrays in formula_values(case):
        formula = node.formula
        assert formula is not None, "formula_values gives nodes with formulas"
        types = [value.type for value in node.inputs]
        whole = evaluate_formula(formula, arrays)
        for row in partitions(formula, types):
            for parts in (2, 3):
                found = execute(formula, arrays, types, row, parts)
                assert found.dtype == whole.dtype
                close(found, whole, f"{formula} cut at {row.cut} in {parts}")


COMPOSITES = [name for name, operator in TABLE.items() if operator.expand is not None]


@pytest.mark.parametrize(("operator", "sample"), parameters(COMPOSITES))
def test_every_course_through_a_composite_equals_the_unsplit_graph(
    operator: Operator, sample: Sample
) -> None:
    case = make(operator, sample)
    graph = expanded(case.graph)
    whole = evaluate(graph, case.inputs)
    for course in courses(graph):
        for parts in (2, 3):
            found = execute_graph(graph, case.inputs, course, parts)
            for value, ours, theirs in zip(graph.outputs, found, whole, strict=True):
                assert ours.dtype == theirs.dtype
                close(ours, theirs, f"{value.name} cut at {course.name} in {parts}")


def close(found: Array, whole: Array, what: str) -> None:
    # Sums in parts round in another order.
    wide = (found.astype(np.float64), whole.astype(np.float64))
    np.testing.assert_allclose(*wide, rtol=1e-12, atol=1e-12, err_msg=what)


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_every_loop_of_a_result_of_its_own_can_be_cut(operator: Operator, sample: Sample) -> None:
    """A parallel loop indexed bare leaves each part a share of its own, without collectives."""
    case = make(operator, sample)
    for node, _ in formula_values(case):
        formula = node.formula
        assert formula is not None, "formula_values gives nodes with formulas"
        rows = {row.cut: row for row in partitions(formula, [v.type for v in node.inputs])}
        for entry in formula.index:
            if isinstance(entry, Sym) and formula.extent(entry.name) not in (0, 1):
                assert rows[entry.name].combine == ""


# One of each kind of loops.
OFTEN = ("mul", "amax", "cumsum", "matmul", "permute", "gather", "scatter", "conv1d", "max_pool1d")


@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True, often=OFTEN))
def test_every_partition_of_a_gradient_equals_the_unsplit_one(
    operator: Operator, sample: Sample
) -> None:
    case = make(operator, sample)
    if not any(case.wanted):
        return
    pairs = zip(case.graph.inputs, case.wanted, strict=True)
    joint = reverse(case.graph, [value.name for value, want in pairs if want], of=[0])
    verify(joint.graph)
    seeds = tuple(
        np.ones([number(dim) for dim in value.type.shape], value.type.dtype.numpy)
        for value in joint.graph.inputs[len(case.inputs) :]
    )
    backward = Case(operator, sample, joint.graph, (*case.inputs, *seeds), ())
    with np.errstate(all="ignore"):
        for node, arrays in formula_values(backward):
            formula = node.formula
            assert formula is not None, "formula_values gives nodes with formulas"
            types = [value.type for value in node.inputs]
            whole = evaluate_formula(formula, arrays)
            for row in partitions(formula, types):
                close(execute(formula, arrays, types, row, 2), whole, f"{formula} at {row.cut}")
