"""Medians and their bootstrap intervals."""

import numpy as np
import pytest
from bench.intervals import median_interval, ratio_interval


def test_equal_samples_have_an_interval_of_no_width() -> None:
    interval = median_interval([2.0] * 9)
    assert (interval.median, interval.low, interval.high) == (2.0, 2.0, 2.0)


def test_the_median_is_not_moved_by_one_wild_block() -> None:
    assert median_interval([1.0, 1.0, 1.0, 1.0, 50.0]).median == 1.0


def test_the_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(1).normal(5, 1, 20).tolist()
    assert median_interval(samples) == median_interval(samples)


def test_the_interval_contains_the_true_median_about_95_times_in_100() -> None:
    source = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        interval = median_interval(source.lognormal(0.0, 0.5, 15).tolist())
        covered += interval.low <= 1.0 <= interval.high
    assert 0.90 <= covered / 200 <= 1.0


def test_more_samples_narrow_the_interval() -> None:
    source = np.random.default_rng(3)
    few = median_interval(source.normal(10, 1, 10).tolist())
    many = median_interval(source.normal(10, 1, 1000).tolist())
    assert many.high - many.low < (few.high - few.low) / 3


def test_a_ratio_of_medians_is_theirs_and_lies_in_its_interval() -> None:
    source = np.random.default_rng(4)
    slow, fast = source.normal(3, 0.1, 15), source.normal(2, 0.1, 15)
    ratio = ratio_interval(slow.tolist(), fast.tolist())
    assert ratio.median == pytest.approx(np.median(slow) / np.median(fast))
    assert 1.3 < ratio.low < ratio.median < ratio.high < 1.7


@pytest.mark.parametrize("call", [lambda: median_interval([]), lambda: ratio_interval([1.0], [])])
def test_no_samples_is_an_error(call: object) -> None:
    with pytest.raises(ValueError, match="no samples"):
        call()  # type: ignore[operator]
