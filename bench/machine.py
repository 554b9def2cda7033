"""What a number must be read with: the machine, the date, the versions, and who else was running.

The idea: all CPU time of the machine in a span, less our own, is foreign; a block during which
others ran is thrown away.  Linux only.  Does not know contenders.
"""

import datetime
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


def describe() -> dict[str, str | int | float]:
    """CPU, cores this process may use, memory and kernel of this machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    flags = Path("/proc/cpuinfo").read_text()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "vectors": "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "other",
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def today() -> str:
    """Today's date, ISO form."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def busy_seconds(stat: str, ticks_per_second: int) -> float:
    """CPU seconds that all processors were busy or stolen, from the text of /proc/stat."""
    fields = [int(word) for word in stat.splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / ticks_per_second


@dataclass(slots=True)
class Span:
    """Measures a `with` block: wall seconds and the machine's busy CPU seconds (mutable)."""

    wall: float = 0.0
    busy: float = 0.0
    own: float = 0.0

    def __enter__(self) -> "Span":
        self.wall, self.busy, self.own = -time.perf_counter(), -_busy(), -time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall += time.perf_counter()
        self.busy += _busy()
        self.own += time.process_time()

    def foreign(self, ours: float) -> float:
        """Foreign CPU seconds per wall second, `ours` being what the contender used."""
        return max(0.0, self.busy - self.own - ours) / max(self.wall, 1e-9)


def _busy() -> float:
    return busy_seconds(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))
