"""Every way to spread a formula over devices: a table derived from its loops.

The idea: a loop is cut into contiguous parts.  An operand whose dim follows the loop is split alike
(with a halo where windows overlap), any other is whole on every part.  A loop that the target's
index follows splits the result; any other leaves partial results that the formula's own operator
combines.  Two cuts are not loops: a dim that is read by values (`table[ids[i], d]`) may be split,
each part making the terms that it can read; a dim that is written by values (`y[ids[i]] += ..`)
may be split, each part keeping the terms that land on it.

This module does not know how parts are run and put together, nor machines, costs or
meshes: `parallel` chooses among these rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads
from tilewright.graph.ir import Formula, TensorType

PARALLEL, REDUCTION, GATHER, SCATTER = "parallel", "reduction", "gather", "scatter"
COMBINE = {"=": "sum", "+=": "sum", "*=": "prod", "max=": "max", "min=": "min", "any=": "any",
           "all=": "all", "argmax=": "argmax", "argmin=": "argmin"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """A dim that follows the cut.

    Every `per` iterations of the loop, the dim moves by `step`; from there on, `width + 1` elements
    are touched, the first at `offset`.  Where these are more than a step, neighbours share a halo.
    """

    dim: int
    step: int = 1
    offset: int = 0
    width: int = 0
    per: int = 1

    @property
    def halo(self) -> int:
        """How many elements neighbouring parts share."""
        return max(self.width + 1 - abs(self.step), 0)

    def region(self, low: int, high: int, size: int) -> tuple[int, int]:
        """Return the elements [start, stop) of a dim that iterations [low, high) touch."""
        first, last = self.step * (low // self.per), self.step * ((high - 1) // self.per)
        start = min(first, last) + self.offset
        stop = max(first, last) + self.offset + self.width + 1
        start = min(max(start, 0), size)
        return start, min(max(stop, start), size)


@dataclass(frozen=True, slots=True)
class Partition:
    """One row of the table: what is cut, and what that makes of operands and result.

    cut: a loop's name, or a dim by values, `table[0]`.  extent: of what is cut; `align`: it is cut
    at multiples of that.  operands: the splits of each operand's dims; none means whole on every
    part.  result: likewise.  combine: how partial results become one; "" where every part has a
    share of its own.
    """

    cut: str
    kind: str
    extent: int
    operands: tuple[tuple[Split, ...], ...]
    result: tuple[Split, ...]
    combine: str = ""
    align: int = 1

    def bounds(self, parts: int) -> list[tuple[int, int]]:
        """Return where the parts begin and end; a part may be empty."""
        blocks = -(-self.extent // self.align)
        ends = [min(blocks * k // parts * self.align, self.extent) for k in range(parts + 1)]
        return list(itertools.pairwise(ends))


# --------------------------------------------------------------------------------------- the table


def partitions(formula: Formula, types: Sequence[TensorType]) -> tuple[Partition, ...]:
    """Return every way to cut the formula in one place; extents must be numbers.

    types: the operands' types, in the formula's order.
    """
    kinds = dict(zip(formula.operands, types, strict=True))
    rows = [_cut_loop(formula, kinds, loop.name) for loop in formula.loops]
    rows += [_cut_gather(formula, kinds, *place) for place in _gathered(formula)]
    rows += [_cut_scatter(formula, dim) for dim in range(formula.type.rank)]
    return tuple(row for row in rows if row is not None and row.extent > 1)


def _cut_loop(formula: Formula, kinds: dict[str, TensorType], loop: str) -> Partition | None:
    entries: dict[str, list[tuple[Expr, ...]]] = {name: [] for name in formula.operands}
    for read in all_reads(formula):
        entries[read.tensor].append(read.index)
    operands = {name: _splits(e, kinds[name], loop, formula) for name, e in entries.items()}
    result = _splits([formula.index], formula.type, loop, formula)
    own = bool(result) and not any(split.halo for split in result)
    if not own and not _combines(formula):
        return None
    if result and not own and formula.op not in ("=", "+="):
        result = ()
    if isinstance(formula.fill, Read):
        base = formula.fill.tensor
        if entries[base]:
            return None
        # Where parts own their share, so they do of the base; else it is added where they meet.
        operands[base] = result if own else ()
    splits = [split for found in (*operands.values(), result) for split in found]
    follows = any(_moves(entry, loop) for entry in formula.index)
    return Partition(
        loop,
        PARALLEL if follows else REDUCTION,
        number(formula.extent(loop)),
        tuple(operands[name] for name in formula.operands),
        result,
        "" if own else COMBINE[formula.op],
        lcm(*(split.per for split in splits)),
    )


def _combines(formula: Formula) -> bool:
    """Whether results of parts that do not own their elements can be put together.

    Where the places written are values, two parts may write one place: the sum would be wrong.
    """
    if formula.op != "=":
        return True
    return formula.fill == Const(0) and not any(reads(entry) for entry in formula.index)


def _gathered(formula: Formula) -> Iterator[tuple[str, int]]:
    """Yield the dims of operands that are read by values, in every term, at one place."""
    whole = _unconditional(formula.value)
    elsewhere = [read.tensor for part in _others(formula) for read in reads(part)]
    for name in formula.operands:
        found = [read for read in reads(formula.value) if read.tensor == name]
        if not found or name in elsewhere or any(read not in whole for read in found):
            continue
        for dim in range(len(found[0].index)):
            places = {read.index[dim] for read in found}
            if len(places) == 1 and reads(found[0].index[dim]):
                yield name, dim


def _cut_gather(
    formula: Formula, kinds: dict[str, TensorType], operand: str, dim: int
) -> Partition | None:
    if formula.op.startswith("arg") or not _combines(formula):
        return None
    if isinstance(formula.fill, Read) and formula.fill.tensor == operand:
        return None
    splits = tuple((Split(dim),) if name == operand else () for name in formula.operands)
    extent = number(kinds[operand].shape[dim])
    return Partition(f"{operand}[{dim}]", GATHER, extent, splits, (), COMBINE[formula.op])


def _cut_scatter(formula: Formula, dim: int) -> Partition | None:
    if not reads(formula.index[dim]):
        return None
    base = formula.fill.tensor if isinstance(formula.fill, Read) else None
    if base is not None and any(read.tensor == base for read in all_reads(formula)):
        return None
    splits = tuple((Split(dim),) if name == base else () for name in formula.operands)
    return Partition(f"y[{dim}]", SCATTER, number(formula.type.shape[dim]), splits, (Split(dim),))


# ------------------------------------------------------------------------- how a dim follows a loop


def _splits(
    entries: Sequence[tuple[Expr, ...]], type_: TensorType, loop: str, formula: Formula
) -> tuple[Split, ...]:
    """Return the dims that follow the loop in every read; the others must be whole."""
    extents = {item.name: number(item.extent) for item in formula.loops}
    found = (
        _split(dim, [index[dim] for index in entries], loop, extents) for dim in range(type_.rank)
    )
    return tuple(split for split in found if split is not None)


def _split(dim: int, entries: Sequence[Expr], loop: str, extents: dict[str, int]) -> Split | None:
    """Say how a dim follows the loop: None where every part reads nearly all of it."""
    motions = [_motion(entry, loop, extents) for entry in entries]
    moving = [motion for motion in motions if motion is not None]
    if not moving or len(moving) < len(motions):
        return None
    if len({(motion.step, motion.per) for motion in moving}) != 1 or moving[0].step == 0:
        return None
    step, per = moving[0].step, moving[0].per
    low, high = min(m.low for m in moving), max(m.high for m in moving)
    if high - low >= abs(step) * -(-extents[loop] // per):
        return None
    return Split(dim, step, low, high - low, per)


@dataclass(frozen=True, slots=True)
class _Motion:
    """An index is step * (loop // per) + something in [low, high]."""

    step: int
    per: int
    low: int
    high: int


def _motion(entry: Expr, loop: str, extents: dict[str, int]) -> _Motion | None:
    """Say how an index moves with a loop; None where its bounds are not known (read by values)."""
    constant, terms = algebra.affine(entry)
    step, per, low, high = terms.get(Sym(loop), 0), 1, constant, constant
    for atom, factor in terms.items():
        if atom == Sym(loop):
            continue
        limits = algebra.bounds(atom, extents)
        divided = _divided(atom, loop, extents) if step == 0 else None
        if divided is not None:
            step, per = factor, divided.per
            limits = divided.low, divided.high
        if limits is None:
            return None
        ends = (limits[0] * factor, limits[1] * factor)
        low, high = low + min(ends), high + max(ends)
    return _Motion(step, per, low, high)


def _divided(atom: Expr, loop: str, extents: dict[str, int]) -> _Motion | None:
    """Say how `(c * loop + rest) // q`, or the exact division, moves: by 1 every q / c iterations.

    With loop = (q / c) b + t:  (c loop + rest) / q = b + (c t + rest) / q.
    """
    match atom:
        case Call("floordiv" | "exactdiv" as fn, (inner, Const(int(q)))):
            constant, terms = algebra.affine(inner)
        case _:
            return None
    terms = dict(terms)
    factor = terms.pop(Sym(loop), 0)
    rests = [(algebra.bounds(rest, extents), scale) for rest, scale in terms.items()]
    if factor <= 0 or q % factor or any(loop in names(rest) for rest in terms):
        return None
    low, high = constant, constant + factor * (q // factor - 1)
    for limits, scale in rests:
        if limits is None:
            return None
        ends = (limits[0] * scale, limits[1] * scale)
        low, high = low + min(ends), high + max(ends)
    return _Motion(1, q // factor, low // q if fn == "floordiv" else -(-low // q), high // q)


def _moves(entry: Expr, loop: str) -> bool:
    """Whether an index follows a loop other than by the values of a tensor."""
    match entry:
        case Sym(name):
            return name == loop
        case Call(_, args):
            return any(_moves(arg, loop) for arg in args)
        case _:
            return False


def _unconditional(value: Expr) -> list[Read]:
    """Return the reads that every term makes, and that make it absent outside their tensor."""
    match value:
        case Read(_, _, default):
            return [value] if default is None else []
        case Call("select", (cond, _, _)):
            return _unconditional(cond)
        case Call(_, args):
            return [read for arg in args for read in _unconditional(arg)]
        case _:
            return []


def all_reads(formula: Formula) -> Iterator[Read]:
    """Yield every read of the formula, those inside indices too."""
    for part in (formula.value, *_others(formula)):
        yield from reads(part)


def _others(formula: Formula) -> tuple[Expr, ...]:
    parts = (formula.where, formula.at, *formula.index)
    return tuple(part for part in parts if part is not None)


def number(dim: object) -> int:
    """Return an extent that is a number."""
    assert isinstance(dim, int), f"partitions need extents that are numbers, not {dim}"
    return dim
