"""Ticks: the earliest round of each action where all take one tick and transfers none.

The idea: an action comes one tick after the last of what it needs, on its rank and elsewhere.  If
that has no answer, ranks wait for each other in a circle, and the circle is named.

This module does not know seconds (`simulate`) or which passes a timetable must have (`verify`).
"""

from collections import deque
from dataclasses import dataclass

from tilewright.base.errors import TimetableError
from tilewright.parallel.timetables.needs import Key, needs_of
from tilewright.parallel.timetables.timetable import Action, Timetable

Place = tuple[int, int]
"""(rank, number of the action on it)."""

MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class Ticked:
    """One action of a timetable and the tick in which its rank runs it."""

    tick: int
    rank: int
    action: Action


def ticks(timetable: Timetable) -> tuple[Ticked, ...]:
    """Return every action with its tick, tick after tick.

    Raises TimetableError, naming the cycle or what no rank runs.
    """
    before = _before(timetable)
    after: dict[Place, list[Place]] = {place: [] for place in before}
    for place, earlier in before.items():
        for one in earlier:
            after[one].append(place)
    left = {place: len(earlier) for place, earlier in before.items()}
    tick = dict.fromkeys(before, 0)
    ready = deque(place for place, count in left.items() if not count)
    while ready:
        place = ready.popleft()
        del left[place]
        for later in after[place]:
            left[later] -= 1
            tick[later] = max(tick[later], tick[place] + 1)
            if not left[later]:
                ready.append(later)
    if left:
        _refuse_cycle(timetable, {place: before[place] for place in left})
    made = (Ticked(at, rank, timetable.ranks[rank][k]) for (rank, k), at in tick.items())
    return tuple(sorted(made, key=lambda item: (item.tick, item.rank)))


def makers(timetable: Timetable) -> dict[Key, Place]:
    """Return which action makes what others need."""
    rules = needs_of(timetable)
    return {
        rules.key(part): (rank, at)
        for rank, actions in enumerate(timetable.ranks)
        for at, action in enumerate(actions)
        for part in action
    }


def _before(timetable: Timetable) -> dict[Place, list[Place]]:
    rules, made_by = needs_of(timetable), makers(timetable)
    before: dict[Place, list[Place]] = {}
    for rank, actions in enumerate(timetable.ranks):
        for at, action in enumerate(actions):
            earlier = [(rank, at - 1)] if at else []
            for part in action:
                for key in rules.of(part):
                    if key not in made_by:
                        _refuse_missing(timetable, (rank, at), key)
                    earlier.append(made_by[key])
            before[rank, at] = earlier
    return before


def _refuse_missing(timetable: Timetable, place: Place, key: Key) -> None:
    kind, stage, n = key
    needed = f"{stage}{kind}{n}"
    rank, at = place
    action = "&".join(map(str, timetable.ranks[rank][at]))
    raise TimetableError(
        f"{action} of rank {rank} waits for {needed}, which no rank runs",
        expected=f"{needed} on some rank, so that what {action} receives is sent",
        found=f"no {needed} in the timetable",
        where=f"timetable {timetable.name}, rank {rank}, action {at + 1}",
        mend=f"add {needed} to the rank that holds stage {stage}",
    )


def _refuse_cycle(timetable: Timetable, before: dict[Place, list[Place]]) -> None:
    """Name a circle among actions that all wait for one of each other."""
    place = min(before)
    seen: list[Place] = []
    while place not in seen:
        seen.append(place)
        place = next(earlier for earlier in before[place] if earlier in before)
    circle = seen[seen.index(place) :]
    first = circle.index(min(circle))
    circle = [*circle[first:], *circle[:first]]

    def named(place: Place) -> str:
        rank, at = place
        return f"{'&'.join(map(str, timetable.ranks[rank][at]))} of rank {rank}"

    lines = [
        f"{named(one)} waits for {named(other)}"
        for one, other in zip(circle, [*circle[1:], circle[0]], strict=True)
    ]
    if len(lines) > MOST_NAMED:
        lines = [*lines[:MOST_NAMED], f"and so on, {len(circle)} actions in all"]
    raise TimetableError(
        f"{named(circle[0])} waits for itself: the timetable deadlocks",
        expected="an order of each rank's actions in which none waits for a later one",
        found="\n".join(lines),
        where=f"timetable {timetable.name}, rank {circle[0][0]}, action {circle[0][1] + 1}",
        mend="change the order of these actions on one of the ranks",
    )
