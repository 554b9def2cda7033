"""`tilewright tune`: measure a model's kernels, say what each gains, and then measure the model.

The idea: kernels are timed one by one, so what they promise together is only a prediction; at the
end the whole model runs both ways, in turns.  A stopped tuner keeps what it has measured, and the
same command goes on from there.

This module does not know how kernels are computed, nor where measurements are kept.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewright.cli.inspect import Look, graph_and_inputs
from tilewright.compiler import Options, build
from tilewright.compiler.tuning import Limits, Tuned, kernels_of, tune
from tilewright.cost import Machine
from tilewright.tune import LIBRARY, Store, compare, summary, this_processor

WHOLE_SECONDS = 5.0
"""In which the whole model is measured, both ways."""
MOST = 30  # rows that are shown


def run_tuner(look: Look, seconds: float, console: Console, *, again: bool) -> bool:
    """Tune a model's kernels and print what came of it; False where the run was interrupted."""
    graph, inputs = graph_and_inputs(look)
    options = Options()
    store = Store(this_processor())
    kernels = kernels_of(graph, options, store)
    device = Machine.here(lambda line: console.print(f"  measures {line}")).device
    limits = Limits(device.peaks, device.memory_bandwidth)
    rows = tune(
        kernels,
        options,
        store,
        limits,
        seconds=seconds,
        clock=time.perf_counter,
        tensors=torch.from_numpy,
        again=again,
    )
    found, complete = watch(rows, len(kernels), console)
    console.print(_table(found))
    for line in _summary(found, len(kernels)):
        console.print(line)
    if complete and any(row.verdict.gain > 1 for row in found):
        ways = {
            name: partial(build(graph, Options(tuned=tuned)).executable.run, inputs)
            for name, tuned in (("before", False), ("after", True))
        }
        times = compare(ways, WHOLE_SECONDS, time.perf_counter)
        before, after = (summary(name, times[name]).seconds for name in ways)
        console.print(
            f"  the whole, in turns: {before * 1e3:.3f} ms before, {after * 1e3:.3f} ms after, "
            f"{before / after:.2f}x"
        )
        saved = sum(row.saved for row in found)
        console.print(f"  predicted from the kernels: {before / max(before - saved, 1e-9):.2f}x")
    if not complete:
        console.print(f"  stopped; what was measured is kept in {store.entries.folder}")
    return complete


def watch(rows: Iterator[Tuned], total: int, console: Console) -> tuple[list[Tuned], bool]:
    """Return what a tuner yields, with its progress shown; False if it was interrupted."""
    found: list[Tuned] = []
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[title]}"),
    )
    with suppress(KeyboardInterrupt), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("kernels", total=total, title="")
        for row in rows:
            found.append(row)
            bar.update(task, advance=1, title=row.asked.title)
        return found, True
    return found, False


def _table(found: Sequence[Tuned]) -> Table:
    table = Table(box=None, pad_edge=True)
    table.add_column("kernel", overflow="fold")
    for name in ("times", "default ms", "library ms", "best ms", "gain"):
        table.add_column(name, justify="right")
    table.add_column("taken")
    for row in sorted(found, key=lambda row: -row.saved)[:MOST]:
        usual, library, best = (
            "-" if timing is None else f"{timing.seconds * 1e3:.3f}"
            for timing in map(row.measured.timing, (row.asked.default, LIBRARY, row.verdict.choice))
        )
        taken = row.verdict.choice if row.verdict.gain > 1 else "the default"
        taken += " (known)" if row.known else ""
        gain = f"{row.verdict.gain:.2f}x"
        table.add_row(row.asked.title, str(row.count), usual, library, best, gain, taken)
    return table


def _summary(found: Sequence[Tuned], kernels: int) -> list[str]:
    """Return how many kernels there are, and why knobs were not tried."""
    better = sum(row.verdict.gain > 1 for row in found)
    measured = sum(not row.known for row in found)
    lines = [
        f"  {kernels} kernels: {measured} measured now, {len(found) - measured} known, "
        f"{kernels - len(found)} left for want of time; {better} have a better way"
    ]
    refused: Counter[str] = Counter()
    for row in found:
        refused.update(dict(row.refused))
    lines += [f"    {count} knobs not tried: {reason}" for reason, count in refused.most_common()]
    return lines
