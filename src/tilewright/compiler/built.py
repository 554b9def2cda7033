"""What a compilation gives: what runs, and why it is as it is.

The idea: reasons cost what compiling costs, so a Program that was found again has none until
somebody asks.

This module does not compile anything.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.compiler.assemble import Assembled
from tilewright.compiler.choices import Answer
from tilewright.compiler.report import Decision, explain_built
from tilewright.graph.ir import Graph
from tilewright.program import Program
from tilewright.runtime import NATIVE, Executable

if TYPE_CHECKING:
    from tilewright.runtime.settled import Settled


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a Program is as it is.

    graph: as it was optimized.  tuned: what was measured of convolutions.  answers: all that was
    asked of the measurements.
    """

    graph: Graph
    assembled: Assembled
    tuned: tuple[str, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled graph: what runs, and why it is as it is.

    given: gives the graph as it was given, or derived.  seconds: compile time, by step.  target:
    the instruction set that was chosen for the kernels.  why: gives the reasons, which are derived
    again if the Program was found among those made before.
    """

    given: Callable[[], Graph]
    program: Program
    executable: Executable
    seconds: tuple[tuple[str, float], ...]
    why: Callable[[], Reasons]
    target: str = NATIVE

    @property
    def source(self) -> Graph:
        """The graph that was compiled, before optimization."""
        return self.given()

    @property
    def graph(self) -> Graph:
        return self.why().graph

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.why().assembled.decisions

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run on tensors in the order of the graph's inputs; updates are written in place."""
        return self.executable.run(inputs)

    def settled(self, inputs: Sequence[Any]) -> "Settled | None":
        """Return a run for inputs like these, if there is such (`Executable.settled`)."""
        return self.executable.settled(inputs)

    def at(self, values: Mapping[str, int]) -> "Built":
        """Return what runs for these values of the sizes that vary; nothing is compiled."""
        return replace(self, executable=self.executable.at(values))

    def explain(self) -> str:
        """Return how every value is computed and why, with memory and compile time."""
        return explain_built(self)

    def measure(self, inputs: Sequence[Any], runs: int = 20) -> str:
        """Return where the time of a run goes, as a table; the runs write the updates."""
        from tilewright.compiler.measured import measured_text

        return measured_text(self, self.executable.measure(inputs, runs))


class Stopwatch:
    """Seconds between laps, by name.  Mutable: `laps` grows."""

    def __init__(self) -> None:
        self.laps: list[tuple[str, float]] = []
        self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        """Note what has passed since the last lap."""
        now = time.perf_counter()
        self.laps.append((name, now - self._start))
        self._start = now

    def taken(self) -> tuple[tuple[str, float], ...]:
        """Return the laps, which begin anew."""
        laps, self.laps = tuple(self.laps), []
        return laps
