"""Run PyTorch's operator database through the back end, and write docs/operator_database.md.

    python scripts/operator_database.py run --dtype float32 --most 12 --jobs 2
    python scripts/operator_database.py page

The idea: workers take one operator at a time and say a line of JSON for every sample; what they
said is kept in a file for each element type, so that a run that was broken off goes on where it
stopped, and a worker that dies (a crash is a finding) is replaced.
This script does not know how a sample is judged: tests/conformance/database.py does.
"""

import argparse
import json
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "out" / "operator_database"
PAGE = ROOT / "docs" / "operator_database.md"
TYPES = ("float32", "bfloat16")
Line = dict[str, Any]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run", help="judge the samples that no earlier run has judged")
    runs.add_argument("--dtype", choices=TYPES, default=TYPES[0])
    runs.add_argument("--most", type=int, default=0, help="samples of an operator (0: all)")
    runs.add_argument("--jobs", type=int, default=1)
    runs.add_argument("--only", nargs="*", default=[], help="operators to judge again")
    runs.add_argument("--again", nargs="*", default=[], help="kinds of verdict to judge again")
    verbs.add_parser("page", help="write the page from what the runs have kept")
    works = verbs.add_parser("work", help="what a worker runs")
    works.add_argument("--dtype", choices=TYPES, required=True)
    works.add_argument("--most", type=int, default=0)
    given = parser.parse_args(arguments)
    match given.verb:
        case "work":
            return work(given.dtype, given.most)
        case "page":
            sys.path.insert(0, str(ROOT))
            from tests.conformance.database import TORCH_IS_WRONG, count

            verdicts = {name: read(name) for name in TYPES}
            text = render(verdicts, {name: count(name) for name in TYPES}, TORCH_IS_WRONG)
            PAGE.write_text(text, encoding="utf-8")
            print(f"{PAGE.relative_to(ROOT)} is written")
            return 0
    lines = sweep(given.dtype, given.most, given.jobs, given.only, given.again)
    counts = Counter(line["kind"] for line in lines)
    print(", ".join(f"{kind} {count}" for kind, count in counts.most_common()))
    return 1 if counts["wrong"] or counts["crash"] else 0


# ---------------------------------------------------------------------------- the worker


def work(dtype: str, most: int) -> int:
    """Judge operators: a line of the standard input is a name and the samples to leave out."""
    import logging
    import warnings

    import torch
    from torch._dynamo import guards

    sys.path.insert(0, str(ROOT))
    from tests.conformance import database

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    guards.profile_guard_manager = lambda *_: 0.0  # it empties the processor's caches each time
    # The database seeds before each sample: devices that are not there note a stack each time.
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda _: None
    chosen = getattr(torch, dtype)
    known = {database.name_of(operator): operator for operator in database.operators(chosen)}
    _say({"operators": list(known)})
    for request in sys.stdin:
        name, done = json.loads(request)
        for at, verdict in database.judge_samples(known[name], chosen, most, done):
            _say({"op": name, "sample": at, "kind": verdict.kind, "detail": verdict.detail})
        torch._dynamo.reset()
        _say({"op": name, "done": True})
    return 0


def _say(line: Line) -> None:
    print(json.dumps(line), flush=True)


# ---------------------------------------------------------------------------- the runs


def sweep(dtype: str, most: int, jobs: int, only: list[str], again: list[str]) -> list[Line]:
    """Judge what has not been judged, with a bar that says how far it is; return all verdicts."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    KEPT.mkdir(parents=True, exist_ok=True)
    first = Worker(dtype, most)
    before = read(dtype)
    dropped = {*only, *(line["op"] for line in before if line["kind"] in again)}
    lines = [line for line in before if line["op"] not in dropped]
    done: dict[str, list[int]] = {}
    for line in lines:
        done.setdefault(line["op"], []).append(line["sample"])
    todo = [name for name in first.operators if not only or name in only]
    _path(dtype).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in todo:
        waiting.put(name)
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn()) as progress:
        bar = progress.add_task(dtype, total=len(todo))

        def keep(line: Line) -> None:
            with lock, _path(dtype).open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(line) + "\n")
                lines.append(line)

        def serve(worker: "Worker") -> None:
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return worker.stop()
                worker = worker.judge(name, done.get(name, []), keep)
                with lock:
                    bad = sum(line["kind"] in ("wrong", "crash") for line in lines)
                    progress.update(bar, advance=1, description=f"{dtype}: {bad} wrong, {name}")

        more = [Worker(dtype, most) for _ in range(jobs - 1)]
        threads = [threading.Thread(target=serve, args=(worker,)) for worker in (first, *more)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return lines


class Worker:
    """A process that judges operators; one that has died is replaced by another."""

    def __init__(self, dtype: str, most: int) -> None:
        self.dtype, self.most = dtype, most
        self.process = subprocess.Popen(
            [sys.executable, __file__, "work", "--dtype", dtype, "--most", str(most)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.operators: list[str] = next(self._lines())["operators"]

    def _lines(self) -> Iterator[Line]:
        assert self.process.stdout is not None, "the worker's output is a pipe"
        for text in self.process.stdout:
            if text.startswith("{"):
                yield json.loads(text)

    def judge(self, name: str, done: list[int], keep: Callable[[Line], None]) -> "Worker":
        """Hand on the verdicts of an operator; return the worker for the next one."""
        assert self.process.stdin is not None, "the worker's input is a pipe"
        self.process.stdin.write(json.dumps([name, done]) + "\n")
        self.process.stdin.flush()
        last = -1
        for line in self._lines():
            if line.get("done"):
                return self
            last = line["sample"]
            keep(line)
        said = f"the process ended with {self.process.wait()} after sample {last}"
        keep({"op": name, "sample": -1, "kind": "crash", "detail": said})
        return Worker(self.dtype, self.most)

    def stop(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None, "the worker's input is a pipe"
        self.process.stdin.close()
        self.process.wait()


def _path(dtype: str) -> Path:
    return KEPT / f"{dtype}.jsonl"


def read(dtype: str) -> list[Line]:
    """Return the verdicts kept for an element type."""
    if not _path(dtype).exists():
        return []
    return [json.loads(text) for text in _path(dtype).read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------------- the page


def render(
    verdicts: dict[str, list[Line]], totals: dict[str, int], by_design: dict[str, str]
) -> str:
    """Return the page: what runs, what does not and why, for each element type.

    totals: how many samples the database has for it.
    """
    verdicts = {dtype: lines for dtype, lines in verdicts.items() if lines}
    tables = {dtype: _by_operator(lines) for dtype, lines in verdicts.items()}
    parts = [
        "# PyTorch's operator database",
        "Written by `python scripts/operator_database.py page`; do not edit. Samples of every "
        'operator run through `torch.compile(backend="tilewright")` and in eager. Types, shapes, '
        "strides, aliases, what asks for gradients, values, the sign of zeros and gradients are "
        "compared; where values are not the same to the bit, eager in float64 is the judge of "
        "both. Up to sixteen samples of an operator are one function while all of them run, else "
        "each is judged alone. Samples whose integers eager refuses when they are far out of range "
        "are run with such: the exception is to be of eager's type. These are the verdicts kept so "
        "far: `run --most N` judges N samples of each operator from all over its list, `run` all "
        "of them, and leaves out what has been judged.",
        _summary(tables, totals),
        "An operator *runs* if every sample asked of it is computed by our Programs, in kernels of "
        "our own or with calls of ATen in them. *Outside* are complex numbers, sparse layouts, "
        "results that depend on values, and what eager refuses.",
        "## What does not run",
        _left(tables),
        "## Not torch's, by design",
        "\n".join(f"- `{name}`: {reason}." for name, reason in by_design.items()),
        "## Outside",
        _outside(tables),
        "## Calls of ATen",
        "What has no loops of ours, at least for one sample, and which call stands for it.",
        _calls(tables),
    ]
    return "\n\n".join(parts) + "\n"


Table = dict[str, list[Line]]
BAD = ("wrong", "crash", "fallback", "empty", "broken")


def _by_operator(lines: list[Line]) -> Table:
    found: Table = {}
    for line in lines:
        found.setdefault(line["op"], []).append(line)
    return found


def state_of(lines: list[Line]) -> str:
    """Return what became of an operator: the worst that became of a sample asked of it."""
    asked = {line["kind"] for line in lines} - {"outside", "refused"}
    if not asked:
        return "outside"
    return next((kind for kind in (*BAD, "library") if kind in asked), "ours")


def _summary(tables: dict[str, Table], totals: dict[str, int]) -> str:
    lines = [
        "| | " + " | ".join(tables) + " |",
        "|---|" + "---|" * len(tables),
    ]
    counts = {dtype: Counter(map(state_of, table.values())) for dtype, table in tables.items()}
    samples = {
        dtype: sum(line["kind"] not in ("outside", "refused") for line in _lines(table))
        for dtype, table in tables.items()
    }
    refused = {
        dtype: sum(line["kind"] == "refused" for line in _lines(table))
        for dtype, table in tables.items()
    }
    judged = {dtype: len(_lines(table)) - refused[dtype] for dtype, table in tables.items()}
    rows: list[tuple[str, dict[str, object]]] = [
        ("samples judged", {d: f"{count:,} of {totals[d]:,}" for d, count in judged.items()}),
        (
            "of these, inside and compared",
            {dtype: f"{count:,}" for dtype, count in samples.items()},
        ),
        ("bad indices, refused as eager does", {d: f"{n:,}" for d, n in refused.items()}),
        ("operators asked", {d: sum(c.values()) - c["outside"] for d, c in counts.items()}),
        ("run", {d: _share(c) for d, c in counts.items()}),
        ("of these, without a call of ATen", {d: c["ours"] for d, c in counts.items()}),
        ("some sample left to eager", {d: c["fallback"] for d, c in counts.items()}),
        (
            "some sample no graph of Dynamo's",
            {d: c["empty"] + c["broken"] for d, c in counts.items()},
        ),
        ("**wrong**", {d: c["wrong"] + c["crash"] for d, c in counts.items()}),
        ("operators outside", {d: c["outside"] for d, c in counts.items()}),
    ]
    for title, values in rows:
        lines.append(f"| {title} | " + " | ".join(str(values[dtype]) for dtype in tables) + " |")
    return "\n".join(lines)


def _lines(table: Table) -> list[Line]:
    return [line for found in table.values() for line in found]


def _share(counts: Counter[str]) -> str:
    runs, asked = counts["ours"] + counts["library"], sum(counts.values()) - counts["outside"]
    return f"{runs} ({100 * runs / max(asked, 1):.1f} %)"


def _left(tables: dict[str, Table]) -> str:
    lines = ["| operator | type | samples | why |", "|---|---|---|---|"]
    for dtype, table in tables.items():
        for name, found in sorted(table.items()):
            reasons = Counter(_reason(line) for line in found if line["kind"] in BAD)
            for reason, count in reasons.items():
                lines.append(f"| `{name}` | {dtype} | {count} of {len(found)} | {reason} |")
    return "\n".join(lines) if len(lines) > 2 else "Nothing: all of it runs."


def _reason(line: Line) -> str:
    """Return the first line of why, and what was found, for a cell of a table."""
    first, *rest = line["detail"].split("\n")
    found = next((text.split(None, 1)[1] for text in rest if text.startswith("  found")), "")
    said = f"{line['kind']}: {first}" if line["kind"] in ("wrong", "crash") else first
    return (f"{said} ({found})" if found else said).replace("|", "\\|")


def _outside(tables: dict[str, Table]) -> str:
    reasons: dict[str, set[str]] = {}
    for table in tables.values():
        for name, found in table.items():
            for line in found:
                if line["kind"] == "outside":
                    reasons.setdefault(line["detail"], set()).add(name)
    lines = [
        f"- {reason}: {', '.join(f'`{name}`' for name in sorted(names))}"
        for reason, names in sorted(reasons.items())
    ]
    return "\n".join(lines)


def _calls(tables: dict[str, Table]) -> str:
    calls: dict[str, set[str]] = {}
    for table in tables.values():
        for name, found in table.items():
            for line in found:
                if line["kind"] == "library":
                    for target in line["detail"].split(", "):
                        calls.setdefault(target, set()).add(name)
    lines = ["| call | for |", "|---|---|"]
    for target, names in sorted(calls.items()):
        lines.append(f"| `{target}` | {', '.join(f'`{name}`' for name in sorted(names))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
