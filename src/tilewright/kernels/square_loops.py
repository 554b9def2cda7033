"""Loops that keep a square of a tensor near, where one function turns it.

The idea: what lies side by side for one loop is kept side by side for the other one; that is found
in what the loops say, so that a nest needs no word for it.

This module does not know where such loops come from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.base.expr import Call, Const, Expr, Read, Sym, substitute
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.loops import Keep, Let, Loop, used_names
from tilewright.kernels.text import Scope
from tilewright.kernels.turned import SIDE, WIDTHS

_NOTHING: Mapping[str, Expr] = {}


@dataclass(frozen=True, slots=True)
class Square:
    """What is kept: from `first` on, elements side by side along one loop, and so far apart along
    the other one."""

    keep: Keep
    first: Read
    apart: int
    along: Loop
    across: Loop


def square_of(printer: Printer, loop: Loop) -> Square | None:
    """Return the square that a loop keeps, if that is all it does."""
    lets = {item.name: item.value for item in loop.items if isinstance(item, Let)}
    loops = [item for item in loop.items if isinstance(item, Loop)]
    if len(loops) != 1 or len(loop.items) != len(lets) + 1:
        return None
    match loops[0]:
        case Loop(items=(Keep(read, buffer, kept) as keep,), kind="lanes") as inner if buffer:
            memory = printer.memory.get(read.tensor)
        case _:
            return None
    if memory is None or memory.dtype.bytes not in WIDTHS or not loop.step == inner.step == 1:
        return None
    if used_names(inner) & {loop.name, *lets} or read.default is not None:
        return None
    begin = {loop.name: loop.low, inner.name: inner.low}
    place = place_of(read, memory)
    told = [
        printer.simplify(substitute(kept, begin)),
        step_of(printer, kept, inner.name),
        step_of(printer, kept, loop.name),
        step_of(printer, place, inner.name, lets),
    ]
    match step_of(printer, place, loop.name, lets):
        case Const(int(apart)) if told == [Const(0), Const(SIDE), Const(1), Const(1)]:
            index = (substitute(substitute(one, lets), begin) for one in read.index)
            return Square(keep, Read(read.tensor, tuple(index)), apart, inner, loop)
    return None


def print_square(
    printer: Printer, square: Square, length: Callable[[Loop], str], scope: Scope
) -> None:
    """Print the call that keeps a square; `length`: how many iterations a loop has, as C text."""
    first, memory = printer.normal(square.first), printer.memory[square.first.tensor]
    function = f"turn_{memory.dtype.bytes}"
    printer.used.add(function)
    begin = f"{memory.pointer} + ({printer.offset(first, memory, scope)})"
    lengths = f"{length(square.along)}, {length(square.across)}"
    scope.add(f"{function}({square.keep.buffer}, {begin}, {square.apart}, {lengths});")


def place_of(read: Read, memory: Memory) -> Expr:
    """Return where an element lies in its tensor's memory."""
    place: Expr = Const(0)
    for entry, stride in zip(read.index, memory.strides, strict=True):
        place = Call("add", (place, Call("mul", (entry, Const(stride)))))
    return place


def step_of(printer: Printer, place: Expr, name: str, lets: Mapping[str, Expr] = _NOTHING) -> Expr:
    """Return how far a place moves with each iteration of a loop; `lets`: what is defined in it.

    A quotient and a rest that make one number are made that number first: it moves evenly.
    """
    here = printer.simplify(substitute(place, lets))
    after = substitute(here, {name: Call("add", (Sym(name), Const(1)))})
    return printer.simplify(Call("sub", (after, here)))
