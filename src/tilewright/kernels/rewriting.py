"""What the rewrites of loop nests share: finding the loops of a name, and refusing what is no loop.

The idea: a rewrite is a function from one loop to the items that take its place.

This module does not know any rewrite.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from tilewright.base.errors import LoopError
from tilewright.base.expr import Const
from tilewright.base.syntax import show as show_expr
from tilewright.kernels.loops import Do, Fetch, Fold, Item, Keep, Loop, LoopNest, Merge, named, walk

Rewrite = Callable[[Loop], tuple[Item, ...]]


def rewritten(nest: LoopNest, name: str, new: Rewrite, *defined: str) -> LoopNest:
    """Put what `new` makes of a loop in the place of every loop of that name."""
    for other in defined:
        unused(nest, other)
    if not named(nest, name):
        raise LoopError(
            f"there is no loop {name}",
            expected=", ".join(
                dict.fromkeys(i.name for i in walk(nest.items) if isinstance(i, Loop))
            ),
            found=name,
        )
    return replace(nest, items=_replaced(nest.items, name, new))


def unused(nest: LoopNest, name: str) -> None:
    """Raise LoopError where a name is taken."""
    if any(
        not isinstance(item, Do | Merge | Fold | Keep | Fetch) and item.name == name
        for item in walk(nest.items)
    ):
        raise LoopError(f"there is a {name} already", expected="a name of its own", found=name)


def _replaced(items: tuple[Item, ...], name: str, new: Rewrite) -> tuple[Item, ...]:
    made: list[Item] = []
    for item in items:
        if isinstance(item, Loop) and item.name == name:
            made += new(item)
        elif isinstance(item, Loop):
            made.append(replace(item, items=_replaced(item.items, name, new)))
        else:
            made.append(item)
    return tuple(made)


def only(of: Collection[str], loop: Loop) -> bool:
    """Say whether a loop computes nothing but these formulas; () are all."""
    return not of or all(i.formula in of for i in walk(loop.items) if isinstance(i, Do))


def step_by_one(loop: Loop, verb: str) -> None:
    """Raise LoopError where a loop is not plain any more."""
    if loop.step != 1 or loop.kind != "serial":
        raise LoopError(
            f"{verb} needs {loop.name} to be a plain loop in steps of 1",
            expected="a loop that is not yet cut",
            found=f"{loop.kind}, by {loop.step}",
        )


def begins_at_zero(loop: Loop, verb: str) -> None:
    """Raise LoopError where a loop does not run from 0 to a number."""
    if loop.low != Const(0) or not isinstance(loop.high, Const):
        raise LoopError(
            f"{verb} needs {loop.name} to begin at 0 and to end at a number",
            expected="0..extent",
            found=f"{show_expr(loop.low)}..{show_expr(loop.high)}",
        )


def count_of(loop: Loop) -> int:
    """Return how many iterations a loop from 0 to a number has."""
    assert isinstance(loop.high, Const) and isinstance(loop.high.value, int), "checked before"
    return -(-loop.high.value // loop.step)
