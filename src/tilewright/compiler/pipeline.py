"""The whole pipeline on one page: from a captured graph to a Program that can run.

    graph  --expand, fold, share, simplify, fuse-->  graph  --assemble-->  Program  --cc-->  code

Every step is a function `Graph -> Graph` with a name; none is skipped by a hidden condition.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.assemble import Assembled, Decision, assemble
from tilewright.compiler.attention import streams
from tilewright.compiler.choices import Choices, choices_for
from tilewright.compiler.convolutions import PlaceConvolutions
from tilewright.compiler.library import served
from tilewright.compiler.mask_gradients import ExpandBesideMasks
from tilewright.compiler.masks import AddMasks
from tilewright.compiler.options import Options
from tilewright.compiler.orders import CountPlaces
from tilewright.compiler.running import SplitRunningSums
from tilewright.compiler.varying import check_other_example
from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes import Pass, run
from tilewright.optimize import Apart, ChunkRows, DeadCode, Fuse, SplitReductions, simplifications
from tilewright.program import Program
from tilewright.runtime import NATIVE, Executable, find_toolchain
from tilewright.tune import Store


def passes(options: Options, choices: Choices) -> tuple[Pass, ...]:
    """Return the passes of one compilation, in order."""
    simple = simplifications(_kept if options.library else streams)
    masks: tuple[Pass, ...] = (AddMasks(), ExpandBesideMasks())
    orders: tuple[Pass, ...] = () if options.library else (CountPlaces(), SplitRunningSums())
    size = options.chunk_mib << 20
    chunks: tuple[Pass, ...] = (ChunkRows(size, size // 4),) if size else ()
    before = (
        *masks,
        *orders,
        *simple,
        *chunks,
        PlaceConvolutions(options.library, options.winograd, options.frozen, choices),
        SplitReductions(),
    )
    fuse = Apart(Fuse()) if options.frozen else Fuse()
    return (*before, fuse, DeadCode()) if options.fuse else before


def _kept(node: Node) -> bool:
    """Say whether a composite operator is computed as it stands where a library may be asked."""
    return streams(node) or served(node)


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled graph: what runs, and why it is as it is.

    source: the graph as it was given.  graph: as it was optimized.  seconds: compile time, by step.
    target: the instruction set that was chosen for the kernels.  tuned: what was measured of
    convolutions.
    """

    source: Graph
    graph: Graph
    assembled: Assembled
    executable: Executable
    seconds: tuple[tuple[str, float], ...]
    target: str = NATIVE
    tuned: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.assembled.program

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.assembled.decisions

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run on tensors in the order of the graph's inputs; updates are written in place."""
        return self.executable.run(inputs)

    def at(self, values: Mapping[str, int]) -> "Built":
        """Return what runs for these values of the sizes that vary; nothing is compiled."""
        return replace(self, executable=self.executable.at(values))

    def explain(self) -> str:
        """Return how every value is computed and why, with memory and compile time."""
        from tilewright.compiler.report import explain_built

        return explain_built(self)

    def measure(self, inputs: Sequence[Any], runs: int = 20) -> str:
        """Return where the time of a run goes, as a table; the runs write the updates."""
        from tilewright.compiler.measured import measured_text

        return measured_text(self, self.executable.measure(inputs, runs))


def build(graph: Graph, options: Options | None = None, store: Store | None = None) -> Built:
    """Compile a graph; where its sizes vary, once for all values that they admit.

    store: measurements in the place of those that are kept for this processor.  Raises SizesError
    where what was made depends on the example in a way that nobody noted: then it is right for the
    example alone.
    """
    options = options or Options()
    options.refuse_buckets()
    seconds: list[tuple[str, float]] = []
    start = time.perf_counter()
    choices = choices_for(options, store)
    optimized = run(graph, passes(options, choices), verify=options.verify)
    seconds.append(("optimize", time.perf_counter() - start))
    start = time.perf_counter()
    assembled = assemble(optimized, options, choices)
    seconds.append(("assemble", time.perf_counter() - start))
    if assembled.program.sizes is not None:
        start = time.perf_counter()
        check_other_example(
            graph, assembled.program, lambda other: _assembled(other, options, store)
        )
        seconds.append(("check sizes", time.perf_counter() - start))
    start = time.perf_counter()
    # Without a target the system's compiler is looked for only if there is something to compile.
    toolchain = find_toolchain(options.target) if options.target else None
    executable = Executable(assembled.program, toolchain)
    seconds.append(("compile kernels", time.perf_counter() - start))
    times, told = tuple(seconds), choices.told()
    return Built(graph, optimized, assembled, executable, times, options.target, told)


def _assembled(graph: Graph, options: Options, store: Store | None) -> Program:
    choices = choices_for(options, store)
    return assemble(run(graph, passes(options, choices)), options, choices).program
