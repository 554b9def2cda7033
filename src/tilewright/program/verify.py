"""Judge a Program, whoever made it: raise `ProgramError` where it breaks a rule of `ir`.

The idea: walk the instructions once, in order, knowing for each buffer whether it has been written
and when it is last used; memory that two live values share is found by a sweep over that time.
Reading before writing is judged by whole buffers.  This module does not know what a kernel's text
or a library target computes.
"""

import bisect
import re
from collections.abc import Iterator

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import UNKNOWN, Origin, ProgramError
from tilewright.program.ir import (
    ARENA,
    CONSTANT,
    INPUT,
    KINDS,
    LIBRARY,
    OUTPUT,
    Buffer,
    Instruction,
    Launch,
    LibraryCall,
    Program,
    Segment,
    Template,
    View,
    reach,
    whole,
)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TARGET = re.compile(r"aten\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
RESERVED = "tilewright_"
"""Names of kernels do not begin so: the runtime's own C functions do."""

LARGEST = 1 << 47
MOST_PARTS = 1 << 20
DEEPEST = 16


def verify(program: Program) -> None:
    """Raise `ProgramError` unless every rule of `ir` holds."""
    buffers = _table(program)
    _check_kernels(program)
    for buffer in program.buffers:
        _check_buffer(buffer, program.arena_bytes)
    _check_signature(program, buffers)
    for instruction in program.instructions:
        if isinstance(instruction, LibraryCall):
            _check_call(instruction)
    lifetimes = _check_order(program, buffers)
    _check_arena(program, lifetimes)


def steps(program: Program) -> Iterator[Launch | LibraryCall]:
    """Yield the launches and library calls one by one, as they run."""
    for instruction in program.instructions:
        yield from _steps_of(instruction)


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """Return for each buffer the first and the last of `steps` that touch it."""
    found: dict[str, tuple[int, int]] = {}
    for time, step in enumerate(steps(program)):
        for view in (*step.inputs, *step.outputs):
            found[view.buffer] = (found.get(view.buffer, (time, time))[0], time)
    return found


def _steps_of(instruction: Instruction) -> tuple[Launch | LibraryCall, ...]:
    return instruction.launches if isinstance(instruction, Segment) else (instruction,)


def _refuse(summary: str, where: Origin = UNKNOWN, expected: str = "", found: object = "") -> None:
    raise ProgramError(summary, expected=expected, found=str(found), where=where)


def _require(holds: bool, summary: str, found: object = "", expected: str = "") -> None:
    if not holds:
        _refuse(summary, expected=expected, found=found)


def _table(program: Program) -> dict[str, Buffer]:
    buffers = {buffer.name: buffer for buffer in program.buffers}
    _require(len(buffers) == len(program.buffers), "two buffers of a program have one name")
    return buffers


def _check_kernels(program: Program) -> None:
    known: set[str] = set()
    for kernel in program.kernels:
        name = kernel.name
        _require(bool(KERNEL_NAME.fullmatch(name)), f"{name!r} cannot be the name of a kernel")
        _require(not name.startswith(RESERVED), f"the kernel name {name!r} is reserved")
        _require(name not in known, f"two kernels have the name {name!r}")
        _require(name in kernel.text, f"the text of kernel {name!r} does not define it")
        known.add(name)
    for step in steps(program):
        if isinstance(step, Launch):
            _require(step.kernel in known, f"no kernel has the name {step.kernel!r}")
            _require(
                1 <= step.parts <= MOST_PARTS,
                f"a launch of {step.kernel!r} has an impossible number of parts",
                found=step.parts,
            )


def _check_buffer(buffer: Buffer, arena_bytes: int) -> None:
    name, shape = buffer.name, buffer.type.shape
    _require(bool(NAME.fullmatch(name)), f"{name!r} cannot be the name of a buffer")
    _require(buffer.kind in KINDS, f"buffer {name!r} is of no known kind", buffer.kind)
    _require(buffer.dtype.name in BY_NAME, f"buffer {name!r} is of no known dtype", buffer.dtype)
    sound = all(isinstance(dim, int) and 0 <= dim <= LARGEST for dim in shape)
    _require(sound, f"the shape of buffer {name!r} is impossible", shape)
    fits = len(buffer.strides) == len(shape) and all(0 <= s <= LARGEST for s in buffer.strides)
    _require(
        fits, f"the strides of buffer {name!r} do not fit its shape", buffer.strides, f"{shape}"
    )
    _require(buffer.bytes <= LARGEST, f"buffer {name!r} is impossibly large", buffer.bytes)
    if buffer.kind == CONSTANT:
        _require(
            len(buffer.data) == buffer.bytes,
            f"constant {name!r} does not have the data its type asks for",
            f"{len(buffer.data)} bytes",
            f"{buffer.bytes} bytes",
        )
    else:
        _require(not buffer.data, f"buffer {name!r} has data but is no constant")
    if buffer.kind == ARENA:
        aligned = buffer.offset % buffer.dtype.bytes == 0
        _require(aligned, f"buffer {name!r} is not aligned to its elements", buffer.offset)
        inside = buffer.offset >= 0 and buffer.offset + buffer.bytes <= arena_bytes <= LARGEST
        _require(inside, f"buffer {name!r} is not inside the arena", buffer.offset)
    else:
        _require(buffer.offset == 0, f"buffer {name!r} has an offset but is not in the arena")


def _check_signature(program: Program, buffers: dict[str, Buffer]) -> None:
    given = [item.buffer for item in program.inputs]
    expected = sorted(buffer.name for buffer in program.buffers if buffer.kind == INPUT)
    _require(
        sorted(given) == expected,
        "the inputs of a program are not its input buffers, each once",
        found=given,
        expected=f"{expected}",
    )
    updated = program.updates
    sound = len(set(updated)) == len(updated) and set(updated) <= set(given)
    _require(sound, "the updates of a program are not among its inputs, each once", updated)
    for view in program.outputs:
        _check_view(view, buffers, UNKNOWN)
        kind = buffers[view.buffer].kind
        _require(
            kind in (OUTPUT, LIBRARY, INPUT),
            f"an output views {kind} memory ({view.buffer!r}), which no caller may hold",
        )
        _require(all(s >= 0 for s in view.strides), "an output has a negative stride", view)


def _check_view(view: View, buffers: dict[str, Buffer], where: Origin) -> None:
    if view.buffer not in buffers:
        _refuse(f"no buffer has the name {view.buffer!r}", where)
    buffer = buffers[view.buffer]
    fits = len(view.shape) == len(view.strides) and all(0 <= n <= LARGEST for n in view.shape)
    if not fits or any(abs(s) > LARGEST for s in view.strides):
        _refuse(f"the strides of a view of {view.buffer!r} do not fit its shape", where, found=view)
    low, high = reach(view.shape, view.strides)
    if view.offset < 0 or view.offset + low < 0 or view.offset + high > buffer.elements:
        _refuse(
            f"a view reaches outside buffer {view.buffer!r}",
            where,
            expected=f"elements 0 to {buffer.elements}",
            found=f"elements {view.offset + low} to {view.offset + high}",
        )


def _check_call(call: LibraryCall) -> None:
    name = call.target
    if not TARGET.fullmatch(name):
        _refuse(f"{name!r} is no ATen operator with its overload", call.origin)
    for template in (*call.args, *(value for _, value in call.kwargs)):
        _check_template(template, call, 0)
    keys = [key for key, _ in call.kwargs]
    if len(set(keys)) != len(keys) or not all(KERNEL_NAME.fullmatch(key) for key in keys):
        _refuse(f"{name} has impossible argument names", call.origin, found=keys)
    counts = len(call.outputs), len(call.results)
    if call.vjp is not None:
        counts = len(call.outputs), len(call.vjp.inputs)
        operands = len(call.inputs) - len(call.vjp.results)
        if not all(0 <= i < operands for i in call.vjp.inputs):
            _refuse(f"the gradient of {name} names operands it has not", call.origin)
        if any(i < 0 for i in call.vjp.results):
            _refuse(f"the gradient of {name} names a result it has not", call.origin)
    if counts[0] != counts[1] or any(i < 0 for i in call.results):
        _refuse(f"{name} does not say which result each output is", call.origin)
    views = (*call.inputs, *call.outputs)
    if any(stride < 0 for view in views for stride in view.strides):
        _refuse(f"{name} has an operand with a negative stride", call.origin)


def _check_template(template: Template, call: LibraryCall, depth: int) -> None:
    if depth > DEEPEST:
        _refuse(f"the arguments of {call.target} are nested too deep", call.origin)
    match template:
        case ("%", *rest):
            operands = len(call.inputs) - (len(call.vjp.results) if call.vjp else 0)
            match rest:
                case [int(i)] if 0 <= i < operands:
                    return
            _refuse(f"{call.target} has no operand {rest}", call.origin)
        case ("dtype", *rest):
            if len(rest) != 1 or rest[0] not in BY_NAME:
                _refuse(f"{call.target} names no known dtype", call.origin, found=rest)
        case tuple(parts):
            for part in parts:
                _check_template(part, call, depth + 1)


def _check_order(program: Program, buffers: dict[str, Buffer]) -> dict[str, tuple[int, int]]:
    """Check every view of every step, in time; return the lifetimes."""
    written = {b.name for b in program.buffers if b.kind in (INPUT, CONSTANT)}
    for step in steps(program):
        for view in step.inputs:
            _check_view(view, buffers, step.origin)
            if view.buffer not in written:
                _refuse(f"buffer {view.buffer!r} is read before it is written", step.origin)
        for view in step.outputs:
            _check_view(view, buffers, step.origin)
            _check_write(view, buffers[view.buffer], step, program.updates, written)
        written.update(view.buffer for view in step.outputs)
    for view in program.outputs:
        if view.buffer not in written:
            _refuse(f"buffer {view.buffer!r} is an output but is never written")
    return lifetimes(program)


def _check_write(
    view: View,
    buffer: Buffer,
    step: Launch | LibraryCall,
    updates: tuple[str, ...],
    written: set[str],
) -> None:
    name = buffer.name
    if buffer.kind == CONSTANT:
        _refuse(f"constant {name!r} is written", step.origin)
    if buffer.kind == INPUT and name not in updates:
        _refuse(f"input {name!r} is written but is not among the updates", step.origin)
    if buffer.kind == LIBRARY:
        if not isinstance(step, LibraryCall) or name in written:
            _refuse(
                f"buffer {name!r} belongs to one library call but is written again", step.origin
            )
        if view != whole(buffer):
            _refuse(f"a library call allocates all of buffer {name!r}, not a view", step.origin)
        if sum(other.buffer == name for other in step.outputs) > 1:
            _refuse(f"a library call writes buffer {name!r} twice", step.origin)
    elif any(s == 0 and n > 1 for n, s in zip(view.shape, view.strides, strict=True)):
        _refuse(f"elements of buffer {name!r} are written twice at once", step.origin, found=view)


def _check_arena(program: Program, lives: dict[str, tuple[int, int]]) -> None:
    """Sweep over time: no two live buffers share a byte of the arena."""
    placed = [b for b in program.buffers if b.kind == ARENA and b.bytes and b.name in lives]
    births = sorted(placed, key=lambda b: lives[b.name][0])
    deaths = sorted(placed, key=lambda b: lives[b.name][1])
    live: list[Buffer] = []
    gone = 0
    for buffer in births:
        now = lives[buffer.name][0]
        while lives[deaths[gone].name][1] < now:
            live.pop(bisect.bisect_left(live, deaths[gone].offset, key=_offset))
            gone += 1
        at = bisect.bisect_left(live, buffer.offset, key=_offset)
        for other in live[max(at - 1, 0) : at + 1]:
            if buffer.offset < _end(other) and other.offset < _end(buffer):
                _refuse(
                    f"{other.name!r} and {buffer.name!r} share memory while both are in use",
                    found=f"bytes {other.offset} to {_end(other)} and "
                    f"{buffer.offset} to {_end(buffer)}",
                )
        live.insert(at, buffer)


def _offset(buffer: Buffer) -> int:
    return buffer.offset


def _end(buffer: Buffer) -> int:
    return buffer.offset + buffer.bytes
