"""Rewrites that bring memory near: blocks of lanes, accumulators, and values kept for later loops.

The idea: as those of `schedule`, each computes the same or says why it does not apply; but for
`accumulate`, which may change the order of the terms of a sum, as it says.

This module does not know which memory is worth it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names
from tilewright.base.sizes import divides, same
from tilewright.base.syntax import show as show_expr
from tilewright.kernels.loops import (
    Buffer,
    Do,
    Fetch,
    Fold,
    Item,
    Keep,
    Let,
    Loop,
    LoopNest,
    Merge,
    Sums,
    named,
    ranges,
    walk,
)
from tilewright.kernels.loops_check import accesses
from tilewright.kernels.rewriting import (
    begins_at_zero,
    count_of,
    only,
    rewritten,
    step_by_one,
    unused,
)


def block(
    nest: LoopNest, name: str, by: int, outer: str, inner: str, *, of: Collection[str] = ()
) -> LoopNest:
    """Cut a loop into blocks of exactly `by` iterations, and the rest of them.

    ::

        for c in 0..100:       -->    for b in 0..96 by 32:
          S(c)                          for l in 0..32:
                                          let c = b + l
                                          S(c)
                                      for l in 0..4:
                                        let c = 96 + l
                                        S(c)

    of: the formulas of the loops that are meant, where not all of the name are.
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        if not only(of, loop):
            return (loop,)
        step_by_one(loop, "block")
        begins_at_zero(loop, "block")
        length = count_of(loop)
        whole = length - length % by

        def lanes(begin: Expr, count: int) -> Loop:
            let = Let(name, Call("add", (begin, Sym(inner))))
            return Loop(inner, Const(0), Const(count), (let, *loop.items))

        rest = () if divides(by, length) else (lanes(Const(whole), length % by),)
        blocks = Loop(outer, Const(0), Const(whole), (lanes(Sym(outer), by),), "serial", by)
        return rest if same(whole, 0) else (blocks, *rest)

    return rewritten(nest, name, new, outer, inner)


def accumulate(
    nest: LoopNest, formula: str, sums: Sums, around: str, slot: Expr, each: str = ""
) -> LoopNest:
    """Take the terms of a reduction into accumulators near, and make the result of them after.

    ::

        for r in 0..6:         -->    for r in 0..6:
          for b in 0..96 by 32:         sums s0[32]: f64 of v0
            for l in 0..32:             for b in 0..96 by 32:
              let c = b + l               for l in 0..32:
              v0(r, c)                      let c = b + l
                                            v0(r, c) into s0[l]
                                        v0[r] from s0

    around: the loop of which each iteration makes one element, of all accumulators pairwise.  Or,
    with `each`, the loop inside of it of which each iteration makes one, of the accumulator at
    `slot`.  More than one accumulator of an element changes the order of its terms, and the bits of
    a sum.
    """
    target = _target(nest, formula, around)
    unused(nest, sums.name)

    def new(loop: Loop) -> tuple[Item, ...]:
        inside = {i.name for i in walk(loop.items) if isinstance(i, Loop | Let)} - {
            i.name for i in loop.items if isinstance(i, Let)
        }
        varying = frozenset().union(*map(names, target)) & inside
        if varying - {each}:
            raise LoopError(
                f"{formula} cannot be accumulated around {around}",
                expected=f"one element of {formula} in each iteration",
                found=f"{show_expr(Read(formula, target))} for each {', '.join(sorted(varying))}",
            )
        at = [k for k, item in enumerate(loop.items) if _computes(item, formula)]
        if not at:
            return (loop,)
        made: Item = Fold(formula, target, sums.name, slot if each else None)
        end = at[-1] + 1
        if each:
            within = next(i for i in walk(loop.items) if isinstance(i, Loop) and i.name == each)
            made = replace(within, items=(made,))
        else:
            while end < len(loop.items) and isinstance(loop.items[end], Fold):
                end += 1
        middle = _taken(loop.items[at[0] : end], formula, sums.name, slot)
        return (
            replace(loop, items=(*loop.items[: at[0]], sums, *middle, made, *loop.items[end:])),
        )

    return rewritten(nest, around, new)


def gather(
    nest: LoopNest, name: str, by: int, outer: str, near: Mapping[str, Sums], of: Collection[str]
) -> LoopNest:
    """Take so many terms at a time into accumulators of their own, and these into those there are.

    ::

        sums s0[32]: f64 of v0         -->    sums s0[32]: f64 of v0
        for b in 0..960 by 32:                for q in 0..768 by 256:
          for l in 0..32:                       sums t0[32]: f32 of v0
            let c = b + l                       for b in q..q + 256 by 32:
            v0(r, c) into s0[l]                   for l in 0..32:
                                                    let c = b + l
                                                    v0(r, c) into t0[l]
                                                merge t0 into s0
                                              for b in 768..960 by 32:
                                                for l in 0..32:
                                                  let c = b + l
                                                  v0(r, c) into s0[l]

    by: how many iterations of the loop come together.  near: the accumulators of their own by the
    name of those there are.  of: the formulas of the loops that are meant.  The order of the terms
    changes, and the bits of a sum.
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        if not only(of, loop):
            return (loop,)
        begins_at_zero(loop, "gather")
        assert isinstance(loop.high, Const) and isinstance(loop.high.value, int), "checked before"
        step, length = by * loop.step, loop.high.value
        whole = Const(length - length % step)  # not counted: of sizes that asks more than it need
        end = Call("add", (Sym(outer), Const(step)))
        inner = replace(loop, low=Sym(outer), high=end, items=_moved(loop.items, near))
        merged = (Merge(sums.name, into) for into, sums in near.items())
        blocks = Loop(outer, Const(0), whole, (*near.values(), inner, *merged), "serial", step)
        return (blocks,) if divides(step, length) else (blocks, replace(loop, low=whole))

    return rewritten(nest, name, new, outer, *(sums.name for sums in near.values()))


def keep(
    nest: LoopNest, read: Read, buffer: Buffer | None, place: Expr, of: Collection[str], around: str
) -> LoopNest:
    """Keep a value for the loops after those that compute it: in a buffer, or where it is stored.

    ::

        for r in 0..6:         -->    for r in 0..6:
          for c in 0..100:              buffer k0[100] of v1
            v2(r, c) into s0[0]         for c in 0..100:
                                          v2(r, c) into s0[0]
                                          keep v1[r, c] in k0[c]

    of: the formulas of the loops at whose end it is kept.  around: the loop that the buffer is of.
    """
    item = Keep(read, "" if buffer is None else buffer.name, place)

    folded = any(isinstance(i, Fold) and i.formula == read.tensor for i in walk(nest.items))

    def at_end(items: tuple[Item, ...]) -> tuple[Item, ...]:
        if any(_makes(one, read.tensor, of, folded=folded) for one in items):
            return (*items, item)
        return tuple(
            replace(one, items=at_end(one.items)) if isinstance(one, Loop) else one for one in items
        )

    def new(loop: Loop) -> tuple[Item, ...]:
        lets = tuple(one for one in loop.items if isinstance(one, Let))
        others = tuple(one for one in loop.items if not isinstance(one, Let))
        declared = () if buffer is None else (buffer,)
        return (replace(loop, items=(*lets, *declared, *at_end(others))),)

    return rewritten(nest, around, new, *(() if buffer is None else (buffer.name,)))


def turn(nest: LoopNest, name: str, read: Read, buffer: Buffer, inner: str, side: int) -> LoopNest:
    """Keep a square of what lanes would read across, along what it is read of.

    ::

        for n in 0..64 by 8:           -->    for n in 0..64 by 8:
          for r in m..m + 8:                    buffer k0[64] of a0
            lanes l in 0..8:                    for l in 0..8:
              let c = n + l                       let c = n + l
              v0(r, c)                            lanes r in m..m + 8:
                                                    keep a0[c, r] in k0[(r - m) * 8 + l]
                                                for r in m..m + 8:
                                                  lanes l in 0..8:
                                                    let c = n + l
                                                    v0(r, c)

    side: the iterations of the loops r and l at most.
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        loops = (one for one in loop.items if isinstance(one, Loop) and one.name != inner)
        across = next(loops)
        along = next(one for one in across.items if isinstance(one, Loop) and one.name == inner)
        row = Call("mul", (Call("sub", (Sym(across.name), across.low)), Const(side)))
        place = Call("add", (row, Call("sub", (Sym(inner), along.low))))
        lanes = replace(across, items=(Keep(read, buffer.name, place),), kind="lanes")
        lets = (one for one in along.items if isinstance(one, Let))
        kept = replace(along, items=(*lets, lanes), kind="serial")
        return (replace(loop, items=(buffer, kept, *loop.items)),)

    return rewritten(nest, name, new, buffer.name)


def fetch(nest: LoopNest, name: str, wishes: Sequence[Fetch]) -> LoopNest:
    """Ask for memory at the beginning of each iteration of a loop.

    ::

        for b in 0..96 by 32:  -->    for b in 0..96 by 32:
          for l in 0..32:               fetch a0[r + 1, b]
            let c = b + l               fetch a0[r + 1, b + 16]
            v1(r, c) into s1[l]         for l in 0..32:
                                          let c = b + l
                                          v1(r, c) into s1[l]
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        return (replace(loop, items=(*wishes, *loop.items)),)

    return rewritten(nest, name, new)


def _target(nest: LoopNest, formula: str, around: str) -> tuple[Expr, ...]:
    """Return where the terms of a reduction go, if all of an element come in one iteration of the
    loop."""
    known = ranges(nest.items)
    terms = [one for one in accesses(nest) if one.writes and one.element.tensor == formula]
    spread = {
        loop.name: one
        for one in terms
        for loop in one.path[: 1 + _depth(one.path, around)]
        if isinstance(loop, Loop) and not one.tells(loop, known)
    }
    targets = {one.element.index for one in terms}
    homes = [loop for loop in named(nest, around) if _computes(loop, formula)]
    if spread or len(targets) != 1 or len(homes) != 1:
        raise LoopError(
            f"{formula} cannot be accumulated around {around}",
            expected=f"all terms of an element of {formula} in one iteration of one loop {around}",
            found=f"terms in several iterations of {', '.join(spread)}"
            if spread
            else f"{len(homes)} such loops, which go to {len(targets)} places",
        )
    return targets.pop()


def _depth(path: Sequence[Loop | Let], name: str) -> int:
    return next((at for at, item in enumerate(path) if item.name == name), len(path))


def _taken(items: tuple[Item, ...], formula: str, sums: str, slot: Expr) -> tuple[Item, ...]:
    """Let the terms of a formula go into accumulators."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            item = replace(item, items=_taken(item.items, formula, sums, slot))
        elif isinstance(item, Do) and item.formula == formula:
            item = replace(item, into=sums, slot=slot)
        made.append(item)
    return tuple(made)


def _moved(items: tuple[Item, ...], near: Mapping[str, Sums]) -> tuple[Item, ...]:
    """Let terms go into other accumulators."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            item = replace(item, items=_moved(item.items, near))
        elif isinstance(item, Do) and item.into in near:
            item = replace(item, into=near[item.into].name)
        made.append(item)
    return tuple(made)


def _computes(item: Item, formula: str) -> bool:
    return any(isinstance(one, Do) and one.formula == formula for one in walk((item,)))


def _makes(item: Item, name: str, of: Collection[str], *, folded: bool) -> bool:
    """Say whether an item makes a value: the result of a reduction, or one of the formulas `of`."""
    if folded:
        return isinstance(item, Fold) and item.formula == name
    return isinstance(item, Do) and item.formula in of
