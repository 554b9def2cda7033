"""Graphs that are derived only where it must be, and what each of them is compiled to.

The idea: whoever wants something compiled says what it follows from, and how to derive it; where
its Program is found by what was said, nothing is derived until somebody asks for reasons.

This module does not know the passes: why a Program is as it is comes in as an argument.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.compiler.built import Built, Reasons, Stopwatch
from tilewright.compiler.convolutions import foreseen
from tilewright.compiler.lying import ROW_BY_ROW, Lying
from tilewright.compiler.options import Options
from tilewright.compiler.sources import Begin
from tilewright.compiler.varying import check_other_example
from tilewright.graph.ir import Graph
from tilewright.program import Program
from tilewright.runtime import Ahead, Executable


@dataclass(frozen=True, slots=True)
class Derived:
    """Graphs that are compiled together, and how each lies in memory.

    about: what whoever asked for them has to know to run them; it is kept beside the Programs, and
    is numbers, text, and tuples and sets of such.
    """

    parts: tuple[tuple[Graph, Lying], ...]
    about: Any = None


class Reason(Protocol):
    """Optimizes a graph and assembles its Program, with the reasons."""

    def __call__(
        self, graph: Graph, *, watch: Stopwatch, lying: Lying, begin: Begin | None = None
    ) -> Reasons:
        """begin: is told each kernel as soon as it is written."""
        ...


def compile_part(
    derive: Callable[[], Derived],
    at: int,
    options: Options,
    reason: Reason,
    watch: Stopwatch,
    program: Program | None = None,
) -> Built:
    """Compile one of the graphs that are derived together.  program: what it was found to be."""
    reasons, verified = None, program is not None
    with Ahead(options.target) as ahead:
        if program is None:
            graph, lying = derive().parts[at]
            for function in foreseen(graph, options):
                ahead.begin(function)
            reasons = reason(graph, watch=watch, lying=lying, begin=ahead.begin)
            program = reasons.assembled.program
            if program.sizes is not None:
                check_other_example(graph, program, _programs(reason))
                watch.lap("check sizes")
        executable = Executable(program, ahead.toolchain(), verified=verified)
    watch.lap("compile kernels")

    @functools.cache
    def why() -> Reasons:
        graph, lying = derive().parts[at]
        return reasons or reason(graph, watch=Stopwatch(), lying=lying)

    given = functools.cache(lambda: derive().parts[at][0])
    return Built(given, program, executable, watch.taken(), why, options.target)


def _programs(reason: Reason) -> Callable[[Graph], Program]:
    """Return what compiles a graph for another example: its sizes vary, so all lies row by row."""

    def program(graph: Graph) -> Program:
        return reason(graph, watch=Stopwatch(), lying=ROW_BY_ROW).assembled.program

    return program
