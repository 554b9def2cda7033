"""Sums of products, by matrix multiplication over strided views.

The idea: a product's factors each depend on some of the loops.  A factor is an array over its own
loops (a window of a padded tensor is a strided view); two factors meet in one batched matrix
product over the loops that nothing else needs.  What is absent counts as a factor of 0, which is
wrong only beside an infinity or a NaN: the result then is not finite, and this way gives up.

This module means what `evaluate_naive` says, or returns None; it does not know other reductions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.base.algebra import affine
from tilewright.base.dtypes import BOOL, DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads
from tilewright.graph.evaluate_block import Evaluation, Range, Term, strided
from tilewright.graph.evaluate_grid import Target
from tilewright.graph.evaluate_naive import Operands, bind, dtype_of, static_extents
from tilewright.graph.evaluate_scalar import Array, Number, held
from tilewright.graph.ir import Formula
from tilewright.graph.notation import infer

LIMIT = 1 << 25  # elements of one factor, written out


@dataclass(frozen=True, slots=True)
class Factor:
    """An array with an axis per loop named in `loops`; `patched` where absence became 0."""

    data: Array
    loops: tuple[str, ...]
    patched: bool = False


def evaluate_contraction(
    formula: Formula, arrays: Sequence[Array], *, wide: bool = False, limit: int = LIMIT
) -> Array | None:
    """Return the formula's result, or None where it is no sum of products or has to be exact."""
    parts = _parts(formula, arrays, wide=wide)
    if parts is None:
        return None
    operands = bind(formula, arrays, wide=wide)
    extents = static_extents(formula)
    parallel = _loops(formula.index, extents)
    outer = replace(formula, loops=tuple(loop for loop in formula.loops if loop.name in parallel))
    target = Target(outer, operands)
    with np.errstate(all="ignore"):
        for ranges in _slabs(parts, parallel, extents, limit):
            data = _sum(parts, parallel, ranges, operands, formula)
            if data is None:
                return None
            kept = {name: ranges[name] for name in parallel}
            evaluation = Evaluation(operands, kept)
            _, _, fault = evaluation.place(formula.index, target.shape)
            if fault is not None and fault.any():
                return None  # the grid knows which iteration to name
            target.take(outer, evaluation, Term(Number(data, formula.type.dtype.compute)))
        return target.result()


def _parts(formula: Formula, arrays: Sequence[Array], *, wide: bool) -> tuple[Expr, ...] | None:
    """Return the factors, conditions among them, if this is a sum of products worth the while."""
    if formula.op != "+=" or not isinstance(formula.fill, Const) or formula.fill.value != 0:
        return None
    dtypes = {name: dtype_of(array) for name, array in zip(formula.operands, arrays, strict=True)}
    kind, expected = infer(formula.value, dtypes), formula.type.dtype.compute
    if kind.kind != expected.kind or kind.kind == "bool" or (kind != expected and not wide):
        return None
    extents = static_extents(formula)
    factors = tuple(_factors(formula.value, "mul"))
    if not wide and not _same_rounding(factors, dtypes, expected):
        return None
    if formula.where is not None:
        if any(reads(entry) for read in reads(formula.value) for entry in read.index):
            return None  # `where` guards what such a read points at
        factors += tuple(_factors(formula.where, "and"))
    used = [_loops((factor,), extents) for factor in factors]
    volume = prod(extents.values())
    if volume == 0 or sum(bool(loops) for loops in used) < 2:
        return None
    for factor, loops in zip(factors, used, strict=True):
        if _volume(loops, extents) == volume and not isinstance(factor, Read):
            return None  # written out it is as large as the grid
    return factors


def _same_rounding(factors: Sequence[Expr], dtypes: Mapping[str, DType], expected: DType) -> bool:
    """Say whether multiplying all factors in the result's type is what the value says."""
    found = [infer(factor, dtypes) for factor in factors if not isinstance(factor, Const)]
    others = [dtype for dtype in found if dtype not in (expected, BOOL)]
    return len(others) <= 1 and all(dtype.kind == "int" for dtype in others)


def _factors(expr: Expr, fn: str) -> list[Expr]:
    match expr:
        case Call(name, (a, b)) if name == fn:
            return _factors(a, fn) + _factors(b, fn)
        case Call("neg", (a,)) if fn == "mul":
            return [Const(-1), *_factors(a, fn)]
    return [Call("bool", (expr,))] if fn == "and" else [expr]


def _loops(parts: Sequence[Expr], extents: Mapping[str, int]) -> tuple[str, ...]:
    used = frozenset[str]().union(*(names(part) for part in parts))
    return tuple(name for name in extents if name in used)


def _slabs(
    parts: Sequence[Expr], parallel: Sequence[str], extents: Mapping[str, int], limit: int
) -> list[dict[str, Range]]:
    """Cut one parallel loop so that no factor has more than `limit` elements, if one loop can."""
    whole = {name: (0, extent) for name, extent in extents.items()}
    used = [_loops((part,), extents) for part in parts]
    loops = max(used, key=lambda own: _volume(own, extents))
    candidates = [name for name in parallel if name in loops]
    if not candidates or _volume(loops, extents) <= limit:
        return [whole]
    cut = max(candidates, key=lambda name: extents[name])
    step = max(1, limit * extents[cut] // _volume(loops, extents))
    return [
        {**whole, cut: (start, min(start + step, extents[cut]))}
        for start in range(0, extents[cut], step)
    ]


def _volume(loops: Sequence[str], extents: Mapping[str, int]) -> int:
    return prod(extents[name] for name in loops)


def _sum(
    parts: Sequence[Expr],
    parallel: Sequence[str],
    ranges: Mapping[str, Range],
    operands: Operands,
    formula: Formula,
) -> Array | None:
    """Return the sums over a slab, an axis for each parallel loop; None where they are not sure."""
    extents = {name: stop - start for name, (start, stop) in ranges.items()}
    dtype = held(formula.type.dtype, wide=operands.wide)
    factors: list[Factor] = []
    for part in parts:
        factor = _factor(part, ranges, operands)
        if factor is None:
            return None
        factors.append(replace(factor, data=factor.data.astype(dtype, copy=False)))
    idle = [name for name in extents if name not in parallel]
    missing = [name for name in idle if not any(name in factor.loops for factor in factors)]
    scale = np.asarray(prod(extents[name] for name in missing)).astype(dtype)
    # A product of two is formed term by term, as it says; more, or with zeros for what is absent,
    # only if nothing infinite has been multiplied by a sum or by such a zero.
    plain = not any(factor.patched for factor in factors) and len(factors) == 2 and scale == 1
    plain = plain and all(set(f.loops) - set(parallel) == set(idle) for f in factors)
    result = _contract([Factor(scale, ()), *factors], parallel)
    if not plain and not np.isfinite(result.data).all():
        return None
    shape = tuple(extents[name] if name in result.loops else 1 for name in parallel)
    data = result.data.transpose([result.loops.index(n) for n in parallel if n in result.loops])
    return np.broadcast_to(data.reshape(shape), tuple(extents[name] for name in parallel))


def _factor(expr: Expr, ranges: Mapping[str, Range], operands: Operands) -> Factor | None:
    loops = tuple(name for name in ranges if name in names(expr))
    own = {name: ranges[name] for name in loops}
    shape = tuple(stop - start for start, stop in own.values())
    if isinstance(expr, Read):
        window = _window(expr, own, operands)
        if window is not None:
            return replace(window, data=np.broadcast_to(window.data, shape))
    if prod(shape) > LIMIT:
        return None
    term = Evaluation(operands, own).term(expr)
    if term.fault is not None and term.fault.any():
        return None
    data = term.number.data
    if term.present is not None:
        data = np.where(term.present, data, np.zeros((), data.dtype))
    # A condition is a factor of 0 or 1, and 0 stands for absence.
    patched = term.present is not None or data.dtype == np.bool_
    return Factor(np.broadcast_to(data, shape), loops, patched)


def _window(read: Read, ranges: Mapping[str, Range], operands: Operands) -> Factor | None:
    """Return an affine read as a view of its tensor, padded where it reaches outside."""
    data = operands.by_name[read.tensor].data
    match read.default:
        case None:
            value: bool | int | float = 0
        case Const(value) if data.dtype.kind == "f" or isinstance(value, int):
            pass
        case _:
            return None
    pads: list[tuple[int, int]] = []
    for entry, extent in zip(read.index, data.shape, strict=True):
        constant, terms = affine(entry)
        low = high = constant
        for atom, factor in terms.items():
            if not isinstance(atom, Sym):
                return None
            ends = [at * factor for at in (ranges[atom.name][0], ranges[atom.name][1] - 1)]
            low, high = low + min(ends), high + max(ends)
        pads.append((max(0, -low), max(0, high + 1 - extent)))
    if any(before or after for before, after in pads):
        grown = prod(n + sum(pad) for n, pad in zip(data.shape, pads, strict=True))
        if grown > 4 * data.size + (1 << 20):
            return None
        data = np.pad(data, pads, constant_values=value)
    moved = tuple(
        Call("add", (entry, Const(before)))
        for entry, (before, _) in zip(read.index, pads, strict=True)
    )
    view = strided(data, moved, ranges)
    assert view is not None, "a padded window lies inside"
    patched = data is not operands.by_name[read.tensor].data and read.default is None
    return Factor(view, tuple(ranges), patched)


# ------------------------------------------------------------------------------- pairwise products


def _contract(factors: list[Factor], kept: Sequence[str]) -> Factor:
    """Multiply all factors, two at a time, summing over each loop as soon as nothing needs it."""
    left = [_summed(factors, at, kept) for at in range(len(factors))]
    while len(left) > 1:
        pairs = [(a, b) for b in range(len(left)) for a in range(b)]
        a, b = min(pairs, key=lambda pair: _size(left, pair, kept))
        rest = [factor for at, factor in enumerate(left) if at not in (a, b)]
        needed = {*kept, *(name for factor in rest for name in factor.loops)}
        left = [*rest, _multiply(left[a], left[b], needed)]
    return left[0]


def _summed(factors: Sequence[Factor], at: int, kept: Sequence[str]) -> Factor:
    """Sum a factor over the loops that are its own alone."""
    own = factors[at]
    others = {name for i, factor in enumerate(factors) if i != at for name in factor.loops}
    axes = tuple(
        axis for axis, name in enumerate(own.loops) if name not in others and name not in kept
    )
    if not axes:
        return own
    data = own.data.sum(axis=axes, dtype=own.data.dtype)
    return Factor(np.asarray(data), tuple(n for i, n in enumerate(own.loops) if i not in axes))


def _size(left: Sequence[Factor], pair: tuple[int, int], kept: Sequence[str]) -> int:
    """Return how many elements the product of two factors has."""
    rest = {name for at, factor in enumerate(left) if at not in pair for name in factor.loops}
    extents = {
        name: extent
        for at in pair
        for name, extent in zip(left[at].loops, left[at].data.shape, strict=True)
    }
    return prod(extent for name, extent in extents.items() if name in rest or name in kept)


def _multiply(a: Factor, b: Factor, needed: set[str]) -> Factor:
    """Return the product of two factors, summed over the loops they share and nothing needs."""
    shared = [name for name in a.loops if name in b.loops]
    batch = [name for name in shared if name in needed]
    summed = [name for name in shared if name not in needed]
    rows = [name for name in a.loops if name not in shared]
    columns = [name for name in b.loops if name not in shared]
    if not summed and (not rows or not columns):
        return _scaled(a, b)
    left = _matrix(a, batch, rows, summed)
    right = _matrix(b, batch, summed, columns)
    extents = dict(zip(a.loops + b.loops, a.data.shape + b.data.shape, strict=True))
    loops = (*batch, *rows, *columns)
    data = np.matmul(left, right).reshape([extents[name] for name in loops])
    return Factor(data, loops)


def _scaled(a: Factor, b: Factor) -> Factor:
    """Return the product of two factors, nothing summed, where one has all loops of the other."""
    big, small = (a, b) if len(a.loops) >= len(b.loops) else (b, a)
    order = [small.loops.index(name) for name in big.loops if name in small.loops]
    extents = dict(zip(small.loops, small.data.shape, strict=True))
    shape = [extents.get(name, 1) for name in big.loops]
    return Factor(np.asarray(big.data * small.data.transpose(order).reshape(shape)), big.loops)


def _matrix(
    factor: Factor, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Array:
    order = [factor.loops.index(name) for name in (*batch, *rows, *columns)]
    moved = factor.data.transpose(order)
    one, two = len(batch), len(batch) + len(rows)
    shape = moved.shape
    return moved.reshape(prod(shape[:one]), prod(shape[one:two]), prod(shape[two:]))
