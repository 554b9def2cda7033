"""The whole pipeline on one page: from a captured graph to a Program that can run.

    graph  --expand, fold, share, simplify, fuse-->  graph  --assemble-->  Program  --cc-->  code

Every step is a function `Graph -> Graph` with a name; none is skipped by a hidden condition.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.base.interpreter import uncollected
from tilewright.compiler.assemble import assemble
from tilewright.compiler.attention import streams
from tilewright.compiler.built import Built, Reasons, Stopwatch
from tilewright.compiler.choices import Choices, choices_for
from tilewright.compiler.convolutions import PlaceConvolutions
from tilewright.compiler.derived import Derived, compile_part
from tilewright.compiler.faster import leads_convolutions
from tilewright.compiler.inplace import ReadBeforeUpdates
from tilewright.compiler.library import served
from tilewright.compiler.lying import ROW_BY_ROW, Lying, as_called, laid
from tilewright.compiler.mask_gradients import ExpandBesideMasks
from tilewright.compiler.masks import AddMasks
from tilewright.compiler.options import Options
from tilewright.compiler.orders import CountPlaces
from tilewright.compiler.refusals import RefuseFirst
from tilewright.compiler.remembered import Entry, key_of, remember, remembered
from tilewright.compiler.sources import Begin
from tilewright.graph.ir import Graph, Node
from tilewright.graph.passes import Pass, run
from tilewright.optimize import (
    Apart,
    ChunkRows,
    DeadCode,
    Fuse,
    FuseEpilogues,
    SplitReductions,
    TabulateProducts,
    WideSums,
    simplifications,
)
from tilewright.tune import Store, has_squares, this_processor


def passes(options: Options, choices: Choices) -> tuple[Pass, ...]:
    """Return the passes of one compilation, in order."""
    return (*simplifying(options), *placing(options, choices))


def simplifying(options: Options) -> tuple[Pass, ...]:
    """Return the passes before it is decided how values lie in memory."""
    simple = simplifications(_kept if options.library else streams)
    masks: tuple[Pass, ...] = (AddMasks(), ExpandBesideMasks())
    orders: tuple[Pass, ...] = () if options.library else (CountPlaces(),)
    size = options.chunk_mib << 20
    tables: tuple[Pass, ...] = (TabulateProducts(),) if options.frozen else ()
    chunks: tuple[Pass, ...] = (ChunkRows(size, size // 4),) if size else ()
    return (*masks, *orders, *simple, *tables, *chunks)


def placing(options: Options, choices: Choices) -> tuple[Pass, ...]:
    """Return the passes that say what computes what, with what."""
    library, winograd, frozen = options.library, options.winograd, options.frozen
    vector, leads = this_processor(target := options.target).vector, leads_convolutions(target)
    before: tuple[Pass, ...] = (
        PlaceConvolutions(library, winograd, frozen, choices, vector, leads, has_squares(target)),
        SplitReductions(),
        WideSums(),
    )
    fuse: tuple[Pass, ...] = (Fuse(), FuseEpilogues())
    fuse = tuple(map(Apart, fuse)) if options.frozen else fuse
    after: tuple[Pass, ...] = (ReadBeforeUpdates(), RefuseFirst())
    return (*before, *fuse, DeadCode(), *after) if options.fuse else (*before, *after)


def _kept(node: Node) -> bool:
    """Say whether a composite operator is computed as it stands where a library may be asked."""
    return streams(node) or served(node)


def build(
    graph: Graph,
    options: Options | None = None,
    store: Store | None = None,
    lying: Lying = ROW_BY_ROW,
) -> Built:
    """Compile a graph; where its sizes vary, once for all values that they admit.

    store: measurements in the place of those that are kept for this processor.  lying: how inputs
    and outputs lie.  Raises SizesError where what was made depends on the example in a way that
    nobody noted: then it is right for the example alone.
    """
    derived = Derived(((graph, lying),))
    (built,), _ = build_derived(graph, repr(lying), lambda: derived, options or Options(), store)
    return built


@uncollected()
def build_derived(
    graph: Graph,
    said: str,
    derive: Callable[[], Derived],
    options: Options,
    store: Store | None = None,
) -> tuple[tuple[Built, ...], Any]:
    """Compile what is derived from a graph; return also what was said about it.

    said: all that it follows from beside graph and options, in one line.  derive: is called at most
    once: where the Programs are not found among those made before, else when somebody asks.
    """
    options.refuse_buckets()
    watch, derive = Stopwatch(), functools.cache(derive)
    key = key_of(graph, options, said) if store is None else None
    entry = remembered(key, options)
    watch.lap("look up")
    reason = functools.partial(_reasons, options=options, store=store)
    if entry is not None:
        parts = enumerate(entry.programs)
        found = [compile_part(derive, at, options, reason, watch, program) for at, program in parts]
        return tuple(found), entry.about
    derived = derive()
    watch.lap("derive")
    every = range(len(derived.parts))
    made = [compile_part(derive, at, options, reason, watch) for at in every]
    # What breaks a rule was refused by now.
    answers = tuple(dict.fromkeys(answer for built in made for answer in built.why().answers))
    remember(key, Entry(tuple(built.program for built in made), derived.about, answers))
    return tuple(made), derived.about


def _reasons(
    graph: Graph,
    *,
    options: Options,
    store: Store | None,
    watch: Stopwatch,
    lying: Lying,
    begin: Begin | None = None,
) -> Reasons:
    choices = choices_for(options, store)
    simple = run(graph, simplifying(options), verify=options.verify)
    optimized = run(laid(simple, lying), placing(options, choices), verify=options.verify)
    watch.lap("optimize")
    assembled = assemble(optimized, options, choices, begin=begin)
    program = as_called(assembled.program, graph, lying)
    assembled = replace(assembled, program=program)
    watch.lap("assemble")
    return Reasons(optimized, assembled, choices.told(), choices.answers())
