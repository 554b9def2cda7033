"""A Program made ready to run, again and again, from any thread.

The idea: a run takes a context (arena, address table, bound library calls) from a pool of idle ones
and gives it back, so that runs may overlap and the usual one allocates nothing but its outputs.
Torch is imported only when tensors come, or when the Program calls the library.
This module does not know what a context does inside (`tensors`, `arrays`).
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import program as programs
from tilewright.base.errors import LibraryCallError
from tilewright.program import LibraryCall, Program, verify
from tilewright.runtime.arrays import Array, ArrayContext
from tilewright.runtime.segments import build_segments
from tilewright.runtime.toolchain import Toolchain

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.tensors import TensorContext, TensorPlan


class Executable:
    """A Program and its native code.  Runs may overlap; each has an arena to itself."""

    def __init__(self, program: Program, toolchain: Toolchain | None = None) -> None:
        """Verify and compile; raise `ProgramError`, `ToolchainError` or `LibraryCallError`."""
        verify(program)
        self.program = program
        self.library_calls = sum(isinstance(item, LibraryCall) for item in program.instructions)
        self._segments = build_segments(program, toolchain)
        self._plan: TensorPlan | None = None
        # Taking from and giving to a list's end is atomic: the pools need no lock.
        self._idle: list[TensorContext] = []
        self._idle_arrays: list[ArrayContext] = []
        if self.library_calls:
            self._tensor_plan()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run on tensors or, if all inputs are, on NumPy arrays."""
        if inputs and all(isinstance(value, np.ndarray) for value in inputs):
            return self.run_arrays(inputs)
        return self.run(inputs)

    def run(self, inputs: "Sequence[torch.Tensor]") -> "tuple[torch.Tensor, ...]":
        """Return the Program's outputs for CPU tensors, without gradients; write its updates.

        Inputs laid out otherwise than the Program expects are copied.
        """
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._make_context()
        try:
            return context.run(inputs)
        finally:
            self._idle.append(context)

    def run_arrays(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for NumPy arrays; torch is not needed, so no library calls may be."""
        if self.library_calls:
            raise LibraryCallError(
                "a program with library calls cannot run on NumPy arrays",
                expected="no library calls, as those are torch's",
                found=f"{self.library_calls}",
                where=f"program {self.program.name!r}",
                mend="pass torch tensors, or compile with Options(library=False)",
            )
        try:
            context = self._idle_arrays.pop()
        except IndexError:
            context = ArrayContext(self.program, self._segments)
        try:
            return context.run(inputs)
        finally:
            self._idle_arrays.append(context)

    def release(self) -> None:
        """Free the memory that idle contexts keep for the next run."""
        self._idle.clear()
        self._idle_arrays.clear()

    def _tensor_plan(self) -> "TensorPlan":
        from tilewright.runtime.tensors import TensorPlan

        if self._plan is None:
            self._plan = TensorPlan(self.program, self._segments)
        return self._plan

    def _make_context(self) -> "TensorContext":
        from tilewright.runtime.tensors import TensorContext

        return TensorContext(self._tensor_plan())


def load(path: str | os.PathLike[str]) -> Executable:
    """Load a saved Program and make it ready: call it with tensors, or with NumPy arrays.

    Arrays need no torch, and a Program without library calls (`run_arrays` says which has some).
    Raises `ProgramError` unless the file is whole.
    """
    return Executable(programs.load(path))
