"""The recipes for regions with reductions: along a row, or across rows side by side.

The idea: a row is worked on in phases.  A phase is one nest over the row's columns that computes
all that can be computed; reductions end it, and what they give is a variable of the row afterwards.
A full value that a later phase needs again is kept in a row buffer (or read back from the output it
was stored to) where it is dear, else computed again.

- Along a row (`schedule_rows`), a reduction has LANES accumulators (or EXTREMES), one for each
  element of a block of columns, combined pairwise at the end: the order is fixed and the compiler
  needs no licence.
- Across rows (`schedule_columns`), where a row loop is the one contiguous in memory (`db[d] +=
  dy[r, d]`), a tile of rows runs innermost and each has its accumulator; the columns run outside.

A later phase asks for what is far (`far`).  Long sums are formed in double, a few terms at a time.
Results depend on no part boundaries.

This module does not know how regions were found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, substitute
from tilewright.base.sizes import greatest_of, least_of, nominal
from tilewright.kernels.body import volume
from tilewright.kernels.far import along_row, next_row, results
from tilewright.kernels.keep import KEEP_BYTES, element_of, wanted_later
from tilewright.kernels.lanes import FEW, are_words, has_steps
from tilewright.kernels.loops import (
    Buffer,
    Loop,
    LoopNest,
    Sums,
    columns_of,
    named,
    parts,
    phases,
    used_names,
    walk,
)
from tilewright.kernels.narrow import narrow
from tilewright.kernels.pointwise import schedule_pointwise, shared
from tilewright.kernels.reduce import BEST, goes_up
from tilewright.kernels.regions import Region
from tilewright.kernels.rewriting import only
from tilewright.kernels.schedule import join, number, reorder, split, vectorize
from tilewright.kernels.staging import accumulate, block, fetch, gather, keep
from tilewright.kernels.statement import Statement
from tilewright.kernels.sums import sum_type

LANES = 32  # accumulators of a reduction along a row
EXTREMES = 64  # of one of extremes: a term waits longer for those before, and the order is free
TILES = (1024, 512, 256, 128, 64)  # accumulators of a unit across rows
ENOUGH = 16  # units for all threads
TOGETHER = 8  # terms that each accumulator of a long sum takes before they are made a double
AT_ONCE = 4  # terms that a row's accumulator takes between being loaded and stored
WIDE = 256  # rows side by side from which it is worth it: fewer are read best as they follow


def schedule_region(nest: LoopNest, region: Region) -> LoopNest:
    """Return the schedule of a region's plain loops."""
    if not region.columns:
        return schedule_pointwise(nest, region)
    return schedule_columns(nest, region) if region.lane else schedule_rows(nest, region)


def schedule_rows(nest: LoopNest, region: Region) -> LoopNest:
    """Run each row in phases over its columns.

    ::

        for r0 in 0..6:              -->    parallel r0 in 0..6:
          for c0 in 0..96:                    sums s0[32]: f64 of v0
            v0(r0, c0)                        for b0 in 0..96 by 32:
        for r0 in 0..6:                         lanes l0 in 0..32:
          for c0 in 0..96:                        let c0 = b0 + l0
            v1(r0, c0)                            v0(r0, c0) into s0[l0]
                                              v0[r0] from s0
                                              lanes c0 in 0..96:
                                                v1(r0, c0)
    """
    for name in region.rows:
        nest = join(nest, name)
    nest = shared(nest, list(region.rows))
    around = _outermost(nest)
    kept: dict[Read, int] = {}
    for at, group in enumerate(phases(region)):
        columns = columns_of(region, group[0])
        of = [statement.name for statement in group]
        for name in columns:
            nest = join(nest, name, of=of)
        if columns:
            nest = _side_by_side(nest, region, group, at, around)
            nest = _with_kept(nest, region, group, kept, around)
            nest = _narrowed(nest, columns, of)
    return _with_fetched(nest, region)


def _outermost(nest: LoopNest) -> str:
    (outer,) = nest.items
    assert isinstance(outer, Loop), "a nest is shared by one loop"
    return outer.name


def _side_by_side(
    nest: LoopNest, region: Region, group: list[Statement], at: int, around: str
) -> LoopNest:
    """Run the innermost column of a group in lanes, each with accumulators of its own."""
    extents, columns = dict(region.extents), columns_of(region, group[0])
    of = [statement.name for statement in group]
    sums = [statement for statement in group if statement.is_reduction]
    inner, lanes, slot = columns[-1], 1, Const(0)
    if not sums:
        if at and group == (groups := phases(region))[-1] and _asks(nest, region, groups):
            nest = block(nest, inner, LANES, f"b{at}", f"l{at}", of=of)
            inner = f"l{at}"
        return vectorize(nest, inner, of=of)
    if not any(statement.formula.op in BEST for statement in sums):
        usual = _usual(nest, inner, of, extents)
        # The compiler unrolls rows of few columns, but for functions that it does not see through.
        stepped = has_steps(nest.body) and are_words(tensor.type for tensor in nest.body.inputs)
        some = usual >= 16 or (stepped and usual > FEW)
        lanes = LANES if usual >= 2 * LANES else 16 if some else 1
        extremes = all(statement.formula.op in ("max=", "min=") for statement in sums)
        lanes = EXTREMES if extremes and usual >= 8 * EXTREMES else lanes
    elif all(goes_up(statement.formula) for statement in sums):
        usual = _usual(nest, inner, of, extents)
        lanes = EXTREMES if usual >= 8 * EXTREMES else LANES if usual >= 2 * LANES else 1
    count = volume([extents[name] for name in columns]) // lanes
    lane: Expr = slot
    if lanes > 1:
        nest = block(nest, inner, lanes, f"b{at}", f"l{at}", of=of)
        lane = Sym(f"l{at}")
    for statement in sums:
        made = _sums(nest, statement, lanes, count)
        nest = accumulate(nest, statement.name, made, around, lane)
    near = _near(nest, sums)
    if near and lanes > 1 and least_of(extents[inner]) >= TOGETHER * lanes:
        nest = gather(nest, f"b{at}", TOGETHER, f"q{at}", near, of)
    return vectorize(nest, f"l{at}", of=of) if lanes > 1 else nest


def _usual(nest: LoopNest, name: str, of: list[str], extents: Mapping[str, int]) -> int:
    """Return how many terms a column usually has: fewer than its extent where it is a window's."""
    found = nominal(extents[name])
    bounded = (loop for loop in named(narrow(nest, name, of=of), name) if only(of, loop))
    for loop in bounded:
        spans = [_span(loop, extents, share) for share in (0, 1, 2)]
        found = min(found, max(spans, default=found))
    return found


def _span(loop: Loop, extents: Mapping[str, int], share: int) -> int:
    """Return how far a loop runs where those around it are at the first (share 0), in the middle
    (1) or at the last (2) iteration."""
    at = {name: Const((nominal(extent) - 1) * share // 2) for name, extent in extents.items()}
    ends: list[list[int]] = []
    for bounds in (parts(loop.low, "max"), parts(loop.high, "min")):
        made = (algebra.simplify(substitute(bound, at), {}) for bound in bounds)
        ends.append([nominal(each.value) for each in made if isinstance(each, Const)])  # type: ignore[arg-type]
    return min(ends[1]) - max(ends[0])


def _sums(nest: LoopNest, statement: Statement, length: int, count: int) -> Sums:
    dtype = sum_type(nest.body, statement.formula, count)
    return Sums(f"s{statement.name[1:]}", statement.name, length, dtype)


def _near(nest: LoopNest, group: list[Statement]) -> dict[str, Sums]:
    """Return accumulators for a few terms at a time, by the name of those of a wider type."""
    short = {one.name: sum_type(nest.body, one.formula, 1) for one in group}
    return {
        item.name: replace(item, name=f"t{item.name[1:]}", dtype=short[item.formula])
        for item in walk(nest.items)
        if isinstance(item, Sums) and short.get(item.formula, item.dtype) != item.dtype
    }


def _with_kept(
    nest: LoopNest, region: Region, group: list[Statement], kept: dict[Read, int], around: str
) -> LoopNest:
    """Keep what later phases need of this one, and is dear; `kept`: bytes of buffers by value."""
    state = region.state(nest.body)
    depths = dict(zip(region.statements, region.depths, strict=True))
    columns = columns_of(region, group[0])
    later = [one for one in region.statements if depths[one] > depths[group[0]]]
    loops = frozenset((*region.rows, *columns))
    stored = {element_of(state, one) for one in group if not one.is_reduction}
    of = [statement.name for statement in group]
    length = greatest_of(volume([state.extents[name] for name in columns]))
    for read in wanted_later(state, group, later, loops, kept.keys()):
        if read in stored:
            nest, kept[read] = keep(nest, read, None, Const(0), of, around), 0
            continue
        taken = length * nest.body.type(read.tensor).dtype.compute.bytes
        if sum(kept.values()) + taken <= KEEP_BYTES:
            buffer = Buffer(f"k{read.tensor[1:]}", read.tensor, length)
            place = _position(columns, state.extents)
            nest, kept[read] = keep(nest, read, buffer, place, of, around), taken
    return nest


def _asks(nest: LoopNest, region: Region, groups: list[list[Statement]]) -> bool:
    """Say whether the last phase is to go by blocks, so that it may ask for the next row: none
    between the first and it does, and there is something to ask for."""
    at, columns = len(groups) - 1, columns_of(region, groups[-1][0])
    length = dict(region.extents)[columns[-1]]
    if not region.rows or columns != region.columns or type(length) is not int or length < LANES:
        return False
    blocks = [bool(named(nest, f"b{k}")) for k in range(at)]
    if not any(blocks) or any(blocks[1:]):
        return False
    state, dear = region.state(nest.body), has_steps(nest.body)
    return bool(next_row(state, region, groups[0], Sym(f"b{at}"), LANES, dear=dear))


def _with_fetched(nest: LoopNest, region: Region) -> LoopNest:
    """Ask for what is far in the last phase that goes by blocks, if it is not the first or takes
    long; for what that phase writes itself, in the first."""
    groups, state = phases(region), region.state(nest.body)
    whole = (k for k, group in enumerate(groups) if columns_of(region, group[0]) == region.columns)
    blocks = {at: loops[0] for at in whole if (loops := named(nest, f"b{at}"))}
    if not region.rows or not blocks:
        return nest
    at = max(blocks)
    here, later = blocks[at], [one for group in groups[at + 1 :] for one in group]
    dear = has_steps(nest.body)
    wishes = along_row(state, region, groups[at], Sym(here.name), here.step) if dear else []
    if at or (dear and not wishes):
        wishes += next_row(state, region, groups[0], Sym(here.name), here.step, dear=dear)
    if not at:
        return fetch(nest, here.name, wishes)
    wishes += results(state, region, later, Sym(here.name), here.step)
    nest = fetch(nest, here.name, wishes)
    if 0 not in blocks:
        return nest
    first = blocks[0]
    own = results(state, region, groups[at], Sym(first.name), first.step)
    return fetch(nest, first.name, own)


def _position(columns: tuple[str, ...], extents: dict[str, int]) -> Expr:
    """Return a column's place in a row buffer."""
    total: Expr = Const(0)
    for name in columns:
        total = Call("add", (Call("mul", (total, Const(extents[name]))), Sym(name)))
    return algebra.simplify(total, extents)


def _narrowed(nest: LoopNest, loops: Iterable[str], of: list[str]) -> LoopNest:
    """Let a group's loops run over no term that is absent; those in blocks stay as they are."""
    for name in loops:
        if named(nest, name):
            nest = narrow(nest, name, of=of)
    return nest


def schedule_columns(nest: LoopNest, region: Region) -> LoopNest:
    """Run a tile of rows innermost, each with its accumulator.

    ::

        for r0 in 0..640:            -->    parallel t in 0..10:
          for c0 in 0..96:                    let m = t * 64
            v0(r0, c0)                        sums s0[64]: f64 of v0
                                              for c0 in 0..96:
                                                lanes r0 in m..m + 64:
                                                  v0(r0, c0) into s0[r0-m]
                                              lanes r0 in m..m + 64:
                                                v0[r0] from s0[r0-m]
    """
    lane, extents = region.lane, dict(region.extents)
    others = [name for name in region.rows if name != lane]
    units = volume([extents[name] for name in others])
    tile = min(_tile(nominal(units), nominal(extents[lane])), greatest_of(extents[lane]))
    nest = _in_tiles(nest, region, others, tile)
    for group in phases(region):
        columns = columns_of(region, group[0])
        of = [statement.name for statement in group]
        for name in (*columns, lane) if columns else ():
            nest = join(nest, name, of=of)
        count = volume([extents[name] for name in columns])
        for statement in group:
            if statement.is_reduction:
                nest = _row_each(nest, region, statement, tile, count)
    for group in phases(region):  # after all: the results of a tile are made of the whole lane
        names = (*columns_of(region, group[0]), lane)
        nest = _narrowed(nest, names, [statement.name for statement in group])
    for at, group in enumerate(phases(region)):
        nest = _several_at_once(nest, region, group, at)
    return vectorize(nest, lane)


def _several_at_once(nest: LoopNest, region: Region, group: list[Statement], at: int) -> LoopNest:
    """Let each row take several terms while its accumulator is in a register, in their order.

    ::

        for c0 in 0..96:             -->    for b0 in 0..96 by 4:
          for r0 in m..m + 64:                for r0 in m..m + 64:
            v0(r0, c0) into s0[r0-m]            for l0 in 0..4:
                                                  let c0 = b0 + l0
                                                  v0(r0, c0) into s0[r0-m]

    Terms of long sums are gathered instead where rows are few: many are read best in long runs of
    several at once.  What takes long is left alone, as its steps are for lanes that hold no loop;
    so is `argmax=`, whose choices the compiler makes vectors of for one term at a time alone.
    """
    columns, of = columns_of(region, group[0]), [statement.name for statement in group]
    extents = dict(region.extents)
    rows = nominal(extents[region.lane])
    chosen = any(not one.is_reduction or one.formula.op in BEST for one in group)
    if chosen or not columns or not _is_whole(nest, region, columns[-1], of):
        return nest
    inner = columns[-1]
    near = _near(nest, group)
    if near and rows < 2 * WIDE and least_of(extents[inner]) >= TOGETHER:
        return gather(nest, inner, TOGETHER, f"q{at}", near, of)
    if has_steps(nest.body) or rows < WIDE:
        return nest
    nest = block(nest, inner, AT_ONCE, f"b{at}", f"l{at}", of=of)
    return reorder(nest, f"l{at}", region.lane)


def _is_whole(nest: LoopNest, region: Region, column: str, of: list[str]) -> bool:
    """Say whether a column has a number of terms that is the same for all rows, and not small."""
    length = dict(region.extents)[column]
    ends = [(loop.low, loop.high) for loop in named(nest, column) if only(of, loop)]
    if ends != [(Const(0), Const(length))] or type(length) is not int or length < AT_ONCE:
        return False
    rows = (loop for loop in named(nest, region.lane) if only(of, loop))
    return not any(column in used_names(loop) for loop in rows)


def _in_tiles(nest: LoopNest, region: Region, others: list[str], tile: int) -> LoopNest:
    """Put a tile of the lane's rows innermost, and let threads share the tiles."""
    for name in region.rows[region.rows.index(region.lane) + 1 :]:
        nest = reorder(nest, region.lane, name)
    nest = split(nest, region.lane, tile, "m")
    for name in region.columns:
        nest = reorder(nest, region.lane, name)
    for name in (*others, "m"):
        nest = join(nest, name)
    return shared(number(nest, "m", "t"), [*others, "t"])


def _row_each(
    nest: LoopNest, region: Region, statement: Statement, tile: int, count: int
) -> LoopNest:
    """Give each row of a tile an accumulator; keep what comes out for the loops that read it."""
    slot, around = Call("sub", (Sym(region.lane), Sym("m"))), _outermost(nest)
    made = _sums(nest, statement, tile, count)
    nest = accumulate(nest, statement.name, made, around, slot, region.lane)
    if statement.name not in region.read_again:
        return nest
    state = region.state(nest.body)
    buffer = Buffer(f"k{statement.name[1:]}", statement.name, tile)
    read = element_of(state, statement)
    return keep(nest, read, buffer, slot, [statement.name], around)


def _tile(units: int, length: int) -> int:
    """Return how many rows go side by side: memory is read in long runs, if units are enough."""
    wide = (tile for tile in TILES if units * -(-length // tile) >= ENOUGH)
    return next(wide, TILES[-1])
