"""The recipe for regions without reductions: the best loop innermost, or two in square tiles.

The idea: nothing is shared between elements, so that only the way through memory matters.  Where
the innermost loop decides between values (`cat`, `pad`), it is cut at the places where a decision
changes, so that the compiler sees each of them taken.

This recipe does not know reductions.
"""

from collections.abc import Mapping

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, children, names
from tilewright.base.sizes import larger, same, smaller
from tilewright.kernels.body import static_shape, volume
from tilewright.kernels.expression import bound_to
from tilewright.kernels.far import next_gathered, steps_of
from tilewright.kernels.loops import Buffer, LoopNest, named
from tilewright.kernels.regions import Region
from tilewright.kernels.schedule import (
    cut,
    divide,
    fuse,
    join,
    number,
    once,
    parallel,
    reorder,
    split,
    vectorize,
)
from tilewright.kernels.staging import block, fetch, turn
from tilewright.kernels.turned import SIDE, WIDTHS

PARTS = 64  # blocks that a long innermost loop is cut into, where it is all there is
SHORT = 16  # iterations: fewer are no vector's worth
MOST_PIECES = 8  # that a loop is cut into
FEW = 4  # iterations of the innermost loop that are written out
BLOCK = 32  # elements for which what comes next is asked at once
WORD, LINE = 4, 64  # bytes: of what GCC turns whole lines of well, and of a line


def schedule_pointwise(nest: LoopNest, region: Region) -> LoopNest:
    """Return the schedule of a region's plain loops.

    ::

        for r0 in 0..6:              -->    parallel r0 in 0..6:
          for r1 in 0..99:                    for r1 in 0..7:
            v0(r0, r1)                          v0(r0, r1)
                                              lanes r1 in 7..99:
                                                v0(r0, r1)
    """
    for name in region.rows:
        nest = join(nest, name)
    if not region.rows:
        return parallel(once(nest, "u"), "u")
    if region.lane:
        return _tiled(nest, region)
    *outer, inner = region.rows
    extents = dict(region.extents)
    few = _is_few(outer, inner, extents)
    if few:
        nest = divide(nest, inner, _decisions(nest, region, inner, extents[inner]))
        inner = outer.pop()
    count, length = volume([extents[name] for name in outer]), extents[inner]
    blocks: int = larger(1, smaller(length // 1024, -(-PARTS // count)))
    if not same(blocks, 1):
        nest = cut(nest, inner, blocks, "b")
        outer.append("b")
    nest = shared(nest, outer)
    pieces = _decisions(nest, region, inner, length)
    if not pieces:
        return vectorize(nest, inner) if few or not same(blocks, 1) else _ahead(nest, region)
    return vectorize(divide(nest, inner, pieces), inner, least=SHORT)


def _is_few(outer: list[str], inner: str, extents: Mapping[str, int]) -> bool:
    """Say whether the innermost loop is so short that the one around it should run in lanes: what
    such a lane writes lies beside the next one's."""
    sizes = [extents[name] for name in (*outer[-1:], inner)]
    known = len(sizes) == 2 and all(type(size) is int for size in sizes)
    return known and sizes[1] <= FEW <= sizes[0]


def _ahead(nest: LoopNest, region: Region) -> LoopNest:
    """Run the innermost loop in lanes; in blocks that ask for a later row where its place is read
    from memory, so that a processor cannot know it.

    ::

        for r0 in 0..60:             -->    for r0 in 0..60:
          for r1 in 0..64:                    for q in 0..64 by 32:
            v0(r0, r1)                          fetch a0[a1[min(r0 + 8, 59)], q]
                                                fetch a0[a1[min(r0 + 8, 59)], q + 16]
                                                lanes l in 0..32:
                                                  let r1 = q + l
                                                  v0(r0, r1)
    """
    inner, extents = region.rows[-1], dict(region.extents)
    numbers = all(type(extents[name]) is int for name in region.rows)
    if not numbers or extents[inner] < 2 * BLOCK:
        return vectorize(nest, inner)
    wishes = next_gathered(region.state(nest.body), region, Sym("q"), BLOCK)
    if not wishes:
        return vectorize(nest, inner)
    nest = block(nest, inner, BLOCK, "q", "l")
    return fetch(vectorize(nest, "l"), "q", wishes)


def shared(nest: LoopNest, outer: list[str]) -> LoopNest:
    """Make one loop of those named, which stand outermost, and let threads share it."""
    if not outer:
        return parallel(once(nest, "u"), "u")
    *others, made = outer
    for at in reversed(range(len(others))):
        into = f"u{at}" if at else "u"
        nest, made = fuse(nest, others[at], made, into), into
    return parallel(nest, made)


def _tiled(nest: LoopNest, region: Region) -> LoopNest:
    """Run two loops in square tiles, so that lines of both directions are used while in cache.

    ::

        for r0 in 0..48:             -->    parallel t in 0..6:
          for r1 in 0..66:                    let m = t * 8
            v0(r0, r1)                        for n in 0..64 by 8:
                                                for r0 in m..m + 8:
                                                  lanes l in 0..8:
                                                    let r1 = n + l
                                                    v0(r0, r1)
                                              for r0 in m..m + 8:
                                                lanes l in 0..2:
                                                  let r1 = 64 + l
                                                  v0(r0, r1)

    An innermost loop that is no longer than a line of memory is one side of a tile as a whole.
    Else what lanes would read across is turned before, a square at a time (`turn`).
    """
    *outer, inner = region.rows
    at = outer.index(region.lane)
    for name in (*outer[at + 1 :], inner):
        nest = reorder(nest, region.lane, name)
    length = dict(region.extents)[inner]
    words = all(statement.formula.type.dtype.bytes == WORD for statement in region.statements)
    whole = words and type(length) is int and length * WORD <= LINE
    nest = block(nest, inner, length if whole else SIDE, "n", "l")
    nest = split(reorder(nest, "l", region.lane), region.lane, SIDE, "m")
    if named(nest, "n"):
        nest = reorder(nest, "n", "m")
    nest = number(join(nest, "m"), "m", "t")
    nest = vectorize(shared(nest, [*outer[:at], *outer[at + 1 :], "t"]), "l")
    for k, read in enumerate([] if whole or not named(nest, "n") else _across(nest, region)):
        buffer = Buffer(f"k{k}", read.tensor, SIDE * SIDE)
        nest = turn(nest, "n", read, buffer, "l", SIDE)
    return nest


def _across(nest: LoopNest, region: Region) -> list[Read]:
    """Return what lanes would read across that lies side by side for the loop around them, of
    elements that are turned by vectors."""
    state, inner = region.state(nest.body), region.rows[-1]
    found = []
    for read in dict.fromkeys(read for one in region.statements for read in state.reads(one)):
        formula, dtype = nest.body.formula(read.tensor), nest.body.type(read.tensor).dtype
        steps = dict(steps_of(state, read)) if formula is None else {}
        crosses = steps.get(Sym(region.lane)) == 1 and type(steps.get(Sym(inner))) is int
        shape = static_shape(nest.body.type(read.tensor))
        inside = all(
            algebra.within(entry, extent, state.extents)
            for entry, extent in zip(read.index, shape, strict=True)
        )
        others = {name for atom in steps if not isinstance(atom, Sym) for name in names(atom)}
        split = others & {region.lane, inner}
        if crosses and inside and not split and dtype.bytes in WIDTHS and read.default is None:
            found.append(read)
    return found


def _decisions(nest: LoopNest, region: Region, loop: str, length: int) -> tuple[int, ...]:
    """Return where in a loop conditions change that depend on it alone; () for too many."""
    if type(length) is not int:
        return ()
    extents = dict(region.extents)
    found: set[int] = set()
    seen: set[Expr] = set()
    waiting: list[Expr] = []
    for statement in region.statements:
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
                found.update(_changes(fn, Call("sub", (a, b)), loop, extents))
            case Read(tensor, index):
                index = tuple(algebra.simplify(entry, extents) for entry in index)
                shape = static_shape(nest.body.type(tensor))
                for entry, extent in zip(index, shape, strict=True):
                    if not algebra.within(entry, extent, extents):
                        found.update(_changes("ge", entry, loop, extents))
                        beyond = Call("sub", (entry, Const(extent)))
                        found.update(_changes("lt", beyond, loop, extents))
                formula = nest.body.formula(tensor)
                if formula is not None:
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
