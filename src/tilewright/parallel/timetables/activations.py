"""What a rank keeps between the passes of a micro-batch: activations in flight, and their bytes.

The idea: a forward keeps M_B, the gradient of the input leaves M_W of it for the gradient of the
weights, and that frees the rest; the order of a rank's actions alone says how much is held at once.
Both passes of an overlapped pair hold what they need at one time.

This module does not know time.
"""

from collections.abc import Sequence

from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
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
    peaks = []
    for actions in timetable.ranks:
        now = most = 0.0
        for action in actions:
            gained, freed = _change(action, held, kept, slices)
            most = max(most, now + gained)
            now += gained - freed
        peaks.append(most)
    return tuple(peaks)


def _change(
    action: Action, held: Sequence[float], kept: Sequence[float], slices: Sequence[float]
) -> tuple[float, float]:
    """Return what an action adds before it frees anything, and what it frees."""
    gained = freed = 0.0
    for part in action:
        share = slices[part.micro_batch % len(slices)]
        before, after = held[part.stage] * share, kept[part.stage] * share
        if part.kind == FORWARD:
            gained += before
        elif part.kind == INPUT:
            freed += before - after
        elif part.kind == WEIGHT:
            freed += after
        elif part.kind == BACKWARD:
            freed += before
    return gained, freed
