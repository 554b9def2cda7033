"""Form sums of half types that land where an index that is read says in float32.

The idea: such terms meet in memory, where a half type would round each sum on the way; so they
meet in a value that is wide enough, which is rounded once.

This module does not know kernels.
"""

from dataclasses import dataclass, replace

from tilewright.base.expr import reads
from tilewright.graph.build import Builder
from tilewright.graph.compose import over_values
from tilewright.graph.ir import FORMULA, Formula, Graph, Node, TensorType, Value
from tilewright.graph.total import Types
from tilewright.optimize.rewriting import moved, with_formula, with_nodes


@dataclass(frozen=True, slots=True)
class WideSums:
    """Give sums that are scattered a value of their compute type, and round it.

    ::

        %y = {y[t[r<9], d<4] += x[r, d]}(%t, %x) : bf16[5, 4]
        -->
        %y_wide = {y[t[r<9], d<4] += x[r, d]}(%t, %x) : f32[5, 4]
        %y = {y[i0<5, i1<4] = x[i0, i1]}(%y_wide) : bf16[5, 4]
    """

    name: str = "wide_sums"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("scattered sums wide",)

    def __call__(self, graph: Graph) -> Graph:
        return with_nodes(graph, self._widened)

    def _widened(self, node: Node, types: Types, chooser: Builder) -> tuple[Node, ...]:
        if node.formula is None or not _meets_narrow(node.formula):
            return (node,)
        type_ = node.output.type
        wide = Value(chooser.fresh(f"{node.output.name}_wide"), _wide(type_))
        formula = replace(over_values(node), type=wide.type)
        rounded = moved(type_, moved(type_, ()).index)
        return (
            with_formula(replace(node, outputs=(wide,)), formula, types),
            Node(FORMULA, (wide,), node.outputs, formula=rounded, origin=node.origin),
        )


def _meets_narrow(formula: Formula) -> bool:
    """Say whether sums of a half type meet where an index that is read says."""
    dtype = formula.type.dtype
    scattered = any(reads(entry) for entry in formula.index)
    return formula.op == "+=" and dtype.kind == "float" and dtype.compute != dtype and scattered


def _wide(type_: TensorType) -> TensorType:
    return TensorType(type_.shape, type_.dtype.compute)
