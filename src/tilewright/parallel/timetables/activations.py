"""What a rank keeps between the passes of a micro-batch: activations in flight, and their bytes.

The idea: a forward keeps M_B, the gradient of the input leaves M_W of it for the gradient of the
weights, and that frees the rest; the order of a rank's actions alone says how much is held at once.
Both passes of an overlapped pair hold what they need at one time.

This module does not know time.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    UPDATE,
    WEIGHT,
    Action,
    Pass,
    Timetable,
)


def in_flight(timetable: Timetable) -> tuple[int, ...]:
    """Return, for each rank, how many passes at most are forward but not yet backward there.

    Counts (stage, micro-batch); where a rank holds several stages each is a part of its model.
    """
    ones = (1.0,) * timetable.stages
    return tuple(round(peak) for peak in peak_activations(timetable, ones, (0.0,) * len(ones)))


def peak_activations(
    timetable: Timetable,
    held: Sequence[float],
    kept: Sequence[float],
    slices: Sequence[float] = (1.0,),
) -> tuple[float, ...]:
    """Return, for each rank, the most that it holds, in the unit of `held`.

    held: M_B of each stage, from the forward on.  kept: M_W, from the gradient of the input on.
    slices: the share of the whole sequence that each slice is.
    """
    changes = {
        (kind, stage): change
        for stage in range(timetable.stages)
        for kind, change in _changes(held[stage], kept[stage]).items()
    }
    peaks, many = [], len(slices)
    for actions in timetable.ranks:
        parts = (
            changes[kind, stage] * slices[n % many] for kind, stage, n, _ in _one_by_one(actions)
        )
        peaks.append(max(accumulate(parts, initial=0.0)))
    return tuple(peaks)


def _one_by_one(actions: Sequence[Action]) -> Iterator[Pass]:
    """Return the passes of a rank, of a pair first that which adds."""
    if max(map(len, actions), default=1) == 1:
        return chain.from_iterable(actions)
    return (part for pair in actions for part in sorted(pair, key=lambda part: part[0] != FORWARD))


def _changes(held: float, kept: float) -> dict[str, float]:
    """Return what each kind of pass adds, or frees."""
    return {FORWARD: held, INPUT: kept - held, WEIGHT: -kept, BACKWARD: -held, UPDATE: 0.0}
