"""The recipe for regions without reductions: the best loop innermost, or two in square tiles.

The idea: nothing is shared between elements, so that only the way through memory matters.  Where
the innermost loop decides between values (`cat`, `pad`), it is cut at the places where a decision
changes, so that the compiler sees each of them taken.

This recipe does not know reductions.
"""

from collections.abc import Mapping
from itertools import pairwise

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, children
from tilewright.base.sizes import divides, larger, same, smaller
from tilewright.kernels.body import static_shape, volume
from tilewright.kernels.expression import bound_to
from tilewright.kernels.row import Row, attach_units, decode, store
from tilewright.kernels.text import Scope

PARTS = 64  # blocks that a long innermost loop is cut into, where it is all there is
SHORT = 16  # iterations: fewer are no vector's worth
MOST_PIECES = 8  # that a loop is cut into
TILE = 8  # elements of a tile's side: a line of memory holds 16 of them


def print_pointwise(row: Row, root: Scope) -> int:
    rows, extents = row.region.rows, row.extents
    if not rows:
        scope = root.inner()
        for statement in row.region.statements:
            store(row, statement, scope)
        root.attach(scope, "if (part == 0)")
        return 1
    if row.region.lane:
        return _tiled(row, root)
    inner = rows[-1]
    outer = [(name, extents[name]) for name in rows[:-1]]
    count, length = volume([extent for _, extent in outer]), extents[inner]
    blocks: int = larger(1, smaller(length // 1024, -(-PARTS // count)))
    unit = root.inner(*rows[:-1])
    low, high = "0", str(length)
    if not same(blocks, 1):
        low, high = (
            f"{length} * (u % {blocks}) / {blocks}",
            f"{length} * (u % {blocks} + 1) / {blocks}",
        )
        if same(count, 1):
            low, high = f"{length} * u / {blocks}", f"{length} * (u + 1) / {blocks}"
    decode(unit, outer, blocks)
    for piece in pairwise((0, *_decisions(row, inner, length), length)):
        _print_piece(row, unit, low, high, piece)
    attach_units(root, unit, count * blocks)
    return count * blocks


def _print_piece(row: Row, unit: Scope, low: str, high: str, piece: tuple[int, int]) -> None:
    """Print that part of the innermost loop from `low` to `high` that lies in the piece."""
    inner = row.region.rows[-1]
    length, (first, end) = row.extents[inner], piece
    loop = unit.inner(inner)
    for statement in row.region.statements:
        store(row, statement, loop)
    row.stored_here.clear()
    if first:
        low = str(first) if low == "0" else f"{low} > {first} ? {low} : {first}"
    if not same(end, length):
        high = str(end) if high == str(length) else f"{high} < {end} ? {high} : {end}"
    if "?" in high:  # the compiler takes no loop for a vector's whose end is a choice
        unit.add(f"const long end{first} = {high};")
        high = f"end{first}"
    whole = first == 0 and same(end, length)
    if whole or end - first >= SHORT:
        unit.add("#pragma GCC ivdep")
    unit.attach(loop, f"for (long {inner} = {low}; {inner} < {high}; {inner}++)")


def _decisions(row: Row, loop: str, length: int) -> tuple[int, ...]:
    """Return where in a loop conditions change that depend on it alone; () for too many."""
    if type(length) is not int:
        return ()
    found: set[int] = set()
    seen: set[Expr] = set()
    waiting: list[Expr] = []
    for statement in row.region.statements:
        parts = (statement.formula.value, statement.formula.where)
        waiting += [statement.bound(part) for part in parts if part is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += children(node)
        match node:
            case Call(fn, (a, b)) if fn in _CHANGES:
                found.update(_changes(fn, Call("sub", (a, b)), loop, row.extents))
            case Read(tensor, index):
                index = tuple(algebra.simplify(entry, row.extents) for entry in index)
                shape = static_shape(row.printer.body.type(tensor))
                for entry, extent in zip(index, shape, strict=True):
                    if not algebra.within(entry, extent, row.extents):
                        found.update(_changes("ge", entry, loop, row.extents))
                        beyond = Call("sub", (entry, Const(extent)))
                        found.update(_changes("lt", beyond, loop, row.extents))
                formula = row.printer.body.formula(tensor)
                if formula is not None and tensor not in row.printer.memory:
                    waiting += [part for part in bound_to(formula, index) if part is not None]
    inside = sorted(at for at in found if 0 < at < length)
    return tuple(inside) if len(inside) < MOST_PIECES else ()


# By how many iterations after the root of `loop + c`, and of `c - loop`, a comparison of it with
# 0 changes.
_CHANGES = {
    "lt": ((0,), (1,)),
    "le": ((1,), (0,)),
    "gt": ((1,), (0,)),
    "ge": ((0,), (1,)),
    "eq": ((0, 1), (0, 1)),
    "ne": ((0, 1), (0, 1)),
}


def _changes(fn: str, difference: Expr, loop: str, extents: Mapping[str, int]) -> list[int]:
    constant, terms = algebra.affine(algebra.simplify(difference, extents))
    factor = terms.get(Sym(loop), 0)
    if len(terms) != 1 or type(constant) is not int or factor not in (1, -1):
        return []
    after = _CHANGES[fn][0 if factor == 1 else 1]
    return [-factor * constant + step for step in after]


def _tiled(row: Row, root: Scope) -> int:
    """Print two loops in square tiles, so that lines of both directions are used while in cache."""
    inner, other, extents = row.region.rows[-1], row.region.lane, row.extents
    outer = [(name, extents[name]) for name in row.region.rows if name not in (inner, other)]
    tiles = -(-extents[other] // TILE)
    count = volume([extent for _, extent in outer]) * tiles
    unit = root.inner(*(name for name, _ in outer))
    decode(unit, outer, tiles)
    first = "u" if not outer else f"u % {tiles}"
    unit.add(f"const long m = {'0' if same(tiles, 1) else first} * {TILE};")
    tile = unit.inner()
    across = tile.inner(other)
    loop = across.inner(inner)
    for statement in row.region.statements:
        store(row, statement, loop)
    across.add("#pragma GCC ivdep")
    across.attach(loop, _up_to(inner, "n", extents[inner]))
    tile.attach(across, _up_to(other, "m", extents[other]))
    unit.attach(tile, f"for (long n = 0; n < {extents[inner]}; n += {TILE})")
    attach_units(root, unit, count)
    return count


def _up_to(name: str, first: str, extent: int) -> str:
    """Return the head of a loop over one tile, which may be cut off by the end."""
    high = f"{first} + {TILE}"
    if not divides(TILE, extent):
        high = f"({high} < {extent} ? {high} : {extent})"
    return f"for (long {name} = {first}; {name} < {high}; {name}++)"
