"""Run a timetable on a clock: when each action begins and ends, what is lost, and why.

The idea: a rank begins its next action when it is free and everything that the action needs has
arrived; transfers run beside computation and add to the earliest start of who receives.  One walk
over the actions, waking whoever waits for what just ended, so the cost is linear in their number.

Two conventions of the bubble are in use, and both are given: lost time of the whole,
(cost - work)/cost, and lost time of the ideal, (cost - work)/work.  And two of the cost: with a
barrier at the end of a step (the makespan), and without, where each rank goes on from its own last
action (the longest time of any rank, as the zero-bubble paper counts).

This module does not know memory (`activations`) or whether an order is legal (`verify`).
"""

from collections import deque
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.parallel.timetables.needs import Key, needs_of
from tilewright.parallel.timetables.ticks import ticks
from tilewright.parallel.timetables.times import Times
from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    UPDATE,
    Action,
    Pass,
    Timetable,
)


@dataclass(frozen=True, slots=True)
class Bubble:
    """What a timetable costs, and how much of it is lost.  cost, work: in the unit of the times."""

    cost: float
    work: float

    @property
    def of_total(self) -> float:
        """The lost share of the whole: (cost - work)/cost."""
        return (self.cost - self.work) / self.cost if self.cost else 0.0

    @property
    def of_ideal(self) -> float:
        """What is lost, in shares of the ideal: (cost - work)/work."""
        return (self.cost - self.work) / self.work if self.work else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One action on the critical path.  waited: for a transfer, from whoever ran the step before;
    0 where the rank was busy until then."""

    rank: int
    action: Action
    start: float
    end: float
    waited: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """Begin and end of every action of a timetable, by rank and in the order of its actions."""

    timetable: Timetable
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    busy: tuple[float, ...]
    path: tuple[Step, ...]

    @property
    def makespan(self) -> float:
        """From the first begin to the last end of any rank."""
        return max(row[-1] for row in self.ends if row) - min(row[0] for row in self.starts if row)

    @property
    def longest(self) -> float:
        """The longest time of any rank from its own first begin to its own last end."""
        return max(
            end[-1] - start[0] for start, end in zip(self.starts, self.ends, strict=True) if start
        )

    @property
    def bubble(self) -> Bubble:
        """With a barrier at the end of the step.  The work is the busiest rank's."""
        return Bubble(self.makespan, max(self.busy))

    @property
    def bubble_without_barrier(self) -> Bubble:
        """Where each rank begins its next step after its own last action."""
        return Bubble(self.longest, max(self.busy))


def simulate(timetable: Timetable, times: Times) -> Simulation:
    """Return when each action of a timetable begins and ends.

    times: for every stage of the timetable, and every slice.  Raises TimetableError, naming the
    cycle or what is missing, if the timetable cannot run to its end.
    """
    _check_times(timetable, times)
    clock = _Clock(timetable, times)
    clock.run()
    starts, ends = clock.starts, clock.ends
    path = _critical_path(clock)
    busy = (
        sum(end - start for start, end in zip(*rows, strict=True))
        for rows in zip(starts, ends, strict=True)
    )
    return Simulation(
        timetable, tuple(map(tuple, starts)), tuple(map(tuple, ends)), tuple(busy), path
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """An action ready for the clock: how long it takes, what it waits for (with the transfer), what
    it gives, and how long the rank is kept by sending it."""

    action: Action
    takes: float
    needs: tuple[tuple[Key, float], ...]
    gives: tuple[Key, ...]
    sending: float


class _Clock:
    """The walk over all actions; mutable, lives as long as one `simulate`."""

    def __init__(self, timetable: Timetable, times: Times) -> None:
        self.timetable, self.times = timetable, times
        self.rules, self.rank_of = needs_of(timetable), timetable.rank_of()
        self.work = [[self._work(action) for action in actions] for actions in timetable.ranks]
        self.starts: list[list[float]] = [[] for _ in self.work]
        self.ends: list[list[float]] = [[] for _ in self.work]
        self.ended: dict[Key, float] = {}
        self.made_by: dict[Key, tuple[int, int]] = {}

    def run(self) -> None:
        """Run every rank as far as it comes; one that must wait is woken by what it waits for."""
        waiting: dict[Key, list[int]] = {}
        ready = deque(range(len(self.work)))
        while ready:
            rank = ready.popleft()
            missing = self._advance(rank, waiting, ready)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
        if any(len(ends) < len(work) for ends, work in zip(self.ends, self.work, strict=True)):
            ticks(self.timetable)
            raise AssertionError("what has ticks can be simulated")

    def _advance(self, rank: int, waiting: dict[Key, list[int]], ready: deque[int]) -> Key | None:
        """Run a rank's actions up to one that must wait; return what it waits for."""
        work, starts, ends, ended = self.work[rank], self.starts[rank], self.ends[rank], self.ended
        free = ends[-1] + work[len(ends) - 1].sending if ends else 0.0
        for at in range(len(ends), len(work)):
            item = work[at]
            start = free
            for key, transfer in item.needs:
                arrived = ended.get(key)
                if arrived is None:
                    return key
                start = max(start, arrived + transfer)
            end = start + item.takes
            starts.append(start)
            ends.append(end)
            free = end + item.sending
            for key in item.gives:
                ended[key] = end
                self.made_by[key] = rank, at
                if key in waiting:
                    ready.extend(waiting.pop(key))
        return None

    def _work(self, action: Action) -> _Work:
        needs, gives, sending = [], [], 0.0
        for part in action:
            needs += [(key, self._transfer(part, key)) for key in self.rules.of(part)]
            gives.append(self.rules.key(part))
            sending += self._sent(part) * (1 - self.times.hidden)
        return _Work(action, self._takes(action), tuple(needs), tuple(gives), sending)

    def _takes(self, action: Action) -> float:
        each = [self._pass(part) for part in action]
        return sum(each) - (min(each) * self.times.overlap if len(each) > 1 else 0.0)

    def _pass(self, part: Pass) -> float:
        times, stage = self.times, part.stage
        if part.kind == UPDATE:
            return 0.0
        if part.kind == FORWARD:
            takes = times.forward[stage]
        elif part.kind == INPUT:
            takes = times.input_grad[stage]
        elif part.kind == BACKWARD:
            takes = times.input_grad[stage] + times.weight_grad[stage]
        else:
            takes = times.weight_grad[stage]
        return takes * times.slices[part.micro_batch % len(times.slices)]

    def _transfer(self, part: Pass, key: Key) -> float:
        """Return the time of the transfer that brings `key` to a pass."""
        _, stage, n = key
        if stage == part.stage:
            return 0.0
        here, there = self.rank_of.get((part.stage, n)), self.rank_of.get((stage, n))
        return 0.0 if here == there else self._boundary(min(stage, part.stage), n)

    def _sent(self, part: Pass) -> float:
        """Return the time of the transfer of what a pass makes."""
        to = part.stage + 1 if part.kind == FORWARD else part.stage - 1
        if part.kind not in (FORWARD, INPUT, BACKWARD) or not 0 <= to < self.timetable.stages:
            return 0.0
        n = part.micro_batch
        here, there = self.rank_of.get((part.stage, n)), self.rank_of.get((to, n))
        return 0.0 if here == there else self._boundary(min(to, part.stage), n)

    def _boundary(self, stage: int, micro_batch: int) -> float:
        slices = self.times.slices
        return self.times.transfer[stage] * slices[micro_batch % len(slices)]


def _critical_path(clock: _Clock) -> tuple[Step, ...]:
    """Walk back from the last end: what each start waited for ran before it."""
    rank = max((r for r, ends in enumerate(clock.ends) if ends), key=lambda r: clock.ends[r][-1])
    at = len(clock.ends[rank]) - 1
    path: list[Step] = []
    while True:
        item, start = clock.work[rank][at], clock.starts[rank][at]
        cause = None
        for key, transfer in item.needs:
            if clock.ended[key] + transfer == start:
                cause = clock.made_by[key], transfer
        if at and clock.ends[rank][at - 1] + clock.work[rank][at - 1].sending == start:
            cause = (rank, at - 1), 0.0
        path.append(Step(rank, item.action, start, clock.ends[rank][at], cause[1] if cause else 0))
        if cause is None:
            return tuple(reversed(path))
        rank, at = cause[0]


def _check_times(timetable: Timetable, times: Times) -> None:
    if times.stages != timetable.stages:
        raise OptionError(
            "the times are of another pipeline",
            expected=f"{timetable.stages} stages, as {timetable.name} has",
            found=f"{times.stages} stages",
        )
    if len(times.slices) not in (1, timetable.slices):
        raise OptionError(
            "the times are of another number of slices",
            expected=f"{timetable.slices} factors, as {timetable.name} has slices",
            found=str(len(times.slices)),
        )
