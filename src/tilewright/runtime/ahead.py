"""Kernels that are compiled while the Program that needs them is still being made.

The idea: the toolchain that `Ahead` gives knows what it has begun, and `build` waits for that in
the place of compiling it again; what a cache has is begun, and is there at once.

This module does not know who writes kernels, nor whether a Program will come of them.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType

from tilewright.base.errors import OptionError, ToolchainError
from tilewright.base.interpreter import short_turns
from tilewright.program import KernelSource
from tilewright.runtime.segments import RUNNER
from tilewright.runtime.toolchain import Toolchain, compiled, compilers, find_toolchain
from tilewright.runtime.units import Units, units


class Ahead:
    """A context in which kernels are compiled as soon as they are known; final.

    Turns of threads are short meanwhile: those that hand kernels to compilers ask for some twenty
    a kernel, and Python's own 5 ms would leave them, and a processor with them, waiting.
    Mutable: what has begun only grows.  What nobody has waited for when it ends is left, or, if its
    turn has not come, not made.
    """

    def __init__(self, target: str) -> None:
        """target: the instruction set, as `find_toolchain` takes it."""
        self._target = target
        self._found: Toolchain | None = None
        self._pool = compilers()
        self._jobs: dict[str, Future[bytes]] = {}
        self._units = Units()
        self._begun: set[KernelSource] = set()
        self._short = short_turns()

    def __enter__(self) -> "Ahead":
        self._short.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._pool.shutdown(wait=False, cancel_futures=True)
        finally:
            self._short.__exit__(None, None, None)

    def begin(self, kernel: KernelSource) -> None:
        """Begin to compile a kernel; raise ToolchainError or OptionError if there is no compiler.

        What has begun is not begun again; a small one waits for others that share its text.  Where
        a compiler refuses the kernel, whoever builds with it is told.
        """
        if self._found is None:
            self._found = find_toolchain(self._target)
            self._submit(self._found, RUNNER.name, RUNNER.read_text(encoding="utf-8"))
        if kernel not in self._begun:
            self._begun.add(kernel)
            for unit in self._units.add(kernel):
                self._submit(self._found, *unit)

    def toolchain(self) -> Toolchain | None:
        """Return the compiler, with what has begun; None where nothing has and no target is asked
        for: the system's is looked for only if there is something to compile."""
        if self._found is None:
            return find_toolchain(self._target) if self._target else None
        for unit in self._units.rest():
            self._submit(self._found, *unit)
        return replace(self._found, started=self._jobs)

    def _submit(self, toolchain: Toolchain, name: str, text: str) -> None:
        key = toolchain.key("object", text)
        if key not in self._jobs:
            self._jobs[key] = self._pool.submit(compiled, toolchain, name, text)


def begin_early(target: str, kernels: Sequence[KernelSource]) -> None:
    """Begin to compile kernels for whoever will want them; without a compiler, do nothing.

    Returns at once.  What nobody wants is compiled for nothing, once a machine.
    """
    try:
        found = find_toolchain(target)
    except (ToolchainError, OptionError):
        return  # who wants them is told
    if found.cache.most == 0:
        return  # nothing is kept
    texts = {RUNNER.name: RUNNER.read_text(encoding="utf-8")} | units(kernels)
    missing = [item for item in texts.items() if not found.has(item[1])]
    if missing:
        pool = compilers()
        for name, text in missing:
            pool.submit(compiled, found, name, text)
        pool.shutdown(wait=False)
