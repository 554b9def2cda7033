"""Run the graphs of all ranks in this process, on the evaluator.

The idea: `execute` is the proof of a row of the table: shares go in, shares come out, and together
they are what the formula gives as a whole.

This module does not know how the graphs are made.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.graph import ranks
from tilewright.graph.evaluate import EvaluateFormula, evaluate_formula
from tilewright.graph.evaluate_scalar import Array
from tilewright.graph.ir import Formula, Graph, Node, TensorType
from tilewright.graph.partitions import Partition, number
from tilewright.ops import TABLE, across
from tilewright.ops.operator import expansion
from tilewright.parallel.course import Course, spread_graph
from tilewright.parallel.shares import Window
from tilewright.parallel.spread import Spread, spread


def evaluate_ranks(
    graphs: Sequence[Graph],
    inputs: Sequence[Sequence[Array] | Mapping[str, Array]],
    *,
    formula: EvaluateFormula = evaluate_formula,
    wide: bool = False,
) -> tuple[tuple[Array, ...], ...]:
    """Return the outputs of each rank's graph, all ranks run in lockstep.

    Raises CollectiveError where ranks do not meet: on devices they would wait for ever.
    """
    return ranks.evaluate_ranks(
        graphs, inputs, across=across, expand=_expansion, formula=formula, wide=wide
    )


def execute(
    formula: Formula,
    arrays: Sequence[Array],
    types: Sequence[TensorType],
    row: Partition,
    parts: int,
    *,
    share: int | None = None,
) -> Array:
    """Return the formula's result, computed by at most `parts` ranks and put together."""
    (whole,) = _put_together(
        spread(formula, types, row, parts, share=share), arrays, [formula.type]
    )
    return whole


def execute_graph(
    graph: Graph, arrays: Sequence[Array], course: Course, parts: int
) -> tuple[Array, ...]:
    """Return the graph's outputs, computed by at most `parts` ranks and put together."""
    types = [value.type for value in graph.outputs]
    return _put_together(spread_graph(graph, course, parts), arrays, types)


def _put_together(
    made: Spread, arrays: Sequence[Array], types: Sequence[TensorType]
) -> tuple[Array, ...]:
    given = [
        [array[at(window)] for array, window in zip(arrays, windows, strict=True)]
        for windows in made.inputs
    ]
    wholes = tuple(
        np.zeros([number(size) for size in type_.shape], type_.dtype.numpy) for type_ in types
    )
    for windows, results in zip(made.outputs, evaluate_ranks(made.graphs, given), strict=True):
        for whole, window, result in zip(wholes, windows, results, strict=True):
            whole[at(window)] = result
    return wholes


def at(window: Window) -> tuple[slice, ...]:
    """Return the index that takes a window out of an array."""
    return tuple(slice(start, stop) for start, stop in window)


def _expansion(node: Node) -> Graph | None:
    operator = TABLE.get(node.op)
    if operator is None:
        return None
    return expansion(operator, tuple(value.type for value in node.inputs), node.attrs)
