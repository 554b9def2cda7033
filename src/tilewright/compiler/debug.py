"""Debug mode: every node of a compiled graph compared with PyTorch eager, the first one named.

The idea: compile the graph once more with every value among its results, run it, and let torch make
each value again from our values before it, in the order of the nodes.  What differs by more than
rounding explains is wrong itself: nothing is inherited.  A sum is judged by the magnitude of its
terms, since what is left of them may be rounding alone.

This module does not know torch: tensors are compared as NumPy arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.dtypes import BF16, F16, F32, F64, DType
from tilewright.base.errors import DivergenceError
from tilewright.base.expr import Call, Const
from tilewright.capture import drawing_again, replay, run_loops
from tilewright.compiler.built import Built
from tilewright.compiler.options import Options
from tilewright.compiler.pipeline import build
from tilewright.graph.build import draws
from tilewright.graph.ir import CONSTANT, Graph, Node, Value

Array = np.ndarray[Any, np.dtype[np.float64]]
Values = tuple[Any, ...]

# How far two right orders of summation come apart, relative to the largest value of the tensor.
TOLERANCE: dict[DType, float] = {F64: 1e-10, F32: 1e-4, BF16: 5e-2, F16: 1e-2}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value, ours beside eager's: the largest difference relative to the largest value, or to
    the largest sum of the terms' magnitudes."""

    value: str
    node: Node
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance


def check_against_eager(built: Built, inputs: Sequence[Any]) -> None:
    """Raise DivergenceError at the first node whose value differs from eager's."""
    for comparison in compare_with_eager(built.source, inputs):
        if not comparison.agrees:
            raise _diverged(built.source, comparison)


def compare_with_eager(graph: Graph, inputs: Sequence[Any]) -> tuple[Comparison, ...]:
    """Compare every value of a graph as captured with a replay in torch, in the graph's order."""
    exposed, values = expose(graph)
    own = [tensor.detach().clone() for tensor in inputs]
    compiled = build(exposed, Options())
    tolerances = _tolerances(graph)
    found: list[Comparison] = []

    def watch(node: Node, operands: Values, results: Values) -> Values:
        read = list(results)
        for at, value in enumerate(node.outputs):
            if value.name in ours:
                mine, read[at] = ours[value.name], ours[value.name]
                made = _compare(node, value, mine, results[at], tolerances[value.name])
                if not made.agrees and _sums(node):
                    terms = _array(run_loops(_of_magnitudes(node), operands))
                    made = _compare(node, value, mine, results[at], tolerances[value.name], terms)
                found.append(made)
        return tuple(read)

    # Both draw the same random numbers, and so does whatever is run afterwards.
    with drawing_again() as rewind:
        ours = dict(zip(values, compiled.run(own), strict=True))
        rewind()
        replay(graph, [tensor.detach().clone() for tensor in inputs], watch=watch)
    return tuple(found)


def expose(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph with the value of every node among its results, and their names."""
    values: dict[str, Value] = {}
    for node in graph.nodes:
        if node.op != CONSTANT and not draws(node):
            values.update((value.name, value) for value in node.outputs)
    outputs = tuple(values.values())
    return replace(graph, outputs=outputs, updates=()), tuple(values)


def _tolerances(graph: Graph) -> dict[str, float]:
    """Return how far each value may be off: a sum in float64 of float32 values, which were rounded
    before, is no nearer than they are.  Inputs are the same on both sides, and integers exact."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        inherited = max((found.get(value.name, 0.0) for value in node.inputs), default=0.0)
        for value in node.outputs:
            own = TOLERANCE.get(value.type.dtype, 0.0)
            found[value.name] = max(own, inherited) if own else own
    return found


def _sums(node: Node) -> bool:
    """Say whether a node is one sum, in whatever order its terms are added."""
    return node.formula is not None and node.formula.op == "+=" and len(node.outputs) == 1


def _of_magnitudes(node: Node) -> Node:
    """y[i] += x[i, j]  -->  y[i] += abs(x[i, j])"""
    assert node.formula is not None, "asked of sums alone"
    value = Call("abs", (node.formula.value,))
    return replace(node, formula=replace(node.formula, value=value, fill=Const(0)))


def _compare(
    node: Node,
    value: Value,
    ours: Any,
    theirs: Any,
    tolerance: float,
    terms: Array | None = None,
) -> Comparison:
    mine, other = _array(ours), _array(theirs)
    if mine.shape != other.shape:
        return Comparison(value.name, node, float("inf"), tolerance)
    special = ~np.isfinite(mine) | ~np.isfinite(other)
    same = (mine == other) | (np.isnan(mine) & np.isnan(other))
    if np.any(special & ~same):
        return Comparison(value.name, node, float("inf"), tolerance)
    gaps = np.abs(np.where(special, 0, mine) - np.where(special, 0, other))
    measure = other if terms is None else terms
    scale = float(np.abs(np.where(special, 0, measure)).max(initial=0.0))
    widest = float(gaps.max(initial=0.0))
    difference = widest / scale if scale else widest
    return Comparison(value.name, node, difference, tolerance)


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().double().numpy()
    return array


def _diverged(graph: Graph, comparison: Comparison) -> DivergenceError:
    node = comparison.node
    operands = ", ".join(f"{value.name} {value.type}" for value in node.inputs)
    return DivergenceError(
        f"{comparison.value} ({node.op}) differs from eager",
        expected=f"a difference of at most {comparison.tolerance:g} of the largest value",
        found=f"{comparison.difference:.3g}",
        known=f"every value before it in {graph.name!r} agrees; operands {operands}",
        where=node.origin,
        mend="report it with the model and this message; Options(fuse=False) narrows it down",
    )
