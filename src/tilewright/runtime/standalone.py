"""A Program as C that runs without Python, and checks itself: each buffer between guard pages.

The idea: kernels, `segments.c` and its tables are C already; loops and branches around them are a
few lines more.  `standalone.c` puts every buffer apart, so that whatever a kernel touches beyond
one is a fault, and runs the parts of each launch in several ranges; compiled with AddressSanitizer
and UBSan it tells what else C leaves undefined.
This module does not know a compiler: `make` in the folder that it writes calls one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import LibraryCallError, ProgramError
from tilewright.program import (
    CONSTANT,
    KERNEL_ERRORS,
    OUTPUT,
    Branch,
    Buffer,
    Instruction,
    LibraryCall,
    Loop,
    Program,
    View,
    While,
    all_stretches,
    depth,
    in_one,
    steps,
    stretches,
    verify,
    whole,
)
from tilewright.runtime.arrays import Array, conform
from tilewright.runtime.executable import Executable
from tilewright.runtime.segments import RUNNER, in_rows, table_lines
from tilewright.runtime.target import NATIVE
from tilewright.runtime.toolchain import AS_WRITTEN, FLAGS, GCC, WIDE_VECTORS

HEADER, CHECKER = (Path(__file__).with_name(f"standalone.{end}") for end in ("h", "c"))
UNTOUCHED = 0xA5
"""What memory holds that nobody has written; `standalone.c` says the same."""

MAKEFILE = """\
# `make check` runs the program on `data` and compares what it makes with what is expected;
# `make sanitize` does so under AddressSanitizer and UBSan.  CC may be another compiler than the one
# that made the Program, and the processor another: both are asked here.
CC = cc
FLAGS := {flags}
FLAGS += $(shell uname -m | grep -q x86_64 && echo {wide})
FLAGS += $(shell $(CC) --version | grep -q "{gcc}" && echo {as_written})
ERRORS = address,undefined,float-cast-overflow
# As optimised as it takes to round a product and its sum at once where that is asked for.
SANITIZE = -O1 -fexpensive-optimizations -g1 -fsanitize=$(ERRORS) -fno-sanitize-recover=all
C = $(wildcard *.c)

check: plain
\t./plain data
sanitize: sanitized
\t./sanitized data
plain: $(C:.c=.o)
\t$(CC) $^ -o $@ -lm -lpthread
sanitized: $(C:.c=.safe.o)
\t$(CC) $(SANITIZE) $^ -o $@ -lm -lpthread
%.safe.o: %.c
\t$(CC) $(FLAGS) $(SANITIZE) -c $< -o $@
%.o: %.c
\t$(CC) $(FLAGS) -c $< -o $@
.PHONY: check sanitize
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The bytes of buffers before a run and after it, by name."""

    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def observe(program: Program, inputs: Sequence[Array]) -> Observed:
    """Run a Program here, on copies of arrays; return what it was given and what it made.

    Raises LibraryCallError where it calls the library, and ShapeError or DTypeError where the
    inputs are others than it takes.  What a Program keeps is not looked at.
    """
    _refuse(program)
    whole_outputs = tuple(whole(buffer) for buffer in program.buffers if buffer.kind == OUTPUT)
    executable = Executable(replace(program, outputs=whole_outputs))
    copies = [np.array(value) for value in inputs]
    results = executable.run_arrays(copies)
    names = [item.buffer for item in program.inputs]
    before = dict(zip(names, inputs, strict=True))
    after = {
        name: copy for name, copy in zip(names, copies, strict=True) if name in program.updates
    }
    after |= {view.buffer: array for view, array in zip(whole_outputs, results, strict=True)}
    return Observed(_in_memory(program, before), _in_memory(program, after))


def write_standalone(
    program: Program, observed: Observed, folder: Path, target: str = NATIVE
) -> None:
    """Write a Program as C into a folder, with what it is given and expected to make.

    target: the instruction set that it is compiled for.  What a Program prepares, it does in every
    run.

    `make check` there compiles and runs it, `make sanitize` does so under the sanitizers of gcc or
    clang.  Raises LibraryCallError where the Program calls the library, ProgramError where its
    sizes vary.
    """
    _refuse(program)
    verify(program)
    program = in_one(program)
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in program.kernels:
        (folder / f"{kernel.name}.c").write_text(kernel.text, encoding="utf-8")
    before = {b.name: b.data for b in program.buffers if b.kind == CONSTANT} | dict(observed.before)
    (folder / "program.h").write_text(HEADER.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "check.c").write_text(CHECKER.read_text(encoding="utf-8"), encoding="utf-8")
    text = "\n".join(_program_lines(program, before, observed.after)) + "\n"
    (folder / "program.c").write_text(text, encoding="utf-8")
    flags = " ".join((*FLAGS, f"-march={target or 'native'}"))
    makefile = MAKEFILE.format(flags=flags, wide=WIDE_VECTORS, gcc=GCC, as_written=AS_WRITTEN)
    (folder / "Makefile").write_text(makefile, encoding="utf-8")
    names = [buffer.name for buffer in program.buffers]
    data = [one[name] for one in (before, observed.after) for name in names if name in one]
    (folder / "data").write_bytes(b"".join(data))


def _refuse(program: Program) -> None:
    calls = sum(isinstance(item, LibraryCall) for item in steps(program))
    if calls:
        raise LibraryCallError(
            "a program with library calls cannot run without torch",
            expected="no library calls, as those are torch's",
            found=f"{calls}",
            where=f"program {program.name!r}",
            mend="compile with Options(library=False)",
        )
    if program.sizes is not None:
        raise ProgramError(
            "a program whose sizes vary cannot be written as C that stands alone",
            expected="numbers for all sizes",
            found=", ".join(program.sizes.values),
            where=f"program {program.name!r}",
            mend="compile for one value of each size",
        )


def _in_memory(program: Program, arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """Return arrays as their buffers hold them; what lies between elements is untouched."""
    found = {}
    roles = {item.buffer: item for item in program.inputs}
    for buffer in program.buffers:
        if buffer.name not in arrays:
            continue
        array = arrays[buffer.name]
        if buffer.name in roles:
            array = conform(array, buffer, roles[buffer.name])
        memory = np.full(buffer.bytes, UNTOUCHED, np.uint8)
        steps = tuple(stride * buffer.dtype.bytes for stride in buffer.strides)
        typed = memory.view(buffer.dtype.numpy)
        np.lib.stride_tricks.as_strided(typed, buffer.shape, steps)[...] = array
        found[buffer.name] = memory.tobytes()
    return found


# ---- the program as C ---------------------------------------------------------------------------


def _program_lines(
    program: Program, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> Iterator[str]:
    yield RUNNER.read_text(encoding="utf-8")
    yield from table_lines(program, always_wide=True)
    yield '#define RUNNER\n#include "program.h"'
    yield "const Buffer buffers[] = {"
    for buffer in program.buffers:
        flags = f"{int(buffer.name in before)}, {int(buffer.name in after)}"
        yield (
            f'  {{"{buffer.name}", {buffer.bytes}, {buffer.dtype.bytes}, '
            f"{_infinity(buffer.dtype)}, {flags}}},"
        )
    yield '  {"", 0, 1, 0, 0, 0}};'
    yield f"const long buffer_count = {len(program.buffers)};"
    yield from _failures(program)
    yield "const char *run_program(char **starts, Team *team, long threads,"
    yield "                        const char **whose) {"
    yield f"  long index[{depth(program.instructions) + 1}] = {{0}}, outcome;"
    yield "  const Call call = {starts, team, threads, index, 0};"
    numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
    buffers = {buffer.name: buffer for buffer in program.buffers}
    counted = iter(range(len(list(all_stretches(program.instructions)))))
    yield from _Block(numbers, buffers, counted).lines(program.instructions, 0, "  ")
    yield "  return 0;"
    yield "}"


def _infinity(dtype: DType) -> str:
    if dtype.kind != "float":
        return "0"
    bits = np.array(np.inf, dtype.numpy).view(np.dtype(f"u{dtype.bytes}"))
    return f"{int(bits):#x}"


def _failures(program: Program) -> Iterator[str]:
    """Yield C that turns what a native stretch returns into words."""
    found = list(all_stretches(program.instructions))
    for number, (stretch, _) in enumerate(found):
        names = ", ".join(f'"{launch.kernel if launch else ""}"' for launch in in_rows(stretch))
        yield f"static const char *const rows_{number}[] = {{{names}}};"
    yield "static const char *meaning(long code) {"
    yield "  switch (code) {"
    yield from (f'    case {code}: return "{what}";' for code, what in KERNEL_ERRORS.items())
    yield "  }"
    yield '  return "it returns what means nothing";'
    yield "}"


@dataclass(frozen=True, slots=True)
class _Block:
    """Prints instructions; `stretch` counts the native ones, in the order of their tables."""

    numbers: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    stretch: Iterator[int]

    def lines(self, items: Sequence[Instruction], level: int, margin: str) -> Iterator[str]:
        inner = margin + "  "
        for _, item in stretches(items):
            match item:
                case tuple():
                    number = next(self.stretch)
                    yield f"{margin}outcome = tilewright_segment_{number}(&call);"
                    yield f"{margin}if (outcome != NONE) {{"
                    yield f"{inner}*whose = rows_{number}[outcome >> 8];"
                    yield f"{inner}return meaning(outcome & 255);"
                    yield f"{margin}}}"
                case Loop(body, count):
                    at = f"index[{level}]"
                    yield f"{margin}for ({at} = 0; {at} < {count}; {at}++) {{"
                    yield from self.lines(body, level + 1, inner)
                    yield f"{margin}}}"
                case While(test, holds, body):
                    yield f"{margin}for (;;) {{"
                    yield from self.lines(test, level, inner)
                    yield f"{inner}if (!{self.truth(holds)}) break;"
                    yield from self.lines(body, level, inner)
                    yield f"{margin}}}"
                case Branch(holds, then, otherwise):
                    yield f"{margin}if ({self.truth(holds)}) {{"
                    yield from self.lines(then, level, inner)
                    yield f"{margin}}} else {{"
                    yield from self.lines(otherwise, level, inner)
                    yield f"{margin}}}"

    def truth(self, view: View) -> str:
        """Return C that reads a bool."""
        moves = "".join(f" + {step} * index[{at}]" for at, step in enumerate(view.steps) if step)
        return f"starts[{self.numbers[view.buffer]}][{view.offset}{moves}]"
