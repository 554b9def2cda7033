"""A formula over its whole loop grid, block by block.

The idea: blocks are contiguous in the order of the loops, so that what is combined in order stays
in order; within a block the loops that the target does not index are reduced at once, and the rest
lands in the result as a region, or as a scatter.  Float sums are formed in float64.

This module means exactly what `evaluate_naive` says; it does not know sums of products
(`evaluate_contraction`).
"""

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import F64
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.expr import Read, Sym, names
from tilewright.graph.evaluate_block import (
    Evaluation,
    Mask,
    Term,
    blocks,
    both,
    either,
    or_true,
)
from tilewright.graph.evaluate_naive import Operands, bind, static_extents, static_shape, term_at
from tilewright.graph.evaluate_scalar import Array, Number, cast, held, store, truth
from tilewright.graph.ir import Formula

BLOCK = 1 << 19  # iterations at a time: a few megabytes for each array in flight


def evaluate_grid(
    formula: Formula,
    arrays: Sequence[Array],
    *,
    wide: bool = False,
    origin: Origin = UNKNOWN,
    block: int = BLOCK,
) -> Array:
    """Return the formula's result; `block` bounds how many iterations are looked at together."""
    operands = bind(formula, arrays, wide=wide)
    with np.errstate(all="ignore"):
        target = Target(formula, operands)
        for ranges in blocks(static_extents(formula), block):
            evaluation = Evaluation(operands, ranges)
            term = _guarded(formula, evaluation, operands, origin)
            target.take(formula, evaluation, term)
        return target.result()


def _guarded(formula: Formula, evaluation: Evaluation, operands: Operands, origin: Origin) -> Term:
    """Return the value where the term is present: inside, and `where` holds."""
    present: Mask = None
    wrong: Mask = None
    if formula.where is not None:
        where = evaluation.term(formula.where)
        if where.fault is not None:
            wrong = both(where.present, where.fault)
        present = both(where.present, truth(where.number))
    value = evaluation.term(formula.value)
    present, fault = both(present, value.present), value.fault
    if formula.at is not None:
        mark = evaluation.term(formula.at)
        present, fault = both(present, mark.present), either(fault, mark.fault)
    shape = static_shape(formula)
    if not bare(formula, shape):
        _, inside, outside = evaluation.place(formula.index, shape)
        present, fault = both(present, inside), either(fault, outside)
    if fault is not None:
        wrong = either(wrong, both(present, fault))
    _raise_fault(formula, evaluation, operands, wrong, origin)
    return Term(value.number, present)


def bare(formula: Formula, shape: tuple[int, ...]) -> bool:
    """Return whether the target is indexed by different loops, each within its dim."""
    entries = [entry.name for entry in formula.index if isinstance(entry, Sym)]
    if len(entries) < len(formula.index) or len(set(entries)) < len(entries):
        return False
    extents = static_extents(formula)
    return all(extents[name] <= dim for name, dim in zip(entries, shape, strict=True))


def _raise_fault(
    formula: Formula, evaluation: Evaluation, operands: Operands, wrong: Mask, origin: Origin
) -> None:
    """Let the naive way raise the error of the first iteration at fault, if there is one."""
    if wrong is None or not wrong.any():
        return
    first = np.argwhere(np.broadcast_to(wrong, evaluation.shape))[0].tolist()
    starts = (start for start, _ in evaluation.ranges.values())
    point = {
        name: start + at for name, start, at in zip(evaluation.ranges, starts, first, strict=True)
    }
    term_at(formula, operands, point, origin)
    raise AssertionError(f"iteration {point} was found at fault, and then was not")


# --------------------------------------------------------------------------------------- reductions

_COMBINE: dict[str, np.ufunc] = {
    "+=": np.add,
    "*=": np.multiply,
    "max=": np.maximum,
    "min=": np.minimum,
    "any=": np.logical_or,
    "all=": np.logical_and,
}


class Target:
    """The result while it is being made.  Mutable: blocks are taken one after another."""

    def __init__(self, formula: Formula, operands: Operands) -> None:
        self.type = formula.type
        self.wide = operands.wide
        self.shape = static_shape(formula)
        self.bare = bare(formula, self.shape)
        self.marks = np.zeros(self.shape, np.int64) if formula.at is not None else None
        self.dtype = self._accumulator(formula, operands)
        fill = _fill(formula, operands, self.shape)
        self.fill = store(fill, self.type.dtype, wide=self.wide)
        self.has = np.zeros(self.shape, np.bool_)
        self.sum = np.full(self.shape, _identity(formula.op, self.dtype), self.dtype)
        if isinstance(formula.fill, Read) and formula.at is None:
            self.sum[...] = store_as(fill, self.dtype)
            self.has[...] = True

    def _accumulator(self, formula: Formula, operands: Operands) -> np.dtype:
        if formula.op in ("any=", "all="):
            return np.dtype(np.bool_)
        if formula.at is not None:  # compared as they are, in the type of the value
            corner = {loop.name: (0, 1) for loop in formula.loops}
            return Evaluation(operands, corner).term(formula.value).number.data.dtype
        dtype = held(self.type.dtype, wide=self.wide)
        return F64.numpy if formula.op == "+=" and dtype.kind == "f" else dtype

    def take(self, formula: Formula, evaluation: Evaluation, term: Term) -> None:
        """Combine what a block gives with what there is."""
        shape = evaluation.shape
        if formula.at is not None:
            data = term.number.data
        elif formula.op in ("any=", "all="):
            data = truth(term.number)
        else:
            data = cast(term.number, self.type.dtype.compute, wide=self.wide).data
        data = np.broadcast_to(data, shape)
        present = None if term.present is None else np.broadcast_to(term.present, shape)
        if present is not None and not present.any():
            return
        if formula.at is not None:
            mark = np.broadcast_to(evaluation.term(formula.at).number.data, shape)
            self._take_best(formula, evaluation, data, mark, present)
        elif formula.op == "=":
            self._assign(formula, evaluation, data, present)
        else:
            self._reduce(formula, evaluation, data, present)

    def result(self) -> Array:
        """Return the result: where no term landed, the fill."""
        data = self.sum if self.marks is None else self.marks
        number = Number(data, self.type.dtype.compute)
        return np.where(self.has, store(number, self.type.dtype, wide=self.wide), self.fill)

    def _reduce(self, formula: Formula, evaluation: Evaluation, data: Array, present: Mask) -> None:
        combine = _COMBINE[formula.op]
        axes = _reduced_axes(formula, evaluation)
        identity = np.asarray(_identity(formula.op, self.dtype), self.dtype)
        if present is not None:
            data = np.where(present, data, identity.astype(data.dtype))
            present = np.asarray(present.any(axis=axes, keepdims=True))
        if axes:
            data = combine.reduce(data, axis=axes, dtype=self.dtype, keepdims=True)
        if self.bare:
            region, order = self._region(formula, evaluation)
            part = data.transpose(order).reshape(self.sum[region].shape)
            self.sum[region] = combine(self.sum[region], part)
            self._mark_region(region, order, present)
            return
        place, chosen = self._scatter(formula, evaluation, axes, present)
        flat = np.broadcast_to(data, chosen.shape)[chosen]
        combine.at(self.sum, place, flat.astype(self.dtype))
        self.has[place] = True

    def _assign(self, formula: Formula, evaluation: Evaluation, data: Array, present: Mask) -> None:
        if self.bare and len(formula.index) == len(evaluation.ranges):
            region, order = self._region(formula, evaluation)
            part = data.transpose(order)
            if present is None:
                self.sum[region] = part
            else:
                whole = self.sum[region] if region else self.sum  # of rank 0: the array itself
                np.copyto(whole, part, where=present.transpose(order))
            self._mark_region(region, order, present)
            return
        place, chosen = self._scatter(formula, evaluation, (), present)
        terms = data[chosen]
        # Of equal places the last in the order of the loops stays; a scalar is one place.
        self.sum[place] = terms if place else terms[-1]
        self.has[place] = True

    def _take_best(
        self, formula: Formula, evaluation: Evaluation, data: Array, mark: Array, present: Mask
    ) -> None:
        chosen = np.broadcast_to(np.asarray(True), data.shape) if present is None else present
        if not self.bare:
            place, chosen = self._scatter(formula, evaluation, (), present)
            self._take_each(formula.op, place, data[chosen], mark[chosen])
            return
        region, order = self._region(formula, evaluation)
        shape = (*self.sum[region].shape, -1)
        data, mark, chosen = (part.transpose(order).reshape(shape) for part in (data, mark, chosen))
        best, at, found = _best(formula.op, data, mark, chosen)
        old = self.sum[region]
        wins = found & (~self.has[region] | _beats(formula.op, best, old))
        assert self.marks is not None, "a best one has an index"
        self.sum[region] = np.where(wins, best, old)
        self.marks[region] = np.where(wins, at, self.marks[region])
        self.has[region] |= found

    def _take_each(self, op: str, place: tuple[Array, ...], values: Array, marks: Array) -> None:
        assert self.marks is not None, "a best one has an index"
        for number, at in enumerate(zip(*(part.tolist() for part in place), strict=True)):
            value = values[number]
            if not self.has[at] or _beats(op, value, self.sum[at]):
                self.sum[at], self.marks[at], self.has[at] = value, marks[number], True

    def _region(
        self, formula: Formula, evaluation: Evaluation
    ) -> tuple[tuple[slice, ...], tuple[int, ...]]:
        """Return the part of the result that a block lands in, and the axes in its order."""
        loops = list(evaluation.ranges)
        entries = [entry.name for entry in formula.index if isinstance(entry, Sym)]
        region = tuple(slice(*evaluation.ranges[name]) for name in entries)
        first = [loops.index(name) for name in entries]
        rest = [axis for axis in range(len(loops)) if axis not in first]
        return region, (*first, *rest)

    def _mark_region(
        self, region: tuple[slice, ...], order: tuple[int, ...], present: Mask
    ) -> None:
        if present is None:
            self.has[region] = True
        else:
            self.has[region] |= present.transpose(order).reshape(self.has[region].shape)

    def _scatter(
        self, formula: Formula, evaluation: Evaluation, reduced: tuple[int, ...], present: Mask
    ) -> tuple[tuple[Array, ...], Array]:
        """Return where the terms land, one entry each, and which points of the block they are."""
        place, inside, _ = evaluation.place(formula.index, self.shape)
        extents = enumerate(evaluation.shape)
        shape = tuple(1 if axis in reduced else extent for axis, extent in extents)
        chosen = np.broadcast_to(or_true(both(inside, present)), shape)
        return tuple(np.broadcast_to(part, shape)[chosen] for part in place), chosen


def store_as(number: Number, dtype: np.dtype) -> Array:
    """Return the elements in an accumulator's type."""
    return truth(number) if dtype == np.bool_ else number.data.astype(dtype)


def _fill(formula: Formula, operands: Operands, shape: tuple[int, ...]) -> Number:
    if not isinstance(formula.fill, Read):
        return Evaluation(operands, {}).term(formula.fill).number
    tensor = operands.by_name[formula.fill.tensor]
    assert tensor.data.shape == shape, f"from {formula.fill.tensor}: its shape is not {shape}"
    return tensor


def _identity(op: str, dtype: np.dtype) -> bool | int | float:
    if op not in ("max=", "min="):
        return op in ("*=", "all=")
    if dtype.kind == "f":
        return -np.inf if op == "max=" else np.inf
    if dtype.kind == "b":
        return op == "min="
    limits = np.iinfo(dtype)
    return int(limits.min if op == "max=" else limits.max)


def _reduced_axes(formula: Formula, evaluation: Evaluation) -> tuple[int, ...]:
    used = frozenset[str]().union(*(names(entry) for entry in formula.index))
    return tuple(axis for axis, name in enumerate(evaluation.ranges) if name not in used)


def _best(op: str, data: Array, mark: Array, chosen: Array) -> tuple[Array, Array, Array]:
    """Return the best of the chosen along the last axis, the first one's mark, and if any was."""
    side = "max=" if op == "argmax=" else "min="
    worst = np.asarray(_identity(side, data.dtype)).astype(data.dtype)
    masked = np.where(chosen, data, worst)
    best = masked.max(-1) if op == "argmax=" else masked.min(-1)
    hit = chosen & ((data == best[..., None]) | ((data != data) & (best != best)[..., None]))
    first = hit.argmax(-1)[..., None]
    at = np.take_along_axis(np.broadcast_to(mark, data.shape), first, -1)[..., 0]
    return best, at, hit.any(-1)


def _beats(op: str, new: Array, old: Array) -> Array:
    better = new > old if op == "argmax=" else new < old
    return np.asarray((better | (new != new)) & (old == old))
