"""Conditions as bounds: a loop runs over no term that is absent.

The idea: a window that leaves the image has terms that are absent, and so has a sum `where` some
index lies between two others.  Such a condition says of one loop from where, or to where, terms are
present, given the loops around it.  Where it bounds the loop nobody needs to ask it inside.

This module does not know which loops are narrowed, nor how they are printed.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, names
from tilewright.kernels.conditions import Limit, limit_of
from tilewright.kernels.expression import Printer
from tilewright.kernels.loops import Do, Item, Let, Loop, LoopNest, ranges, walk
from tilewright.kernels.rewriting import only, rewritten
from tilewright.kernels.sums import present


def narrow(nest: LoopNest, name: str, *, of: Collection[str] = ()) -> LoopNest:
    """Let a loop begin and end where all that is summed in it has terms; `of`: loops that compute
    nothing but these formulas.

    ::

        for r in 0..60:              -->    for r in 0..60:
          for c in 0..3:                      for c in max(0, 1 - r)..min(3, 61 - r):
            v0(r, c) into s0[0]                 v0(r, c) into s0[0]

    with terms a0[r + c - 1] of 60 elements.  A loop that computes or keeps elements, too,
    stays: there they are wanted where no term is.
    """
    known = ranges(nest.items)

    def new(loop: Loop) -> tuple[Item, ...]:
        if not only(of, loop):
            return (loop,)
        if loop.step != 1 or loop.kind == "parallel":
            raise LoopError(
                f"narrow needs {name} to be a loop in steps of 1 that threads do not share",
                expected="a loop that may begin anywhere",
                found=f"{loop.kind}, by {loop.step}",
            )
        inside = list(walk(loop.items))
        inner = {item.name for item in inside if isinstance(item, Loop | Let)}
        does = [item for item in inside if isinstance(item, Do)]
        if not does or not all(isinstance(item, Loop | Let | Do) for item in inside):
            return (loop,)
        if not all(nest.statement(do).is_reduction for do in does):
            return (loop,)
        found = [_limits(nest, do, name, known) for do in does]
        shared = [limit for limit in found[0] if all(limit in other for other in found)]
        made = loop
        for limit in shared:
            if inner.isdisjoint(names(limit.bound)):
                made = _within(made, limit)
        return (made,)

    return rewritten(nest, name, new)


def _limits(nest: LoopNest, do: Do, name: str, extents: Mapping[str, int]) -> list[Limit]:
    printer = Printer(nest.body, {})
    printer.enter(extents)
    conditions = present(printer, nest.statement(do))
    made = (limit_of(condition, name, extents) for condition in conditions)
    return [limit for limit in made if limit is not None]


def _within(loop: Loop, limit: Limit) -> Loop:
    """Bound a loop once more."""
    if limit.fn == "max":
        return replace(loop, low=Call("max", (loop.low, limit.bound)))
    return replace(loop, high=Call("min", (loop.high, limit.bound)))
