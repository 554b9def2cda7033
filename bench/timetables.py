"""Timetables of pipelines beside what was published of them: bubbles, searches, times.

Run `python -m bench.timetables`.  The idea: the stage times that the zero-bubble paper measured go
in, and every bubble that it reports comes out of the simulator or of the search, under the memory
that its own timetables had.  Small problems are searched and proved, to see how far the search is
from the best.  Writes `bench/results/timetables.json`.  Does not measure a model.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bench import machine
from bench.published_timetables import ROWS, Row
from tilewright.parallel import (
    Budget,
    Problem,
    even_times,
    make_timetable,
    peak_activations,
    prove_timetable,
    search_timetable,
    simulate,
    verify_timetable,
)

OUT = Path(__file__).resolve().parent / "results" / "timetables.json"
LARGE = (32, 256)
SMALL = [(p, m) for p in (1, 2, 3, 4) for m in range(1, 7)]


def main() -> int:
    """Print and write all of it; 1 if a bubble is above the published one."""
    parser = argparse.ArgumentParser(description="timetables beside published bubbles")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    for row in ROWS:
        rows.append(_published(row))
        print(_line(rows[-1]))
    large, small = _large(), _small()
    print(f"simulating {LARGE[0]} stages x {LARGE[1]} micro-batches: {large['seconds']:.3f} s")
    proved = sum(one["optimal"] for one in small)
    print(f"proved optimal: {proved} of {len(small)} small problems")
    made = {
        "machine": machine.describe(),
        "date": machine.today(),
        "published": rows,
        "simulation": large,
        "proofs": small,
    }
    options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return int(any(one["above"] for one in rows))


def _published(row: Row) -> dict[str, Any]:
    """Return the published bubbles of a row and ours."""
    times = even_times(row.ranks, row.forward, row.input_grad, row.weight_grad, row.transfer)
    ours = {}
    for name in ("1f1b", "zb-h1", "zb-h2"):
        made = simulate(make_timetable(name, row.ranks, row.micro_batches), times)
        ours[name] = made.bubble_without_barrier.of_total
    ours["interleaved"] = _interleaved(row)
    found = {
        name: _searched(row, cap) for name, cap in (("zb-1p", row.ranks), ("zb-2p", 2 * row.ranks))
    }
    published = {
        "1f1b": row.one_f_one_b,
        "interleaved": row.interleaved,
        "zb-h1": row.h1,
        "zb-h2": row.h2,
        "zb-1p": row.h1,
        "zb-2p": row.two_p,
    }
    bubbles = ours | {name: one["bubble"] for name, one in found.items()}
    # Published bubbles are rounded to four digits.
    above = [name for name in found if bubbles[name] > published[name] + 5e-5]
    return {
        "row": str(row),
        "published": published,
        "ours": bubbles,
        "searches": found,
        "above": above,
    }


def _interleaved(row: Row) -> float:
    parts = [time / row.chunks for time in (row.forward, row.input_grad, row.weight_grad)]
    times = even_times(row.ranks * row.chunks, *parts, row.transfer)
    table = make_timetable("interleaved", row.ranks, row.micro_batches, row.chunks)
    return simulate(table, times).bubble.of_total


def _searched(row: Row, cap: int) -> dict[str, Any]:
    times = even_times(row.ranks, row.forward, row.input_grad, row.weight_grad, row.transfer)
    start = time.process_time()
    found = search_timetable(Problem(row.micro_batches, times, Budget(cap, 1.0, row.kept)))
    seconds = time.process_time() - start
    verify_timetable(found.timetable)
    peaks = peak_activations(found.timetable, (1.0,) * row.ranks, (row.kept,) * row.ranks)
    return {
        "cap": cap,
        "peak": max(peaks),
        "bubble": simulate(found.timetable, times).bubble_without_barrier.of_total,
        "cost": found.cost,
        "lower_bound": found.bound,
        "gap": found.gap,
        "trials": found.trials,
        "seconds": seconds,
    }


def _large() -> dict[str, Any]:
    ranks, micro_batches = LARGE
    table = make_timetable("zb-h2", ranks, micro_batches)
    times = even_times(ranks, 1.0, 0.9, 0.8, 0.05)
    start = time.process_time()
    simulate(table, times)
    return {"stages": ranks, "micro_batches": micro_batches, "seconds": time.process_time() - start}


def _small() -> list[dict[str, Any]]:
    """Search and prove small problems of equal times in the memory of 1F1B."""
    proofs = []
    for ranks, micro_batches in SMALL:
        problem = Problem(micro_batches, even_times(ranks), Budget(float(ranks)))
        searched = search_timetable(problem, trials=500)
        start = time.process_time()
        proved = prove_timetable(problem)
        proofs.append(
            {
                "stages": ranks,
                "micro_batches": micro_batches,
                "searched": searched.cost,
                "proved": proved.cost,
                "optimal": proved.optimal,
                "seconds": time.process_time() - start,
            }
        )
    return proofs


def _line(one: dict[str, Any]) -> str:
    words = [f"{one['row']:<10}"]
    for name, published in one["published"].items():
        words.append(f"{name} {published:.4f} -> {one['ours'][name]:.4f}")
    gap = one["searches"]["zb-2p"]["gap"]
    return "   ".join([*words, f"2p gap {gap:.2%}"])


if __name__ == "__main__":
    raise SystemExit(main())
