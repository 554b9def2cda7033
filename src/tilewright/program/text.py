"""A Program as text: `syntax` has the grammar, and reads it back.

The idea: whatever is as one would expect, such as row-major strides, is left out.
This module does not judge the Program.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence

from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.sizes import INFINITY, Size, Sizes, all_same, same
from tilewright.program.ir import (
    ARENA,
    CONSTANT,
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
    contiguous,
    whole,
)

BAR = "  |"


def show(program: Program) -> str:
    """Return the text of a Program."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    lines = [f"program {json.dumps(program.name)} arena {program.arena_bytes}"]
    lines.extend(_show_sizes(program.sizes))
    for kernel in program.kernels:
        lines.append(f"kernel {kernel.name}")
        lines.extend(BAR + line for line in kernel.text.split("\n"))
    lines.extend(_show_buffer(buffer) for buffer in program.buffers)
    for item in program.inputs:
        role = f"{json.dumps(item.role.kind)} {json.dumps(item.role.source)}"
        lines.append(f"input {item.buffer} {role}")
    lines.extend(f"update {name}" for name in program.updates)
    if program.prepare:
        lines += ["prepare", *_show_block(program.prepare, buffers), "end"]
    lines.extend(_show_block(program.instructions, buffers))
    lines.extend(f"output {show_view(view, buffers)}" for view in program.outputs)
    return "\n".join(lines) + "\n"


def _show_sizes(sizes: Sizes | None) -> Iterator[str]:
    if sizes is None:
        return
    for name, value in sizes.values.items():
        bound = sizes.limits[name]
        most = f" to {bound.high}" if bound.high < INFINITY else ""
        yield f"size {name} {value} from {bound.low}{most}"
    for key, relation in sizes.assumptions:
        yield f"assume ${json.dumps(_bare(sizes.text(key)))} {relation}"


def _number(value: int) -> str:
    return f"${json.dumps(_bare(str(value)))}" if isinstance(value, Size) else str(value)


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text


def _show_buffer(buffer: Buffer) -> str:
    text = f"buffer {buffer.name} = {buffer.kind} {buffer.dtype}{_ints(buffer.shape)}"
    if not all_same(buffer.strides, contiguous(buffer.shape)):
        text += f" strides {_ints(buffer.strides)}"
    if buffer.above:
        text += f" above [{', '.join(buffer.above)}]"
    elif buffer.kind == ARENA:
        text += f" at {buffer.offset}"
    if buffer.kind == CONSTANT:
        text += f' data "{base64.b64encode(buffer.data).decode("ascii")}"'
    return text


def show_view(view: View, buffers: dict[str, Buffer]) -> str:
    """Return the text of a view, given the buffers by name."""
    if view == whole(buffers[view.buffer]):
        return view.buffer
    shape, strides = _commas(view.shape), _commas(view.strides)
    steps = f"; {_commas(view.steps)}" if view.steps else ""
    return f"{view.buffer}{{{shape}; {strides}; {_number(view.offset)}{steps}}}"


def _show_block(items: Sequence[Instruction], buffers: dict[str, Buffer]) -> list[str]:
    return [line for item in items for line in _show_instruction(item, buffers)]


def _show_instruction(item: Instruction, buffers: dict[str, Buffer]) -> list[str]:
    match item:
        case Segment(launches):
            return ["segment", *(_show_launch(launch, buffers) for launch in launches)]
        case LibraryCall():
            return [_show_call(item, buffers)]
        case Loop(body, count):
            return [f"loop {count}", *_show_block(body, buffers), "end"]
        case While(test, holds, body):
            first, second = _show_block(test, buffers), _show_block(body, buffers)
            return [f"while {show_view(holds, buffers)}", *first, "do", *second, "end"]
        case Branch(holds, then, otherwise):
            first, second = _show_block(then, buffers), _show_block(otherwise, buffers)
            return [f"branch {show_view(holds, buffers)}", *first, "otherwise", *second, "end"]


def _show_launch(launch: Launch, buffers: dict[str, Buffer]) -> str:
    text = f"  launch {launch.kernel} {_flow(launch, buffers)}"
    if not same(launch.parts, 1):
        text += f" parts {_number(launch.parts)}"
    if not same(launch.flops, 0):
        text += f" flops {_number(launch.flops)}"
    return text + _show_origin(launch.origin)


def _show_call(call: LibraryCall, buffers: dict[str, Buffer]) -> str:
    args = ", ".join(show_template(arg) for arg in call.args)
    kwargs = ", ".join(f"{key}={show_template(value)}" for key, value in call.kwargs)
    text = f"call {call.target} ({args}) {{{kwargs}}} {_flow(call, buffers)}"
    text += f" results {_ints(call.results)}"
    if call.vjp is not None:
        text += f" gradient {_ints(call.vjp.inputs)} of {_ints(call.vjp.results)}"
    for layer in call.through:
        text += f" through {layer.kind} {_ints(layer.inputs)} {_ints(layer.results)}"
        text += f" {layer.size} {json.dumps(layer.randomness)}"
    return text + _show_origin(call.origin)


def _flow(step: Launch | LibraryCall, buffers: dict[str, Buffer]) -> str:
    sides = (step.inputs, step.outputs)
    texts = [", ".join(show_view(view, buffers) for view in side) for side in sides]
    return f"({texts[0]}) -> ({texts[1]})"


def _show_origin(origin: Origin) -> str:
    if origin == UNKNOWN:
        return ""
    file, code, module = (json.dumps(s) for s in (origin.file, origin.code, origin.module))
    return f" origin {file} {origin.line} {code} {module}"


def show_template(template: Template) -> str:
    """Return the text of a library call's argument: `%0`, `[%0, 1]`, `:f32`, `(1, 2)`, `none`."""
    match template:
        case ("%", int(i)):
            return f"%{i}"
        case ("dtype", str(name)):
            return f":{name}"
        case ("list", *items):
            return f"[{', '.join(show_template(item) for item in items)}]"
        case tuple(items):
            return f"({', '.join(show_template(item) for item in items)})"
        case None | True | False:
            return str(template).lower()
        case str(text):
            return json.dumps(text)
        case Size():
            return _number(template)
        case _:
            return repr(template)


def _ints(values: Iterable[int]) -> str:
    return f"[{_commas(values)}]"


def _commas(values: Iterable[int]) -> str:
    return ", ".join(map(_number, values))
