"""Training and inference of the models against every peer on this CPU.

Run `python -m bench.cpu_models`.  The idea: one match per model and mode; in it every contender
starts from the same weights and batch, must observe the reference's numbers, and is timed in
alternating blocks.  Writes `bench/results/cpu_models.json` and the README's tables.  Does not know
how a contender works.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import cases, machine, table
from bench.contest import Entry, Rules, Score, race
from bench.intervals import median_interval, ratio_interval
from bench.worker import CEILING, CONTENDERS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
MAIN_CONTENDERS = tuple(contender.name for contender in CONTENDERS)
SAVED = "tilewright-saved"
PEERS = ("jax", "onnxruntime")
FOR_INFERENCE = ("compile-freezing", "onnxruntime", SAVED)

# A contender whose numbers differ more than this from float64 is not doing the same work.
AGREEMENT = 1e-3
QUICK = Rules(blocks=5, seconds=0.2, pause=0.1, repeats=5)
QUICK_MODELS = ("mlp", "gpt-small")
QUICK_CONTENDERS = ("tilewright", "eager", "compile-default", *PEERS)


@dataclass(frozen=True, slots=True)
class Asked:
    """One run: which models, modes and contenders, by which rules, with how many threads."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    contenders: tuple[str, ...]
    rules: Rules
    threads: int
    peers: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks; 1 if any contender that was asked for failed."""
    options = _parser().parse_args(arguments)
    asked = _asked(options)
    name = "cpu_models.quick.json" if options.quick else "cpu_models.json"
    out = options.out or RESULTS / name
    failed = False
    for case in (case for case in cases.CASES if case.name in asked.models):
        for mode in asked.modes:
            match = run_match(case, mode, asked)
            failed |= any("error" in result for result in match["contenders"].values())
            results = merge(_stored(out), match, machine.describe() | {"threads": asked.threads})
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(results, indent=1) + "\n")
    print(table.render(json.loads(out.read_text())))
    _tell(f"wrote {out}")
    if options.readme is not None:
        table.write_readme(options.readme, json.loads(out.read_text()))
        _tell(f"wrote the tables of {options.readme}")
    return int(failed)


def run_match(case: cases.Case, mode: str, asked: Asked) -> dict[str, Any]:
    """Race all contenders on one model in one mode and judge the scores."""
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as place:
        scratch = Path(place)
        loaded = cases.build(case)
        cases.write(loaded, scratch)
        entries, absent = _entries(mode, asked, scratch)
        scores = race(entries, scratch, asked.rules, lambda t: _tell(f"{case.name} {mode}: {t}"))
        expected = cases.reference(loaded, mode)
    scores |= {name: Score(error=reason) for name, reason in absent.items()}
    return judge(case, mode, scores, expected, cases.flops(case, mode))


def judge(
    case: cases.Case, mode: str, scores: dict[str, Score], expected: list[float], flops: int
) -> dict[str, Any]:
    """The match as it is stored: medians with intervals, fractions of the limit, errors."""
    ceiling = scores[CEILING]
    if ceiling.error:
        raise RuntimeError(f"the ceiling that sets the limit could not be timed: {ceiling.error}")
    rate = ceiling.observed[0] / median_interval(_samples(ceiling)).median
    contenders: dict[str, dict[str, Any]] = {}
    for name, score in scores.items():
        if name == CEILING:
            continue
        result = _result(name, score, expected)
        if "error" in result:
            _tell(f"{case.name} {mode}: {name} is out: {result['error']}")
        else:
            result["fraction_of_limit"] = flops / rate / (result["median_ms"] / 1e3)
        contenders[name] = result
    return {
        "model": case.name,
        "label": case.label,
        "mode": mode,
        "date": machine.today(),
        "flops": flops,
        "ceiling_gflops": rate / 1e9,
        "limit_ms": 1e3 * flops / rate,
        "best_peer_over_ours": _best_peer_over_ours(contenders),
        "contenders": contenders,
    }


def merge(
    stored: dict[str, Any] | None, match: dict[str, Any], here: dict[str, str | int | float]
) -> dict[str, Any]:
    """`stored` with `match` in the place of an older one; another machine's results are dropped.

    The system's build is not the machine: each match has its date.
    """
    same = stored is not None and _hardware(stored["machine"]) == _hardware(here)
    kept = stored["matches"] if stored is not None and same else []
    others = [m for m in kept if (m["model"], m["mode"]) != (match["model"], match["mode"])]
    order = {case.name: i for i, case in enumerate(cases.CASES)}
    matches = sorted([*others, match], key=lambda m: (order.get(m["model"], 99), m["mode"]))
    return {"machine": here, "matches": matches}


def _hardware(described: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in described.items() if key != "system"}


def _result(name: str, score: Score, expected: list[float]) -> dict[str, Any]:
    if score.error:
        return {"error": score.error}
    difference = cases.largest_difference(score.observed, expected)
    if difference > AGREEMENT:
        return {"error": f"computes something else: differs from float64 by {difference:.1e}"}
    interval = median_interval(_samples(score))
    compiles = name != "eager"
    return {
        "median_ms": 1e3 * interval.median,
        "low_ms": 1e3 * interval.low,
        "high_ms": 1e3 * interval.high,
        "samples_ms": [1e3 * sample for sample in _samples(score)],
        "disturbed_blocks": sum(block.disturbed for block in score.blocks),
        "thrown_away": score.thrown_away,
        "peak_mib": score.peak_mib,
        "cold_seconds": score.cold_seconds if compiles else None,
        "cold_foreign": score.cold_foreign if compiles else None,
        "largest_difference": difference,
        "notes": score.notes,
    }


def _best_peer_over_ours(contenders: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    valid = {name: result for name, result in contenders.items() if "error" not in result}
    ours = valid.get(table.OURS)
    valid = {name: result for name, result in valid.items() if not name.startswith(table.OURS)}
    if ours is None or not valid:
        return None
    best = min(valid, key=lambda name: float(valid[name]["median_ms"]))
    ratio = ratio_interval(valid[best]["samples_ms"], ours["samples_ms"])
    return asdict(ratio) | {"peer": best}


def _samples(score: Score) -> list[float]:
    return [block.seconds_per_step for block in score.blocks]


# Processes --------------------------------------------------------------------------------------


def _entries(mode: str, asked: Asked, scratch: Path) -> tuple[list[Entry], dict[str, str]]:
    """The processes to start, and why the others asked for are absent."""
    entries = [_entry(CEILING, mode, asked, scratch)]
    absent: dict[str, str] = {}
    for name in asked.contenders:
        if mode == "train" and name in FOR_INFERENCE:
            continue
        if name in PEERS and not asked.peers.exists():
            absent[name] = f"no peers' environment at {asked.peers}: run `make bench`"
            continue
        if name in ("onnxruntime", SAVED):
            reason = _export(name, asked, scratch)
            if reason:
                absent[name] = reason
                continue
        entries.append(_entry(name, mode, asked, scratch))
    return entries, absent


def _entry(name: str, mode: str, asked: Asked, scratch: Path) -> Entry:
    threads = str(asked.threads)
    command: tuple[str, ...]
    match name:
        case "jax":
            command = (str(asked.peers), "-m", "bench.peers_jax", mode, str(scratch))
        case "onnxruntime":
            peer = (str(asked.peers), "-m", "bench.peers_onnx")
            command = (*peer, "serve", str(scratch), threads)
        case _ if name == SAVED:
            command = (sys.executable, "-m", "bench.saved", "serve", str(scratch))
        case _:
            command = (sys.executable, "-m", "bench.worker", name, mode, str(scratch), threads)
    return Entry(name, command, ROOT, _environment(asked, scratch / f"cache-{name}"))


def _environment(asked: Asked, cache: Path) -> dict[str, str]:
    """This process's, with every cache empty and the same number of threads for all."""
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": str(asked.threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TILEWRIGHT_CACHE": str(cache / "tilewright"),
        "XDG_CACHE_HOME": str(cache / "xdg"),
    }


def _export(name: str, asked: Asked, scratch: Path) -> str:
    """Write what `name` serves, in a process of its own; the reason if that failed."""
    ours, onnx = (sys.executable, "-m", "bench.saved"), (str(asked.peers), "-m", "bench.peers_onnx")
    command = [*(ours if name == SAVED else onnx), "export", str(scratch)]
    environment = _environment(asked, scratch / "cache-export")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return "export failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1]


# Command line -----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    names = tuple(case.name for case in cases.CASES)
    every = (*MAIN_CONTENDERS, SAVED, *PEERS)
    parser.add_argument("--models", nargs="+", choices=names)
    parser.add_argument("--modes", nargs="+", choices=cases.MODES, default=cases.MODES)
    parser.add_argument("--contenders", nargs="+", choices=every)
    parser.add_argument("--blocks", type=int, help="accepted blocks per contender")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="two models, few blocks: 2 minutes")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers" / "bin" / "python")
    parser.add_argument("--out", type=Path, help="results file (default: under bench/results)")
    parser.add_argument("--readme", type=Path, help="README whose tables are written")
    return parser


def _asked(options: argparse.Namespace) -> Asked:
    rules = QUICK if options.quick else Rules()
    if options.blocks is not None:
        rules = Rules(options.blocks, rules.seconds, rules.pause, rules.foreign, rules.repeats)
    default = QUICK_CONTENDERS if options.quick else (*MAIN_CONTENDERS, SAVED, *PEERS)
    contenders = tuple(options.contenders or default)
    every = tuple(case.name for case in cases.CASES)
    models = tuple(options.models or (QUICK_MODELS if options.quick else every))
    return Asked(models, tuple(options.modes), contenders, rules, options.threads, options.peers)


def _stored(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


def _tell(line: str) -> None:
    """Progress, on one line that the next replaces where a person is watching."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r" + line[:width].ljust(width), end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
