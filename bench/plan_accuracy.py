"""Predicted beside measured and published: steps on one node, on many, pipelines, collectives.

Run `python -m bench.plan_accuracy`.  The idea: seven constants of the machine, each within what
physics allows, are fitted to a tenth of the measured steps on one node; everything else is
predicted with them.  What a publication does not say (the size of micro-batches, chunks) is chosen
at its best, as its authors will have done.  Writes `bench/results/plan_accuracy.json`.

Other rows can be asked: `--rows FILE` of the form of `single_node.csv`, `--published FILE` with the
columns of `PUBLISHED`, an empty one being chosen.  The data folder is `../shared/data` beside the
project, or `--data DIR`.
"""

import argparse
import csv
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench import machine as host
from bench.published import COLLECTIVES, PIPELINES, PUBLISHED, Pipeline, Published
from tilewright.cost import Machine, ModelSpec, network_of, price
from tilewright.parallel import ParallelPlan, make_plan, predict

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
OUT = ROOT / "bench" / "results" / "plan_accuracy.json"
MACHINE = "dgx-a100-80g"
# What is fitted.  A large half-precision product on an A100 that is warm reaches about 240 of 312
# TFLOP/s, and passes over memory 1.6 of 2.04 TB/s: more than that explains nothing.
WITHIN = {
    "gemm_fraction": (0.5, 0.78),
    "memory_fraction": (0.5, 0.80),
    "product_seconds": (0.0, 1e-4),
    "operator_seconds": (0.0, 1e-3),
    "micro_batch_seconds": (0.0, 0.01),
    "loss_seconds": (0.0, 0.01),
    "straggler_seconds": (0.0, 1e-4),
}
SHARE = 0.1  # of the rows, that constants are fitted to
# What is not written in the rows: gradients in half precision are summed after the backward, every
# block is computed again, attention writes its scores; no dropout meets the rows better than some.
ASSUMED = {
    "recompute": "full", "attention": "unfused", "precision": "float16", "overlap": "none",
    "zero": 0, "sequence_parallel": False, "ep": 1, "cp": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step, in the words of the data's columns.  seconds: of the step."""

    devices: int
    batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    seq: int
    tp: int
    dp: int
    pp: int
    seconds: float

    @property
    def group(self) -> tuple[int, int, int]:
        """What the time of a layer depends on."""
        return self.hidden, self.tp, self.micro_batch


Rows = Sequence[Row]
Report = dict[str, Any]


# -------------------------------------------------------------------------------- steps on one node


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read rows of the form of `single_node.csv` (milliseconds in the last column)."""
    with path.open(encoding="utf-8") as lines:
        table = list(csv.reader(lines))[1:]
    return tuple(_row(row) for row in table)


def _row(words: Sequence[str]) -> Row:
    devices, batch, size, hidden, heads, layers, seq, tp, dp, pp = map(int, words[:10])
    seconds = float(words[10]) / 1e3
    return Row(devices, batch, size, hidden, heads, layers, seq, tp, dp, pp, seconds)


def step_seconds(machine: Machine, row: Row, layer_seconds: float | None = None) -> float:
    """Return what a step is predicted to take."""
    spec, plan, devices = _planned(replace(row, seconds=0.0))
    on = machine.with_devices(devices)
    return predict(plan, spec, on, layer_seconds=layer_seconds).step_seconds


@lru_cache(maxsize=1 << 14)
def _planned(row: Row) -> tuple[ModelSpec, ParallelPlan, int]:
    spec = ModelSpec.parse(
        f"gpt:layers={row.layers},hidden={row.hidden},heads={row.heads},vocab=50257,"
        f"positions={row.seq},dropout=no"
    )
    fix = {name: getattr(row, name) for name in ("tp", "dp", "pp", "micro_batch")}
    plan = make_plan(
        spec, Machine.parse(f"{MACHINE} x {row.devices}"), batch=row.batch, seq=row.seq,
        fix=ASSUMED | fix,
    )  # fmt: skip
    return spec, replace(plan, priced=None), row.devices


def split(rows: Rows, seed: int) -> tuple[list[Row], list[Row]]:
    """Return a tenth of the rows, drawn with a seed, and the rest."""
    order = np.random.default_rng(seed).permutation(len(rows))
    count = round(len(rows) * SHARE)
    return [rows[at] for at in order[:count]], [rows[at] for at in order[count:]]


def calibrated(machine: Machine, rows: Iterable[Row]) -> Machine:
    """Return the machine whose constants fit the rows best."""
    return machine.calibrate([(row, row.seconds) for row in rows], step_seconds, [*WITHIN], WITHIN)


def errors(machine: Machine, rows: Rows) -> list[float]:
    """Return relative errors, positive where too much is predicted."""
    return [step_seconds(machine, row) / row.seconds - 1 for row in rows]


def anchored_errors(machine: Machine, rows: Rows, seed: int) -> list[float]:
    """Return the errors where one row of each group, drawn with a seed, gives the layer's time."""
    order = [rows[at] for at in np.random.default_rng(seed).permutation(len(rows))]
    groups: dict[tuple[int, int, int], list[Row]] = {}
    for row in order:
        groups.setdefault(row.group, []).append(row)
    found = []
    for first, *others in groups.values():
        layer = layer_seconds(machine, first)
        found += [step_seconds(machine, row, layer) / row.seconds - 1 for row in others]
    return found


def layer_seconds(machine: Machine, row: Row) -> float:
    """Return the time of a layer and micro-batch with which a step takes what was measured.

    The prediction grows with it, nearly in proportion; found by bisection.
    """
    low, high = 1e-6, 1.0
    for _ in range(50):
        middle = (low * high) ** 0.5
        if step_seconds(machine, row, middle) < row.seconds:
            low = middle
        else:
            high = middle
    return low


def judge_single_node(machine: Machine, rows: Rows, seeds: int) -> Report:
    """Return errors on rows that nothing was fitted to, for each seed, and from narrow to wide."""
    found: Report = {"rows": len(rows), "seeds": []}
    for seed in range(seeds):
        sample, rest = split(rows, seed)
        fitted = calibrated(machine, sample)
        constants = {name: fitted.value(name) for name in WITHIN}
        anchored = anchored_errors(fitted, rows, seed)
        found["seeds"].append(
            {"seed": seed, "constants": constants, **_summary(errors(fitted, rest)),
             "anchored": _summary(anchored)}
        )  # fmt: skip
    narrow = min(row.hidden for row in rows)
    fitted = calibrated(machine, [row for row in split(rows, 0)[0] if row.hidden == narrow])
    found["fitted_on_hidden"] = narrow
    found["wider"] = _summary(errors(fitted, [row for row in rows if row.hidden > narrow]))
    return found


def judge_asked(machine: Machine, rows: Rows, known: Rows, seeds: int) -> Report:
    """Return the errors on other rows: with the machine's constants, and fitted to known ones."""
    found: Report = {"preset": _summary(errors(machine, rows)), "seeds": []}
    for seed in range(seeds if len(known) * SHARE >= len(WITHIN) else 0):
        fitted = calibrated(machine, split(known, seed)[0])
        found["seeds"].append({"seed": seed, **_summary(errors(fitted, rows))})
    return found


# ------------------------------------------------------------------------------- published on many


def published_seconds(machine: Machine, row: Published) -> tuple[float, ParallelPlan] | None:
    """Return the shortest predicted step over what is not published, and its plan."""
    spec = ModelSpec.parse(
        f"gpt:layers={row.layers},hidden={row.hidden},heads={row.heads},vocab=51200,positions=2048"
    )
    on = machine.with_devices(row.devices)
    best: tuple[float, ParallelPlan] | None = None
    dp = row.devices // (row.tp * row.pp)
    fixed = dict(ASSUMED) | {
        "tp": row.tp, "pp": row.pp, "dp": dp, "recompute": row.recompute, "zero": row.zero,
        "sequence_parallel": row.sequence_parallel, "overlap": "data" if row.zero == 3 else "none",
    }  # fmt: skip
    sizes = (row.micro_batch,) if row.micro_batch else (1, 2, 4, 8, 16)
    cuts = (row.chunks,) if row.chunks else range(1, 9)
    for size, chunks in itertools.product(sizes, cuts):
        if (row.batch % (dp * size)) or not _cut_is_legal(row, size, chunks):
            continue
        plan = make_plan(
            spec, on, batch=row.batch, seq=2048, fix=fixed | {"micro_batch": size, "chunks": chunks}
        )
        if plan.predicted.fits and (best is None or plan.predicted.step_seconds < best[0]):
            best = plan.predicted.step_seconds, plan
    return best


def _cut_is_legal(row: Published, size: int, chunks: int) -> bool:
    """Megatron interleaves equal chunks, and whole rounds of the pipeline."""
    each = row.batch * row.tp * row.pp // (row.devices * size)
    if chunks == 1:
        return True
    return row.pp > 1 and row.layers % (row.pp * chunks) == 0 and each % row.pp == 0


def judge_published(machine: Machine, rows: Iterable[Published]) -> list[Report]:
    """Return for each published step what is predicted, and the error."""
    found: list[Report] = []
    for row in rows:
        best = published_seconds(machine, row)
        if best is None:
            found.append({"table": row.table, "name": row.name, "error": None})
            continue
        seconds, plan = best
        found.append(
            {"table": row.table, "name": row.name, "published": row.seconds, "predicted": seconds,
             "error": seconds / row.seconds - 1, "micro_batch": plan.micro_batch,
             "chunks": plan.chunks, "parts": dict(plan.predicted.breakdown.rows)}
        )  # fmt: skip
    return found


def judge_pipelines(machine: Machine, rows: Iterable[Pipeline]) -> list[Report]:
    """Return samples per device and second of published pipelines beside what is predicted."""
    found = []
    for row in rows:
        for name, timetable, chunks, samples in row.measured:
            plan = _pipelined(machine, row, timetable, chunks)
            predicted = plan.batch / (plan.predicted.step_seconds * row.stages)
            found.append(
                {"name": f"{row.name} m={row.micro_batches} {name}", "published": samples,
                 "predicted": predicted, "error": samples / predicted - 1}
            )  # fmt: skip
    return found


def _pipelined(machine: Machine, row: Pipeline, timetable: str, chunks: int) -> ParallelPlan:
    spec = f"gpt:layers={row.layers},hidden={row.hidden},heads={row.heads},vocab=50257"
    return make_plan(
        spec, machine.with_devices(row.stages), batch=row.micro_batches * row.micro_batch, seq=1024,
        fix={"tp": 1, "dp": 1, "pp": row.stages, "micro_batch": row.micro_batch,
             "timetable": timetable, "chunks": chunks, "recompute": "none",
             "attention": "unfused", "overlap": "all"},
    )  # fmt: skip


def judge_stages(machine: Machine, rows: Iterable[Pipeline]) -> list[Report]:
    """Return the seconds of a micro-batch on a stage in the middle beside what was measured."""
    found = []
    for row in rows:
        plan = _pipelined(machine, row, "zb-h1", 1)
        simulation = plan.predicted.simulation
        first = zip(simulation.timetable.ranks[1], simulation.starts[1], simulation.ends[1],
                    strict=True)  # fmt: skip
        passes = {part.kind: end - start for ((part,), start, end) in first}
        predicted = [passes[kind] for kind in ("F", "B", "W")]
        found.append(
            {"name": f"{row.name} m={row.micro_batches} F+B+W of a stage, ms",
             "published": 1e3 * sum(row.passes), "predicted": 1e3 * sum(predicted),
             "error": sum(predicted) / sum(row.passes) - 1, "passes": predicted}
        )  # fmt: skip
    return found


def judge_collectives(data: Path) -> list[Report]:
    """Return mean and greatest error of measured all-reduces, 1 MiB to 1 GiB, inside one node."""
    found = []
    for preset, file, ranks in COLLECTIVES:
        machine = Machine.parse(preset)
        network = replace(network_of(machine, range(ranks)), combining=float("inf"))
        with (data / "vtrain" / file).open(encoding="utf-8") as lines:
            table = [(float(row[0]), float(row[3]) / 1e9) for row in list(csv.reader(lines))[1:]]
        start = machine.constants.collective_seconds
        off = [
            (start + price("all-reduce", "ring", network, size).seconds) / seconds - 1
            for size, seconds in table
        ]
        found.append({"name": f"{preset}, {ranks} devices", **_summary(off)})
    return found


# ------------------------------------------------------------------------------------- the report


def _summary(off: Sequence[float]) -> Report:
    sizes = np.abs(np.asarray(off))
    return {
        "rows": len(off), "mean": float(sizes.mean()), "median": float(np.median(sizes)),
        "greatest": float(sizes.max()), "bias": float(np.mean(off)),
    }  # fmt: skip


def read_published(path: Path) -> tuple[Published, ...]:
    """Read published steps of a file whose columns are the fields of `Published`."""
    with path.open(encoding="utf-8") as lines:
        return tuple(_published(row) for row in csv.DictReader(lines))


def _published(row: Mapping[str, str]) -> Published:
    words = {"table", "name", "recompute"}
    values: dict[str, Any] = {}
    for name, text in row.items():
        if name == "seconds":
            values[name] = float(text)
        elif name == "sequence_parallel":
            values[name] = text.strip().lower() in ("yes", "true", "1")
        else:
            values[name] = text if name in words else int(text or 0)
    return Published(**values)


def _show(console: Console, whole: Report) -> None:
    if "asked" in whole:
        console.print(f"the rows asked, with the preset's constants: {whole['asked']['preset']}")
        for row in whole["asked"]["seeds"]:
            console.print(
                f"seed {row['seed']}: {row['mean']:.2%} mean over {row['rows']} rows asked"
            )
    single = whole.get("single_node")
    if single:
        for row in single["seeds"]:
            console.print(
                f"seed {row['seed']}: {row['mean']:.2%} mean over {row['rows']} rows that nothing "
                f"was fitted to; {row['anchored']['mean']:.2%} with one measured time a group"
            )
        wider = single["wider"]
        console.print(
            f"fitted on hidden {single['fitted_on_hidden']} alone, wider ones: {wider['mean']:.2%}"
        )
    for name in ("published", "stages", "pipelines"):
        rows = [row for row in whole.get(name, ()) if row["error"] is not None]
        for row in rows:
            console.print(
                f"{row.get('table', ''):<16} {row['name']:<40} published {row['published']:8.3f} "
                f"predicted {row['predicted']:8.3f}  {row['error']:+.1%}"
            )
        for table in sorted({row.get("table", name) for row in rows}):
            off = [row["error"] for row in rows if row.get("table", name) == table]
            console.print(f"  {table}: {np.abs(off).mean():.2%} mean of {len(off)} rows")
    for row in whole.get("collectives", ()):
        console.print(f"all-reduce {row['name']}: {row['mean']:.2%} mean, {row['greatest']:.0%}")


def main(words: Sequence[str] | None = None) -> None:
    """Judge, print and write."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    arguments.add_argument("--data", type=Path, default=DATA)
    arguments.add_argument("--rows", type=Path, help="other steps, in the form of single_node.csv")
    arguments.add_argument("--published", type=Path, help="steps, in the columns of Published")
    arguments.add_argument("--machine", default=MACHINE, help="of --rows: a link may be overridden")
    arguments.add_argument(
        "--constants", action="store_true", help="fit those that presets ship, print, and stop"
    )
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--out", type=Path, default=OUT)
    asked = arguments.parse_args(words)
    machine = Machine.parse(asked.machine)
    if asked.constants:
        rows = read_rows(asked.data / "vtrain" / "single_node.csv")
        print(calibrated(machine, rows[::3]))
        return
    whole: Report = {
        "date": host.today(), "host": host.describe(), "machine": asked.machine,
        "constants": {name: machine.value(name) for name in WITHIN},
        "constants_from": "every third row of single_node.csv (--constants)",
        "within": WITHIN,
    }  # fmt: skip
    if asked.rows:
        table = asked.data / "vtrain" / "single_node.csv"
        known = read_rows(table) if table.exists() else ()
        whole["asked"] = judge_asked(machine, read_rows(asked.rows), known, asked.seeds)
    elif asked.published:
        whole["published"] = judge_published(machine, read_published(asked.published))
    else:
        rows = read_rows(asked.data / "vtrain" / "single_node.csv")
        whole["single_node"] = judge_single_node(machine, rows, asked.seeds)
        whole["published"] = judge_published(machine, PUBLISHED)
        whole["stages"] = judge_stages(machine, PIPELINES)
        whole["pipelines"] = judge_pipelines(machine, PIPELINES)
        whole["collectives"] = judge_collectives(asked.data)
    console = Console(highlight=False, soft_wrap=True)
    _show(console, whole)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
