"""Token slices: the dynamic programme's cuts are those of brute force, and simulate to its time."""

import itertools

import pytest

from tilewright.base.errors import OptionError
from tilewright.parallel import Times, cut_tokens, make_timetable, simulate


def _attending(tokens: int, before: int) -> float:
    """A launch, a linear part, and attention to what came before."""
    return 0.7 + 0.3 * tokens + 0.02 * tokens * (before + tokens / 2)


def _brute_force(length: int, ranks: int) -> float:
    best = float("inf")
    for count in range(length):
        for inner in itertools.combinations(range(1, length), count):
            cuts = (0, *inner, length)
            times = [_attending(b - a, a) for a, b in itertools.pairwise(cuts)]
            best = min(best, sum(times) + (ranks - 1) * max(times))
    return best


@pytest.mark.parametrize("ranks", [1, 2, 5, 24])
def test_the_cuts_are_the_best_of_all(ranks: int) -> None:
    found = cut_tokens(11, ranks, _attending)
    assert sum(found.tokens) == 11
    assert found.latency == pytest.approx(_brute_force(11, ranks))
    starts = [0, *itertools.accumulate(found.tokens)]
    expected = [_attending(n, start) for n, start in zip(found.tokens, starts, strict=False)]
    assert found.times == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_cuts_take_their_time_on_the_clock(ranks: int) -> None:
    found = cut_tokens(64, ranks, _attending, grain=8)
    assert all(tokens % 8 == 0 for tokens in found.tokens)
    zero = (0.0,) * ranks
    times = Times((sum(found.times),) * ranks, zero, zero, zero[1:], found.shares)
    table = make_timetable("terapipe", ranks, 1, len(found.tokens))
    assert simulate(table, times).makespan == pytest.approx(found.latency)


def test_later_slices_are_shorter_as_they_attend_to_more() -> None:
    def time(tokens: int, before: int) -> float:
        return 20 + tokens * (1 + 0.05 * (before + tokens / 2))

    found = cut_tokens(256, 8, time)
    assert len(found.tokens) > 4
    assert found.tokens[0] > found.tokens[-1]


def test_cuts_of_nothing_are_refused() -> None:
    for length, ranks, grain in ((0, 1, 1), (10, 0, 1), (10, 2, 3)):
        with pytest.raises(OptionError, match="cannot be cut"):
            cut_tokens(length, ranks, _attending, grain=grain)
