"""Let results that no cache could hold be written past the caches.

The idea: an ordinary store reads the line that it writes to first, and leaves it in the caches.
Where a kernel moves more than the last of them holds, that line is gone before anybody reads it:
memory has moved a third too much, and what was near is near no more.  Lanes that write a run of
such a result go in blocks, which are collected near and then written in whole lines.

This module does not know how a processor writes past its caches.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, substitute
from tilewright.base.sizes import Size
from tilewright.kernels.body import static_shape
from tilewright.kernels.far import LINE, PAGE, coming_block
from tilewright.kernels.loops import Do, Fetch, Item, Let, Loop, LoopNest, Sums, ranges, walk
from tilewright.kernels.loops_check import streamed_from
from tilewright.kernels.statement import State

BLOCK_BYTES = 256  # written at once: more, and the processor stops to read ahead meanwhile
AHEAD = PAGE // BLOCK_BYTES  # blocks: the place of the page that is read next is then known
LEAST_BYTES = 128  # of lanes: in fewer there may be no whole line


def stream(nest: LoopNest) -> LoopNest:
    """Write past the caches what can be, in blocks; nobody asks for it to be near any more.

    ::

        for r in 0..6:         -->    for r in 0..6:
          lanes c in 0..96:             for q0 in 0..1 by 64:
            v1(r, c)                      lanes e0 in 0..64:
                                            let c = q0 + e0
                                            stream v1(r, c)
                                        lanes e0 in 0..32:
                                          let c = 64 + e0
                                          stream v1(r, c)
    """
    shapes = (static_shape(formula.type) for _, formula in nest.body.formulas)
    if any(isinstance(extent, Size) for shape in shapes for extent in shape):
        return nest
    writes = _Writes(nest, ranges(nest.items))
    items = tuple(_in_blocks(nest.items, (), writes))
    streamed = {item.formula for item in walk(items) if isinstance(item, Do) and item.streamed}
    wishes = {item for item in walk(nest.items) if isinstance(item, Fetch)}
    ours = {item for item in wishes if item.element.tensor in streamed}
    return replace(nest, items=_without(items, ours))


@dataclass(frozen=True, slots=True)
class _Writes:
    """What a walk over a nest knows: the ranges of its names, and numbers for its new loops."""

    nest: LoopNest
    known: Mapping[str, int]
    count: Iterator[int] = field(default_factory=itertools.count)


def _in_blocks(
    items: Iterable[Item], path: tuple[Loop | Let, ...], writes: _Writes
) -> Iterator[Item]:
    """Yield items with the lanes that may stream in blocks."""
    nest = writes.nest
    for item in items:
        if not isinstance(item, Loop):
            yield item
            path = (*path, item) if isinstance(item, Let) else path
            continue
        around = (*path, item, *(one for one in item.items if isinstance(one, Let)))
        does = (one for one in item.items if isinstance(one, Do))
        found = {one: streamed_from(nest, one, around, writes.known) for one in does}
        chosen = {do: place for do, place in found.items() if place is not None}
        if chosen:
            yield from _blocks(item, chosen, writes)
        else:
            yield replace(item, items=tuple(_in_blocks(item.items, (*path, item), writes)))


def _blocks(loop: Loop, chosen: Mapping[Do, Expr], writes: _Writes) -> Iterator[Item]:
    """Yield lanes in blocks that stream what is chosen, with the place of what each writes.  What
    is too short stays as it is, and so do pieces that are not equally long."""
    widths = {writes.nest.body.type(do.formula).dtype.bytes for do in chosen}
    by, least = max(BLOCK_BYTES // max(widths), LINE // min(widths)), LEAST_BYTES // max(widths)
    length = algebra.simplify(Call("sub", (loop.high, loop.low)), writes.known)
    if not isinstance(length, Const) or type(length.value) is not int or length.value < least:
        yield loop
        return
    items = tuple(
        replace(one, streamed=True) if isinstance(one, Do) and one in chosen else one
        for one in loop.items
    )
    if length.value <= by:
        yield from _next_pages(loop.name, loop.low, chosen, writes)
        yield replace(loop, items=items)
        return
    at = next(writes.count)
    outer, inner, whole = f"q{at}", f"e{at}", length.value - length.value % by

    def block(begin: Expr, count: int) -> Loop:
        place = _sum(loop.low, begin, Sym(inner))
        let = Let(loop.name, algebra.simplify(place, writes.known))
        made = (let, *(items if count >= least else loop.items))
        return Loop(inner, Const(0), Const(count), made, "lanes")

    begin = _sum(loop.low, Sym(outer))
    wishes = _next_pages(loop.name, begin, chosen, writes)
    wishes += _coming_block(loop, _sum(begin, Const(AHEAD * by)), by, writes)
    last = Const(whole - by + 1)  # so that C sees that the last block ends with the lanes
    yield Loop(outer, Const(0), last, (*wishes, block(Sym(outer), by)), "serial", by)
    if whole < length.value:
        yield block(Const(whole), length.value - whole)


def _next_pages(name: str, begin: Expr, chosen: Mapping[Do, Expr], writes: _Writes) -> list[Fetch]:
    """Ask for the first line of the page after that which lanes write to from `begin` on: what is
    streamed waits for where its page lies, and everything behind it."""
    wishes = []
    for do, place in chosen.items():
        type_ = writes.nest.body.type(do.formula)
        length = Const(PAGE // type_.dtype.bytes)
        here = Call("floordiv", (substitute(place, {name: begin}), length))
        after = algebra.simplify(Call("mul", (_sum(here, Const(1)), length)), writes.known)
        first = (Const(0),) * (len(type_.shape) - 1)
        wishes.append(Fetch(Read(do.formula, (*first, after))))
    return wishes


def _coming_block(loop: Loop, begin: Expr, by: int, writes: _Writes) -> list[Fetch]:
    """Ask for what the block from `begin` on reads, where no phase before has it near."""
    if any(isinstance(item, Sums) for item in walk(writes.nest.items)):
        return []
    state = State(writes.nest.body)
    state.extents = dict(writes.known)
    does = (writes.nest.statement(item) for item in loop.items if isinstance(item, Do))
    found = (wish for one in does for wish in coming_block(state, one, loop.name, begin, by))
    return list(dict.fromkeys(found))


def _sum(*parts: Expr) -> Expr:
    return functools.reduce(lambda a, b: Call("add", (a, b)), parts)


def _without(items: tuple[Item, ...], wishes: Collection[Item]) -> tuple[Item, ...]:
    """Leave out what asks for lines near that are written past the caches."""
    return tuple(
        replace(item, items=_without(item.items, wishes)) if isinstance(item, Loop) else item
        for item in items
        if item not in wishes
    )
