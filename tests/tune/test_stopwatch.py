"""Ways by the clock, in turns: with a clock that the ways themselves advance."""

from collections.abc import Callable

import pytest

from tilewright.tune import compare, summary


class Time:
    """A clock that stands still but where it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds

        return run


def test_each_way_is_timed_as_often_as_the_others_and_alone() -> None:
    time = Time()
    ways = {"slow": time.passes(3.0), "fast": time.passes(1.0)}
    times = compare(ways, 50.0, time, between=time.passes(7.0))
    assert set(times["slow"]) == {3.0}
    assert set(times["fast"]) == {1.0}
    assert len(times["slow"]) == len(times["fast"]) >= 5


def test_no_more_rounds_begin_when_the_time_is_up_but_five_are_made() -> None:
    time = Time()
    assert len(compare({"a": time.passes(1.0)}, 0.0, time)["a"]) == 5
    assert len(compare({"a": time.passes(1.0)}, 7.5, time)["a"]) == 8
    assert len(compare({"a": time.passes(1e-6)}, 1e6, time)["a"]) == 41


def test_turns_begin_with_another_way_each_time() -> None:
    time, order = Time(), []
    ways = {name: lambda name=name: order.append(name) for name in "abc"}
    compare(ways, 0.0, time)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc" + "bca"


def test_a_summary_is_the_median_between_the_quartiles() -> None:
    found = summary("a", [5.0, 1.0, 2.0, 4.0, 3.0], 2.5)
    assert (found.low, found.seconds, found.high) == (2.0, 3.0, 4.0)
    assert (found.choice, found.rounds, found.predicted) == ("a", 5, pytest.approx(2.5))
