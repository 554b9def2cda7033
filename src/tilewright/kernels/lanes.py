"""The recipe for reductions across memory: rows side by side, a tile of them innermost.

The idea: where a row loop is the one that is contiguous (`db[d] += dy[r, d]`), each row of a tile
has its accumulator, and the columns run outside.

This recipe does not know row buffers.
"""

from collections.abc import Callable
from functools import partial

from tilewright.base.sizes import divides, greatest_of, nominal, same
from tilewright.kernels.body import volume
from tilewright.kernels.loops_c import store, write
from tilewright.kernels.row import Row, Sum, attach_units, counting, decode, groups
from tilewright.kernels.statement import Statement
from tilewright.kernels.sums import declare, meet, result_of
from tilewright.kernels.text import Scope, Term, c_type

TILES = (1024, 512, 256, 128, 64)  # accumulators of a unit
ENOUGH = 16  # units for all threads


def print_side_by_side(row: Row, root: Scope) -> int:
    """Print a region whose rows run innermost, a tile of them at a time."""
    lane, extents = row.region.lane, row.extents
    length = extents[lane]
    outer = [(name, extents[name]) for name in row.region.rows if name != lane]
    units = volume([extent for _, extent in outer])
    tile = min(_tile(nominal(units), nominal(length)), greatest_of(length))
    tiles = -(-length // tile)
    count = units * tiles
    unit = root.inner(*(name for name, _ in outer))
    decode(unit, outer, tiles)
    unit.add(f"const long first = {'0' if same(tiles, 1) else f'u % {tiles} * {tile}'};")
    high = (
        str(tile)
        if divides(tile, length)
        else f"(first + {tile} < {length} ? {tile} : {length} - first)"
    )
    unit.add(f"const long wide = {high};")
    row.slot = f"{lane} - first"
    for depth in range(max(row.region.depths) + 1):
        for statement in row.phase(depth):
            if not statement.is_reduction and not row.columns(statement):
                _each_lane(row, unit, partial(_store, row, statement))
        for group in groups(row, depth):
            _lane_nest(row, group, tile, unit)
        for statement in row.phase(depth):
            if statement.is_reduction:
                _finish_lanes(row, row.sums[statement.name], tile, unit)
    attach_units(root, unit, count)
    return count


def _store(row: Row, statement: Statement, scope: Scope) -> None:
    row.stored_here.add(store(row.printer, statement, row.targets, scope))


def _tile(units: int, length: int) -> int:
    """Return how many rows go side by side: memory is read in long runs, if units are enough."""
    wide = (tile for tile in TILES if units * -(-length // tile) >= ENOUGH)
    return next(wide, TILES[-1])


def _each_lane(row: Row, outer: Scope, body: Callable[[Scope], None]) -> None:
    lane = row.region.lane
    loop = outer.inner(lane)
    body(loop)
    outer.add("#pragma GCC ivdep")
    outer.attach(loop, f"for (long {lane} = first; {lane} < first + wide; {lane}++)")


def _lane_nest(row: Row, group: list[Statement], tile: int, unit: Scope) -> None:
    columns = row.columns(group[0])
    count = volume([row.extents[name] for name in columns])
    for statement in group:
        if statement.is_reduction:
            declare(row, statement, tile, count, unit)
    scopes = [unit]
    for name in columns:
        scopes.append(scopes[-1].inner(name))
    _each_lane(row, scopes[-1], lambda scope: meet(row, group, scope))
    for at in range(len(scopes) - 1, 0, -1):
        name = columns[at - 1]
        scopes[at - 1].attach(scopes[at], counting(name, "0", str(row.extents[name])))


def _finish_lanes(row: Row, sum_: Sum, tile: int, unit: Scope) -> None:
    read = row.target(sum_.statement)
    array = row.printer.fresh(f"{read.tensor}_")
    dtype = sum_.statement.formula.type.dtype
    again = read.tensor in row.region.read_again

    def body(scope: Scope) -> None:
        term = result_of(row, sum_, read, row.slot, scope)
        made = row.printer.define(read, term, scope, f"{read.tensor}_")
        if again:
            scope.add(f"{array}[{row.slot}] = {made.text};")
        if read.tensor in row.targets:
            write(row.printer, read, made, row.targets, scope)

    if again:
        unit.add(f"{c_type(dtype)} {array}[{tile}];")
    _each_lane(row, unit, body)
    if again:
        unit.known[read] = Term(f"{array}[{row.slot}]", dtype.compute)
