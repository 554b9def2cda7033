"""Measure the ways to compute each kernel of a graph, the most expensive kernels first.

The idea: a compilation asks for choices; each that was asked is a graph of its own, compiled once
for each way and timed in turns with the others, its operands lying as they do in the model and no
longer in the near caches.  What is measured is kept at once, so that a tuner may be stopped.

This module does not know the clock, nor what tensors are: both are arguments.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.compiler.assemble import assemble
from tilewright.compiler.choices import Asked, Choices, usual_knobs
from tilewright.compiler.options import Options
from tilewright.compiler.pipeline import passes
from tilewright.graph.ir import Graph
from tilewright.graph.passes import run
from tilewright.program import Program
from tilewright.runtime import Executable, find_toolchain
from tilewright.tune import (
    Candidate,
    Clock,
    Measured,
    Store,
    Verdict,
    compare,
    judge,
    product_candidates,
    show_tiling,
    summary,
    worth_trying,
)

TRIED = 6
"""Knobs that are measured of a product beside the usual ones, the best by prediction."""
LEAST_SECONDS = 0.3
"""In which the ways of one kernel are timed, or more."""

Tensors = Callable[[np.ndarray], Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a core can do, FLOP/s by element type and B/s of its memory, for predictions."""

    peaks: tuple[tuple[str, float], ...]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A kernel of a graph: how often it is there, what was measured, what follows from it.

    known: whether it was measured before.  refused: reasons why knobs were not tried, and how many.
    """

    asked: Asked
    count: int
    measured: Measured
    verdict: Verdict
    known: bool
    refused: tuple[tuple[str, int], ...] = ()

    @property
    def saved(self) -> float:
        """Seconds of each run that the verdict is predicted to save."""
        usual = self.measured.timing(self.asked.default)
        return 0.0 if usual is None else self.count * usual.seconds * (1 - 1 / self.verdict.gain)


def kernels_of(graph: Graph, options: Options, store: Store) -> list[tuple[Asked, int]]:
    """Return the kernels of a graph that there is a choice for, and how often each is there, the
    most operations first."""
    choices = Choices(store)
    assemble(run(graph, passes(options, choices)), options, choices)
    found = [(asked, choices.counts[kernel]) for kernel, asked in choices.asked.items()]
    return sorted(found, key=lambda item: -item[0].flops * item[1])


def tune(
    kernels: Sequence[tuple[Asked, int]],
    options: Options,
    store: Store,
    limits: Limits,
    *,
    seconds: float,
    clock: Clock,
    tensors: Tensors,
    again: bool = False,
) -> Iterator[Tuned]:
    """Measure what the store does not know of these kernels, as many as `seconds` allow, and yield
    each that is known then.

    clock: seconds, of any origin.  tensors: makes the tensors that kernels run on.  again: measures
    what is known, too.
    """
    begun = clock()
    for at, (asked, count) in enumerate(kernels):
        known = store.get(asked.kernel, asked.recipe)
        if not again and known is not None and known.timing(asked.default) is not None:
            yield Tuned(asked, count, known, judge(known, asked.default), known=True)
            continue
        left = seconds - (clock() - begun)
        if left <= 0:
            return
        share = max(LEAST_SECONDS, left / (len(kernels) - at))
        candidates = _candidates(asked, store, limits)
        measured = measure(asked, candidates, options, store, share, clock, tensors)
        store.put(measured)
        refused = Counter(one.refused for one in candidates if one.refused)
        verdict = judge(measured, asked.default)
        yield Tuned(asked, count, measured, verdict, False, tuple(refused.most_common()))


def measure(
    asked: Asked,
    candidates: Sequence[Candidate],
    options: Options,
    store: Store,
    seconds: float,
    clock: Clock,
    tensors: Tensors,
) -> Measured:
    """Time the ways to compute a kernel: the usual one, those that have a name, the best knobs."""
    predicted = {show_tiling(one.tiling): one.predicted for one in candidates}
    usual = usual_knobs(options)
    knobs = () if asked.product is None else worth_trying(asked.product, candidates, TRIED, usual)
    ways = tuple(dict.fromkeys((asked.default, *asked.ways, *map(show_tiling, knobs))))
    toolchain = find_toolchain(options.target)
    runs: dict[str, Callable[[], object]] = {}
    inputs: list[Any] = []
    for way in ways:
        program = program_of(asked, way, options, store)
        inputs = inputs or [tensors(array) for array in _arrays(program)]
        runs[way] = partial(Executable(program, toolchain).run, inputs)
    scrub = np.zeros(2 * store.processor.l2, np.uint8)
    times = compare(runs, seconds, clock, lambda: scrub.sum())
    timings = tuple(summary(way, times[way], predicted.get(way)) for way in ways)
    return Measured(store.processor, asked.kernel, asked.recipe, asked.flops, timings)


def program_of(asked: Asked, way: str, options: Options, store: Store) -> Program:
    """Return the Program of a kernel that is computed in one way."""
    choices = Choices(store, {asked.kernel: way})
    if asked.lying is None:
        return assemble(run(asked.graph, passes(options, choices)), options, choices).program
    return assemble(asked.graph, options, choices, dict(asked.lying)).program


def _candidates(asked: Asked, store: Store, limits: Limits) -> tuple[Candidate, ...]:
    if asked.product is None:
        return ()
    peak = dict(limits.peaks)[asked.product.dtype.numpy.name]
    return product_candidates(asked.product, store.processor, peak, limits.bandwidth)


def _arrays(program: Program) -> list[np.ndarray]:
    source = np.random.default_rng(0)
    buffers = (program.buffer(item.buffer) for item in program.inputs)
    return [source.standard_normal(one.shape).astype(one.dtype.numpy) for one in buffers]
