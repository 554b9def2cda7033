"""Judge a Program, whoever made it: raise `ProgramError` where it breaks a rule of `ir`.

The idea: each thing is judged alone, then the instructions in time (`order`); memory that two live
values share is found by a sweep over that time.  This module does not know what a kernel's text or
a library target computes.
"""

import bisect
import re
from collections import Counter
from collections.abc import Iterable

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import UNKNOWN, ProgramError
from tilewright.base.sizes import Size
from tilewright.program.bind import bind, check_above
from tilewright.program.ir import (
    ARENA,
    CONSTANT,
    INPUT,
    KINDS,
    LIBRARY,
    OUTPUT,
    Buffer,
    Launch,
    LibraryCall,
    Program,
    Template,
    Vjp,
)
from tilewright.program.layers import fault
from tilewright.program.order import LARGEST, check_order, check_view, said
from tilewright.program.refusal import placed, refuse, require
from tilewright.program.walk import flat, lifetimes, steps, steps_of, touched

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TARGET = re.compile(r"aten\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
RESERVED = "tilewright_"
"""Names of kernels do not begin so: the runtime's own C functions do."""

MOST_PARTS = 1 << 20
DEEPEST = 16


def verify(program: Program) -> None:
    """Raise `ProgramError` unless every rule of `ir` holds.

    Where sizes vary: for the example, and that no two arena buffers alive at one time can overlap
    for any values.
    """
    try:
        if program.sizes is None:
            _judge(program)
        else:
            _check_prepared(program)
            _judge(bind(program, program.sizes.values))
            check_above(program, lifetimes(program))
    except ProgramError as error:
        raise placed(error, "" if error.where else f"program {program.name!r}") from None


def _judge(program: Program) -> None:
    buffers = _table(program)
    _check_kernels(program)
    for buffer in program.buffers:
        _check_buffer(buffer, program.arena_bytes)
    _check_signature(program, buffers)
    for step in steps(program):
        if isinstance(step, LibraryCall):
            _check_call(step)
    check_order(program, buffers)
    _check_arena(program, lifetimes(program))


def _twice(names: Iterable[str]) -> str:
    """Return the names that stand more than once, as an error says them."""
    counts = Counter(names)
    return ", ".join(f"{count} times {name!r}" for name, count in counts.items() if count > 1)


def _table(program: Program) -> dict[str, Buffer]:
    buffers = {buffer.name: buffer for buffer in program.buffers}
    twice = _twice(buffer.name for buffer in program.buffers)
    require(not twice, "two buffers of a program have one name", "each name once", twice)
    return buffers


def _check_prepared(program: Program) -> None:
    """Check that no size varies in what is kept for all values."""
    names = set(touched(program.prepare))
    numbers = [n for b in program.buffers if b.name in names for n in (*b.shape, *b.strides)]
    for step in (step for item in flat(program.prepare) for step in steps_of(item)):
        for view in (*step.inputs, *step.outputs):
            numbers += [*view.shape, *view.strides, view.offset, *view.steps]
        numbers += [step.parts] if isinstance(step, Launch) else []
    varying = next((number for number in numbers if isinstance(number, Size)), None)
    require(varying is None, "a size varies in what is prepared", "numbers alone", varying)


def _check_kernels(program: Program) -> None:
    known: set[str] = set()
    plain = "letters, digits and _, a digit not first"
    for kernel in program.kernels:
        name = kernel.name
        require(
            bool(KERNEL_NAME.fullmatch(name)),
            f"{name!r} cannot be the name of a kernel",
            plain,
            repr(name),
        )
        require(
            not name.startswith(RESERVED),
            f"the kernel name {name!r} is reserved",
            f"a name that does not begin with {RESERVED}",
            repr(name),
        )
        require(name not in known, f"two kernels have the name {name!r}", "each name once", name)
        require(
            name in kernel.text,
            f"the text of kernel {name!r} does not define it",
            f"a C function {name}",
            f"{len(kernel.text)} characters without that name",
        )
        known.add(name)
    for step in steps(program):
        if isinstance(step, Launch):
            _check_launch(step, known)


def _check_launch(launch: Launch, known: set[str]) -> None:
    if launch.kernel not in known:
        names = f"one of {', '.join(sorted(known))}" if known else "none: there are no kernels"
        refuse(
            f"no kernel has the name {launch.kernel!r}", names, repr(launch.kernel), launch.origin
        )
    if not 1 <= launch.parts <= MOST_PARTS:
        refuse(
            f"a launch of {launch.kernel!r} has an impossible number of parts",
            f"1 to {MOST_PARTS}",
            launch.parts,
            launch.origin,
        )


def _check_buffer(buffer: Buffer, arena_bytes: int) -> None:
    name, shape = buffer.name, buffer.type.shape
    if not NAME.fullmatch(name):
        plain = "letters, digits, _ and ., neither a digit nor . first"
        refuse(f"{name!r} cannot be the name of a buffer", plain, repr(name))
    if buffer.kind not in KINDS:
        kinds = f"one of {', '.join(KINDS)}"
        refuse(f"buffer {name!r} is of no known kind", kinds, repr(buffer.kind))
    if buffer.dtype.name not in BY_NAME:
        dtypes = f"one of {', '.join(BY_NAME)}"
        refuse(f"buffer {name!r} is of no known dtype", dtypes, buffer.dtype)
    if not all(isinstance(dim, int) and 0 <= dim <= LARGEST for dim in shape):
        extents = f"extents from 0 to {LARGEST}"
        refuse(f"the shape of buffer {name!r} is impossible", extents, list(shape))
    if len(buffer.strides) != len(shape) or not all(0 <= s <= LARGEST for s in buffer.strides):
        refuse(
            f"the strides of buffer {name!r} do not fit its shape",
            f"{len(shape)} strides from 0 to {LARGEST}, for the shape {list(shape)}",
            list(buffer.strides),
        )
    size = buffer.bytes
    if size > LARGEST:
        most = f"at most {LARGEST} bytes"
        refuse(f"buffer {name!r} is impossibly large", most, f"{size} bytes")
    _check_contents(buffer, size, arena_bytes)


def _check_contents(buffer: Buffer, size: int, arena_bytes: int) -> None:
    """Check what only some kinds of buffers have: data, and a place in the arena."""
    name, end = buffer.name, buffer.offset + size
    if buffer.kind == CONSTANT and len(buffer.data) != size:
        refuse(
            f"constant {name!r} does not have the data its type asks for",
            f"{size} bytes",
            f"{len(buffer.data)} bytes",
        )
    if buffer.kind != CONSTANT and buffer.data:
        refuse(
            f"buffer {name!r} has data but is no constant",
            "no data",
            f"{len(buffer.data)} bytes in a buffer of the kind {buffer.kind}",
        )
    if buffer.kind != ARENA and buffer.offset != 0:
        refuse(
            f"buffer {name!r} has an offset but is not in the arena",
            "the offset 0",
            f"{buffer.offset} in a buffer of the kind {buffer.kind}",
        )
    if buffer.kind == ARENA and buffer.offset % buffer.dtype.bytes != 0:
        refuse(
            f"buffer {name!r} is not aligned to its elements",
            f"an offset that {buffer.dtype.bytes} divides",
            buffer.offset,
        )
    if buffer.kind == ARENA and not (buffer.offset >= 0 and end <= arena_bytes <= LARGEST):
        refuse(
            f"buffer {name!r} is not inside the arena",
            f"bytes 0 to {arena_bytes}, in an arena of at most {LARGEST}",
            f"bytes {buffer.offset} to {end}",
        )


def _check_signature(program: Program, buffers: dict[str, Buffer]) -> None:
    given = [item.buffer for item in program.inputs]
    expected = sorted(buffer.name for buffer in program.buffers if buffer.kind == INPUT)
    require(
        sorted(given) == expected,
        "the inputs of a program are not its input buffers, each once",
        str(expected),
        given,
    )
    updated = program.updates
    require(
        len(set(updated)) == len(updated) and set(updated) <= set(given),
        "the updates of a program are not among its inputs, each once",
        f"some of {given}",
        list(updated),
    )
    for view in program.outputs:
        check_view(view, buffers, UNKNOWN)
        kind = buffers[view.buffer].kind
        require(
            kind in (OUTPUT, LIBRARY, INPUT),
            f"an output views {kind} memory ({view.buffer!r}), which no caller may hold",
            f"memory of the kind {OUTPUT}, {LIBRARY} or {INPUT}",
            kind,
        )
        require(
            all(s >= 0 for s in view.strides),
            "an output has a negative stride",
            "strides of at least 0",
            said(view),
        )


def _check_call(call: LibraryCall) -> None:
    name, where = call.target, call.origin
    if not TARGET.fullmatch(name):
        refuse(f"{name!r} is no ATen operator with its overload", "aten.NAME.OVERLOAD", name, where)
    for template in (*call.args, *(value for _, value in call.kwargs)):
        _check_template(template, call, 0)
    keys = [key for key, _ in call.kwargs]
    if len(set(keys)) != len(keys) or not all(KERNEL_NAME.fullmatch(key) for key in keys):
        refuse(f"{name} has impossible argument names", "names, each once", keys, where)
    if call.vjp is not None:
        _check_vjp(call, call.vjp)
    wrong = fault(call.through, len(call.inputs), len(call.outputs))
    if wrong is not None:
        refuse(f"a layer of {name} {wrong[0]}", wrong[1], wrong[2], where)
    which = call.results if call.vjp is None else call.vjp.inputs
    counted = not call.through  # what layers give, `fault` has counted
    if (counted and len(call.outputs) != len(which)) or any(i < 0 for i in call.results):
        refuse(
            f"{name} does not say which result each output is",
            f"{len(call.outputs)} positions, for {len(call.outputs)} outputs",
            list(which if call.vjp else call.results),
            where,
        )
    for view in (*call.inputs, *call.outputs):
        if any(stride < 0 for stride in view.strides):
            refuse(
                f"{name} has an operand with a negative stride",
                "strides of at least 0",
                said(view),
                where,
            )


def _check_vjp(call: LibraryCall, vjp: Vjp) -> None:
    operands = len(call.inputs) - len(vjp.results)
    if not all(0 <= i < operands for i in vjp.inputs):
        refuse(
            f"the gradient of {call.target} names operands it has not",
            f"positions below {operands}",
            list(vjp.inputs),
            call.origin,
        )
    if any(i < 0 for i in vjp.results):
        refuse(
            f"the gradient of {call.target} names a result it has not",
            "positions from 0",
            list(vjp.results),
            call.origin,
        )


def _operands(call: LibraryCall) -> int:
    """Return how many operands are the target's own."""
    extra = len(call.vjp.results) if call.vjp else 0
    return len(call.inputs) - extra - sum(layer.extra for layer in call.through)


def _check_template(template: Template, call: LibraryCall, depth: int) -> None:
    name, where = call.target, call.origin
    if depth > DEEPEST:
        deep = f"at most {DEEPEST} levels"
        refuse(f"the arguments of {name} are nested too deep", deep, "more", where)
    match template:
        case ("%", *rest):
            operands = _operands(call)
            match rest:
                case [int(i)] if 0 <= i < operands:
                    return
            refuse(f"{name} has no operand {rest}", f"a position below {operands}", rest, where)
        case ("dtype", *rest):
            if len(rest) != 1 or rest[0] not in BY_NAME:
                known = f"one of {', '.join(BY_NAME)}"
                refuse(f"{name} names no known dtype", known, rest, where)
        case tuple(parts):
            for part in parts:
                _check_template(part, call, depth + 1)


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
                refuse(
                    f"{other.name!r} and {buffer.name!r} share memory while both are in use",
                    "no byte in common",
                    f"bytes {other.offset} to {_end(other)} and {buffer.offset} to {_end(buffer)}",
                )
        live.insert(at, buffer)


def _offset(buffer: Buffer) -> int:
    return buffer.offset


def _end(buffer: Buffer) -> int:
    return buffer.offset + buffer.bytes
