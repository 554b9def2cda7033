"""All-reduces of ours and torch's over Gloo between processes of one host, beside the model's.

Run `torchrun --standalone --nproc-per-node 4 -m bench.collectives`.  The idea: a latency and a
bandwidth are fitted to the ring's times among two processes and more; every other algorithm is then
predicted on these links, and both stand side by side.  Messages and bytes are held against the
programs' as they run.  Writes `bench/results/collectives.json`.

On one host the processes share its cores and memory, which the model's links do not.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from bench import machine
from tilewright.cost import (
    MessageProgram,
    Network,
    build_program,
    fit_times,
    price,
    program_of,
    show_quantity,
)
from tilewright.runtime.messages import agree, run_messages

OUT = Path(__file__).resolve().parent / "results" / "collectives.json"
FITTED = "ring"
OTHERS = ("doubling", "rabenseifner", "bruck", "binomial", "chain")
SIZES = tuple(1 << k for k in range(10, 25, 2))
TORCH = "torch's own"

Times = dict[str, dict[int, float]]
"""Seconds, by algorithm and size in bytes."""


def main() -> None:
    """Measure, and print and write on the first rank."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument(
        "--most", type=int, default=SIZES[-1], help="bytes of the largest vector"
    )
    arguments.add_argument("--out", type=Path, default=OUT)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sizes = [size for size in SIZES if size <= asked.most]
    groups = [dist.new_group(list(range(n))) for n in range(2, dist.get_world_size() + 1)]
    found = []
    for ranks, group in enumerate(groups, 2):
        if dist.get_rank() < ranks:
            found.append(_report(ranks, _measure(ranks, group, sizes, asked.repeats)))
        dist.barrier()
    if dist.get_rank() == 0:
        _show(found)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        whole = {
            "machine": machine.describe(), "date": machine.today(), "torch": torch.__version__,
            "repeats": asked.repeats, "ranks": found,
        }  # fmt: skip
        asked.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


def _measure(ranks: int, group: Any, sizes: list[int], repeats: int) -> Times:
    """Time the ring and torch's own; the others in as many segments as the ring's links ask for."""
    ring = build_program("all-reduce", FITTED, ranks)
    times: Times = {FITTED: {}, TORCH: {}, **{name: {} for name in OTHERS}}
    for size in sizes:
        vector = torch.ones(size // 4)
        times[FITTED][size] = _seconds(partial(_run, ring, vector, group), group, repeats)
        torchs = partial(dist.all_reduce, vector, group=group)
        times[TORCH][size] = _seconds(torchs, group, repeats)
    network = _network(ranks, times[FITTED])
    for name in OTHERS:
        for size in sizes:
            vector = torch.ones(size // 4)
            program = program_of(price("all-reduce", name, network, size), network)
            agree(program, elements=len(vector), dtype=vector.dtype, group=group)
            times[name][size] = _seconds(partial(_run, program, vector, group), group, repeats)
    return times


def _run(program: MessageProgram, vector: torch.Tensor, group: Any) -> None:
    found, traffic = run_messages(program, vector, elements=len(vector), group=group)
    planned = program.traffic(dist.get_rank(group), len(vector))
    assert (traffic.messages_sent, traffic.bytes_sent // 4) == planned, "all is sent as planned"
    assert float(found[0]) == program.ranks, "every rank's one is in the sum"


def _seconds(call: Callable[[], object], group: Any, repeats: int) -> float:
    """Return the median of the slowest rank's times, the same on all ranks."""
    taken = []
    for _ in range(repeats + 2):
        dist.barrier(group)
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    slowest = torch.tensor(taken[2:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
    return statistics.median(slowest.tolist())


def _network(ranks: int, ring: dict[int, float]) -> Network:
    return Network((fit_times("all-reduce", ranks, ring.items()).level(FITTED),))


def _report(ranks: int, times: Times) -> dict[str, Any]:
    """Return what was fitted and, for each algorithm and size, what was measured and predicted."""
    fitted = fit_times("all-reduce", ranks, times[FITTED].items())
    network = _network(ranks, times[FITTED])
    rows = [
        {"algorithm": name, "bytes": size, "measured": seconds,
         "predicted": None if name == TORCH else price("all-reduce", name, network, size).seconds}
        for name, column in times.items()
        for size, seconds in column.items()
    ]  # fmt: skip
    return {
        "ranks": ranks, "latency": fitted.latency, "bus_bandwidth": fitted.bandwidth,
        "mean_error": fitted.mean_error, "worst_error": fitted.worst_error, "rows": rows,
    }  # fmt: skip


def _show(found: list[dict[str, Any]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for group in found:
        console.print(
            f"{group['ranks']} processes: the ring is {_short(group['latency'], 's')} + bytes at "
            f"{_short(group['bus_bandwidth'], 'B/s')}, off by {group['mean_error']:.0%} on average"
        )
        for row in group["rows"]:
            said = "" if row["predicted"] is None else f"predicted {_short(row['predicted'], 's')}"
            size, seconds = f"{row['bytes'] / 1024:.0f}KiB", _short(row["measured"], "s")
            console.print(f"  {row['algorithm']:<13} {size:>9} {seconds:>9}   {said}")


def _short(value: float, unit: str) -> str:
    return show_quantity(float(f"{value:.3g}"), unit)


if __name__ == "__main__":
    main()
