"""What a run of a Program spends its time on: each launch and library call by the clock.

The idea: native code adds up its own nanoseconds, for each thread and each step, where it is asked
to; so loops, threads and waiting are measured as they run, not one by one apart from each other.
This module does not know what a step should have cost.
"""

import array
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.program import Launch, LibraryCall, Stretch
from tilewright.runtime.segments import Call, NativeSegment, in_rows, key

NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Timed:
    """One launch or library call.  Seconds of a run, all iterations of the loops around together.

    seconds: of the thread that worked longest.  work: of all threads together.  waited: for other
    threads or to be woken, before it began, all threads together.
    """

    step: Launch | LibraryCall
    seconds: float
    work: float
    waited: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a Program in order, and what they took; every number a mean over the runs.

    seconds: of a whole run.
    """

    rows: tuple[Timed, ...]
    seconds: float
    runs: int
    threads: int


class Clock:
    """Adds up the time of the steps of one context; final."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._native: dict[tuple[int, ...], tuple[Stretch, array.array[int]]] = {}
        self._calls: dict[int, tuple[LibraryCall, list[int]]] = {}
        self._order: list[tuple[int, ...] | int] = []
        self._runs: list[int] = []

    def native(self, stretch: Stretch, function: NativeSegment, call: Call) -> NativeSegment:
        """Return what runs a stretch by the clock."""
        rows = len(in_rows(stretch))
        sums = array.array("l", [0] * (2 * rows * self.threads))
        address = sums.buffer_info()[0]
        self._native[key(stretch)] = stretch, sums
        self._order.append(key(stretch))

        def run(at: int) -> int:
            call.clock = address
            return function(at)

        return run

    def library(self, item: LibraryCall, step: Callable[[], None]) -> Callable[[], None]:
        """Return what makes a call by the clock."""
        spent = self._calls.setdefault(id(item), (item, [0]))[1]
        self._order.append(id(item))

        def run() -> None:
            start = time.perf_counter_ns()
            step()
            spent[0] += time.perf_counter_ns() - start

        return run

    def whole(self, nanoseconds: int) -> None:
        """Note how long a run took."""
        self._runs.append(nanoseconds)

    def restart(self) -> None:
        """Forget what was measured so far."""
        self._runs.clear()
        for _, sums in self._native.values():
            ctypes.memset(sums.buffer_info()[0], 0, sums.itemsize * len(sums))
        for _, spent in self._calls.values():
            spent[0] = 0

    def trace(self) -> Trace:
        """Return what was measured."""
        runs = len(self._runs)
        rows: list[Timed] = []
        for known in dict.fromkeys(self._order):
            if isinstance(known, int):
                item, spent = self._calls[known]
                seconds = spent[0] * NANO / runs
                rows.append(Timed(item, seconds, seconds, 0.0))
            else:
                rows += self._launches(*self._native[known], runs)
        whole = statistics.fmean(self._runs) * NANO
        return Trace(tuple(rows), whole, runs, self.threads)

    def _launches(self, stretch: Stretch, sums: "array.array[int]", runs: int) -> list[Timed]:
        launches = in_rows(stretch)
        each = NANO / runs
        found = []
        for row, launch in enumerate(launches):
            if launch is None:
                continue
            at = [2 * (rank * len(launches) + row) for rank in range(self.threads)]
            work, waited = [sums[i] for i in at], [sums[i + 1] for i in at]
            found.append(Timed(launch, max(work) * each, sum(work) * each, sum(waited) * each))
        return found
