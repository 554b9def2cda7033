"""A Program that prepares values, as two Programs that do not, or as one that keeps nothing.

The idea: what is prepared is a Program of its own, whose outputs are inputs of the other; so nobody
else has to know how values are kept::

    prepare: k = f(w)         -->   (w) -> k = f(w)        and        (x, k) -> y = g(x, k)
    y = g(x, k)

This module does not know when values are prepared anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.graph.ir import Role
from tilewright.program.ir import (
    INPUT,
    KEPT,
    OUTPUT,
    Buffer,
    Input,
    Instruction,
    Launch,
    Program,
    whole,
)
from tilewright.program.walk import steps, touched

ROLE = Role("kept")


def parted(program: Program) -> tuple[Program, Program]:
    """Return what prepares and what runs: outputs of the first are the last inputs of the other.

    Each takes those of the inputs, in their order, that it needs; what runs takes all that do not
    stay.
    """
    read = set(touched(program.instructions)) | {view.buffer for view in program.outputs}
    kept = [b for b in program.buffers if b.kind == KEPT and b.name in read]
    prepared = set(touched(program.prepare))
    first = _part(
        program,
        program.prepare,
        [item for item in program.inputs if item.buffer in prepared],
        [replace(b, kind=OUTPUT) if b.kind == KEPT else b for b in program.buffers],
    )
    first = replace(
        first, outputs=tuple(whole(b) for b in kept), updates=(), arena_bytes=0, sizes=None
    )
    only_prepared = prepared - read
    inputs = [item for item in program.inputs if item.buffer not in only_prepared]
    inputs += [Input(b.name, ROLE) for b in kept]
    buffers = [replace(b, kind=INPUT) if b.kind == KEPT else b for b in program.buffers]
    return first, _part(program, program.instructions, inputs, buffers)


def in_one(program: Program) -> Program:
    """Return the Program that prepares in every run, and keeps nothing."""
    buffers = tuple(replace(b, kind=OUTPUT) if b.kind == KEPT else b for b in program.buffers)
    together = (*program.prepare, *program.instructions)
    return replace(program, buffers=buffers, instructions=together, prepare=())


def _part(
    program: Program,
    instructions: tuple[Instruction, ...],
    inputs: Sequence[Input],
    buffers: Iterable[Buffer],
) -> Program:
    """Return a Program of some instructions, with no more buffers and kernels than they need."""
    known = {buffer.name: buffer for buffer in buffers}
    views = [view.buffer for view in program.outputs]
    names = dict.fromkeys([item.buffer for item in inputs])  # the runtime likes inputs first
    names |= dict.fromkeys(n for n in known if n in {*touched(instructions), *views})
    part = replace(
        program,
        buffers=tuple(known[name] for name in names),
        instructions=instructions,
        inputs=tuple(inputs),
        prepare=(),
    )
    needed = {step.kernel for step in steps(part) if isinstance(step, Launch)}
    found = 0
    while found < len(needed):
        found = len(needed)
        # A kernel that is not launched is a function that others call, by its name in their text.
        texts = "".join(kernel.text for kernel in program.kernels if kernel.name in needed)
        needed |= {kernel.name for kernel in program.kernels if kernel.name in texts}
    return replace(part, kernels=tuple(k for k in program.kernels if k.name in needed))
