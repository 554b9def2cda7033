"""Medians with bootstrap intervals, and ratios of medians.

The idea: a block's time is one sample; the interval says how far the median would move had other
blocks been drawn.  The draws are seeded, so the same samples print the same interval.
Does not know where samples come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the ends of its 95 % interval."""

    median: float
    low: float
    high: float


def median_interval(samples: Sequence[float], *, seed: int = 0) -> Interval:
    """The median of `samples` with its 95 % percentile-bootstrap interval."""
    if not samples:
        raise ValueError("no samples: a median needs at least one")
    medians = _resampled_medians(samples, np.random.default_rng(seed))
    low, high = np.quantile(medians, (0.025, 0.975))
    return Interval(median(samples), float(low), float(high))


def ratio_interval(above: Sequence[float], below: Sequence[float], *, seed: int = 0) -> Interval:
    """The ratio of the medians with its 95 % interval; the two are resampled independently."""
    if not above or not below:
        raise ValueError("no samples: a ratio of medians needs at least one on both sides")
    source = np.random.default_rng(seed)
    ratios = _resampled_medians(above, source) / _resampled_medians(below, source)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(median(above) / median(below), float(low), float(high))


def _resampled_medians(
    samples: Sequence[float], source: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = np.asarray(samples, dtype=np.float64)
    draws = source.integers(len(values), size=(_DRAWS, len(values)))
    medians: np.ndarray[tuple[int], np.dtype[np.float64]] = np.median(values[draws], axis=1)
    return medians
