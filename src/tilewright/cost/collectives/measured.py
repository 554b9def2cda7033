"""Times of a collective from a table of measurements, as NCCL's tests are written down.

The idea: the first line names the columns; two are read, `size(B)` and the first `time(...)`, whose
unit its name says.  This module does not know what is made of the times.
"""

import csv
from collections.abc import Sequence

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.fit import Fit, Sample, bus_bandwidth
from tilewright.cost.quantity import show_quantity

UNITS = {"time(ns)": 1e-9, "time(us)": 1e-6, "time(ms)": 1e-3, "time(s)": 1.0}
SIZE = "size(B)"
SHOWN = 8  # sizes in the table beside the fit


def read_times(text: str, name: str) -> list[Sample]:
    """Return bytes and seconds of each row of a CSV text; name: of the file, for messages.

    Raises OptionError where a column is missing or a row holds no numbers.
    """
    rows = list(csv.reader(text.splitlines()))
    head = [word.strip() for word in rows[0]] if rows else []
    timed = next((word for word in head if word in UNITS), "")
    if SIZE not in head or not timed:
        raise OptionError(
            f"{name} is no table of times",
            expected=f"a first line with {SIZE} and one of {', '.join(UNITS)}",
            found=", ".join(head)[:100] or "an empty file",
            where=f"{name}, line 1",
        )
    at, to = head.index(SIZE), head.index(timed)
    return [_sample(row, at, to, UNITS[timed], f"{name}, line {n}") for n, row in _numbered(rows)]


def fit_lines(fit: Fit, samples: Sequence[Sample]) -> list[str]:
    """Return what was fitted, on which links the ring takes that long, and some of the samples."""
    level = fit.level("ring")
    lines = [
        f"{fit.collective} among {fit.ranks} ranks, {len(samples)} times",
        f"  latency {_short(fit.latency, 's')}, bus bandwidth {_short(fit.bandwidth, 'B/s')}: "
        f"off by {fit.mean_error:.1%} on average, {fit.worst_error:.1%} at most",
        f"  a ring takes that long on links of {_short(level.latency, 's')} a message and "
        f"{_short(level.bandwidth, 'B/s')}",
        "",
        f"{'bytes':>10}  {'measured':>10}  {'bus':>10}  {'fitted':>10}  error",
    ]
    step = max(1, (len(samples) - 1) // (SHOWN - 1))
    for size, seconds in sorted(samples)[::step]:
        said = fit.seconds(size)
        bus = bus_bandwidth(fit.collective, fit.ranks, size, seconds)
        lines.append(
            f"{_short(size, 'B'):>10}  {_short(seconds, 's'):>10}  {_short(bus, 'B/s'):>10}  "
            f"{_short(said, 's'):>10}  {said / seconds - 1:+.1%}"
        )
    return lines


def _numbered(rows: Sequence[Sequence[str]]) -> list[tuple[int, Sequence[str]]]:
    return [(number, row) for number, row in enumerate(rows[1:], 2) if row]


def _sample(row: Sequence[str], at: int, to: int, unit: float, where: str) -> Sample:
    try:
        return float(row[at]), float(row[to]) * unit
    except (ValueError, IndexError):
        raise OptionError(
            "a row of a table of times holds no numbers",
            expected="bytes and a time",
            found=", ".join(row)[:100],
            where=where,
        ) from None


def _short(value: float, unit: str) -> str:
    return show_quantity(float(f"{value:.4g}"), unit)
