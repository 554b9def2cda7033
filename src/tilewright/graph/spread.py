"""Run a formula in parts, and put the parts' results together.

The idea: a part is a formula of its own, over the same loops but one, which starts where the part
does; its operands are slices.  Reads that are outside a slice are outside the tensor too, so absent
terms stay absent.  Partial results begin with what changes nothing, and the formula's fill is put
in at the end, where no part had a term.

`execute` is the proof of a row of `partitions`, and the meaning of the collectives it names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtypes import BOOL, F64, DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym, substitute, transform
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.evaluate_scalar import Array
from tilewright.graph.formulas import normal, simplify_indices
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.partitions import (
    GATHER,
    SCATTER,
    Partition,
    Split,
    number,
)

Range = tuple[int, int]
Run = Callable[[Formula, Sequence[Array]], Array]
_MEET: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its formula, and the ranges of operands and of the result that it holds."""

    formula: Formula
    operands: tuple[tuple[Range, ...], ...]
    result: tuple[Range, ...]


def cut(
    formula: Formula, types: Sequence[TensorType], row: Partition, parts: int
) -> tuple[Part, ...]:
    """Return the formulas of the parts that are not empty."""
    return tuple(
        _part(formula, types, row, low, high) for low, high in row.bounds(parts) if low < high
    )


def execute(
    formula: Formula, arrays: Sequence[Array], types: Sequence[TensorType], row: Partition,
    parts: int, run: Run = evaluate_formula,
) -> Array:  # fmt: skip
    """Return the formula's result, computed in parts."""
    made = cut(formula, types, row, parts)
    results = [(part, run(part.formula, _held(part, arrays))) for part in made]
    if not row.combine:
        whole = _base(formula, arrays).astype(formula.type.dtype.numpy)
        for part, result in results:
            whole[_window(part.result)] = result
        return whole
    reached = np.zeros(_shape(formula.type), bool)
    for part in made:
        reached[_window(part.result)] |= run(_reach(part.formula), _held(part, arrays))
    if row.combine.startswith("arg"):
        best = [run(_values(part.formula), _held(part, arrays)) for part in made]
        found = _best([result for _, result in results], best, row.combine)
    else:
        found = _meet(formula, row, results)
    return _filled(formula, arrays, row, found, reached)


# ------------------------------------------------------------------------------------ making a part


def _part(
    formula: Formula, types: Sequence[TensorType], row: Partition, low: int, high: int
) -> Part:
    operands = tuple(
        _ranges(type_, splits, low, high) for type_, splits in zip(types, row.operands, strict=True)
    )
    result = _ranges(formula.type, row.result, low, high)
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
    shape = tuple(stop - start for start, stop in result)
    made = replace(
        formula, loops=loops, index=index, value=value, where=where, at=moved.value(formula.at),
        type=TensorType(shape, _dtype(formula, row)),
        fill=Const(_identity(formula, row)) if row.combine else formula.fill,
    )  # fmt: skip
    return Part(normal(made), operands, result)


@dataclass(frozen=True, slots=True)
class _Move:
    """Lets the cut loop begin at `low`, and reads begin where the operands' slices do."""

    row: Partition
    low: int
    starts: dict[str, tuple[Range, ...]]
    extents: dict[str, int]

    def value(self, part: Expr | None) -> Expr | None:
        if part is None:
            return None
        return simplify_indices(transform(self._later(part), self._sliced), self.extents)

    def index(self, entry: Expr, start: int) -> Expr:
        inside = transform(self._later(entry), self._sliced)
        wrapped = Read("y", (_less(inside, start),))
        made = simplify_indices(wrapped, self.extents)
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


def _ranges(type_: TensorType, splits: Sequence[Split], low: int, high: int) -> tuple[Range, ...]:
    ranges = [(0, size) for size in _shape(type_)]
    for split in splits:
        ranges[split.dim] = split.region(low, high, ranges[split.dim][1])
    return tuple(ranges)


def _dtype(formula: Formula, row: Partition) -> DType:
    """Partial results are kept in the type that they are computed in."""
    return formula.type.dtype.compute if row.combine else formula.type.dtype


def _identity(formula: Formula, row: Partition) -> bool | int | float:
    """Return what a term combined with is the term."""
    dtype = formula.type.dtype
    if row.combine in ("sum", "argmax", "argmin"):
        return 0
    if row.combine == "prod":
        return 1
    if row.combine in ("any", "all"):
        return row.combine == "all"
    if dtype.kind == "float":
        return -np.inf if row.combine == "max" else np.inf
    if dtype == BOOL:
        return row.combine == "min"
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if row.combine == "max" else limits.max)


# ------------------------------------------------------------------------------ putting it together


def _held(part: Part, arrays: Sequence[Array]) -> list[Array]:
    return [array[_window(ranges)] for array, ranges in zip(arrays, part.operands, strict=True)]


def _window(ranges: Sequence[Range]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in ranges)


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(number(size) for size in type_.shape)


def _meet(formula: Formula, row: Partition, results: Sequence[tuple[Part, Array]]) -> Array:
    dtype = _dtype(formula, row)
    whole = np.full(_shape(formula.type), _identity(formula, row), dtype.numpy)
    for part, result in results:
        window = _window(part.result)
        whole[window] = _MEET[row.combine](whole[window], result)
    return whole


def _reach(formula: Formula) -> Formula:
    """Return the formula that says where there is a term: it makes the same reads."""
    always = Call("or", (Call("eq", (formula.value, formula.value)), Const(True)))
    type_ = TensorType(formula.type.shape, BOOL)
    return replace(formula, op="any=", value=always, at=None, type=type_, fill=Const(False))


def _values(formula: Formula) -> Formula:
    """Return the formula of the best value, for one of its place."""
    op = formula.op.removeprefix("arg")
    worst = -np.inf if op == "max=" else np.inf
    value = Call("f64", (formula.value,))
    type_ = TensorType(formula.type.shape, F64)
    return replace(formula, op=op, value=value, at=None, type=type_, fill=Const(float(worst)))


def _best(places: Sequence[Array], values: Sequence[Array], how: str) -> Array:
    """Take the best value's place; NaN is the best, and of equals the first place wins."""
    sign = 1.0 if how == "argmax" else -1.0
    rank = [np.where(np.isnan(value), np.inf, sign * value) for value in values]
    nan = [np.isnan(value) for value in values]
    best, place, seen = rank[0], places[0], nan[0]
    for value, at, is_nan in zip(rank[1:], places[1:], nan[1:], strict=True):
        better = (is_nan & ~seen) | ((is_nan == seen) & (value > best))
        tie = (is_nan == seen) & (value == best) & (at < place)
        take = better | tie
        best, place = np.where(take, value, best), np.where(take, at, place)
        seen = seen | is_nan
    return place


def _filled(
    formula: Formula, arrays: Sequence[Array], row: Partition, found: Array, reached: Array
) -> Array:
    dtype = formula.type.dtype
    base = _base(formula, arrays)
    if isinstance(formula.fill, Read):
        found = _MEET[row.combine](base.astype(found.dtype), found)
    return np.where(reached, found, base).astype(dtype.numpy)


def _base(formula: Formula, arrays: Sequence[Array]) -> Array:
    """Return what the result holds where no term lands."""
    if isinstance(formula.fill, Read):
        return arrays[formula.operands.index(formula.fill.tensor)]
    assert isinstance(formula.fill, Const), "a fill is a number or an operand"
    return np.full(_shape(formula.type), formula.fill.value)
