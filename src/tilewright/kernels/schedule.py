"""Rewrites of loop nests, each of which computes the same, bit for bit, or says why it does not.

The idea: a schedule is these few rewrites, applied one after another to the plain loops.  A rewrite
acts on every loop of a name.  It raises LoopError where it does not apply, with two iterations that
would meet, or meet in another order.

This module does not know which rewrites make a kernel fast.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from tilewright.base import algebra
from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, Const, Expr, Sym, names, substitute
from tilewright.base.sizes import same
from tilewright.base.syntax import show as show_expr
from tilewright.kernels.loops import (
    Item,
    Kind,
    Let,
    Loop,
    LoopNest,
    named,
    ranges,
    used_names,
    walk,
)
from tilewright.kernels.loops_check import Access, accesses, meeting
from tilewright.kernels.loops_inverse import Index
from tilewright.kernels.rewriting import (
    begins_at_zero,
    count_of,
    only,
    rewritten,
    step_by_one,
    unused,
)

LONGEST = 2**62  # iterations of a loop of which nothing is known


def split(nest: LoopNest, name: str, by: int, outer: str) -> LoopNest:
    """Cut a loop into tiles of `by` iterations; the last one may be smaller.

    ::

        for r in 0..60:        -->    for n in 0..60 by 8:
          S(r)                          for r in n..min(n + 8, 60):
                                          S(r)
    """
    if by < 1:
        raise LoopError(
            f"{name} cannot be cut into tiles of {by}", expected="at least one iteration in each"
        )

    def new(loop: Loop) -> tuple[Item, ...]:
        step_by_one(loop, "split")
        end: Expr = Call("add", (Sym(outer), Const(by)))
        if not _divides(by, loop.low, loop.high):
            end = Call("min", (end, loop.high))
        inner = replace(loop, low=Sym(outer), high=end)
        return (Loop(outer, loop.low, loop.high, (inner,), "serial", by),)

    return rewritten(nest, name, new, outer)


def cut(nest: LoopNest, name: str, pieces: int, outer: str) -> LoopNest:
    """Cut a loop into so many pieces that are as equal as can be.

    ::

        for r in 0..1000:      -->    for b in 0..3:
          S(r)                          for r in 1000 * b // 3..1000 * (b + 1) // 3:
                                          S(r)
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        step_by_one(loop, "cut")
        begins_at_zero(loop, "cut")

        def end(piece: Expr) -> Expr:
            return Call("floordiv", (Call("mul", (loop.high, piece)), Const(pieces)))

        after = Call("add", (Sym(outer), Const(1)))
        inner = replace(loop, low=end(Sym(outer)), high=end(after))
        return (Loop(outer, Const(0), Const(pieces), (inner,)),)

    return rewritten(nest, name, new, outer)


def divide(nest: LoopNest, name: str, at: Sequence[int]) -> LoopNest:
    """Cut a loop at the places given, into loops that follow each other.

    ::

        for r in 0..100:       -->    for r in 0..7:
          S(r)                          S(r)
                                      for r in 7..100:
                                        S(r)
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        step_by_one(loop, "divide")
        lows, highs = [loop.low], []
        for place in at:
            lows.append(_chosen("max", loop.low, place))
            highs.append(_chosen("min", loop.high, place))
        pieces = zip(lows, [*highs, loop.high], strict=True)
        return tuple(replace(loop, low=low, high=high) for low, high in pieces)

    return rewritten(nest, name, new)


def fuse(nest: LoopNest, outer: str, inner: str, into: str) -> LoopNest:
    """Make one loop of two, of which the inner is all that the outer holds.

    ::

        for a in 0..6:         -->    for u in 0..60:
          for b in 0..10:               let a = u // 10
            S(a, b)                     let b = u % 10
                                        S(a, b)
    """

    def new(first: Loop) -> tuple[Item, ...]:
        second = _only_loop(first, inner, "fuse")
        for loop in (first, second):
            begins_at_zero(loop, "fuse")
        counts = [count_of(loop) for loop in (first, second)]
        u, size = Sym(into), Const(counts[1])
        places: list[Expr] = [Call("floordiv", (u, size)), Call("mod", (u, size))]
        if same(counts[0], 1):
            places = [Const(0), u]
        elif same(counts[1], 1):
            places = [u, Const(0)]
        lets = [
            Let(loop.name, place if loop.step == 1 else Call("mul", (place, Const(loop.step))))
            for loop, place in zip((first, second), places, strict=True)
        ]
        total = counts[0] * counts[1]
        items = _defined(lets[0], _defined(lets[1], second.items, {into: total}), {into: total})
        return (Loop(into, Const(0), Const(total), items),)

    return rewritten(nest, outer, new, into)


def number(nest: LoopNest, name: str, into: str) -> LoopNest:
    """Count a loop's iterations.

    ::

        for m in 0..60 by 8:   -->    for u in 0..8:
          S(m)                          let m = u * 8
                                        S(m)
    """

    def new(loop: Loop) -> tuple[Item, ...]:
        begins_at_zero(loop, "number")
        let = Let(name, Call("mul", (Sym(into), Const(loop.step))))
        return (Loop(into, Const(0), Const(count_of(loop)), (let, *loop.items), loop.kind),)

    return rewritten(nest, name, new, into)


def reorder(nest: LoopNest, outer: str, inner: str) -> LoopNest:
    """Put a loop outside of the one around it, of which it is all.

    ::

        for a in 0..6:         -->    for b in 0..10:
          for b in 0..10:               for a in 0..6:
            S(a, b)                       S(a, b)

    Definitions before the inner loop come along.  All that comes to an element belongs to one
    iteration of one of the loops, the same for each item: else it would come in another order.
    Loops of the name that do not hold the other one stay.
    """

    known = ranges(nest.items)

    holding = [one for one in named(nest, outer) if _holds(one, inner)] or named(nest, outer)

    def new(first: Loop) -> tuple[Item, ...]:
        if not any(one is first for one in holding):
            return (first,)
        before = takewhile(lambda item: isinstance(item, Let), first.items)
        lets = tuple(item for item in before if isinstance(item, Let))
        second = _only_loop(replace(first, items=first.items[len(lets) :]), inner, "reorder")
        _without(second, lets)
        told: dict[str, list[tuple[Index, bool, bool]]] = {}
        for access in accesses(nest, second):
            around = [item for item in access.path if item not in lets]
            if not any(a is first and b is second for a, b in pairwise(around)):
                continue
            at = access.path.index(first)
            turned = (*access.path[:at], second, first, *lets, *access.path[at + len(lets) + 2 :])
            both = access, replace(access, path=turned)  # neither is given by the other
            one, other = map(Access.tells, both, (first, second), (known, known))
            told.setdefault(access.element.tensor, []).append((access.element.index, one, other))
        for tensor, touched in told.items():
            indices, ones, others = zip(*touched, strict=True)
            if len(set(indices)) > 1 or not (all(ones) or all(others)):
                raise LoopError(
                    f"{outer} and {inner} cannot change places",
                    expected="each element to meet its terms in the same order",
                    found=f"({outer}=0, {inner}=1) and ({outer}=1, {inner}=0) both come to "
                    f"{tensor}, and the second would come first",
                )
        return (replace(second, items=(replace(first, items=(*lets, *second.items)),)),)

    return rewritten(nest, outer, new)


def join(nest: LoopNest, name: str, *, of: Collection[str] = ()) -> LoopNest:
    """Make one loop of neighbours of that name and the same range; `of`: of those that compute
    nothing but these formulas.

    ::

        for r in 0..48:        -->    for r in 0..48:
          S(r)                          S(r)
        for r in 0..48:                 T(r)
          T(r)

    No iteration of a later one may read what another iteration of an earlier one makes.
    """
    made = replace(nest, items=_joined(nest.items, name, of))
    before = named(nest, name)
    for loop in named(made, name):
        changed = not any(loop is one for one in before)
        why = meeting(made, loop, reading=True) if changed else ""
        if why:
            raise LoopError(
                f"loops of {name} cannot be joined",
                expected="no iteration to read what another one makes",
                found=why,
            )
    return made


def parallel(nest: LoopNest, name: str) -> LoopNest:
    """Let threads share a loop's iterations.

    ::

        for u in 0..60:        -->    parallel u in 0..60:
          S(u)                          S(u)

    No two iterations may touch the same element, if one of them writes it.
    """
    return _apart(nest, name, "parallel", 1, ())


def vectorize(nest: LoopNest, name: str, *, least: int = 1, of: Collection[str] = ()) -> LoopNest:
    """Run a loop's iterations side by side, in lanes; loops that have less than `least` stay.

    of: the formulas of the loops that are meant, where not all of the name are.

    ::

        for r in 0..60:        -->    lanes r in 0..60:
          S(r)                          S(r)

    No two iterations may touch the same element, if one of them writes it.
    """
    return _apart(nest, name, "lanes", least, of)


def once(nest: LoopNest, name: str) -> LoopNest:
    """Put all there is into a loop of one iteration.

    ::

        S()                    -->    for u in 0..1:
                                        S()
    """
    unused(nest, name)
    return replace(nest, items=(Loop(name, Const(0), Const(1), nest.items),))


# ----------------------------------------------------------------------------------- how, and when


def _joined(items: tuple[Item, ...], name: str, of: Collection[str]) -> tuple[Item, ...]:
    made: list[Item] = []
    for item in items:
        if isinstance(item, Loop) and item.name != name:
            item = replace(item, items=_joined(item.items, name, of))
        before = made[-1] if made else None
        if (
            isinstance(item, Loop)
            and isinstance(before, Loop)
            and before.name == item.name == name
            and only(of, before)
            and only(of, item)
        ):
            if replace(before, items=()) != replace(item, items=()):
                raise LoopError(
                    f"loops of {name} cannot be joined",
                    expected="neighbours over the same range",
                    found="two that differ in bounds, step or kind",
                )
            known = {let.name: let for let in before.items if isinstance(let, Let)}
            for let in item.items:
                if isinstance(let, Let) and known.get(let.name, let) != let:
                    raise LoopError(
                        f"loops of {name} cannot be joined",
                        expected=f"one meaning of {let.name}",
                        found="two",
                    )
            others = (inner for inner in item.items if inner not in known.values())
            made[-1] = replace(before, items=(*before.items, *others))
        else:
            made.append(item)
    return tuple(made)


def _apart(nest: LoopNest, name: str, kind: Kind, least: int, of: Collection[str]) -> LoopNest:
    known = ranges(nest.items)

    def new(loop: Loop) -> tuple[Item, ...]:
        if _most(loop, known) < least or not only(of, loop):
            return (loop,)
        if loop.kind != "serial":
            raise LoopError(
                f"{name} cannot be made {kind}", expected="a serial loop", found=loop.kind
            )
        why = meeting(nest, loop)
        if why:
            raise LoopError(
                f"{name} cannot be made {kind}",
                expected="no element that one iteration writes and another touches",
                found=why,
            )
        return (replace(loop, kind=kind),)

    return rewritten(nest, name, new)


def _most(loop: Loop, known: Mapping[str, int]) -> int:
    """Return how many iterations a loop has at most."""
    low, high = algebra.bounds(loop.low, known), algebra.bounds(loop.high, known)
    if low is None or high is None or type(high[1]) is not int or type(low[0]) is not int:
        return LONGEST
    return high[1] - low[0]


def _only_loop(outer: Loop, name: str, verb: str) -> Loop:
    """Return the loop of that name that is all that another holds, and does not depend on it."""
    inner = outer.items[0]
    if len(outer.items) != 1 or not isinstance(inner, Loop) or inner.name != name:
        raise LoopError(
            f"{verb} needs {name} to be all that {outer.name} holds",
            expected=f"one loop {name} inside of {outer.name}",
            found=f"{len(outer.items)} items",
        )
    if outer.name in names(inner.low) | names(inner.high) or {outer.kind, inner.kind} != {"serial"}:
        raise LoopError(
            f"{verb} needs {outer.name} and {name} to be plain and not to depend on each other",
            expected=f"bounds of {name} without {outer.name}, and no lanes or threads yet",
            found=f"{inner.kind} {name} in {show_expr(inner.low)}..{show_expr(inner.high)}",
        )
    return inner


def _without(inner: Loop, lets: Sequence[Let]) -> None:
    """Raise LoopError where the bounds of a loop use definitions that are to move into it."""
    used = used_names(inner) & {let.name for let in lets}
    if used:
        raise LoopError(
            f"definitions cannot move into {inner.name}",
            expected=f"bounds of {inner.name} without {', '.join(sorted(used))}",
            found=f"{show_expr(inner.low)}..{show_expr(inner.high)}",
        )


def _defined(let: Let, items: tuple[Item, ...], extents: Mapping[str, int]) -> tuple[Item, ...]:
    """Put a definition before items: into those that they begin with, and as a line of its own
    where others use it."""
    made: list[Item] = []
    for at, item in enumerate(items):
        if not isinstance(item, Let):
            made += items[at:]
            break
        value = substitute(item.value, {let.name: let.value})
        made.append(Let(item.name, algebra.simplify(value, extents)))
    used = any(let.name in used_names(item) for item in walk(made))
    return (let, *made) if used else tuple(made)


def _holds(outer: Loop, name: str) -> bool:
    return any(isinstance(item, Loop) and item.name == name for item in outer.items)


def _divides(by: int, low: Expr, high: Expr) -> bool:
    """Say whether tiles of that size fill a loop."""
    plain = isinstance(high, Const) and type(high.value) is int and high.value % by == 0
    return low == Const(0) and plain


def _chosen(fn: str, bound: Expr, place: int) -> Expr:
    """Return the larger or the smaller of a bound and a place."""
    if isinstance(bound, Const) and type(bound.value) is int:
        return Const(max(bound.value, place) if fn == "max" else min(bound.value, place))
    return Call(fn, (bound, Const(place)))
