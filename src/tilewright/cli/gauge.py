"""Time and memory of a step, measured by the same few lines for every contender.

The idea: the system keeps the largest resident size of a process and lets it start again from now;
what a step needs is that peak over what the process held before it had a model.

This module does not know what a step is.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WARM_STEPS = 2
MEMORY_STEPS = 3


@dataclass(frozen=True, slots=True)
class Gauge:
    """What the process held (KiB) before there was a model; None where the system does not say."""

    baseline: int | None

    @staticmethod
    def now() -> "Gauge":
        """Remember what the process holds now."""
        gc.collect()
        _trim()
        return Gauge(_status("VmRSS"))

    def peak_mib(self, step: Callable[[], object]) -> float | None:
        """Return the peak while steps run, above what was held before; None where unknown."""
        gc.collect()
        _trim()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        except OSError:
            return None
        for _ in range(MEMORY_STEPS):
            step()
        peak = _status("VmHWM")
        return None if peak is None or self.baseline is None else (peak - self.baseline) / 1024


def seconds_per_step(step: Callable[[], object], seconds: float) -> float:
    """Warm up, then time as many steps as fill about `seconds`."""
    for _ in range(WARM_STEPS):
        step()
    begun = time.perf_counter()
    made = 0
    while made == 0 or time.perf_counter() - begun < seconds:
        step()
        made += 1
    return (time.perf_counter() - begun) / made


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
