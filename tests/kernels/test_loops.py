"""Loop nests: their text, what the verifier refuses, and rewrites that compute the same."""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import assert_close, body, compile_all, random_arrays, run
from tests.kernels.interpreter import Interpreter
from tests.kernels.test_emit import BODIES
from tests.kernels.test_random import made as random_body

from tilewright.base.dtypes import F32
from tilewright.base.errors import LoopError
from tilewright.base.expr import Const
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph
from tilewright.kernels import Emitted, emit
from tilewright.kernels.body import canonical, is_pointwise, static_shape
from tilewright.kernels.emit import finish, memory_of, solved_body
from tilewright.kernels.expression import Printer
from tilewright.kernels.loops import Do, Let, Loop, LoopNest, Sums, canonical_nest, named, walk
from tilewright.kernels.loops_c import print_nest
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.kernels.narrow import narrow
from tilewright.kernels.plan import make_plan
from tilewright.kernels.rows import schedule_region
from tilewright.kernels.schedule import (
    cut,
    divide,
    fuse,
    join,
    number,
    once,
    parallel,
    reorder,
    split,
    vectorize,
)
from tilewright.kernels.staging import accumulate, block
from tilewright.kernels.sums import sum_type
from tilewright.kernels.text import Block, Scope

SMALL = 800  # terms: the interpreter is slow
GRAPHS = {name: body(*args) for name, args in BODIES.items()}
GRAPHS |= {f"random{seed}": body(*random_body(seed)) for seed in range(8)}


def nests(graph: Graph) -> list[tuple[LoopNest, LoopNest | None]]:
    """Return the plain loops of each region of a body, and the schedule that is printed."""
    plain = solved_body(canonical(graph, {}))
    plan = make_plan(plain)
    if isinstance(plan, str):
        return []
    found = []
    for region in plan.regions:
        nest = canonical_nest(plain, region)
        empty = any(0 in static_shape(s.formula.type) for s in region.statements)
        found.append((nest, None if empty else schedule_region(nest, region)))
    return found


ALL = [
    pytest.param(nest, id=f"{name}-{at}-{kind}")
    for name, graph in GRAPHS.items()
    for at, both in enumerate(nests(graph))
    for kind, nest in zip(("plain", "scheduled"), both, strict=True)
    if nest is not None
]


@pytest.mark.parametrize("nest", ALL)
def test_a_nest_prints_parses_and_is_right(nest: LoopNest) -> None:
    assert parse(show(nest)) == nest
    verify(nest)


def interpreted(nest: LoopNest, graph: Graph, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the results of a nest beside those of the evaluation."""
    arrays = random_arrays(graph, seed)
    found = Interpreter(nest, arrays, seed).run()
    expected = evaluate(graph, arrays, wide=True)
    for name, other in zip(nest.body.outputs, expected, strict=True):
        yield found[name], other


def small(graph: Graph) -> bool:
    plain = canonical(graph, {})
    sizes = [np.prod([int(str(loop.extent)) for loop in f.loops]) for _, f in plain.formulas]
    indirect = any("[a" in show(nest) or "uniform" in show(nest) for nest, _ in nests(graph))
    return bool(min(sizes) > 0 and sum(sizes) <= SMALL) and not indirect


ONE_REGION = {
    name: graph for name, graph in GRAPHS.items() if small(graph) and len(nests(graph)) == 1
}


@pytest.mark.parametrize("name", list(ONE_REGION))
def test_plain_and_scheduled_loops_compute_what_the_formulas_mean(name: str) -> None:
    graph = ONE_REGION[name]
    for nest in nests(graph)[0]:
        if nest is not None:
            for found, expected in interpreted(nest, graph, seed=1):
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


# --------------------------------------------------------------------------------- random rewrites

Rewrite = Callable[[LoopNest, random.Random], LoopNest]


def loop_names(nest: LoopNest) -> list[str]:
    return list(dict.fromkeys(item.name for item in walk(nest.items) if isinstance(item, Loop)))


def fresh(nest: LoopNest) -> str:
    taken = {item.name for item in walk(nest.items) if isinstance(item, Loop | Let)}
    return next(name for n in range(99) if (name := f"w{n}") not in taken)


def any_loop(nest: LoopNest, r: random.Random) -> str:
    return r.choice(loop_names(nest))


def any_pair(nest: LoopNest, r: random.Random) -> tuple[str, str]:
    """Return two names, most often of a loop and of one right inside of it."""
    pairs = [
        (item.name, inner.name)
        for item in walk(nest.items)
        if isinstance(item, Loop)
        for inner in item.items
        if isinstance(inner, Loop)
    ]
    return r.choice(pairs) if pairs and r.random() < 0.9 else (any_loop(nest, r), any_loop(nest, r))


REWRITES: tuple[Rewrite, ...] = (
    lambda nest, r: split(nest, any_loop(nest, r), r.choice((1, 2, 3, 4, 8)), fresh(nest)),
    lambda nest, r: cut(nest, any_loop(nest, r), r.choice((1, 2, 3, 5)), fresh(nest)),
    lambda nest, r: divide(nest, any_loop(nest, r), sorted(r.sample(range(1, 9), 2))),
    lambda nest, r: fuse(nest, *any_pair(nest, r), fresh(nest)),
    lambda nest, r: reorder(nest, *any_pair(nest, r)),
    lambda nest, r: join(nest, any_loop(nest, r)),
    lambda nest, r: number(nest, any_loop(nest, r), fresh(nest)),
    lambda nest, r: narrow(nest, any_loop(nest, r)),
    lambda nest, r: parallel(nest, any_loop(nest, r)),
    lambda nest, r: vectorize(nest, any_loop(nest, r)),
)


def rewritten(nest: LoopNest, seed: int, counts: list[int] | None = None) -> LoopNest:
    """Cut and order loops at random, then let some of them run apart, as recipes do."""
    r = random.Random(seed)
    for turn in range(12):
        kind = r.choice((APART, APART + 1)) if turn > 8 else r.randrange(APART)
        try:
            nest = REWRITES[kind](nest, r)
        except (LoopError, IndexError):
            continue
        if counts is not None:
            counts[kind] += 1
    return nest


APART = len(REWRITES) - 2
SOURCES = [name for name in ONE_REGION if any(loop_names(nest) for nest, _ in nests(GRAPHS[name]))]


def test_random_rewrites_compute_the_same_term_by_term() -> None:
    counts = [0] * len(REWRITES)
    for seed in range(100):
        name = SOURCES[seed % len(SOURCES)]
        nest, _ = nests(ONE_REGION[name])[0]
        made = rewritten(nest, seed, counts)
        verify(made)
        assert parse(show(made)) == made
        try:
            for found, expected in interpreted(made, ONE_REGION[name], seed):
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        except AssertionError as error:
            raise AssertionError(f"{name} {seed}\n{show(made)}") from error
    assert min(counts) >= 8, counts  # every rewrite was tried where it applies


def printed(nest: LoopNest) -> Emitted:
    memory = memory_of(nest.body)
    inputs = {name: place for name, place in memory.items() if name.startswith("a")}
    outputs = {name: place for name, place in memory.items() if name.startswith("v")}
    printer, root = Printer(nest.body, inputs), Scope(Block(), frozenset())
    units = print_nest(printer, nest, outputs, root)
    return finish(nest.body, printer, root, min(units, 4), "a test's")


def accumulated(nest: LoopNest) -> LoopNest | None:
    """Let the terms of each reduction go into an accumulator, around the outermost loop that makes
    one element; None where there is none."""
    for name, formula in nest.body.formulas:
        if not any(isinstance(i, Do) and i.formula == name for i in walk(nest.items)):
            continue
        if is_pointwise(formula):
            continue
        made = None
        dtype = sum_type(nest.body, formula, 100)
        for around in loop_names(nest):
            with contextlib.suppress(LoopError):
                made = accumulate(nest, name, Sums(f"s_{name}", name, 1, dtype), around, Const(0))
                break
        if made is None:
            return None
        nest = made
    return nest


def test_random_rewrites_compute_the_same_in_c(tmp_path: Path) -> None:
    cases = []
    for seed in range(40):
        name = SOURCES[seed % len(SOURCES)]
        nest, _ = nests(ONE_REGION[name])[0]
        made = accumulated(once(rewritten(nest, seed), "everything"))
        if made is not None:
            made = parallel(made, "everything")
            verify(made)
            assert parse(show(made)) == made
            cases.append((name, seed, printed(made)))
    library = compile_all([kernel for _, _, kernel in cases], tmp_path)
    for name, seed, kernel in cases:
        graph = ONE_REGION[name]
        arrays = random_arrays(graph, seed)
        code, found = run(library, kernel, graph, arrays)
        assert code == 0
        assert_close(graph, arrays, found, ulps=256)
    assert len(cases) > 15


# ---------------------------------------------------------------------------------------- refusals

X = {"x": "f32[6, 10]"}
SUM = {"y": "f32[6]: y[i<6] += x[i, j<10]"}
COPY = {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] * 2"}
CENTRED = {
    "m": "f32[6]: y[i<6] += x[i, j<10]",
    "y": "f32[6, 10]: y[i<6, j<10] = x[i, j] - m[i]",
}


def plain(steps: dict[str, str]) -> LoopNest:
    ((nest, _),) = nests(body(X, steps))
    return nest


REFUSED: dict[str, tuple[dict[str, str], Callable[[LoopNest], LoopNest], str]] = {
    "parallel": (
        SUM,
        lambda nest: parallel(nest, "c0"),
        "(r0=0, c0=0) writes v0[0], and (r0=0, c0=1) writes it",
    ),
    "vectorize": (
        SUM,
        lambda nest: vectorize(split(nest, "c0", 4, "b"), "b"),
        "(r0=0, b=0, c0=0) writes v0[0], and (r0=0, b=4, c0=4) writes it",
    ),
    "join": (
        CENTRED,
        lambda nest: join(join(nest, "r0"), "c0"),
        "(r0=0, c0=0) writes v0[0], and (r0=0, c0=1) reads it",
    ),
    "reorder": (
        SUM,
        lambda nest: reorder(split(nest, "c0", 5, "b"), "b", "c0"),
        "bounds of c0 without b",
    ),
    "reorder-terms": (
        {"y": "f32[]: y[] += x[i<6, j<10] if i < j else 1"},
        lambda nest: reorder(nest, *loop_names(nest)),
        "both come to v0, and the second would come first",
    ),
    "split": (COPY, lambda nest: split(nest, "r0", 0, "m"), "at least one iteration"),
    "split-twice": (
        COPY,
        lambda nest: split(split(nest, "r0", 4, "m"), "m", 2, "n"),
        "serial, by 4",
    ),
    "fuse": (CENTRED, lambda nest: fuse(nest, "r0", "c1", "u"), "one loop c1 inside of r0"),
    "taken": (COPY, lambda nest: once(nest, "r0"), "there is a r0 already"),
    "accumulate": (
        SUM,
        lambda nest: accumulate(nest, "v0", Sums("s0", "v0", 1, F32), "c0", Const(0)),
        "terms in several iterations of c0",
    ),
    "accumulate-outside": (
        SUM,
        lambda nest: accumulate(once(nest, "u"), "v0", Sums("s0", "v0", 1, F32), "u", Const(0)),
        "v0[r0] for each r0",
    ),
    "block": (SUM, lambda nest: block(split(nest, "c0", 4, "m"), "c0", 2, "b", "l"), "begin at 0"),
    "unknown": (COPY, lambda nest: split(nest, "z", 2, "m"), "there is no loop z"),
}


SKEWED = """a0: f32[6, 10]
v0: f32[15]  y[i0+i1] += a0[i0<6, i1<10]
-> v0
for r0 in 0..6:
  for c0 in 0..10:
    v0(r0, c0)
"""


def test_loops_whose_terms_meet_across_cannot_change_places() -> None:
    nest = parse(SKEWED)
    verify(nest)
    with pytest.raises(LoopError, match="the second would come first"):
        reorder(nest, "r0", "c0")


def test_loops_of_two_items_that_meet_across_cannot_change_places() -> None:
    text = """a0: f32[6, 6]
v0: f32[6]  y[i0<6] += a0[i0, i1<6]
-> v0
for r0 in 0..6:
  for c0 in 0..6:
    v0(r0, c0)
    v0(c0, r0)
"""
    nest = parse(text)
    verify(nest)
    reorder(parse(text.replace("    v0(c0, r0)\n", "")), "r0", "c0")
    with pytest.raises(LoopError, match="the second would come first"):
        reorder(nest, "r0", "c0")


def test_definitions_move_into_the_loop_that_is_put_outside() -> None:
    made = reorder(block(reorder(plain(SUM), "r0", "c0"), "c0", 4, "b", "l"), "l", "r0")
    verify(made)
    heads = [
        str(type(item).__name__) + item.name
        for item in walk(made.items)
        if not isinstance(item, Do)
    ]
    assert heads == ["Loopb", "Loopr0", "Loopl", "Letc0", "Loopr0", "Loopl", "Letc0"]
    for found, expected in interpreted(made, body(X, SUM), seed=1):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_definitions_stay_where_the_bounds_of_the_loop_use_them() -> None:
    nest = parse(
        SKEWED.replace("0..10:", "d..10:").replace("  for c0", "  let d = r0 // 2\n  for c0")
    )
    with pytest.raises(LoopError, match="definitions cannot move into c0"):
        reorder(nest, "r0", "c0")


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_rewrite_that_does_not_apply_says_why(name: str) -> None:
    steps, rewrite, why = REFUSED[name]
    with pytest.raises(LoopError) as error:
        rewrite(plain(steps))
    assert why in str(error.value)


def changed(nest: LoopNest, which: str, **fields: object) -> LoopNest:
    """Return a nest with other fields of its only loop of that name, whether right or not."""
    (loop,) = named(nest, which)

    def new(items: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(
            replace(item, **fields)
            if item is loop
            else replace(item, items=new(item.items))
            if isinstance(item, Loop)
            else item
            for item in items
        )

    return replace(nest, items=new(nest.items))


WRONG = {
    "threads-add": (changed(plain(SUM), "c0", kind="parallel"), "do not run apart"),
    "too-far": (changed(plain(SUM), "r0", high=Const(7)), "is not proved to stay in its range"),
    "before": (changed(plain(SUM), "r0", low=Const(-1)), "is not proved to stay in its range"),
    "no-loop": (replace(plain(SUM), items=named(plain(SUM), "r0")[0].items), "uses r0"),
    "open-twice": (changed(plain(SUM), "c0", name="r0"), "a name that is not open"),
    "no-step": (changed(plain(SUM), "c0", step=0), "a step of at least 1"),
    "early": (
        replace(plain(CENTRED), items=tuple(reversed(plain(CENTRED).items))),
        "v0 is read before it is complete",
    ),
}

SUMMED = """a0: f32[6, 10]
v0: f32[6]  y[i0<6] += a0[i0, i1<10]
-> v0
parallel r0 in 0..6:
  sums s0[10]: f32 of v0
  lanes c0 in 0..10:
    v0(r0, c0) into s0[c0]
  v0[r0] from s0
"""
TAKEN, FOLDED = "  lanes c0 in 0..10:\n    v0(r0, c0) into s0[c0]\n", "  v0[r0] from s0\n"
WRONG |= {
    "too-few-sums": (parse(SUMMED.replace("s0[10]", "s0[9]")), "does not fit into s0"),
    "one-sum": (parse(SUMMED.replace("s0[c0]", "s0[0]")), "do not run apart"),
    "no-sums": (parse(SUMMED.replace("  sums s0[10]: f32 of v0\n", "")), "uses s0"),
    "folded-early": (
        parse(SUMMED.replace(TAKEN + FOLDED, FOLDED + TAKEN)),
        "before all its terms have come",
    ),
}
TILED = """a0: f32[6, 10]
v0: f32[6]  y[i0<6] += a0[i0, i1<10]
-> v0
parallel r0 in 0..6:
  sums s0[4]: f32 of v0
  for b0 in 0..10 by 4:
    lanes c0 in b0..min(b0 + 4, 10):
      v0(r0, c0) into s0[c0-b0]
  v0[r0] from s0
"""
OUTSIDE = ("9-c0", "b0-c0", "c0-b0+1", "c0-b0-1", "b0+4-c0", "b0+2-c0", "c0", "12-c0")
for place in OUTSIDE:  # of four: the last ones lie beyond them, the others before them, or both
    nest = parse(TILED.replace("s0[c0-b0]", f"s0[{place}]"))
    WRONG[f"at {place}"] = nest, "does not fit into s0"
SHORT = TILED.replace("s0[4]", "s0[2]").replace("b0..min(b0 + 4, 10)", "0..min(4, 6)")
BELOW = TILED.replace("    lanes", "    let d = r0 - 5\n    lanes")
WRONG |= {  # one of the ends, 5, is no end of what wraps; and a definition may be negative
    "a place that wraps": (parse(SHORT.replace("c0-b0", "c0 % 4")), "does not fit into s0"),
    "a place that is defined": (parse(BELOW.replace("c0-b0", "d")), "does not fit into s0"),
}
NEGATIVE = SUMMED.replace("  lanes", "  let d = r0 - 1\n  lanes")
WRONG["a negative index"] = parse(NEGATIVE), "d is not proved to be never negative"
INSIDE = {
    "c0-b0": 4,  # a tile with a tail
    "b0-c0+3": 4,  # and turned around
    "9-c0": 10,
    "c0-b0+1": 5,
}


def test_the_verifier_takes_sums_that_are_right() -> None:
    verify(parse(SUMMED))


@pytest.mark.parametrize(("place", "length"), INSIDE.items())
def test_the_verifier_proves_places_in_tiles(place: str, length: int) -> None:
    text = TILED.replace("s0[c0-b0]", f"s0[{place}]")
    verify(parse(text.replace("s0[4]", f"s0[{length}]")))
    with pytest.raises(LoopError, match="does not fit"):
        verify(parse(text.replace("s0[4]", f"s0[{length - 1}]")))


@pytest.mark.parametrize("name", list(WRONG))
def test_the_verifier_refuses(name: str) -> None:
    nest, why = WRONG[name]
    with pytest.raises(LoopError, match=why):
        verify(nest)


def test_a_kernel_is_verified_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(nest: LoopNest) -> None:
        raise LoopError("asked", expected="", found=str(len(nest.items)))

    graph = body({"x": "f32[37]"}, {"y": "f32[37]: y[i<37] = x[i] * 3"})
    monkeypatch.setattr(sys.modules["tilewright.kernels.emit"], "verify", refusing)
    emit(graph)
    with pytest.raises(LoopError, match="asked"):
        emit(graph, check=True)


TEXTS = {
    "nothing": ("", "found     nothing"),
    "word": ("-> v0\nforever r0 in 0..6:\n", "forever r0 in 0..6:"),
    "formula": ("-> v0\nv7(r0)\n", "v7(r0)"),
    "loops": ("v0: f32[6]  y[i0<6] = 1\n-> v0\nv0(r0, r1)\n", "1 loops of v0"),
    "type": ("a0: float[6]\n-> v0\n", "an element type"),
    "indent": ("v0: f32[6]  y[i0<6] = 1\n-> v0\n    v0(r0)\n", "at the left"),
}


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_text_that_is_no_nest_is_refused(name: str) -> None:
    text, found = TEXTS[name]
    with pytest.raises(LoopError) as error:
        parse(text)
    assert found in str(error.value)
