"""Where to cut a sequence into token slices, so that a pipeline of them is fastest (TeraPipe).

The idea: a slice attends to all that came before it, so equal slices take unequal times and the
longest sets the pace: T = sum of t_i + (p - 1) max of t_i.  For a bound on the longest slice a
dynamic programme finds the cuts with the smallest sum; the bounds are searched by halves.

This module does not know what a slice's time is made of; it is asked of a function.

Source: TeraPipe (arXiv 2102.07988).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from tilewright.base.errors import OptionError

SliceTime = Callable[[int, int], float]
"""The time of a slice's forward on one stage: (its tokens, the tokens before it) -> time."""


@dataclass(frozen=True, slots=True)
class TokenSlices:
    """Cuts of a sequence.  tokens, times: of each slice; latency: of all through the pipeline."""

    tokens: tuple[int, ...]
    times: tuple[float, ...]
    latency: float

    @property
    def shares(self) -> tuple[float, ...]:
        """What each slice takes of the whole, as `Times.slices` wants it."""
        return tuple(time / sum(self.times) for time in self.times)


def cut_tokens(length: int, ranks: int, time: SliceTime, *, grain: int = 1) -> TokenSlices:
    """Return the cuts of a sequence whose latency through `ranks` stages is smallest.

    Slices are multiples of `grain` tokens, which divides the length.  Takes (length/grain)^2 calls
    of `time`, and as many steps for each bound on the longest slice that is asked, which are few.
    """
    if ranks < 1 or grain < 1 or length < 1 or length % grain:
        raise OptionError(
            f"a sequence of {length} tokens cannot be cut into slices of {grain}",
            expected="one or more ranks, and a grain that divides the length",
            found=f"length {length}, grain {grain}, ranks {ranks}",
        )
    blocks = length // grain
    taken = [
        [time((end - start) * grain, start * grain) for end in range(start + 1, blocks + 1)]
        for start in range(blocks)
    ]
    cuts = _best_cuts(taken, ranks)
    pairs = list(pairwise(cuts))
    times = tuple(taken[a][b - a - 1] for a, b in pairs)
    latency = sum(times) + (ranks - 1) * max(times)
    return TokenSlices(tuple((b - a) * grain for a, b in pairs), times, latency)


def _best_cuts(taken: list[list[float]], ranks: int) -> list[int]:
    """Return the cuts of least latency, asking of few bounds on the longest slice.

    A higher bound gives no larger sum.  So of bounds between two, none is better than the sum of
    the higher with the longest slice of the lower; where that is not below the best, none is asked.
    """
    bounds = sorted({one for row in taken for one in row})
    cuts, least = _smallest_sum(taken, bounds[-1])
    best = least + (ranks - 1) * max(taken[a][b - a - 1] for a, b in pairwise(cuts))
    spans = [(0, len(bounds) - 1, least)]
    while spans:
        low, high, least = spans.pop()
        if low > high or least + (ranks - 1) * bounds[low] >= best:
            continue
        middle = (low + high) // 2
        found, total = _smallest_sum(taken, bounds[middle])
        if found:
            slowest = max(taken[a][b - a - 1] for a, b in pairwise(found))
            if total + (ranks - 1) * slowest < best:
                best, cuts = total + (ranks - 1) * slowest, found
            spans.append((low, middle - 1, total))
        spans.append((middle + 1, high, least))
    return cuts


def _smallest_sum(taken: list[list[float]], longest: float) -> tuple[list[int], float]:
    """Return the cuts with the smallest sum of times, none above `longest`, and that sum.

    No cuts if there are none.
    """
    blocks = len(taken)
    never = float("inf")
    total, source = [0.0] + [never] * blocks, [0] * (blocks + 1)
    for start in range(blocks):
        for end in range(start + 1, blocks + 1):
            one = taken[start][end - start - 1]
            if one <= longest and total[start] + one < total[end]:
                total[end], source[end] = total[start] + one, start
    if total[blocks] == never:
        return [], never
    cuts = [blocks]
    while cuts[-1]:
        cuts.append(source[cuts[-1]])
    return cuts[::-1], total[blocks]
