"""Loops and branches of a Program as Python functions over steps that are bound once.

The idea: an iteration differs from the one before by nothing but the loop's index, which native
code and library calls read where it lies; so a body is bound once and run as often as it has to be.
Loops over launches alone are native code themselves.

This module does not know what the steps do.
"""

import array
import ctypes
from collections.abc import Callable, Mapping, Sequence

from tilewright.program import (
    Branch,
    Instruction,
    LibraryCall,
    Loop,
    Stretch,
    View,
    While,
    stretches,
    touched,
)

Step = Callable[[], None]
Truth = Callable[[], bool]
After = Callable[[Sequence[Instruction]], Mapping[int, Step]]


def bind_steps(
    instructions: Sequence[Instruction],
    index: "array.array[int]",
    leaf: Callable[[Stretch | LibraryCall], Step],
    holds: Callable[[View], Truth],
    after: After = lambda _: {},
    depth: int = 0,
) -> tuple[Step, ...]:
    """Return the steps of a block of instructions.

    index: of the loops that are running, outermost first.  leaf: binds what is no control flow.
    holds: reads a truth value.  after: what else there is to do after instructions of a block.
    """

    def block(items: Sequence[Instruction], depth: int) -> tuple[Step, ...]:
        return bind_steps(items, index, leaf, holds, after, depth)

    more = after(instructions)
    bound: list[Step] = []
    for at, item in stretches(instructions):
        match item:
            case tuple() | LibraryCall():
                bound.append(leaf(item))
            case Loop(body, count):
                bound.append(_loop(block(body, depth + 1), count, index, depth))
            case While(test, view, body):
                bound.append(_while(block(test, depth), holds(view), block(body, depth)))
            case Branch(view, then, otherwise):
                bound.append(_branch(holds(view), block(then, depth), block(otherwise, depth)))
        end = at + (len(item) if isinstance(item, tuple) else 1)
        bound += [more[place] for place in range(at, end) if place in more]
    return tuple(bound)


def _loop(body: Sequence[Step], count: int, index: "array.array[int]", depth: int) -> Step:
    def step() -> None:
        for at in range(count):
            index[depth] = at
            for part in body:
                part()

    return step


def _while(test: Sequence[Step], holds: Truth, body: Sequence[Step]) -> Step:
    def step() -> None:
        while True:
            for part in test:
                part()
            if not holds():
                return
            for part in body:
                part()

    return step


def _branch(holds: Truth, then: Sequence[Step], otherwise: Sequence[Step]) -> Step:
    def step() -> None:
        for part in then if holds() else otherwise:
            part()

    return step


def truth(
    addresses: "array.array[int]", number: int, view: View, index: "array.array[int]"
) -> Truth:
    """Return what reads the bool that a view of buffer `number` is."""

    def holds() -> bool:
        at = addresses[number] + view.offset + shift(view, index)
        return bool(ctypes.c_bool.from_address(at).value)

    return holds


def shift(view: View, index: "array.array[int]") -> int:
    """Return by how many elements a view has moved."""
    return sum(step * at for step, at in zip(view.steps, index, strict=False))


def last_uses(block: Sequence[Instruction]) -> dict[str, int]:
    """Return for each buffer that a block's own calls write the last instruction that uses it."""
    made = {v.buffer for item in block if isinstance(item, LibraryCall) for v in item.outputs}
    return {name: at for at, item in enumerate(block) for name in touched((item,)) if name in made}
