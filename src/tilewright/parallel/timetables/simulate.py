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

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter, sub

from tilewright.base.errors import OptionError
from tilewright.parallel.timetables.needs import Key, needs_of
from tilewright.parallel.timetables.ticks import ticks
from tilewright.parallel.timetables.times import Times
from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    UPDATE,
    WEIGHT,
    Action,
    Pass,
    Timetable,
)

NOT_YET = -1.0  # when what has not ended ends


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
    busy = tuple(sum(map(sub, *rows)) for rows in zip(ends, starts, strict=True))
    return Simulation(timetable, tuple(map(tuple, starts)), tuple(map(tuple, ends)), busy, path)


_Work = tuple[float, tuple[tuple[int, float], ...], tuple[int, ...], float]
"""What actions have in common that are alike but for the micro-batch, `n` of their first pass.

The time they take; n less than the number of each pass that they wait for, and its transfer; n less
than the number under which others wait for each of their passes, if any do; for how long the rank
is kept by sending.  A bare tuple: it is taken apart for every action, in half a named one's time.
"""


class _Clock:
    """The walk over all actions; mutable, lives as long as one `simulate`."""

    def __init__(self, timetable: Timetable, times: Times) -> None:
        self.timetable, self.times = timetable, times
        self.rules, self.rank_of = needs_of(timetable), timetable.rank_of
        passes = chain.from_iterable(chain.from_iterable(timetable.ranks))
        # One more, as a slice may wait for the next one.
        self.units = 2 + max(map(itemgetter(2), passes), default=0)
        self.ways = self._ways()
        self.works: dict[tuple[str | int, ...], _Work] = {}
        # Numbers themselves, side by side: ranks take turns, and objects would lie as they come.
        self.starts: list[array[float]] = [array("d") for _ in timetable.ranks]
        self.ends: list[array[float]] = [array("d") for _ in timetable.ranks]
        self.ended = array("d", [NOT_YET]) * (len(KINDS) * timetable.stages * self.units)
        self.ready = deque(map(self._walk, range(len(timetable.ranks))))
        self.waiting: dict[int, list[Iterator[int]]] = {}

    def run(self) -> None:
        """Run every rank as far as it comes; one that must wait is woken by what it waits for."""
        while self.ready:
            walk = self.ready.popleft()
            missing = next(walk, None)
            if missing is not None:
                self.waiting.setdefault(missing, []).append(walk)
        if self.waiting:
            ticks(self.timetable)
            raise AssertionError("what has ticks can be simulated")

    def _walk(self, rank: int) -> Iterator[int]:
        """Run a rank's actions; yield the number of what the next one waits for."""
        starts, ends, ended = self.starts[rank], self.ends[rank], self.ended
        works, ways, waiting, ready, free = self.works, self.ways, self.waiting, self.ready, 0.0
        for action in self.timetable.ranks[rank]:
            kind, stage, n, _ = action[0]
            work = works.get((kind, stage, ways[n])) if len(action) == 1 else None
            if work is None:
                work = self.work_of(action)
            takes, needs, gives, sending = work
            begin = free
            for number, transfer in needs:
                number += n
                arrives = ended[number]
                if arrives < 0:
                    yield number
                    arrives = ended[number]
                    assert arrives >= 0, "who waits is woken when it has ended"
                arrives += transfer
                if arrives > begin:
                    begin = arrives
            end = begin + takes
            starts.append(begin)
            ends.append(end)
            free = end + sending
            for number in gives:
                number += n
                ended[number] = end
                if number in waiting:
                    ready.extend(waiting.pop(number))

    def work_of(self, action: Action) -> _Work:
        """Return the work of an action, made when the first that is alike comes."""
        first = action[0]
        key: tuple[str | int, ...] = first.kind, first.stage, self.ways[first.micro_batch]
        for part in action[1:]:
            later = part.micro_batch - first.micro_batch
            key += part.kind, part.stage, self.ways[part.micro_batch], later
        if key not in self.works:
            self.works[key] = self._work(action)
        return self.works[key]

    def _work(self, action: Action) -> _Work:
        n, needs, gives, sending = action[0].micro_batch, [], [], 0.0
        for part in action:
            needs += [
                (self._number(key) - n, self._transfer(part, key)) for key in self.rules.of(part)
            ]
            if part.kind not in (WEIGHT, UPDATE):
                gives.append(self._number(self.rules.key(part)) - n)
            sending += self._sent(part) * (1 - self.times.hidden)
        return self._takes(action), tuple(needs), tuple(gives), sending

    def maker(self, number: int) -> tuple[int, int]:
        """Return the rank, and the number on it, of the action that others wait for."""
        stage, n = divmod(number % (self.timetable.stages * self.units), self.units)
        for rank in (self.rank_of.get((stage, n), 0), *range(len(self.ends))):
            ends = self.ends[rank]
            at = bisect_left(ends, self.ended[number])
            while at < len(ends) and ends[at] == self.ended[number]:
                if number in self._given(self.timetable.ranks[rank][at]):
                    return rank, at
                at += 1
        raise AssertionError("what has ended was run")

    def _given(self, action: Action) -> list[int]:
        _, _, gives, _ = self.work_of(action)
        return [number + action[0].micro_batch for number in gives]

    def _number(self, key: Key) -> int:
        kind, stage, n = key
        return (KINDS.index(kind) * self.timetable.stages + stage) * self.units + n

    def _takes(self, action: Action) -> float:
        each = [self._pass(part) for part in action]
        return sum(each) - (min(each) * self.times.overlap if len(each) > 1 else 0.0)

    def _ways(self) -> list[int]:
        """Return for each micro-batch which way it goes: alike are those that meet the same ranks,
        with slices of one place in the sequence."""
        known: dict[tuple[int | None, ...], int] = {}
        stages, slices = range(self.timetable.stages), self.timetable.slices
        found = []
        for n in range(self.units):
            way = (n % slices, *(self.rank_of.get((stage, n)) for stage in stages))
            found.append(known.setdefault(way, len(known)))
        return found

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
        action, start = clock.timetable.ranks[rank][at], clock.starts[rank][at]
        _, needs, _, _ = clock.work_of(action)
        n, cause = action[0].micro_batch, None
        for number, transfer in needs:
            ended = clock.ended[number + n]
            if ended + transfer == start:
                cause = clock.maker(number + n), transfer
        if at:
            *_, sending = clock.work_of(clock.timetable.ranks[rank][at - 1])
            if clock.ends[rank][at - 1] + sending == start:
                cause = (rank, at - 1), 0.0
        path.append(Step(rank, action, start, clock.ends[rank][at], cause[1] if cause else 0))
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
