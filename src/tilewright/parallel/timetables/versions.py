"""Which weights every pass reads, how old they are, and how many versions a rank must hold.

The idea: an update of a rank makes the next version; a pass that reads an older one keeps that
alive until it has run.  All of it is read off a timetable's `@` marks.

This module does not know which versions are good for learning (`asynchronous` makes them).
"""

from dataclasses import dataclass
from typing import NoReturn

from tilewright.base.errors import TimetableError
from tilewright.parallel.timetables.timetable import FORWARD, UPDATE, WEIGHT, Pass, Timetable


@dataclass(frozen=True, slots=True)
class Trace:
    """What a micro-batch meets on a stage.

    forward, backward: the versions that its passes read.  update: the version that its gradient is
    first in.
    """

    stage: int
    micro_batch: int
    forward: int
    backward: int
    update: int

    @property
    def staleness(self) -> int:
        """How many updates the forward lacks that come before the gradient's own."""
        return self.update - 1 - self.forward

    @property
    def consistent(self) -> bool:
        """Whether the gradient is of the weights that the forward used."""
        return self.forward == self.backward


def trace_versions(timetable: Timetable) -> tuple[Trace, ...]:
    """Return the versions of every micro-batch on every stage, stage after stage.

    Empty where a step ends in one update.  Raises TimetableError where versions do not fit.
    """
    traces = []
    for rank, actions in enumerate(timetable.ranks):
        parts = [part for action in actions for part in action]
        if any(part.version is not None for part in parts):
            traces += _traces(timetable, rank, parts)
    return tuple(sorted(traces, key=lambda trace: (trace.stage, trace.micro_batch)))


def versions_held(timetable: Timetable) -> tuple[int, ...]:
    """Return how many versions of its weights each rank holds at most; 1 where a step flushes."""
    return tuple(
        _held([part for action in actions for part in action]) for actions in timetable.ranks
    )


def _held(parts: list[Pass]) -> int:
    """Return the most versions alive at once: the newest, and those that are still to be read."""
    read = {part.version: at for at, part in enumerate(parts) if part.kind != UPDATE}
    most, newest, older = 1, 0, set[int]()
    for at, part in enumerate(parts):
        if part.kind == UPDATE:
            older = {one for one in (*older, newest) if read.get(one, -1) > at}
            newest += 1
            most = max(most, 1 + len(older))
    return most


def _traces(timetable: Timetable, rank: int, parts: list[Pass]) -> list[Trace]:
    forward: dict[tuple[int, int], int] = {}
    backward: dict[tuple[int, int], int] = {}
    traces: list[Trace] = []
    waiting: list[tuple[int, int]] = []
    updates = 0
    for part in parts:
        place, version = (part.stage, part.micro_batch), part.version
        if version is None:
            _refuse(timetable, rank, part, "a version, as other passes of the rank have", "none")
        if part.kind == UPDATE:
            if version != updates + 1:
                _refuse(timetable, rank, part, f"version {updates + 1}, the next", str(version))
            updates = version
            traces += [
                Trace(stage, n, forward[stage, n], backward[stage, n], updates)
                for stage, n in waiting
            ]
            waiting = []
            continue
        if version > updates:
            _refuse(timetable, rank, part, f"a version up to {updates}, as made", str(version))
        if part.kind == FORWARD:
            forward[place] = version
        elif part.kind != WEIGHT and place in forward:
            backward[place] = version
            waiting.append(place)
    if waiting:
        stage, n = waiting[0]
        left = Pass(UPDATE, stage, n)
        _refuse(timetable, rank, left, "an update after the last backward of a rank", "none")
    return traces


def _refuse(timetable: Timetable, rank: int, part: Pass, expected: str, found: str) -> NoReturn:
    raise TimetableError(
        f"the weights of {part} on rank {rank} do not fit",
        expected=expected,
        found=found,
        where=f"timetable {timetable.name}, rank {rank}",
        mend="number the updates of a rank from 1, and read versions that are made before",
    )
