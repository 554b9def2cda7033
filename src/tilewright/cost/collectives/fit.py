"""From measured times to a latency and a bandwidth.

The idea: T = a + r n / B, where r n is what must pass each link (`bus_share`), so that B is the bus
bandwidth that NCCL's tests print.  The two constants minimise the sum of squared relative errors:
a kilobyte counts as much as a gigabyte.

This module does not know who measured.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.build import find_variant, setting
from tilewright.cost.collectives.formulas import bus_share, terms
from tilewright.cost.collectives.network import Level

Sample = tuple[float, float]
"""Bytes, and the seconds that they took."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted: T = latency + bus_share n / bandwidth, in seconds, bytes and bytes/s.

    mean_error, worst_error: of the samples, relative to what was measured.
    """

    collective: str
    ranks: int
    latency: float
    bandwidth: float
    mean_error: float
    worst_error: float

    def seconds(self, size: float) -> float:
        """Return the time for vectors of `size` bytes."""
        return self.latency + float(bus_share(self.collective, self.ranks)) * size / self.bandwidth

    def level(self, variant: str) -> Level:
        """Return links on which a variant takes what was fitted: its latencies, and its bytes."""
        row = find_variant(self.collective, variant)
        paid = terms(row, setting(row, self.ranks))
        share = bus_share(self.collective, self.ranks)
        bandwidth = self.bandwidth * float(paid.moved / share)
        return Level(self.ranks, self.latency / float(paid.rounds), bandwidth)


def fit_times(collective: str, ranks: int, samples: Iterable[Sample]) -> Fit:
    """Return the latency and bandwidth, neither negative, of least relative squares.

    Raises OptionError where samples are fewer than two sizes, or impossible.
    """
    listed = tuple(samples)
    if ranks < 2 or len({size for size, _ in listed}) < 2:
        raise OptionError(
            "two constants are fitted to at least two sizes, of at least two ranks",
            expected="times of two sizes", found=f"{len(listed)} samples of {ranks} ranks",
        )  # fmt: skip
    wrong = next(((n, t) for n, t in listed if not (n >= 0 and t > 0)), None)
    if wrong is not None:
        raise OptionError(
            "a sample is a size and a time", expected="bytes, and seconds above 0", found=str(wrong)
        )
    share = float(bus_share(collective, ranks))
    latency, slope = _least_squares([(1 / t, share * n / t) for n, t in listed])
    if slope <= 0:
        raise OptionError(
            "the times do not grow with the size", expected="larger vectors that take longer",
            found=f"{listed[0]} ... {listed[-1]}", mend="measure sizes that are further apart",
        )  # fmt: skip
    errors = [abs((latency + slope * share * n) / t - 1) for n, t in listed]
    return Fit(collective, ranks, latency, 1 / slope, sum(errors) / len(errors), max(errors))


def bus_bandwidth(collective: str, ranks: int, size: float, seconds: float) -> float:
    """Return the bytes/s that passed each link: `bus_share` n / T."""
    return float(bus_share(collective, ranks)) * size / seconds


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return x, y >= 0 that minimise the sum of (x u + y v - 1)^2."""
    uu = math.fsum(u * u for u, _ in rows)
    uv = math.fsum(u * v for u, v in rows)
    vv = math.fsum(v * v for _, v in rows)
    su, sv = math.fsum(u for u, _ in rows), math.fsum(v for _, v in rows)
    determinant = uu * vv - uv * uv
    x, y = (su * vv - sv * uv) / determinant, (uu * sv - uv * su) / determinant
    return (x, y) if x >= 0 else (0.0, sv / vv)
