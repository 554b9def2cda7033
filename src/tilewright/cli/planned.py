"""What `tilewright plan` prints: where a step's seconds and bytes go, and the plan as text.

This module does not know how anything is priced.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.base.errors import OptionError, PlanError
from tilewright.graph.ir import Graph
from tilewright.parallel import (
    ParallelPlan,
    Prediction,
    draw_timetable,
    make_plan,
    read_fix,
    show_bubble,
    show_seconds,
)

GIB = 2**30
MOST_RANKS = 16  # rows that are printed before the middle is left out
WIDTH = 96  # characters of the timeline


def planned(
    model: str,
    machine: str,
    *,
    batch: int | None,
    seq: int | None,
    fix: str,
    file: Path | None,
    inputs: Sequence[str] = (),
) -> ParallelPlan:
    """Return the plan that the words of the command mean, priced.

    file: a plan to begin with; `fix` changes settings of it.  inputs: those of a module that is to
    be captured, one micro-batch of them; without any, the model is one by its numbers.  Raises
    OptionError where nothing says a model or a machine, PlanError and others where they are none.
    """
    pinned = read_fix(fix)
    if file is None:
        for what, word in (("model", model), ("machine", machine)):
            if not word:
                raise OptionError(
                    f"nothing says which {what}",
                    expected="MODEL and --machine, or a plan with --from",
                    mend="tilewright plan gpt3-175b --machine 'dgx-a100-80g x 64' --batch 64",
                )
        return make_plan(_subject(model, inputs), machine, batch=batch, seq=seq, fix=pinned)
    kept = _read(file)
    changes = dict(pinned)
    changes.update({name: n for name, n in (("batch", batch), ("seq", seq)) if n is not None})
    made = replace(kept, **changes)  # type: ignore[arg-type]
    return make_plan(_subject(model or kept.model, inputs), machine or kept.machine, fix=made)


def _subject(model: str, inputs: Sequence[str]) -> str | Graph:
    if not inputs:
        return model
    from tilewright.cli.inspect import Look, captured_graph  # what needs torch comes with torch

    return captured_graph(Look(model, None, tuple(inputs)))


def _read(path: Path) -> ParallelPlan:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"the plan {str(path)!r} cannot be read",
            expected="a file that `tilewright plan ... --save FILE` wrote",
            found=str(error),
        ) from None
    return ParallelPlan.parse(text)


def show_plan(plan: ParallelPlan, console: Console, tokens: float) -> None:
    """Print a plan's prediction.  tokens: that training is to see, for its days."""
    found = plan.predicted
    degrees = ", ".join(f"{axis} {n}" for axis, n in plan.degrees.items() if n > 1) or "one device"
    console.print(f"{plan.model} on {plan.machine}: {degrees}")
    console.print(
        f"  {plan.micro_batches} micro-batches of {_each(plan)}, "
        f"{plan.timetable}, recompute {plan.recompute}"
    )
    console.print(_seconds(found))
    if plan.pp > 1:
        console.print(f"the pipeline's bubble: {show_bubble(found.bubble)}")
    if 1 < plan.pp <= MOST_RANKS:
        console.print("the pipeline's step, ranks from above, time from left to right:")
        console.print(draw_timetable(found.simulation, WIDTH))
    console.print(_bytes(plan, found))
    unit = "tokens" if plan.seq > 1 else "examples"
    verdict = "fits" if found.fits else "[bold red]does not fit[/]"
    console.print(
        f"{verdict}: {found.peak_bytes / GIB:.2f} of {found.memory_limit / GIB:.2f} GiB on the "
        "fullest device"
    )
    console.print(
        f"MFU {found.mfu:.1%}, HFU {found.hfu:.1%}; {found.tokens_per_second:,.0f} {unit}/s; "
        f"{tokens:.4g} {unit} in {found.days(tokens):,.1f} days"
    )
    for note in found.notes:
        console.print(f"note: {note}", style="dim")


def _each(plan: ParallelPlan) -> str:
    if plan.seq > 1:
        return f"{plan.micro_batch} x {plan.seq} tokens"
    return f"{plan.micro_batch} examples"


def _seconds(found: Prediction) -> Table:
    table = Table(title=f"a step: {show_seconds(found.step_seconds)}", title_justify="left")
    table.add_column("")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in found.breakdown.rows:
        table.add_row(name, show_seconds(seconds), f"{seconds / found.step_seconds:.1%}")
    return table


def _bytes(plan: ParallelPlan, found: Prediction) -> Table:
    """A row for each pipeline rank; of very many, the first and the last."""
    names = [name for name, _ in found.memory_bytes[0].rows]
    table = Table(title="GiB on a device of each pipeline rank", title_justify="left")
    for name in ("rank", *names, "total"):
        table.add_column(name, justify="right")
    for rank, memory in enumerate(found.memory_bytes):
        if MOST_RANKS // 2 <= rank < plan.pp - MOST_RANKS // 2 and plan.pp > MOST_RANKS:
            if rank == MOST_RANKS // 2:
                table.add_row("...", *["" for _ in names], "")
            continue
        sizes = [f"{size / GIB:.2f}" for _, size in memory.rows]
        table.add_row(str(rank), *sizes, f"{memory.total / GIB:.2f}")
    return table
