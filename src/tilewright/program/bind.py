"""A Program of sizes that vary, for one value of each: every size becomes a number.

The idea: nothing is compiled again.  Kernels read the values from memory, as they read a constant;
shapes, strides, parts and the arguments of library calls are evaluated; and since the program says
which arena buffers stand on which, so are the offsets::

    buffer t = arena f32[n_0, 64] above x      -->      buffer t = arena f32[8, 64] at 2048

This module does not know kernels or when anything runs.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import ProgramError, ShapeError
from tilewright.base.sizes import Size
from tilewright.graph.ir import TensorType
from tilewright.program.ir import (
    ARENA,
    CONSTANT,
    SIZES,
    Branch,
    Buffer,
    Instruction,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    Template,
    View,
    While,
)

ALIGNMENT = 64  # bytes between the starts of arena buffers: a cache line, the widest vector

Number = Callable[[int], int]


def bind(program: Program, values: Mapping[str, int]) -> Program:
    """Return the program for these values of its sizes; raise ShapeError where it does not hold."""
    sizes = program.sizes
    assert sizes is not None, f"program {program.name!r} has no sizes that vary"
    if set(values) != set(sizes.values) or not sizes.admit(values):
        raise ShapeError(
            f"program {program.name!r} does not hold for these sizes",
            expected=sizes.describe(),
            found=", ".join(f"{name} = {value}" for name, value in values.items()),
            mend="compile for these sizes",
        )
    evaluate = sizes.evaluator(values)

    def number(value: int) -> int:
        return evaluate(value.key) if isinstance(value, Size) else value

    numbers = struct.pack(f"={len(values)}q", *(values[name] for name in sizes.values))
    buffers = [_buffer(buffer, number, numbers) for buffer in program.buffers]
    placed, arena_bytes = _placed(buffers)
    return replace(
        program,
        buffers=tuple(placed),
        instructions=_block(program.instructions, number),
        outputs=tuple(_view(view, number) for view in program.outputs),
        arena_bytes=arena_bytes,
        sizes=None,
    )


def values_of(program: Program, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Return the values of the sizes for inputs of these shapes, in the order of the inputs.

    Raises ShapeError where an input does not fit, or a size is no input's dim.
    """
    assert program.sizes is not None, f"program {program.name!r} has no sizes that vary"
    buffers = {buffer.name: buffer for buffer in program.buffers}
    given = list(zip((buffers[item.buffer] for item in program.inputs), shapes, strict=True))
    found: dict[str, int] = {}
    for buffer, shape in given:
        if len(shape) == len(buffer.shape):
            for dim, extent in zip(buffer.shape, shape, strict=True):
                if isinstance(dim, Size) and str(dim) in program.sizes.values:
                    found.setdefault(str(dim), extent)
    missing = [name for name in program.sizes.values if name not in found]
    if missing:
        raise ShapeError(
            f"program {program.name!r} has a size that no input's dim is",
            expected=f"an input with a dim {missing[0]}",
            found=", ".join(f"{buffer.name} {buffer.type}" for buffer, _ in given),
            mend="say the values: executable.at({...})",
        )
    evaluate = program.sizes.evaluator(found)
    for item, (buffer, shape) in zip(program.inputs, given, strict=True):
        dims = buffer.shape
        wanted = tuple(evaluate(d.key) if isinstance(d, Size) else d for d in dims)
        if wanted != tuple(shape):
            raise ShapeError(
                f"input {item.role.source or item.buffer} has another shape than compiled for",
                expected=" x ".join(map(str, dims)) or "no dims",
                found=" x ".join(map(str, shape)) or "no dims",
                known=", ".join(f"{name} = {value}" for name, value in found.items()),
            )
    return found


def check_above(program: Program, lifetimes: Mapping[str, tuple[int, int]]) -> None:
    """Raise ProgramError unless, of two arena buffers alive at one time, one is above the other."""
    below: dict[str, set[str]] = {}
    arena = {buffer.name: buffer for buffer in program.buffers if buffer.kind == ARENA}

    def under(name: str) -> set[str]:
        if name not in below:
            below[name] = set()  # a circle ends here, and is found out when all are known
            direct = [one for one in arena[name].above if one in arena]
            below[name] = {*direct, *(other for one in direct for other in under(one))}
        return below[name]

    alive = [(name, span) for name, span in lifetimes.items() if name in arena]
    for at, (one, (first, last)) in enumerate(alive):
        for other, (begin, end) in alive[:at]:
            apart = last < begin or end < first
            if not apart and (one in under(other)) == (other in under(one)):
                raise ProgramError(
                    f"buffers {other!r} and {one!r} may overlap while both are needed",
                    expected="one of them above the other",
                    found=f"above {list(arena[one].above)} and above {list(arena[other].above)}",
                )


def _buffer(buffer: Buffer, number: Number, numbers: bytes) -> Buffer:
    if buffer.kind == SIZES:
        return replace(buffer, kind=CONSTANT, data=numbers)
    type_ = TensorType(tuple(number(dim) for dim in buffer.shape), buffer.dtype)
    strides = tuple(number(stride) for stride in buffer.strides)
    return Buffer(buffer.name, type_, buffer.kind, strides, 0, buffer.data, buffer.above)


def _placed(buffers: list[Buffer]) -> tuple[list[Buffer], int]:
    """Give the arena's buffers their offsets: each right above those that it stands on."""
    ends: dict[str, int] = {}
    known = {buffer.name: buffer for buffer in buffers}

    def start(buffer: Buffer) -> int:
        return max((end(name) for name in buffer.above if name in known), default=0)

    def end(name: str) -> int:
        if name not in ends:
            ends[name] = 0  # of a circle nothing comes out right, and `verify` says so
            size = max(known[name].bytes, 1)
            ends[name] = start(known[name]) + -(-size // ALIGNMENT) * ALIGNMENT
        return ends[name]

    placed = []
    total = 0
    for buffer in buffers:
        if buffer.kind == ARENA:
            total = max(total, end(buffer.name))
            buffer = replace(buffer, offset=start(buffer), above=())
        placed.append(buffer)
    return placed, total


def _block(items: Sequence[Instruction], number: Number) -> tuple[Instruction, ...]:
    return tuple(_instruction(item, number) for item in items)


def _instruction(item: Instruction, number: Number) -> Instruction:
    match item:
        case Segment(launches):
            return Segment(tuple(_launch(launch, number) for launch in launches))
        case LibraryCall():
            return _call(item, number)
        case Loop(body, count):
            return Loop(_block(body, number), count)
        case While(test, holds, body):
            return While(_block(test, number), _view(holds, number), _block(body, number))
        case Branch(holds, then, otherwise):
            return Branch(_view(holds, number), _block(then, number), _block(otherwise, number))


def _call(item: LibraryCall, number: Number) -> LibraryCall:
    return replace(
        item,
        args=tuple(_template(arg, number) for arg in item.args),
        kwargs=tuple((key, _template(arg, number)) for key, arg in item.kwargs),
        inputs=tuple(_view(view, number) for view in item.inputs),
        outputs=tuple(_view(view, number) for view in item.outputs),
    )


def _launch(launch: Launch, number: Number) -> Launch:
    inputs = tuple(_view(view, number) for view in launch.inputs)
    outputs = tuple(_view(view, number) for view in launch.outputs)
    return Launch(
        launch.kernel, inputs, outputs, number(launch.parts), launch.origin, number(launch.flops)
    )


def _view(view: View, number: Number) -> View:
    shape = tuple(number(dim) for dim in view.shape)
    strides = tuple(number(stride) for stride in view.strides)
    steps = tuple(number(step) for step in view.steps)
    return View(view.buffer, shape, strides, number(view.offset), steps)


def _template(template: Template, number: Number) -> Template:
    if isinstance(template, tuple):
        return tuple(_template(part, number) for part in template)
    return number(template) if isinstance(template, Size) else template
