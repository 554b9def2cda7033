"""The recipe for regions without reductions: the best loop innermost, or two in square tiles.

The idea: nothing is shared between elements, so that only the way through memory matters.

This recipe does not know reductions.
"""

from tilewright.base.sizes import divides, larger, same, smaller
from tilewright.kernels.body import volume
from tilewright.kernels.row import Row, attach_units, decode, store
from tilewright.kernels.text import Scope

PARTS = 64  # blocks that a long innermost loop is cut into, where it is all there is
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
    loop = unit.inner(inner)
    for statement in row.region.statements:
        store(row, statement, loop)
    unit.add("#pragma GCC ivdep")
    unit.attach(loop, f"for (long {inner} = {low}; {inner} < {high}; {inner}++)")
    attach_units(root, unit, count * blocks)
    return count * blocks


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
