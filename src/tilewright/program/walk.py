"""Going through a Program's instructions: in order, those inside loops and branches too; lifetimes.

The idea: written one after the other, instructions have a time; what a loop's iterations share, or
hand on, lives as long as the loop.

This module does not judge anything.
"""

from collections.abc import Iterable, Iterator, Sequence

from tilewright.program.ir import (
    Branch,
    Instruction,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    View,
    While,
)


def flat(instructions: Iterable[Instruction]) -> Iterator[Segment | LibraryCall]:
    """Yield segments and library calls in order, those inside loops and branches too, each once."""
    for item in instructions:
        if isinstance(item, Segment | LibraryCall):
            yield item
        else:
            for block in blocks(item):
                yield from flat(block)


Stretch = tuple[Segment | Loop, ...]
"""Instructions one after the other that run in native code, and loops over such."""


def stretches(block: Sequence[Instruction]) -> Iterator[tuple[int, Stretch | Instruction]]:
    """Yield the instructions of a block with their positions, what is native as long stretches."""
    native: list[Segment | Loop] = []
    for at, item in enumerate(block):
        if isinstance(item, Segment | Loop) and is_native(item):
            native.append(item)
            continue
        if native:
            yield at - len(native), tuple(native)
            native = []
        yield at, item
    if native:
        yield len(block) - len(native), tuple(native)


def is_native(item: Instruction) -> bool:
    """Say whether an instruction is launches, or a loop over launches."""
    return isinstance(item, Segment) or (isinstance(item, Loop) and all(map(is_native, item.body)))


def all_stretches(block: Sequence[Instruction], depth: int = 0) -> Iterator[tuple[Stretch, int]]:
    """Yield the stretches of a block in order, those inside loops and branches too, and how many
    loops that count are around each."""
    for _, item in stretches(block):
        if isinstance(item, tuple):
            yield item, depth
        elif not isinstance(item, Segment | LibraryCall):
            for inner in blocks(item):
                yield from all_stretches(inner, depth + isinstance(item, Loop))


def blocks(item: Loop | While | Branch) -> tuple[tuple[Instruction, ...], ...]:
    """Return the instructions inside one, in order."""
    match item:
        case Loop():
            return (item.body,)
        case While():
            return (item.test, item.body)
        case Branch():
            return (item.then, item.otherwise)


def steps(program: Program) -> Iterator[Launch | LibraryCall]:
    """Yield the launches and library calls one by one, in order, each once; prepared ones first."""
    for item in flat((*program.prepare, *program.instructions)):
        yield from steps_of(item)


def steps_of(item: Segment | LibraryCall) -> tuple[Launch | LibraryCall, ...]:
    """Return the launches of a segment, or the call itself."""
    return item.launches if isinstance(item, Segment) else (item,)


def touched(items: Iterable[Instruction]) -> Iterator[str]:
    """Yield the buffers that instructions touch."""
    for item in items:
        if isinstance(item, Segment | LibraryCall):
            for step in item.launches if isinstance(item, Segment) else (item,):
                yield from (view.buffer for view in (*step.inputs, *step.outputs))
            continue
        if not isinstance(item, Loop):
            yield item.holds.buffer
        for inner in blocks(item):
            yield from touched(inner)


def depth(instructions: Iterable[Instruction]) -> int:
    """Return how deep loops that count stand in loops."""
    inner = (
        (isinstance(item, Loop)) + max(depth(block) for block in blocks(item))
        for item in instructions
        if not isinstance(item, Segment | LibraryCall)
    )
    return max(inner, default=0)


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """Return for each buffer the first and the last moment that it is needed.

    A buffer that a loop uses and that is used outside of it too, or that moves with the loop, is
    needed from the loop's begin to its end.
    """
    timeline = _Timeline()
    timeline.block(program.instructions, ())
    return timeline.lifetimes()


class _Timeline:
    """Goes through the instructions once, counting moments; final.

    spans: the first and last moment that a buffer is touched.  moving: the loops, by their first
    moment, that views of a buffer move with.  loops: first and last moments, inner ones first.
    """

    def __init__(self) -> None:
        self.now = 0
        self.spans: dict[str, tuple[int, int]] = {}
        self.moving: dict[str, set[int]] = {}
        self.loops: list[tuple[int, int]] = []

    def block(self, instructions: Sequence[Instruction], around: tuple[int, ...]) -> None:
        """Go through instructions that stand in the loops that began at the moments `around`."""
        for item in instructions:
            start = self.now
            match item:
                case Segment() | LibraryCall():
                    for step in steps_of(item):
                        self.touch((*step.inputs, *step.outputs), around)
                case Branch():
                    self.touch((item.holds,), around)
                    self.block(item.then, around)
                    self.block(item.otherwise, around)
                case Loop():
                    self.block(item.body, (*around, start))
                    self.end_of(start)
                case While():
                    self.block(item.test, around)
                    self.touch((item.holds,), around)
                    self.block(item.body, around)
                    self.end_of(start)

    def end_of(self, start: int) -> None:
        """Note the end of the loop that began at a moment; it is a moment of its own."""
        self.loops.append((start, self.now))
        self.now += 1

    def touch(self, views: Sequence[View], around: tuple[int, ...]) -> None:
        """Note that views are used at this moment; it passes."""
        for view in views:
            first, _ = self.spans.get(view.buffer, (self.now, self.now))
            self.spans[view.buffer] = (first, self.now)
            moving = self.moving.setdefault(view.buffer, set())
            if view.steps:
                moving |= {loop for loop, step in zip(around, view.steps, strict=False) if step}
        self.now += 1

    def lifetimes(self) -> dict[str, tuple[int, int]]:
        """Return the spans, longer where a loop comes back to what it used."""
        found = dict(self.spans)
        for start, end in self.loops:
            for name, (first, last) in found.items():
                inside = start <= first and last <= end and start not in self.moving[name]
                if last >= start and first <= end and not inside:
                    found[name] = (min(first, start), max(last, end))
        return found
