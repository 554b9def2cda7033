"""Where each rank sends and receives, so that no rank waits for ever even if both must meet.

The idea: under rendezvous a message passes only while its sender and its receiver are at it, as
with unbuffered `send` and `recv`, so the order of messages on each rank matters as much as that of
its actions.  A message is placed by ticks: on both ranks after their actions up to the tick in
which it was made, and messages of a tick in one order for all ranks.  That order of everything is
one line, so no circle of waiting ranks can be in it; and `run_rendezvous` proves it by running.

This module does not know transports; an executor walks the same lines.
"""

from collections import defaultdict
from dataclasses import dataclass

from tilewright.base.errors import TimetableError
from tilewright.parallel.timetables.needs import Key, needs_of
from tilewright.parallel.timetables.ticks import ticks
from tilewright.parallel.timetables.timetable import Action, Timetable


@dataclass(frozen=True, slots=True)
class Send:
    """Hand what a pass made to another rank.  key: (kind, stage, micro-batch) of that pass."""

    key: Key
    to: int

    def __str__(self) -> str:
        return f"send {_named(self.key)} to rank {self.to}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Take what a pass on another rank made.  key: (kind, stage, micro-batch) of that pass."""

    key: Key
    source: int

    def __str__(self) -> str:
        return f"receive {_named(self.key)} from rank {self.source}"


Line = tuple[Action | Send | Receive, ...]
"""What one rank does, messages and all, one after the other."""


def place_messages(timetable: Timetable) -> tuple[Line, ...]:
    """Return each rank's actions with its sends and receives between them.

    Raises TimetableError if the timetable itself deadlocks.
    """
    rules = needs_of(timetable)
    made: dict[Key, tuple[int, int]] = {}
    takers: dict[Key, set[int]] = defaultdict(set)
    placed: list[list[tuple[tuple[int, int, Key], Action | Send | Receive]]]
    placed = [[] for _ in timetable.ranks]
    for item in ticks(timetable):
        placed[item.rank].append(((item.tick, 0, ("", 0, 0)), item.action))
        for part in item.action:
            made[rules.key(part)] = item.tick, item.rank
            for key in rules.of(part):
                takers[key].add(item.rank)
    for key, (tick, rank) in made.items():
        for other in sorted(takers[key] - {rank}):
            placed[rank].append(((tick, 1, key), Send(key, other)))
            placed[other].append(((tick, 1, key), Receive(key, rank)))
    return tuple(
        tuple(item for _, item in sorted(row, key=lambda entry: entry[0])) for row in placed
    )


def run_rendezvous(lines: tuple[Line, ...]) -> int:
    """Run lines of ranks by rendezvous and return how many messages passed.

    Raises TimetableError where a rank waits for ever: for a message that nobody sends or takes, or
    in a circle, which is named.
    """
    at = [0] * len(lines)
    messages = 0
    moving = True
    while moving:
        moving = False
        for rank, line in enumerate(lines):
            while at[rank] < len(line):
                item = line[at[rank]]
                if isinstance(item, Send | Receive):
                    other = _partner(item)
                    if not _meets(lines, at, rank, item):
                        break
                    at[other] += 1
                    messages += 1
                at[rank] += 1
                moving = True
    waiting = {
        rank: item
        for rank, line in enumerate(lines)
        if at[rank] < len(line) and isinstance(item := line[at[rank]], Send | Receive)
    }
    if waiting:
        _refuse(lines, at, waiting)
    return messages


def check_rendezvous(timetable: Timetable) -> int:
    """Place the messages of a timetable, run them by rendezvous, and return how many there are."""
    return run_rendezvous(place_messages(timetable))


def _partner(item: Send | Receive) -> int:
    return item.to if isinstance(item, Send) else item.source


def _meets(lines: tuple[Line, ...], at: list[int], rank: int, item: Send | Receive) -> bool:
    """Say whether the other rank of a message is at it, too."""
    other = _partner(item)
    if not 0 <= other < len(lines) or at[other] >= len(lines[other]):
        return False
    wanted = Receive(item.key, rank) if isinstance(item, Send) else Send(item.key, rank)
    return lines[other][at[other]] == wanted


def _refuse(lines: tuple[Line, ...], at: list[int], waiting: dict[int, Send | Receive]) -> None:
    rank = min(waiting)
    seen: list[int] = []
    while rank in waiting and rank not in seen:
        seen.append(rank)
        rank = _partner(waiting[rank])
    if rank not in waiting:
        last = seen[-1]
        ended = f"rank {rank}, which has ended" if rank < len(lines) else f"no rank {rank}"
        raise TimetableError(
            f"rank {last} waits for ever: {waiting[last]}",
            expected="for each send the receive of it, and for each receive the send",
            found=f"{ended} without the other half",
            where=f"rank {last}, step {at[last] + 1}",
            mend="add the other half, or take this one away",
        )
    circle = seen[seen.index(rank) :]
    lines_ = [f"rank {one} is at: {waiting[one]}" for one in circle]
    raise TimetableError(
        f"ranks {', '.join(map(str, circle))} wait for each other: the messages deadlock",
        expected="an order of messages in which both ranks of one come to it",
        found="\n".join(lines_),
        where=f"rank {circle[0]}, step {at[circle[0]] + 1}",
        mend="let one of them receive before it sends",
    )


def _named(key: Key) -> str:
    kind, stage, n = key
    return f"{stage}{kind}{n}"
