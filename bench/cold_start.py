"""What a first result costs: with empty caches, with warm ones, and from a saved Program.

Run `python -m bench.cold_start`.  The idea: each start is a process of its own with a folder of
caches of its own; what it imports is not on the clock, what it compiles is, in its children too.
Wall time needs a machine alone, processor time does not.  What our starts take beyond capturing
and one step that is ready is told apart; of the peer's, whose capture is not clocked, it is not.
Writes `bench/results/cold_start.json`.  Does not know what happens inside a start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any

from bench import cases, machine

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "results" / "cold_start.json"
OURS, ALONE, PEER = "tilewright", "tilewright-alone", "compile-default"
# A start whose numbers differ more than this from float64 is not doing the same work.
AGREEMENT = 1e-3


def main() -> int:
    """Measure what is asked; 1 if anything computes something else."""
    parser = argparse.ArgumentParser(description="seconds to a first result")
    names = [case.name for case in cases.CASES]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--modes", nargs="+", choices=cases.MODES, default=cases.MODES)
    parser.add_argument("--ours", action="store_true", help="leave torch.compile out")
    parser.add_argument("--repeats", type=int, default=3, help="warm starts; the median is told")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    right = True
    for case in (case for case in cases.CASES if case.name in asked.models):
        for mode in asked.modes:
            found = _starts(case, mode, asked)
            right &= all(one["largest_difference"] < AGREEMENT for one in found.values())
            _keep(asked.out, f"{case.name} {mode}", found | {"date": machine.today()})
            lines = [f"{k} {_line(v, own=not k.startswith('peer'))};" for k, v in found.items()]
            print(f"{case.name:<10}{mode:<7}", *lines, flush=True)
    return int(not right)


def _starts(case: cases.Case, mode: str, asked: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as place:
        scratch = Path(place)
        loaded = cases.build(case)
        cases.write(loaded, scratch)
        expected = cases.reference(loaded, mode)
        expected = expected[:1] if mode == "train" else expected

        def start(do: str, contender: str, cache: str) -> dict[str, Any]:
            module = ("-m", "bench.cold_start_process")
            command = (sys.executable, *module, do, contender, mode, str(scratch))
            environment = _environment(scratch / f"cache-{cache}", asked.threads)
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=PIPE, check=True)
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            if do != "save":
                observed = answer.pop("observed")
                answer["largest_difference"] = cases.largest_difference(observed, expected)
            return answer

        if not asked.ours:
            found["peer_cold"] = start("compile", PEER, PEER)
            found["peer_warm"] = middle([start("compile", PEER, PEER)])
        found["cold"] = start("compile", OURS, OURS)
        found["warm"] = middle([start("compile", OURS, OURS) for _ in range(asked.repeats)])
        if start("save", OURS, OURS)["library_calls"]:
            starts = [start("load", OURS, OURS) for _ in range(asked.repeats)]
            found["load_with_torch"] = middle(starts)
            start("save", ALONE, OURS)
        start("load", ALONE, OURS)  # what a cache has not is compiled
        found["load"] = middle([start("load", ALONE, OURS) for _ in range(asked.repeats)])
    return found


def middle(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """The start in the middle by what it takes beyond capturing and a step."""
    return sorted(starts, key=beyond)[len(starts) // 2]


def beyond(start: dict[str, Any], clock: str = "wall") -> float:
    """What a start takes beyond capturing and one step that is ready."""
    shared = start[f"step_{clock}"] + start.get(f"capture_{clock}", 0.0)
    return float(start[f"start_{clock}"] - shared)


def _line(start: dict[str, Any], *, own: bool) -> str:
    whole = f"{start['start_wall']:.2f} s ({start['start_cpu']:.2f})"
    if not own:
        return whole
    return f"{whole}, beyond {beyond(start):.2f} ({beyond(start, 'cpu'):.2f})"


def _environment(cache: Path, threads: int) -> dict[str, str]:
    """This process's, with caches of its own."""
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TILEWRIGHT_CACHE": str(cache / "tilewright"),
        "XDG_CACHE_HOME": str(cache / "xdg"),
    }


def _keep(out: Path, name: str, found: dict[str, Any]) -> None:
    """Put a measurement beside the others of this machine."""
    stored = json.loads(out.read_text()) if out.exists() else {}
    here = machine.describe()
    starts = stored["starts"] if stored.get("machine", {}).get("cpu") == here["cpu"] else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": here, "starts": starts | {name: found}}, indent=1)
    out.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
