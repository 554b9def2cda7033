"""One rank after the other, each working by a rule: a fast clock that makes timetables as it goes.

The idea: what a rank of a line of stages does next follows from what has arrived and from three
numbers of its own: how many forwards it may be ahead of its backwards, how late it may be with the
next pass for the sake of a weight gradient, and how long it waits for a backward that is on its way
rather than begin a forward.  A backward goes before a forward, and a weight gradient fills the time
that is left or makes room.  Every choice of numbers gives a legal timetable within the budget, so a
search is a search over numbers (`search`).

This module does not know which numbers are good.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat

from tilewright.base.errors import OptionError
from tilewright.parallel.timetables.times import Times
from tilewright.parallel.timetables.timetable import (
    FORWARD,
    INPUT,
    WEIGHT,
    Pass,
    Timetable,
    check_sizes,
)

NEVER = float("inf")
ENDLESS = 1 << 40  # more micro-batches than there are: what a cap of infinity holds
SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Budget:
    """What a rank may hold.  cap, held, kept: in one unit, bytes or activations of a micro-batch.

    held: M_B, of one micro-batch from its forward on.  kept: M_W, what its gradient of the input
    leaves for that of the weights: 32/(34 + 5as/h) of M_B for a transformer layer that recomputes
    nothing, 0.37 to 0.43 of it for models of 1.5 to 28 B parameters at 1,024 tokens.
    """

    cap: float
    held: float = 1.0
    kept: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= self.held < math.inf or self.held <= 0:
            raise OptionError(
                f"activations of {self.held:g} of which {self.kept:g} are kept are no budget",
                expected="held above 0, and kept from 0 to held",
                found=f"held {self.held:g}, kept {self.kept:g}",
            )
        if not self.cap >= self.held:
            raise OptionError(
                f"a cap of {self.cap:g} does not hold one micro-batch",
                expected=f"a cap of at least {self.held:g}",
                found=f"{self.cap:g}",
                mend=f"give a cap of {self.held:g} or more",
            )

    @property
    def most(self) -> int:
        """How many micro-batches fit between their forward and their backward."""
        return int(min(self.cap / self.held, ENDLESS) + SLACK)


@dataclass(frozen=True, slots=True)
class Problem:
    """A line of equal micro-batches through stages of given times, under a budget.

    barrier: whether the cost is the makespan, or the longest time of any rank from its own first
    action to its own last.
    """

    micro_batches: int
    times: Times
    budget: Budget
    barrier: bool = False

    def __post_init__(self) -> None:
        check_sizes("searched", micro_batches=self.micro_batches)

    @property
    def ranks(self) -> int:
        """How many ranks, each with one stage."""
        return self.times.stages

    def arrival(self, rank: int) -> float:
        """Return when the first micro-batch can reach a rank."""
        times = self.times
        return sum(times.forward[:rank]) + sum(times.transfer[:rank])

    def work(self, rank: int) -> float:
        """Return the time of all passes of a rank."""
        times = self.times
        each = times.forward[rank] + times.input_grad[rank] + times.weight_grad[rank]
        return self.micro_batches * each


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of every rank.

    ahead: forwards less backwards, at most.  fill: by what share of its own time a weight gradient
    may delay the next pass.  wait: how long to wait for a backward, in shares of a forward.
    """

    ahead: tuple[int, ...]
    fill: tuple[float, ...]
    wait: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What a rule gives: the kinds of each rank's passes in order, and the cost.

    idle: of each rank, between its first action and its last.
    """

    orders: tuple[str, ...]
    cost: float
    idle: tuple[float, ...]


def follow(problem: Problem, rule: Rule) -> Made:
    """Run every rank by its rule."""
    clock = _Clock(problem, rule)
    clock.run()
    m = problem.micro_batches
    assert all(count == m for count in clock.weights), "a rule always comes to its end"
    ends = clock.last
    spans = [end - problem.arrival(rank) for rank, end in enumerate(ends)]
    idle = tuple(span - problem.work(rank) for rank, span in enumerate(spans))
    cost = max(ends) if problem.barrier else max(spans)
    return Made(tuple("".join(order) for order in clock.orders), cost, idle)


def timetable_of(name: str, micro_batches: int, orders: Sequence[str]) -> Timetable:
    """Return the timetable whose ranks run these kinds, each in the order of micro-batches."""
    rows = []
    for rank, order in enumerate(orders):
        following = {
            kind: zip(map(Pass, repeat(kind), repeat(rank), count()), strict=True)
            for kind in (FORWARD, INPUT, WEIGHT)
        }
        rows.append(tuple(map(next, map(following.__getitem__, order))))
    return Timetable(name, len(orders), micro_batches, tuple(rows))


class _Clock:
    """The state of all ranks as time goes on; mutable, lives as long as one `follow`.

    Passes of one kind go in the order of micro-batches, so a count says which is next.
    """

    def __init__(self, problem: Problem, rule: Rule) -> None:
        ranks, m = problem.ranks, problem.micro_batches
        times, budget = problem.times, problem.budget
        self.count, self.end = m, ranks - 1
        self.forward, self.input_grad, self.weight_grad = (
            times.forward,
            times.input_grad,
            times.weight_grad,
        )
        self.transfer = times.transfer
        self.held, self.kept, self.cap = budget.held, budget.kept, budget.cap + SLACK
        self.ahead = rule.ahead
        self.fill = [share * time for share, time in zip(rule.fill, times.weight_grad, strict=True)]
        self.wait = [share * time for share, time in zip(rule.wait, times.forward, strict=True)]
        # When the input of each forward and of each backward arrives, so far as it is known.
        self.inputs = [[0.0 if rank == 0 else NEVER] * m for rank in range(ranks)]
        self.gradients = [[NEVER] * m for _ in range(ranks)]
        self.forwards, self.backwards = [0] * ranks, [0] * ranks
        self.weights, self.memory = [0] * ranks, [0.0] * ranks
        # Whether a rank waits, and when it looks again: its other entries of the agenda are stale.
        self.waits, self.looks = [False] * ranks, [0.0] * ranks
        self.last = [0.0] * ranks
        self.orders: list[list[str]] = [[] for _ in range(ranks)]
        self.agenda = [(0.0, rank) for rank in range(ranks)]

    def run(self) -> None:
        """Let whoever is free earliest decide, until all have done all."""
        agenda, looks, weights, count = self.agenda, self.looks, self.weights, self.count
        decide, earliest = self._decide, heapq.heappop
        while agenda:
            now, rank = earliest(agenda)
            if now == looks[rank] and weights[rank] < count:
                decide(now, rank)

    def _decide(self, now: float, rank: int) -> None:
        """Run a rank's next pass, or look again when one can run."""
        forwards, backwards = self.forwards[rank], self.backwards[rank]
        gradient = self.gradients[rank][backwards] if backwards < forwards else NEVER
        if gradient <= now:
            self._run_backward(now, rank)
            return
        given = NEVER
        if (
            forwards < self.count
            and forwards - backwards < self.ahead[rank]
            and self.memory[rank] + self.held <= self.cap
        ):
            given = self.inputs[rank][forwards]
        if given <= now and gradient > now + self.wait[rank]:
            self._run_forward(now, rank)
            return
        # A forward that could run but waits for the backward is not what to look out for.
        soon = gradient if given <= now or gradient < given else given
        takes = self.weight_grad[rank]
        if self.weights[rank] < backwards and now + takes <= soon + self.fill[rank]:
            self._run_weight(now, rank)
        else:
            self.waits[rank] = True
            self._look(rank, soon)

    def _run_forward(self, now: float, rank: int) -> None:
        n = self.forwards[rank]
        self.forwards[rank] = n + 1
        self.memory[rank] += self.held
        end = self._done(FORWARD, now + self.forward[rank], rank)
        if rank == self.end:
            self.gradients[rank][n] = end
        else:
            arrives = self.inputs[rank + 1][n] = end + self.transfer[rank]
            if self.waits[rank + 1] and arrives < self.looks[rank + 1]:
                self._look(rank + 1, arrives)

    def _run_backward(self, now: float, rank: int) -> None:
        n = self.backwards[rank]
        self.backwards[rank] = n + 1
        self.memory[rank] += self.kept - self.held
        end = self._done(INPUT, now + self.input_grad[rank], rank)
        if rank:
            arrives = self.gradients[rank - 1][n] = end + self.transfer[rank - 1]
            if self.waits[rank - 1] and arrives < self.looks[rank - 1]:
                self._look(rank - 1, arrives)

    def _run_weight(self, now: float, rank: int) -> None:
        self.weights[rank] += 1
        self.memory[rank] -= self.kept
        self._done(WEIGHT, now + self.weight_grad[rank], rank)

    def _done(self, kind: str, end: float, rank: int) -> float:
        self.orders[rank].append(kind)
        self.last[rank] = self.looks[rank] = end
        self.waits[rank] = False
        heapq.heappush(self.agenda, (end, rank))
        return end

    def _look(self, rank: int, when: float) -> None:
        self.looks[rank] = when
        if when < NEVER:
            heapq.heappush(self.agenda, (when, rank))
