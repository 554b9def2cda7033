"""Expressions over a block of the loop grid, as NumPy arrays.

The idea: a block is a range of every loop; an expression over it is an array with one axis per
loop, of extent 1 where the loop does not matter, beside a mask of where it is present and one of
where an indirect index was outside.  An affine read that stays inside its tensor is a strided view.

This module means exactly what `evaluate_naive` says; it does not know where terms land and how
they are combined (`evaluate_grid`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.base.algebra import affine
from tilewright.base.expr import Call, Const, Expr, Read, Sym, reads
from tilewright.graph.evaluate_naive import Operands
from tilewright.graph.evaluate_scalar import (
    Array,
    Number,
    apply,
    integers,
    literal,
    select,
    truth,
)

Range = tuple[int, int]
Mask = Array | None  # None where nothing is masked


@dataclass(frozen=True, slots=True)
class Term:
    """An expression over a block.  present: None where everywhere.  fault: None where nowhere."""

    number: Number
    present: Mask = None
    fault: Mask = None


def blocks(extents: Mapping[str, int], limit: int) -> Iterator[dict[str, Range]]:
    """Cut a grid into blocks of at most `limit` points, contiguous in the order of the loops."""
    if not all(extents.values()):
        return
    order = list(extents)
    inner = len(order)  # loops from here on are whole in every block
    volume = 1
    while inner > 0 and volume * extents[order[inner - 1]] <= limit:
        inner -= 1
        volume *= extents[order[inner]]
    whole = {name: (0, extents[name]) for name in order[inner:]}
    if inner == 0:
        yield whole
        return
    step = max(1, limit // volume)
    cut = order[inner - 1]
    for outer in np.ndindex(*(extents[name] for name in order[: inner - 1])):
        points = {name: (at, at + 1) for name, at in zip(order[: inner - 1], outer, strict=True)}
        for start in range(0, extents[cut], step):
            yield {**points, cut: (start, min(start + step, extents[cut])), **whole}


def both(a: Mask, b: Mask) -> Mask:
    """Return where both masks hold."""
    if a is None or b is None:
        return a if b is None else b
    return np.logical_and(a, b)


def either(a: Mask, b: Mask) -> Mask:
    """Return where one of two masks of faults holds."""
    if a is None or b is None:
        return a if b is None else b
    return np.logical_or(a, b)


class Evaluation:
    """Evaluates expressions over one block.  Mutable: it remembers what it has evaluated."""

    def __init__(self, operands: Operands, ranges: Mapping[str, Range]) -> None:
        self.operands = operands
        self.ranges = ranges
        self.memo: dict[int, tuple[Expr, Term]] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The block's extents, in the order of the loops."""
        return tuple(stop - start for start, stop in self.ranges.values())

    def term(self, expr: Expr) -> Term:
        """Return an expression over the block (each object is evaluated once)."""
        known = self.memo.get(id(expr))
        if known is None:
            known = (expr, self._term(expr))  # held, so that its id is not given away
            self.memo[id(expr)] = known
        return known[1]

    def _term(self, expr: Expr) -> Term:
        match expr:
            case Const(value):
                return Term(literal(value))
            case Sym(name):
                return Term(integers(self._loop(name)))
            case Read():
                return self._read(expr)
            case Call("select", (cond, yes, no)):
                return self._select(self.term(cond), self.term(yes), self.term(no))
            case Call(fn, args):
                return self._call(fn, [self.term(arg) for arg in args])

    def _loop(self, name: str) -> Array:
        start, stop = self.ranges[name]
        shape = [1] * len(self.ranges)
        shape[list(self.ranges).index(name)] = stop - start
        return np.arange(start, stop, dtype=np.int64).reshape(shape)

    def _call(self, fn: str, terms: list[Term]) -> Term:
        present: Mask = None
        fault: Mask = None
        for term in terms:
            present, fault = both(present, term.present), either(fault, term.fault)
        if fn == "exactdiv":
            divisor = terms[1].number.data
            whole = np.where(divisor == 0, 1, terms[0].number.data % np.where(divisor, divisor, 1))
            present = both(present, whole == 0)
        number = apply(fn, [term.number for term in terms], wide=self.operands.wide)
        return Term(number, present, fault)

    def _select(self, cond: Term, yes: Term, no: Term) -> Term:
        taken = truth(cond.number)
        present, fault = cond.present, cond.fault
        if yes.present is not None or no.present is not None:
            branch = np.where(taken, or_true(yes.present), or_true(no.present))
            present = both(present, branch)
        if yes.fault is not None or no.fault is not None:
            branch = np.where(taken, or_false(yes.fault), or_false(no.fault))
            fault = either(fault, branch)
        number = select(cond.number, yes.number, no.number, wide=self.operands.wide)
        return Term(number, present, fault)

    def _read(self, read: Read) -> Term:
        tensor = self.operands.by_name[read.tensor]
        view = strided(tensor.data, read.index, self.ranges)
        if view is not None:
            number, inside, fault = Number(view, tensor.dtype), None, None
        else:
            number, inside, fault = self._gather(tensor, read.index)
        if read.default is None:
            return Term(number, inside, fault)
        default = self.term(read.default)
        flag = Number(np.asarray(True) if inside is None else inside, number.dtype)
        number = select(flag, number, default.number, wide=self.operands.wide)
        if inside is None:
            return Term(number, None, fault)
        present = default.present if default.present is None else inside | default.present
        missed = None if default.fault is None else ~inside & default.fault
        return Term(number, present, either(None if fault is None else fault & inside, missed))

    def _gather(self, tensor: Number, index: Sequence[Expr]) -> tuple[Number, Mask, Mask]:
        """Read element by element; returns also where it is inside, and where it is at fault."""
        place, inside, fault = self.place(index, tensor.data.shape)
        if 0 in tensor.data.shape:
            data = np.zeros((1,) * len(self.ranges), tensor.data.dtype)
            data = np.broadcast_to(data, np.broadcast_shapes(data.shape, *(p.shape for p in place)))
        else:
            data = tensor.data[tuple(place)]
        if fault is not None:
            data = np.where(fault, np.zeros((), data.dtype), data)
        return Number(data, tensor.dtype), inside, fault

    def place(self, index: Sequence[Expr], shape: Sequence[int]) -> tuple[list[Array], Mask, Mask]:
        """Return where an index points, put inside; where it was inside; where it is at fault."""
        place: list[Array] = []
        inside: Mask = None
        fault: Mask = None
        for entry, extent in zip(index, shape, strict=True):
            term = self.term(entry)
            inside, fault = both(inside, term.present), either(fault, term.fault)
            value = term.number.data
            within = (value >= 0) & (value < extent)
            if not within.all():
                if reads(entry):
                    fault = either(fault, ~within)
                else:
                    inside = both(inside, within)
                value = np.where(within, value, 0)
            place.append(value)
        return place, inside, fault


def or_true(mask: Mask) -> Array:
    """Return the mask, everywhere where there is none."""
    return np.asarray(True) if mask is None else mask


def or_false(mask: Mask) -> Array:
    """Return the mask, nowhere where there is none."""
    return np.asarray(False) if mask is None else mask


def strided(data: Array, index: Sequence[Expr], ranges: Mapping[str, Range]) -> Array | None:
    """Return an affine read over a block as a view, one axis per loop; None where it is not one."""
    start: list[int] = []
    steps = dict.fromkeys(ranges, 0)
    used: set[str] = set()
    for entry, extent, stride in zip(index, data.shape, data.strides, strict=True):
        constant, terms = affine(entry)
        first = low = high = constant
        for atom, factor in terms.items():
            if not isinstance(atom, Sym):
                return None
            begin, end = ranges[atom.name]
            ends = (begin * factor, (end - 1) * factor)
            first, low, high = first + ends[0], low + min(ends), high + max(ends)
            steps[atom.name] += factor * stride
            used.add(atom.name)
        if low < 0 or high >= extent:
            return None
        start.append(first)
    corner = data[tuple(slice(at, None) for at in start)]
    shape = tuple(end - begin if name in used else 1 for name, (begin, end) in ranges.items())
    return as_strided(corner, shape, tuple(steps.values()), writeable=False)
