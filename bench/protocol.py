"""How the parent and a contender's process talk: one JSON object per line, request and answer.

The idea: the timing loop, the memory readings and the cold-compile clock live here, once, so that
every contender is measured by the same code whatever library it runs.  Uses the standard library
only, because contenders live in different environments.  Does not know what is being measured.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Running:
    """A prepared contender: `step` launches one, `wait` returns when its result is there.

    `restart` puts the parameters back, so that blocks of many steps on one batch stay the same
    work; `observe`, asked once before anything else, gives the numbers that must agree between
    contenders: the losses of the first three training steps, or a sample of the outputs.
    """

    step: Callable[[], Any]
    wait: Callable[[Any], None]
    restart: Callable[[], None]
    observe: Callable[[], list[float]]
    notes: dict[str, str]


SAMPLED_OUTPUTS = 64


def sample(flat: Any) -> list[float]:
    """A fixed spread of the values of an output, an array of one axis: what `observe` gives."""
    return [float(value) for value in flat[:: max(1, len(flat) // SAMPLED_OUTPUTS)]]


Prepare = Callable[[], Callable[[], Running]]
"""Loads weights and batch (not on the clock); what it returns compiles and runs a first step."""


def serve(prepare: Prepare, imports: tuple[str, ...] = ()) -> None:
    """Import what the contender needs, then answer requests on standard input until it closes."""
    answers = _claim_stdout()
    for name in imports:
        importlib.import_module(name)
    session = _Session(prepare)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = session.answer(request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".strip()[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Session:
    """The state between requests: the prepared contender and what was read before it existed."""

    def __init__(self, prepare: Prepare) -> None:
        self.prepare = prepare
        self.running: Running | None = None
        self.baseline_kib = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "start":
                return self._start()
            case "block":
                return self._block(request["seconds"])
            case "memory":
                return self._memory()
            case other:
                return {"error": f"unknown request {other!r}"}

    def _start(self) -> dict[str, Any]:
        self.baseline_kib = _status_kib("VmRSS")
        begin = self.prepare()
        wall, cpu = time.perf_counter(), cpu_seconds()
        running = begin()
        cold = time.perf_counter() - wall
        self.running = running
        answer = {"cold_seconds": cold, "cpu_seconds": cpu_seconds() - cpu}
        return answer | {"observed": running.observe(), "notes": running.notes}

    def _block(self, seconds: float) -> dict[str, Any]:
        """Warm up, then time as many steps as fill `seconds`."""
        cpu = cpu_seconds()
        running = self._prepared()
        running.restart()
        warm = min(_timed(running, 1) for _ in range(3))
        steps = max(1, round(seconds / warm))
        total = _timed(running, steps)
        answer = {"steps": steps, "seconds_per_step": total / steps}
        return answer | {"cpu_seconds": cpu_seconds() - cpu}

    def _memory(self) -> dict[str, Any]:
        """The peak while steps run, above what the process held before it had a model."""
        running = self._prepared()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        _timed(running, 3)
        return {"peak_kib": _status_kib("VmHWM") - self.baseline_kib}

    def _prepared(self) -> Running:
        assert self.running is not None, "a block was asked for before a successful start"
        return self.running


def _timed(running: Running, steps: int) -> float:
    step = running.step
    begin = time.perf_counter()
    for _ in range(steps):
        result = step()
    running.wait(result)
    return time.perf_counter() - begin


def cpu_seconds() -> float:
    """CPU time of this process and of its finished children (compilers)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/self/status has no field {field}")


def _claim_stdout() -> TextIO:
    """Keep the real standard output for answers; what libraries print goes to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w")
