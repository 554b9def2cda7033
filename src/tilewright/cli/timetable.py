"""`tilewright timetable`: make, read, search, judge, draw and save the timetable of a pipeline.

The idea: what is asked is one record; the answer is lines of text, and files where they were asked
for.  A timetable is verified before anything is said about it, whoever made it.

This module does not know how timetables are made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.base.errors import OptionError
from tilewright.cli.save import save_text
from tilewright.parallel import (
    Bubble,
    Budget,
    Problem,
    Searched,
    Simulation,
    Timetable,
    draw_timetable,
    kind_named,
    make_timetable,
    peak_activations,
    prove_timetable,
    read_times,
    read_timetable,
    search_timetable,
    show_timetable,
    simulate,
    trace_versions,
    verify_timetable,
    versions_held,
)

Tell = Callable[[str], None]
MOST_COLUMNS = 16  # ranks whose activations are listed one by one


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked.  name or read: which timetable.

    sizes, parts: of a named one, as far as they were given: stages and micro-batches; chunks,
    slices or in-flight.  The others as the options say.
    """

    name: str
    read: Path | None
    sizes: dict[str, int]
    parts: dict[str, int]
    times: str
    kept: float
    width: int

    @property
    def ranks(self) -> int:
        return self.sizes.get("stages", 4)

    @property
    def micro_batches(self) -> int:
        return self.sizes.get("micro-batches", 8)


@dataclass(frozen=True, slots=True)
class Hunt:
    """What a search was asked.  cap: None for what the named timetable holds at most."""

    cap: float | None = None
    barrier: bool = False
    prove: bool = False
    trials: int = 0
    seed: int = 0


def hunt_for(
    search: bool,
    *,
    cap: float | None,
    barrier: bool,
    prove: bool,
    trials: int | None,
    seed: int | None,
) -> Hunt | None:
    """Return what a search was asked, None if none was; refuse options that would say nothing."""
    given = {"cap": cap, "barrier": barrier, "prove": prove, "trials": trials, "seed": seed}
    idle = [option for option, value in given.items() if value not in (None, False)]
    if not search and idle:
        raise OptionError(
            f"--{idle[0]} says nothing without --search",
            expected="--search before it",
            found=f"--{idle[0]}",
            mend="add --search",
        )
    if not search:
        return None
    if prove and trials is not None:
        raise OptionError("a proof counts no trials", expected="--prove or --trials", found="both")
    return Hunt(cap, barrier, prove, trials or 0, seed or 0)


def asked_timetable(
    question: Question, hunt: Hunt | None, tell: Tell
) -> tuple[Simulation, list[str]]:
    """Return the timetable that was asked for, simulated, and what is to be said before it."""
    table = _table(question)
    verify_timetable(table)
    simulation = simulate(table, read_times(question.times, table.placement))
    kind_cap = 0 if question.read else kind_named(question.name).cap
    if hunt is None and not kind_cap:
        return simulation, []
    cap = hunt.cap if hunt is not None else None
    if cap is None:
        cap = float(kind_cap * question.ranks or max(_peaks(simulation, question)))
    found = _search(simulation, question, hunt or Hunt(), cap, tell)
    named = replace(found.timetable, name=table.name if hunt is None else f"{table.name}-searched")
    made = simulate(named, read_times(question.times, named.placement))
    before = [f"{table.name}: {_bubble(simulation.bubble)}", ""] if hunt else []
    return made, [*before, f"under {cap:g} activations: {found}", ""]


def timetable_lines(question: Question, simulation: Simulation) -> Iterator[str]:
    """Yield what there is to say about a timetable, and its picture."""
    table = simulation.timetable
    yield (
        f"{table.name}: {table.stages} stages on {len(table.ranks)} ranks, "
        f"{table.micro_batches} micro-batches"
        + (f" in {table.slices} slices" if table.slices > 1 else "")
    )
    yield f"  with a barrier      {_bubble(simulation.bubble)}"
    yield f"  without a barrier   {_bubble(simulation.bubble_without_barrier)}"
    peaks = _peaks(simulation, question)
    listed = " ".join(f"{peak:.4g}" for peak in peaks[:MOST_COLUMNS])
    more = " ..." if len(peaks) > MOST_COLUMNS else ""
    yield f"  peak activations    {listed}{more}   (M_B of a rank = 1, M_W = {question.kept:g})"
    if trace_versions(table):
        yield from _version_lines(table)
    if question.name and kind_named(question.name).asynchronous:
        yield f"  in steady state     {_steady(question, simulation)}"
    waits = sum(step.waited for step in simulation.path)
    yield f"  critical path       {len(simulation.path)} actions, {waits:.6g} of it in transfers"
    yield ""
    yield draw_timetable(simulation, question.width)


def save_timetable(path: Path, table: Timetable) -> None:
    """Write the text of a timetable; OptionError if the file cannot be written."""
    save_text(path, show_timetable(table), "the timetable")


def _table(question: Question) -> Timetable:
    if (question.read is None) != bool(question.name):
        raise OptionError(
            "timetable takes a name, or --read FILE",
            expected="tilewright timetable 1f1b, or tilewright timetable --read FILE",
            found="both" if question.name else "neither",
        )
    if question.read is not None:
        _refuse_unused({**question.sizes, **question.parts}, question.read.name)
        return read_timetable(_text(question.read))
    parts = kind_named(question.name).parts
    others = {option: count for option, count in question.parts.items() if option != parts}
    _refuse_unused(others, question.name)
    if not parts:
        return make_timetable(question.name, question.ranks, question.micro_batches)
    count = question.parts.get(parts)
    if count is None:
        raise OptionError(
            f"{question.name} needs to know its {parts}",
            expected=f"--{parts} and a number",
            found=f"no --{parts}",
            mend=f"add --{parts} 2",
        )
    return make_timetable(question.name, question.ranks, question.micro_batches, count)


def _refuse_unused(options: dict[str, int], name: str) -> None:
    for option in options:
        raise OptionError(
            f"--{option} says nothing to {name}",
            expected="only options that it has",
            found=f"--{option} {options[option]}",
            mend=f"leave out --{option}",
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise OptionError(
            f"{path} cannot be read", expected="a timetable's text", found=str(reason)
        ) from None


def _search(
    simulation: Simulation, question: Question, hunt: Hunt, cap: float, tell: Tell
) -> Searched:
    table = simulation.timetable
    ranks = tuple(range(len(table.ranks)))
    problem = Problem(
        table.micro_batches,
        read_times(question.times, ranks),
        Budget(cap, 1.0, question.kept),
        hunt.barrier,
    )
    if hunt.prove:
        return prove_timetable(problem, seed=hunt.seed)

    def progress(trials: int, cost: float, bound: float) -> None:
        tell(f"  {trials} trials: cost {cost:.6g}, lower bound {bound:.6g}")

    return search_timetable(problem, trials=hunt.trials, seed=hunt.seed, progress=progress)


def _peaks(simulation: Simulation, question: Question) -> tuple[float, ...]:
    """Return the activations that each rank holds at most, in those of its whole share."""
    table = simulation.timetable
    chunks = len(table.placement) / (max(table.placement) + 1)
    held = (1 / chunks,) * table.stages
    kept = (question.kept / chunks,) * table.stages
    slices = (1 / table.slices,) * table.slices
    return peak_activations(table, held, kept, slices)


def _bubble(bubble: Bubble) -> str:
    # Sums of times that are not exact may give a bubble of -1e-16.
    of_total, of_ideal = (max(0.0, share) for share in (bubble.of_total, bubble.of_ideal))
    return (
        f"{bubble.cost:.6g}, bubble {of_total:.4%} of the total, "
        f"{of_ideal:.4%} of the ideal {bubble.work:.6g}"
    )


def _steady(question: Question, simulation: Simulation) -> str:
    """Say what another micro-batch costs where none is the first or the last: no flush, no fill."""
    twice = _table(
        replace(question, sizes={**question.sizes, "micro-batches": 2 * question.micro_batches})
    )
    longer = simulate(twice, read_times(question.times, twice.placement))
    cost = longer.makespan - simulation.makespan
    bubble = Bubble(cost, max(longer.busy) - max(simulation.busy))
    return f"{_bubble(bubble)}, for {question.micro_batches} micro-batches more"


def _version_lines(table: Timetable) -> Iterator[str]:
    held = " ".join(map(str, versions_held(table)))
    yield f"  weight versions     {held}"
    stale = [0] * table.stages
    mixed = 0
    for trace in trace_versions(table):
        stale[trace.stage] = max(stale[trace.stage], trace.staleness)
        mixed += not trace.consistent
    yield f"  staleness           {' '.join(map(str, stale))} updates at most, by stage"
    if mixed:
        yield f"  forward and backward read different versions in {mixed} passes"
