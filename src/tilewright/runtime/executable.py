"""A Program made ready to run, again and again, from any thread.

The idea: a run takes a context (arena, address table, bound library calls) from a pool of idle ones
and gives it back, so that runs may overlap and the usual one allocates nothing but its outputs.
Torch is imported only when tensors come, or when the Program calls the library.
This module does not know what a context does inside (`tensors`, `arrays`).
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import program as programs
from tilewright.base.errors import LibraryCallError, OptionError, ShapeError
from tilewright.base.interpreter import uncollected
from tilewright.program import LibraryCall, Program, bind, parted, steps, values_of, verify
from tilewright.runtime.arrays import Array, ArrayContext, quick_call
from tilewright.runtime.calls import Quick, is_made_of, types, unquickened, unsettled
from tilewright.runtime.kept import Kept
from tilewright.runtime.pages import merge_pages
from tilewright.runtime.segments import Kernels, NativeSegment, build_segments
from tilewright.runtime.threads import thread_count
from tilewright.runtime.toolchain import Toolchain
from tilewright.runtime.trace import Clock, Trace

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.settled import Settled
    from tilewright.runtime.tensors import TensorContext, TensorPlan


WARM = 2
"""Runs before those that are measured: memory is touched, threads are awake."""
MOST_BOUND = 16
"""For how many values of its sizes a Program is kept ready, each with memory of its own."""


class Executable:
    """A Program and its native code.  Runs may overlap; each has an arena to itself.

    Where sizes vary, `at` gives the executable for one value of each; a run takes them from its
    inputs' shapes.
    """

    def __init__(
        self, program: Program, toolchain: Toolchain | None = None, *, verified: bool = False
    ) -> None:
        """Verify and compile; raise `ProgramError`, `ToolchainError` or `LibraryCallError`.

        verified: the Program has passed `verify`, as all have that were read.
        """
        if not verified:
            verify(program)
        self._first: Executable | None = None
        self._kept: Kept | None = None
        main = program
        if program.prepare:
            first, main = parted(program)
            self._first = Executable(first, toolchain, verified=True)
            self._kept = Kept(program, first, main)
        if program.sizes is None:
            self._start(program, main, build_segments(main, toolchain))
        else:
            self._kernels = Kernels(main, toolchain)
            self._start(program, main, ())

    def _start(self, program: Program, main: Program, segments: tuple[NativeSegment, ...]) -> None:
        self.program = program
        self.library_calls = sum(isinstance(item, LibraryCall) for item in steps(program))
        self._main = main
        self._segments = segments
        self._bound: dict[tuple[int, ...], Executable] = {}
        self._plan: TensorPlan | None = None
        # Taking from and giving to a list's end is atomic: the pools need no lock.
        self._idle: list[TensorContext] = []
        self._idle_arrays: list[ArrayContext] = []
        self._quick: Quick = unsettled
        if self.library_calls and program.sizes is None:
            self._tensor_plan()

    def at(self, values: Mapping[str, int]) -> "Executable":
        """Return the executable for these values of the sizes that vary; nothing is compiled.

        Raises ShapeError where the Program does not hold for them.
        """
        if self.program.sizes is None:  # none of them is a size of this program
            return self
        key = tuple(values.values())
        found = self._bound.get(key)
        if found is None:
            program = bind(self.program, values)
            verify(program)
            main = parted(program)[1] if program.prepare else program
            found = object.__new__(Executable)
            found._first, found._kept = self._first, self._kept
            found._start(program, main, self._kernels.segments(main))
            if len(self._bound) >= MOST_BOUND:
                self._bound.pop(next(iter(self._bound)), None)
            self._bound[key] = found
        return found

    def _for(self, inputs: Sequence[Any]) -> "Executable":
        """Return the executable for inputs of these shapes."""
        if len(inputs) != len(self.program.inputs):
            raise ShapeError(
                "a program is called with another number of inputs than it takes",
                expected=str(len(self.program.inputs)),
                found=str(len(inputs)),
            )
        return self.at(values_of(self.program, [tuple(value.shape) for value in inputs]))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run on tensors or, if all inputs are, on NumPy arrays."""
        outputs = self._quick(inputs)
        if outputs is not None:
            return outputs
        if inputs and all([isinstance(value, np.ndarray) for value in inputs]):
            return self.run_arrays(inputs)
        return self.run(inputs)

    def run(self, inputs: "Sequence[torch.Tensor]") -> "tuple[torch.Tensor, ...]":
        """Return the Program's outputs for CPU tensors, without gradients; write its updates.

        Inputs laid out otherwise than the Program expects are copied.
        """
        if self.program.sizes is not None:
            return self._for(inputs).run(inputs)
        inputs = self._passed(inputs)
        try:
            context, is_new = self._idle.pop(), False
        except IndexError:
            context, is_new = self._make_context(), True
        try:
            return context.run(inputs)
        finally:
            self._idle.append(context)
            if is_new:
                merge_pages(context.arena.data_ptr(), self._main.arena_bytes)

    def _passed(self, inputs: "Sequence[torch.Tensor]") -> "Sequence[torch.Tensor]":
        """Return what the run itself takes: what was prepared in place of what stays."""
        return inputs if self._kept is None else self._kept.inputs(inputs, self._prepare)

    def _prepare(self, inputs: "Sequence[torch.Tensor]") -> "tuple[torch.Tensor, ...]":
        """Return what is kept, made in no mode of torch's: it will be read in any."""
        import torch

        assert self._first is not None, "something is kept"
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._first.run(inputs)

    def settled(self, inputs: "Sequence[torch.Tensor]") -> "Settled | None":
        """Return a run for as many inputs, which gives None unless they are like these in all that
        counts, torch's modes among it: what was found out about these need not be asked again.

        None where a run is more than native code, or where such inputs are copied.
        """
        if self.program.sizes is not None:
            return None
        from tilewright.runtime.settled import settle

        self._passed(inputs)
        return settle(self.program, self._tensor_plan(), self._idle, inputs, self._kept)

    def measure(self, inputs: "Sequence[torch.Tensor]", runs: int = 20) -> Trace:
        """Return where the time of a run goes: the mean of some runs, after two that are not told.

        Every run writes the Program's updates, as any run does.  Raises OptionError for no runs.
        """
        if runs < 1:
            raise OptionError(
                "nothing is measured without runs", expected="1 run or more", found=f"runs={runs}"
            )
        if self.program.sizes is not None:
            return self._for(inputs).measure(inputs, runs)
        from tilewright.runtime.tensors import TensorContext

        inputs = self._passed(inputs)
        clock = Clock(thread_count())
        context = TensorContext(self._tensor_plan(), clock)
        for run in range(-WARM, runs):
            if run == 0:
                clock.restart()
            start = time.perf_counter_ns()
            context.run(inputs)
            clock.whole(time.perf_counter_ns() - start)
        return clock.trace()

    def run_arrays(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for NumPy arrays; torch is not needed, so no library calls may be."""
        outputs = self._quick(inputs)
        if outputs is not None:
            return outputs
        if self.library_calls:
            raise LibraryCallError(
                "a program with library calls cannot run on NumPy arrays",
                expected="no library calls, as those are torch's",
                found=f"{self.library_calls}",
                where=f"program {self.program.name!r}",
                mend="pass torch tensors, or compile with Options(library=False)",
            )
        if self.program.sizes is not None:
            return self._for(inputs).run_arrays(inputs)
        if self._first is not None and self._kept is not None:
            inputs = self._kept.inputs(inputs, self._prepare_arrays)
        try:
            context, is_new = self._idle_arrays.pop(), False
        except IndexError:
            context, is_new = ArrayContext(self._main, self._segments), True
        try:
            results = context.run(inputs)
            if not is_new:
                self._quicken(context)
            return results
        finally:
            self._idle_arrays.append(context)
            if is_new:
                merge_pages(context.arena.ctypes.data, self._main.arena_bytes)

    def _prepare_arrays(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        assert self._first is not None, "something is kept"
        return self._first.run_arrays(inputs)

    def _quicken(self, context: ArrayContext) -> None:
        """Let C make calls like the one that was made in this context; not yet when a Program runs
        for the first time, which may be the only one."""
        if not is_made_of(self._quick, None if self._kept is None else self._kept.record):
            self._quick = quick_call(self.program, context, self._idle_arrays, self._kept)
        elif context.frame is None and self._quick is not unquickened and (found := types()):
            context.make_frame(found)

    def refresh(self) -> None:
        """Let the next run prepare anew what the Program keeps: after writes that nobody counts,
        those through `.data` of a tensor or into a NumPy array."""
        if self._kept is not None:
            self._kept.forget()

    def release(self) -> None:
        """Free the memory that idle contexts keep for the next run, and what was prepared."""
        self.refresh()
        self._bound.clear()
        self._idle.clear()
        self._idle_arrays.clear()

    def _tensor_plan(self) -> "TensorPlan":
        from tilewright.runtime.tensors import TensorPlan

        if self._plan is None:
            self._plan = TensorPlan(self._main, self._segments)
        return self._plan

    def _make_context(self) -> "TensorContext":
        from tilewright.runtime.tensors import TensorContext

        return TensorContext(self._tensor_plan())


@uncollected()
def load(path: str | os.PathLike[str]) -> Executable:
    """Load a saved Program and make it ready: call it with tensors, or with NumPy arrays.

    Arrays need no torch, and a Program without library calls (`run_arrays` says which has some).
    Raises `ProgramError` unless the file is whole.
    """
    return Executable(programs.load(path), verified=True)
