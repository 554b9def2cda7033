"""Judge a Program's instructions in time: what is read was written, and every view stays inside.

The idea: walk the instructions once, in order, knowing for each buffer whether it has been written
and how often the loops around run.  Reading before writing is judged by whole buffers.

This module does not know how long buffers live.
"""

from collections.abc import Sequence

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.program.ir import (
    CONSTANT,
    INPUT,
    KEPT,
    LIBRARY,
    Branch,
    Buffer,
    Instruction,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    View,
    While,
    reach,
    whole,
)
from tilewright.program.refusal import refuse, require
from tilewright.program.walk import steps_of

LARGEST = 1 << 47
DEEPEST = 16

Counts = tuple[int, ...]
"""How often each of the loops around runs, outermost first."""


def check_order(program: Program, buffers: dict[str, Buffer]) -> None:
    """Check every view of every step, in time."""
    order = _Order(program, buffers)
    order.prepare()
    order.block(program.instructions, (), 0)
    for view in program.outputs:
        if view.buffer not in order.written:
            refuse(
                f"buffer {view.buffer!r} is an output but is never written",
                "a step that writes it",
                "none",
            )


def said(view: View) -> str:
    """Return a view as an error says it."""
    steps = f", steps {list(view.steps)}" if view.steps else ""
    return (
        f"view of {view.buffer!r}: shape {list(view.shape)}, strides {list(view.strides)}, "
        f"offset {view.offset}{steps}"
    )


def check_view(view: View, buffers: dict[str, Buffer], where: Origin, counts: Counts = ()) -> None:
    """Check that a view lies inside its buffer, in every iteration of the loops around."""
    if view.buffer not in buffers:
        names = f"one of {', '.join(buffers)}" if buffers else "none: there are no buffers"
        refuse(f"no buffer has the name {view.buffer!r}", names, repr(view.buffer), where)
    buffer = buffers[view.buffer]
    layout = (view.shape, view.strides, view.offset, view.steps)
    if layout == (buffer.type.shape, buffer.strides, 0, ()):
        return  # most views are their buffers, which have been checked
    fits = len(view.shape) == len(view.strides) and all(0 <= n <= LARGEST for n in view.shape)
    if not fits or any(abs(s) > LARGEST for s in (*view.strides, *view.steps)):
        refuse(
            f"the strides of a view of {view.buffer!r} do not fit its shape",
            f"one stride for each extent, all within {LARGEST}",
            said(view),
            where,
        )
    if len(view.steps) > len(counts):
        refuse(
            f"a view of {view.buffer!r} moves with a loop that is not there",
            f"steps for at most {len(counts)} loops",
            said(view),
            where,
        )
    around = counts[: len(view.steps)]
    low, high = reach((*around, *view.shape), (*view.steps, *view.strides))
    if view.offset < 0 or view.offset + low < 0 or view.offset + high > buffer.elements:
        refuse(
            f"a view reaches outside buffer {view.buffer!r}",
            f"elements 0 to {buffer.elements}",
            f"elements {view.offset + low} to {view.offset + high}",
            where,
        )


class _Order:
    """Walks the instructions; final.  Its state is what has been written, and where it is."""

    def __init__(self, program: Program, buffers: dict[str, Buffer]) -> None:
        self.program = program
        self.buffers = buffers
        self.written = {b.name for b in program.buffers if b.kind == CONSTANT}
        self.preparing = True

    def prepare(self) -> None:
        """Check what is prepared: from what stays, to what is kept."""
        program, constants = self.program, set(self.written)
        stay = {item.buffer for item in program.inputs if item.role.stays}
        self.written |= stay - set(program.updates)
        self.block(program.prepare, (), 0)
        kept = {b.name for b in program.buffers if b.kind == KEPT}
        require(
            kept <= self.written,
            "a kept buffer is never prepared",
            "a step of `prepare` that writes it",
            ", ".join(sorted(kept - self.written)),
        )
        self.written = constants | kept | {item.buffer for item in program.inputs}
        self.preparing = False

    def block(self, items: Sequence[Instruction], counts: Counts, nesting: int) -> None:
        """Check instructions that stand in loops."""
        require(
            nesting <= DEEPEST,
            "the loops and branches of a program are nested too deep",
            f"at most {DEEPEST} in each other",
            nesting,
        )
        for item in items:
            if isinstance(item, Segment | LibraryCall):
                for step in steps_of(item):
                    self.step(step, counts)
            else:
                self.nest(item, counts, nesting + 1)

    def nest(self, item: Loop | While | Branch, counts: Counts, nesting: int) -> None:
        """Check a loop or branch; what may not have run has written nothing."""
        before = set(self.written)
        match item:
            case Loop(body, count):
                require(
                    0 <= count <= LARGEST,
                    "a loop runs an impossible number of times",
                    f"0 to {LARGEST}",
                    count,
                )
                self.block(body, (*counts, count), nesting)
                if count == 0:
                    made = {name for name in self.written if self.buffers[name].elements == 0}
                    self.written = before | made
            case While(test, holds, body):
                self.block(test, counts, nesting)
                self.holds(holds, counts)
                tested = set(self.written)
                self.block(body, counts, nesting)
                self.written = tested
            case Branch(holds, then, otherwise):
                self.holds(holds, counts)
                self.block(then, counts, nesting)
                after, self.written = self.written, before
                self.block(otherwise, counts, nesting)
                self.written = self.written & after

    def holds(self, view: View, counts: Counts) -> None:
        """Check what decides."""
        self.read(view, UNKNOWN, counts)
        dtype = self.buffers[view.buffer].dtype
        if view.shape or dtype != BOOL:
            refuse("what decides is no truth value", "a bool of rank 0", f"{dtype} {said(view)}")

    def step(self, step: Launch | LibraryCall, counts: Counts) -> None:
        """Check the views of one step."""
        for view in step.inputs:
            self.read(view, step.origin, counts)
        for view in step.outputs:
            check_view(view, self.buffers, step.origin, counts)
            buffer = self.buffers[view.buffer]
            if self.preparing != (buffer.kind == KEPT) and buffer.kind != LIBRARY:
                self.misplaced(view, buffer, step)
            _check_write(view, buffer, step, self.program.updates, self.written)
        self.written.update(view.buffer for view in step.outputs)

    def misplaced(self, view: View, buffer: Buffer, step: Launch | LibraryCall) -> None:
        """Refuse to keep what is made in each run, or to prepare what is not kept."""
        if self.preparing:
            summary = f"{buffer.kind} buffer {buffer.name!r} is written while values are prepared"
            refuse(summary, "kept buffers that are written", said(view), step.origin)
        summary = f"kept buffer {buffer.name!r} is written by a run"
        refuse(summary, "kept buffers that `prepare` alone writes", said(view), step.origin)

    def read(self, view: View, where: Origin, counts: Counts) -> None:
        """Check one view that is read."""
        check_view(view, self.buffers, where, counts)
        if view.buffer not in self.written:
            stays = "an input that stays" if self.preparing else "an input"
            refuse(
                f"buffer {view.buffer!r} is read before it is written",
                f"{stays}, a constant, or what an earlier step wrote",
                f"{self.buffers[view.buffer].kind} buffer {view.buffer!r}",
                where,
            )


def _check_write(
    view: View,
    buffer: Buffer,
    step: Launch | LibraryCall,
    updates: tuple[str, ...],
    written: set[str],
) -> None:
    name, where = buffer.name, step.origin
    if buffer.kind == CONSTANT:
        refuse(f"constant {name!r} is written", "constants that are only read", said(view), where)
    if buffer.kind == INPUT and name not in updates:
        refuse(
            f"input {name!r} is written but is not among the updates",
            f"updates with {name!r}, or no step that writes it",
            f"updates {list(updates)}",
            where,
        )
    if buffer.kind == LIBRARY:
        _check_library_write(view, buffer, step, written)
    elif any(s == 0 and n > 1 for n, s in zip(view.shape, view.strides, strict=True)):
        refuse(
            f"elements of buffer {name!r} are written twice at once",
            "strides other than 0",
            said(view),
            where,
        )


def _check_library_write(
    view: View, buffer: Buffer, step: Launch | LibraryCall, written: set[str]
) -> None:
    name, where = buffer.name, step.origin
    if not isinstance(step, LibraryCall) or name in written:
        refuse(
            f"buffer {name!r} belongs to one library call but is written again",
            "one library call that writes it",
            f"a launch of {step.kernel!r}" if isinstance(step, Launch) else "two calls",
            where,
        )
    if view != whole(buffer):
        refuse(
            f"a library call allocates all of buffer {name!r}, not a view",
            said(whole(buffer)),
            said(view),
            where,
        )
    times = sum(other.buffer == name for other in step.outputs)
    if times > 1:
        refuse(f"a library call writes buffer {name!r} twice", "once", f"{times} times", where)
