"""One part of a formula that is cut: a formula of its own, over slices.

The idea: a part is the formula over the same loops but one, which starts where the part does.
Reads that are outside a slice are outside the tensor too, so absent terms stay absent.  Partial
results begin with what changes nothing.

This module does not know how parts are put together (`spread`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtypes import BOOL, DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym, substitute, transform
from tilewright.graph.formulas import normal, simplify_indices
from tilewright.graph.infer import infer
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.partitions import GATHER, SCATTER, Partition, number
from tilewright.parallel.shares import Range, Window, shape_of

NOWHERE = 2**63 - 1  # the place of the best of no terms


def part_of(
    formula: Formula, row: Partition, bounds: Range, operands: Sequence[Window], result: Window
) -> Formula:
    """Return the formula of a part.

    bounds: the iterations that it makes.  operands, result: the windows that it reads and writes.
    """
    low, high = bounds
    loops = formula.loops
    if row.kind not in (GATHER, SCATTER):
        loops = tuple(
            Loop(loop.name, high - low) if loop.name == row.cut else loop for loop in loops
        )
    extents = {loop.name: number(loop.extent) for loop in loops}
    starts = dict(zip(formula.operands, operands, strict=True))
    moved = _Move(row, low, starts, extents)
    index = tuple(
        moved.index(entry, start) for entry, (start, _) in zip(formula.index, result, strict=True)
    )
    where = moved.value(formula.where)
    guard = _guard(formula, row, low, high)
    if guard is not None:
        where = guard if where is None else Call("and", (where, guard))
    value = moved.value(formula.value)
    assert value is not None, "a formula has a value"
    made = replace(
        formula, loops=loops, index=index, value=value, where=where, at=moved.value(formula.at),
        type=TensorType(shape_of(result), _dtype(formula, row)),
        fill=Const(identity(formula, row.combine)) if row.combine else formula.fill,
    )  # fmt: skip
    return normal(made)


def reach_of(part: Formula) -> Formula:
    """Return the formula that says where there is a term: it makes the same reads."""
    always = Call("or", (Call("eq", (part.value, part.value)), Const(True)))
    type_ = TensorType(part.type.shape, BOOL)
    return replace(part, op="any=", value=always, at=None, type=type_, fill=Const(False))


def best_of(part: Formula, types: Sequence[TensorType]) -> Formula:
    """Return the formula of the best value, for one of its place."""
    dtypes = {name: type_.dtype for name, type_ in zip(part.operands, types, strict=True)}
    type_ = TensorType(part.type.shape, infer(part.value, dtypes))
    made = replace(part, op=part.op.removeprefix("arg"), at=None, type=type_)
    return replace(made, fill=Const(identity(made, "max" if made.op == "max=" else "min")))


def identity(formula: Formula, combine: str) -> bool | int | float:
    """Return what a term combined with is the term; of places, that of no term."""
    dtype = formula.type.dtype
    if combine in ("argmax", "argmin"):
        return NOWHERE
    if combine == "sum":
        return 0
    if combine == "prod":
        return 1
    if combine in ("any", "all"):
        return combine == "all"
    if dtype.kind == "float":
        return -np.inf if combine == "max" else np.inf
    if dtype == BOOL:
        return combine == "min"
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if combine == "max" else limits.max)


@dataclass(frozen=True, slots=True)
class _Move:
    """Lets the cut loop begin at `low`, and reads begin where the operands' slices do."""

    row: Partition
    low: int
    starts: dict[str, Window]
    extents: dict[str, int]

    def value(self, part: Expr | None) -> Expr | None:
        if part is None:
            return None
        return simplify_indices(transform(self._later(part), self._sliced), self.extents)

    def index(self, entry: Expr, start: int) -> Expr:
        inside = transform(self._later(entry), self._sliced)
        wrapped = Read("y", (_less(inside, start),))
        # A loop of one iteration stays a loop: a derivative is told by the loops of the target.
        made = simplify_indices(wrapped, {})
        assert isinstance(made, Read), "simplifying keeps a read"
        return made.index[0]

    def _later(self, part: Expr) -> Expr:
        if self.row.kind in (GATHER, SCATTER) or self.low == 0:
            return part
        loop = self.row.cut
        return substitute(part, {loop: Call("add", (Sym(loop), Const(self.low)))})

    def _sliced(self, node: Expr) -> Expr:
        if not isinstance(node, Read):
            return node
        ranges = self.starts[node.tensor]
        index = tuple(
            _less(entry, start) for entry, (start, _) in zip(node.index, ranges, strict=True)
        )
        return Read(node.tensor, index, node.default)


def _less(entry: Expr, start: int) -> Expr:
    return entry if start == 0 else Call("sub", (entry, Const(start)))


def _guard(formula: Formula, row: Partition, low: int, high: int) -> Expr | None:
    """Say which terms a part makes where the cut is a dim by values."""
    if row.kind == SCATTER:
        place = formula.index[row.result[0].dim]
    elif row.kind == GATHER:
        at = next(k for k, splits in enumerate(row.operands) if splits)
        dim, name = row.operands[at][0].dim, formula.operands[at]
        place = _place(formula.value, name, dim)
    else:
        return None
    inside = (Call("ge", (place, Const(low))), Call("lt", (place, Const(high))))
    return Call("and", inside)


def _place(value: Expr, operand: str, dim: int) -> Expr:
    found: list[Expr] = []

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read) and node.tensor == operand:
            found.append(node.index[dim])
        return node

    transform(value, visit)
    return found[0]


def _dtype(formula: Formula, row: Partition) -> DType:
    """Partial results are kept in the type that they are computed in."""
    return formula.type.dtype.compute if row.combine else formula.type.dtype
