"""Recognise convolutions: forward, and the gradients of input and weight, in any form.

The idea: a convolution relates an input x, a weight w and a result y by

    x[n, g*C+c, h*s+i*d-p, ...]   w[g*O+o, c, i, ...]   y[n, g*O+o, h, ...]

and each of the three is a sum over the other two's product.  Which form a formula takes (solved
for h by exact division, channels by // and %, written through) does not matter: dims that share
loops are enumerated together, and the index triples found are compared with the ones above.

This module does not know which library is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tilewright.base.errors import SizesError
from tilewright.base.expr import Call, Const, Expr, Sym, names, reads
from tilewright.base.sizes import Size, divides, same
from tilewright.graph.classify import product_of
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.total import Types, conjuncts, extents_of, fixed

_GRID = 1 << 22  # iterations of the loops of one dim that are worth enumerating
_OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Convolution:
    """kind: "forward" (y from x and w), "input" (dx from dy and w), "weight" (dw from x and dy).

    n: spatial dims.  input, weight, output: the operands' names; None for the one computed.
    shapes: of x, w and y.  last: whether channels are the last dim of x and y instead, in the
    formula; only where each has a kernel of its own, which may be computed so.
    """

    kind: str
    n: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    input: str | None
    weight: str | None
    output: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    last: bool = False

    @property
    def alone(self) -> bool:
        """Whether there are several channels, each with a kernel of its own, and it makes one."""
        x, w, _ = self.shapes
        return 1 < self.groups == x[1] == w[0] and w[1] == 1


@dataclass(frozen=True, slots=True)
class _Role:
    """One of the three tensors: its index and its shape."""

    index: tuple[Expr, ...]
    shape: tuple[int, ...]

    def second(self) -> "_Role":
        """Return it with the last dim as the second."""
        index, shape = self.index, self.shape
        return _Role((index[0], index[-1], *index[1:-1]), (shape[0], shape[-1], *shape[1:-1]))


def classify_convolution(formula: Formula, types: Types) -> Convolution | None:
    """Return the convolution that a formula is, None for anything else.

    types: of the operands, by name; all of one element type.
    """
    if formula.op != "+=" or formula.type.rank < 3 or formula.fill != Const(0):
        return None
    operands = tuple(types[name] for name in formula.operands)
    sizes = [dim for type_ in (formula.type, *operands) for dim in type_.shape]
    sizes += [loop.extent for loop in formula.loops]
    # What is found out of sizes that vary is noted each time.
    known = all(type(size) is int for size in sizes)
    return (_kept if known else _classified)(formula, operands)


def _classified(formula: Formula, given: tuple[TensorType, ...]) -> Convolution | None:
    types = dict(zip(formula.operands, given, strict=True))
    if not _is_inside(formula):
        return None
    factors = product_of(formula.value)
    if factors is None or factors[0] != 1.0 or len(factors[1]) != 2:
        return None
    rank = formula.type.rank
    a, b = factors[1]
    if any(types[r.tensor].dtype != formula.type.dtype or len(r.index) != rank for r in (a, b)):
        return None
    if any(reads(entry) for r in (a, b) for entry in r.index):
        return None
    result = _Role(formula.index, _shape(formula.type.shape))
    roles = [_Role(read.index, _shape(types[read.tensor].shape)) for read in (a, b)]
    extents = extents_of(formula)
    for last, left, right in ((False, 0, 1), (False, 1, 0), (True, 0, 1), (True, 1, 0)):
        one, two = roles[left], roles[right]
        named = ((a, b)[left].tensor, (a, b)[right].tensor)
        for kind, triple, operands in (
            ("forward", (one, two, result), (*named, None)),
            ("input", (result, two, one), (None, named[1], named[0])),
            ("weight", (one, result, two), (named[0], None, named[1])),
        ):
            x, w, y = triple
            triple = (x.second(), w, y.second()) if last else triple
            found = _match(kind, triple, operands, extents)
            if found is not None and (found.alone or not last):
                return replace(found, last=last)
    return None


_kept = lru_cache(1 << 12)(_classified)


def _is_inside(formula: Formula) -> bool:
    """Say whether a formula is guarded by nothing but that what it writes is there."""
    if formula.where is None:
        return True
    limits = zip(formula.index, formula.type.shape, strict=True)
    inside = [
        guard
        for entry, dim in limits
        for guard in (Call("ge", (entry, Const(0))), Call("lt", (entry, Const(fixed(dim)))))
    ]
    return all(part in inside for part in conjuncts(formula.where))


def _shape(shape: Sequence[int | Expr]) -> tuple[int, ...]:
    return tuple(fixed(dim) for dim in shape)


def _match(
    kind: str,
    triple: tuple[_Role, _Role, _Role],
    operands: tuple[str | None, str | None, str | None],
    extents: dict[str, int],
) -> Convolution | None:
    x, w, y = triple
    if not same(x.shape[0], y.shape[0]) or not same(y.shape[1], w.shape[0]):
        return None
    if not w.shape[1] or not divides(w.shape[1], x.shape[1]):
        return None
    groups = x.shape[1] // w.shape[1]
    if groups == 0 or not divides(groups, w.shape[0]):
        return None
    entries = [
        [x.index[0], y.index[0]],
        [x.index[1], y.index[1], w.index[0], w.index[1]],
        *([x.index[d], y.index[d], w.index[d]] for d in range(2, len(x.shape))),
    ]
    if not _apart(entries, extents):
        return None
    sizes = [
        [x.shape[0], y.shape[0]],
        [x.shape[1], y.shape[1], w.shape[0], w.shape[1]],
        *([x.shape[d], y.shape[d], w.shape[d]] for d in range(2, len(x.shape))),
    ]
    if not _is_batch(entries[0], sizes[0], extents):
        return None
    if not _is_channels(entries[1], sizes[1], extents, groups):
        return None
    windows = [
        _window(_table(part, dims, extents), dims)
        for part, dims in zip(entries[2:], sizes[2:], strict=True)
    ]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows):
        return None
    stride, padding, dilation = (tuple(part) for part in zip(*known, strict=True))
    shapes = (x.shape, w.shape, y.shape)
    return Convolution(kind, len(x.shape) - 2, stride, padding, dilation, groups, *operands, shapes)


def _apart(entries: list[list[Expr]], extents: dict[str, int]) -> bool:
    """Say whether batch, channels and each spatial dim have loops of their own, all loops used."""
    used = [frozenset(name for entry in part for name in names(entry)) for part in entries]
    everything = frozenset[str]().union(*used)
    idle = any(extent > 1 for name, extent in extents.items() if name not in everything)
    return sum(map(len, used)) == len(everything) and not idle


def _table(entries: list[Expr], dims: list[int], extents: dict[str, int]) -> np.ndarray | None:
    """Return the index tuples that the loops run through, one row each, absent ones left out."""
    loops = sorted({name for entry in entries for name in names(entry)})
    sizes = [extents[name] for name in loops]
    if any(isinstance(size, Size) for size in sizes):
        raise SizesError(
            "the positions of a convolution vary",
            expected="sizes that vary in the batch alone, where gradients are asked for",
            found=" x ".join(map(str, sizes)),
        )
    count = int(np.prod(sizes, dtype=np.int64))
    if count > _GRID:
        return None
    grid = np.indices(sizes).reshape(len(loops), -1) if loops else np.zeros((0, 1), np.int64)
    values = dict(zip(loops, grid, strict=True))
    columns: list[np.ndarray] = []
    present = np.ones(count, np.bool_)
    for entry, dim in zip(entries, dims, strict=True):
        column, there = _values(entry, values, count)
        present &= there & (column >= 0) & (column < dim)
        columns.append(column)
    return np.asarray(np.stack(columns, axis=1)[present])


def _values(entry: Expr, loops: dict[str, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an index in every iteration, and whether it is there (exact divisions)."""
    there = np.ones(count, np.bool_)
    match entry:
        case Const(value):
            return np.full(count, int(value)), there
        case Sym(name):
            return loops[name], there
        case Call(fn, args):
            parts = [_values(arg, loops, count) for arg in args]
            for _, own in parts:
                there = there & own
            return _compute(fn, [column for column, _ in parts], there)
    return np.full(count, _OUTSIDE), np.zeros(count, np.bool_)


def _compute(fn: str, args: list[np.ndarray], there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    match fn:
        case "neg":
            return -args[0], there
        case "add":
            return args[0] + args[1], there
        case "sub":
            return args[0] - args[1], there
        case "mul":
            return args[0] * args[1], there
        case "floordiv":
            return args[0] // args[1], there
        case "mod":
            return args[0] % args[1], there
        case "exactdiv":
            return args[0] // args[1], there & (args[0] % args[1] == 0)
    return args[0], np.zeros(len(there), np.bool_)


def _same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Say whether two tables hold the same rows, in any order, each as often."""
    if found.shape != expected.shape:
        return False
    if len(found) == 0:
        return True
    sizes = np.maximum(found.max(axis=0), expected.max(axis=0)) + 1
    keys = [
        np.sort(np.ravel_multi_index(tuple(rows.T), tuple(sizes))) for rows in (found, expected)
    ]
    return bool(np.array_equal(keys[0], keys[1]))


def _is_batch(entries: list[Expr], dims: list[int], extents: dict[str, int]) -> bool:
    if entries[0] == entries[1] and _is_whole(entries[0], dims[0], extents):
        return True
    table = _table(entries, dims, extents)
    return table is not None and _same(table, np.repeat(np.arange(dims[0])[:, None], 2, axis=1))


def _is_channels(
    entries: list[Expr], dims: list[int], extents: dict[str, int], groups: int
) -> bool:
    """Compare with all (channel of x, channel of y, both channels of w)."""
    x, y, out, own = entries
    plain = groups == 1 and x == own and y == out and (x != y or isinstance(x, Const))
    if plain and _is_whole(x, dims[0], extents) and _is_whole(y, dims[1], extents):
        return True
    table = _table(entries, dims, extents)
    inner, outer = dims[3], dims[2] // groups
    g, c, o = (part.ravel() for part in np.indices((groups, inner, outer)))
    expected = np.stack([g * inner + c, g * outer + o, g * outer + o, c], axis=1)
    return table is not None and _same(table, expected)


def _is_whole(entry: Expr, dim: int, extents: dict[str, int]) -> bool:
    """Say whether an index is a loop over the whole dim."""
    match entry:
        case Const(0):
            return dim == 1
        case Sym(name):
            return extents.get(name) == dim
    return False


def _window(table: np.ndarray | None, dims: list[int]) -> tuple[int, int, int] | None:
    """Return (stride, padding, dilation) of x = h*s + i*d - p for rows (x, h, i), if there are."""
    width, height, taps = dims
    if table is None or len(table) == 0:
        return None
    x, h, i = table.T
    stride = _slope(x, h, i)
    dilation = _slope(x, i, h)
    dilation = 1 if dilation is None else dilation
    if dilation < 1:
        return None
    if stride is None:  # One result, or results with no tap in common: the size tells.
        stride = _stride_by_size(x, h, i, dilation)
    if stride is None or stride < 1:
        return None
    padding = int(h[0] * stride + i[0] * dilation - x[0])
    reach = width + 2 * padding - dilation * (taps - 1) - 1
    if height == 1:
        stride = max(stride, reach + 1)
    if padding < 0 or reach < 0 or reach // stride + 1 != height:
        return None
    all_h, all_i = (part.ravel() for part in np.indices((height, taps)))
    all_x = all_h * stride + all_i * dilation - padding
    rows = np.stack([all_x, all_h, all_i], axis=1)
    expected = rows[(all_x >= 0) & (all_x < width)]
    return (stride, padding, dilation) if _same(table, expected) else None


def _slope(x: np.ndarray, along: np.ndarray, fixed_at: np.ndarray) -> int | None:
    """Return how far x moves when `along` moves by one and the other stands still."""
    order = np.lexsort((along, fixed_at))
    x, along, still = x[order], along[order], fixed_at[order]
    steps = np.flatnonzero((np.diff(still) == 0) & (np.diff(along) == 1))
    return None if len(steps) == 0 else int(x[steps[0] + 1] - x[steps[0]])


def _stride_by_size(x: np.ndarray, h: np.ndarray, i: np.ndarray, dilation: int) -> int | None:
    if h.min() == h.max():
        return 1
    first, last = int(h.argmin()), int(h.argmax())
    moved = int(x[last] - i[last] * dilation) - int(x[first] - i[first] * dilation)
    steps = int(h[last] - h[first])
    return moved // steps if moved % steps == 0 else None
