"""Programs as C that checks itself: made from kernels, compiled in few units, run.

The idea: hundreds of kernels are one Program, a launch each, on buffers of their own.
This module does not know what they should compute.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.dtypes import BY_TORCH_NAME
from tilewright.graph.ir import TensorType
from tilewright.kernels import Emitted
from tilewright.program import (
    Buffer,
    Input,
    KernelSource,
    Launch,
    Program,
    Segment,
    View,
    whole,
)
from tilewright.runtime import NATIVE, Observed, write_standalone

Array = np.ndarray
UNIT = 64  # kernels that are compiled together


@dataclass(frozen=True)
class Operand:
    """A tensor as its memory holds it: all of the memory, or some of its elements."""

    memory: Array
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Done:
    """A kernel, and what it makes of some arrays."""

    kernel: Emitted
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


@cache
def can_sanitize() -> bool:
    """Say whether the compiler has AddressSanitizer and UBSan, and they run here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "none.c").write_text("int main(void) { return 0; }\n")
        command = ["cc", "-fsanitize=address,undefined", "none.c", "-o", "none"]
        made = subprocess.run(command, cwd=path, capture_output=True, check=False)
        return not made.returncode and not subprocess.run([path / "none"], check=False).returncode


def run_standalone(folder: Path, target: str) -> str:
    """Make a target of a folder; return what it says on errors, "" where nothing is wrong."""
    if target == "sanitize" and not can_sanitize():
        pytest.skip("the C compiler has no AddressSanitizer or no UBSan")
    built = {"check": "plain", "sanitize": "sanitized"}[target]
    done = subprocess.run(["make", "-C", folder, built], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ran = subprocess.run([folder / built, folder / "data"], capture_output=True, text=True)
    assert bool(ran.returncode) == bool(ran.stderr), ran
    return ran.stderr


def write_kernels(
    done: Sequence[Done],
    folder: Path,
    more: Sequence[KernelSource] = (),
    target: str = NATIVE,
) -> None:
    """Write a Program that runs each kernel once, in several parts where it has any.

    more: functions that kernels call.
    """
    buffers: list[Buffer] = []
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    launches = []
    for at, one in enumerate(done):
        views = []
        for kind, operands, data in (
            ("input", one.inputs, before),
            ("output", one.outputs, after),
        ):
            made = [_buffer(f"{kind}{at}_{k}", kind, x) for k, x in enumerate(operands)]
            data |= {b.name: x.memory.tobytes() for b, x in zip(made, operands, strict=True)}
            views.append(tuple(_view(b, x) for b, x in zip(made, operands, strict=True)))
            buffers += made
        parts = max(3, one.kernel.parts) if "* part /" in one.kernel.text else 1
        launches.append(Launch(one.kernel.name, *views, parts))
    kernels = {one.kernel.name: KernelSource(one.kernel.name, one.kernel.text) for one in done}
    inputs = tuple(Input(b.name) for b in buffers if b.kind == "input")
    outputs = tuple(whole(b) for b in buffers if b.kind == "output")
    segments = (Segment(tuple(launches)),)
    program = Program(
        "kernels", tuple(buffers), (*more, *kernels.values()), segments, inputs, outputs
    )
    write_standalone(program, Observed(before, after), folder, target)
    _unite(folder, list(kernels))


def _buffer(name: str, kind: str, operand: Operand) -> Buffer:
    memory = operand.memory
    return Buffer(name, TensorType(memory.shape, BY_TORCH_NAME[memory.dtype.name]), kind)


def _view(buffer: Buffer, operand: Operand) -> View:
    if not operand.shape:
        return whole(buffer)
    return View(buffer.name, operand.shape, operand.strides, operand.offset)


def _unite(folder: Path, names: Sequence[str]) -> None:
    """Compile many kernels as one text: a compiler starts for longer than most of them take."""
    for first in range(0, len(names), UNIT):
        texts = []
        for name in names[first : first + UNIT]:
            place = folder / f"{name}.c"
            texts.append(apart(name, place.read_text()))
            place.unlink()
        (folder / f"unit{first // UNIT}.c").write_text("\n".join(texts))


def apart(name: str, text: str) -> str:
    """Give the static functions of one kernel names of their own."""
    statics = re.findall(r"^static (?:inline|const) [\w *]*?(\w+)(?:\(|\[)", text, re.MULTILINE)
    for static in sorted(set(statics), key=len, reverse=True):
        text = re.sub(rf"\b{static}\b", f"{static}_{name}", text)
    return text
