"""The fast recipes: a plan's regions as vectorised C loops over rows and columns.

The idea: a row is worked on in phases.  A phase is one nest over the row's columns that computes
all that can be computed; reductions end it, and what they give is a variable of the row afterwards.
A full value that a later phase needs again is kept in a row buffer (or read back from the output it
was stored to) where it is dear, else computed again.

- Along a row (`rows`), a reduction has LANES accumulators, one for each element of a block of
  columns, combined pairwise at the end: the order is fixed and the compiler needs no licence.
- Across rows (`columns`), where a row loop is the one contiguous in memory, a tile of rows runs
  innermost and each has its accumulator.
- Without reductions (`pointwise`), the best loop runs innermost.

Long sums are formed in double.  Results depend on no part boundaries.

This module does not know how regions were found.
"""

from tilewright.base.sizes import divides, nominal
from tilewright.kernels.body import volume
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.keep import keep
from tilewright.kernels.lanes import print_side_by_side
from tilewright.kernels.loops import canonical_nest
from tilewright.kernels.loops_c import print_nest, store
from tilewright.kernels.loops_text import show_items
from tilewright.kernels.pointwise import schedule_pointwise
from tilewright.kernels.reduce import BEST
from tilewright.kernels.regions import Region
from tilewright.kernels.row import Row, attach_units, counting, decode, groups
from tilewright.kernels.statement import Statement
from tilewright.kernels.sums import declare, finish, meet
from tilewright.kernels.text import Scope

LANES = 32  # accumulators of a reduction along a row


def print_region(
    printer: Printer, region: Region, targets: dict[str, Memory], root: Scope
) -> tuple[int, list[str]]:
    """Print one region into the kernel's body; returns how many equal units of work it has, and
    the lines of its loop nest, if it has one."""
    if not region.columns:
        nest = schedule_pointwise(canonical_nest(printer.body, region), region)
        return print_nest(printer, nest, targets, root), list(show_items(nest))
    printer.enter(dict(region.extents))
    row = Row(printer, region, targets)
    if region.lane:
        return print_side_by_side(row, root), []
    return _along(row, root), []


def _along(row: Row, root: Scope) -> int:
    rows = [(name, row.extents[name]) for name in row.region.rows]
    count = volume([extent for _, extent in rows])
    unit = root.inner(*row.region.rows)
    unit.pinned = not rows  # a reduction of everything is no loop's: only its place says when
    decode(unit, rows, 1)
    last = max(row.region.depths)
    for depth in range(last + 1):
        _row_statements(row, depth, unit)
        for group in groups(row, depth):
            _nest(row, group, depth, unit)
        for statement in row.phase(depth):
            if statement.is_reduction:
                finish(row, row.sums[statement.name], unit)
    unit.block.lines[:0] = row.buffers
    attach_units(root, unit, count)
    return count


def _row_statements(row: Row, depth: int, unit: Scope) -> None:
    """Print the results that have no columns."""
    for statement in row.phase(depth):
        if not statement.is_reduction and not row.columns(statement):
            row.stored_here.add(store(row.printer, statement, row.targets, unit))


def _nest(row: Row, group: list[Statement], depth: int, unit: Scope) -> None:
    """Print one nest over columns, and the accumulators that it fills."""
    columns = row.columns(group[0])
    sums = [statement for statement in group if statement.is_reduction]
    inner = columns[-1] if columns else ""
    length = row.extents[inner] if inner else 1
    lanes = 1
    if sums and not any(statement.formula.op in BEST for statement in sums):
        usual = nominal(length)
        lanes = LANES if usual >= 2 * LANES else 16 if usual >= 16 else 1
    count = volume([row.extents[name] for name in columns]) // lanes
    for statement in sums:
        declare(row, statement, lanes, count, unit)
    scopes = [unit]
    for name in columns[:-1]:
        scopes.append(scopes[-1].inner(name))
    _innermost(row, group, depth, scopes[-1], inner, length, lanes)
    for at in range(len(scopes) - 1, 0, -1):
        name = columns[at - 1]
        scopes[at - 1].attach(scopes[at], counting(name, "0", str(row.extents[name])))
    row.kept.update(row.pending)
    row.pending.clear()
    row.stored_here.clear()


def _innermost(
    row: Row, group: list[Statement], depth: int, outer: Scope, inner: str, length: int, lanes: int
) -> None:
    """Print the innermost loop: plain, or in blocks of lanes and the rest of them."""
    if not inner:
        row.slot = "0"
        _body(row, group, depth, outer)
        return
    if lanes == 1:
        row.slot = "0"
        body = outer.inner(inner)
        _body(row, group, depth, body)
        outer.add("#pragma GCC ivdep")
        outer.attach(body, counting(inner, "0", str(length)))
        return
    row.slot = "l"
    whole = length - length % lanes
    block = outer.inner()
    body = block.inner(inner)
    body.add(f"const long {inner} = b + l;")
    _body(row, group, depth, body)
    block.add("#pragma GCC ivdep")
    block.attach(body, counting("l", "0", str(lanes)))
    outer.attach(block, f"for (long b = 0; b < {whole}; b += {lanes})")
    if not divides(lanes, length):
        body = outer.inner(inner)
        body.add(f"const long {inner} = {whole} + l;")
        _body(row, group, depth, body)
        outer.add("#pragma GCC ivdep")
        outer.attach(body, counting("l", "0", str(length % lanes)))


def _body(row: Row, group: list[Statement], depth: int, scope: Scope) -> None:
    """Print what one iteration of a nest does."""
    scope.known.update(row.kept)
    meet(row, group, scope)
    keep(row, depth, scope)
