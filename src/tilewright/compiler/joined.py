"""Values that are put one after another: which of them are made where they go.

The idea: `cat` copies what its operands' kernels have just written; a kernel writes its results
with any strides, so it may write them into their places of the whole, and nothing is left to do.

This module does not know buffers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.base.algebra import affine
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.graph.compose import over_values
from tilewright.graph.ir import FUSED, Formula, Graph, Node, TensorType, Value
from tilewright.graph.views import is_pointwise
from tilewright.kernels import lies_anyhow
from tilewright.optimize import parted
from tilewright.program import View


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lies in another: from element `start` of its dim `dim` on."""

    whole: Value
    dim: int
    start: int

    def of(self, whole: View, shape: tuple[int, ...]) -> View:
        """Return the view of the slot, for a value of that shape, where the whole lies so."""
        return replace(
            whole, shape=shape, offset=whole.offset + self.start * whole.strides[self.dim]
        )


def slots(graph: Graph, taken: Collection[str]) -> dict[str, Slot]:
    """Return the slots of values that are made in their places of a whole, by name.

    All parts of such a whole are.  taken: values that have to lie elsewhere.
    """
    made_by = {value.name: node for node in graph.nodes for value in node.outputs}
    free = made_by.keys() - taken
    found: dict[str, Slot] = {}
    for node in graph.nodes:
        joined = _joined(node)
        parts = [name for name, _ in joined]
        spread = len({*parts} & free) == len(parts) and all(_spreads(made_by[p]) for p in parts)
        if joined and spread:
            found.update(joined)
            free.difference_update(parts)
    return found


def _spreads(node: Node) -> bool:
    """Say whether a kernel of loops alone makes what a node makes."""
    return node.op == FUSED and parted(node) is None and lies_anyhow(node.graphs[0])


def _joined(node: Node) -> list[tuple[str, Slot]]:
    """Return the slots of the values that a node puts one after another; none if it does not."""
    if node.op != FUSED or len(node.graphs[0].nodes) != 1 or len(node.outputs) != 1:
        return []
    (inner,) = node.graphs[0].nodes
    formula, whole = over_values(inner), node.output
    if not is_pointwise(formula) or formula.where is not None:
        return []
    outer = dict(zip((v.name for v in node.graphs[0].inputs), node.inputs, strict=True))
    for dim, (loop, extent) in enumerate(zip(formula.index, whole.type.shape, strict=True)):
        if isinstance(loop, Sym) and type(extent) is int:
            pieces = list(_pieces(formula.value, loop, 0, extent))
            if len(pieces) > 1:
                return _slots(formula, dim, pieces, outer, whole)
    return []


def _pieces(value: Expr, loop: Sym, low: int, high: int) -> Iterator[tuple[Expr, int, int]]:
    """Open decisions on a loop: yield what each stretch of its iterations computes."""
    match value:
        case Call("select", (Call("lt", (at, Const(int(cut)))), first, second)) if at == loop:
            yield from _pieces(first, loop, low, min(high, cut))
            yield from _pieces(second, loop, max(low, cut), high)
        case _:
            yield value, low, high


def _slots(
    formula: Formula,
    dim: int,
    pieces: Sequence[tuple[Expr, int, int]],
    outer: dict[str, Value],
    whole: Value,
) -> list[tuple[str, Slot]]:
    """Return the slots of the pieces, each of which is a tensor as it stands; else none."""
    found = []
    for value, low, high in pieces:
        if not isinstance(value, Read) or value.tensor not in outer or value.default is not None:
            return []
        part, shape = outer[value.tensor], list(whole.type.shape)
        shape[dim] = high - low
        if part.type != TensorType(tuple(shape), whole.type.dtype):
            return []
        apart = [Call("sub", pair) for pair in zip(formula.index, value.index, strict=True)]
        apart[dim] = Call("sub", (apart[dim], Const(low)))
        if any(n != 1 and affine(at) != (0, {}) for n, at in zip(shape, apart, strict=True)):
            return []
        found.append((part.name, Slot(whole, dim, low)))
    return found
