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
from itertools import pairwise, repeat

from tilewright.base.errors import OptionError
from tilewright.parallel.timetables.times import Times
from tilewright.parallel.timetables.timetable import (
    FORWARD,
    INPUT,
    WEIGHT,
    Timetable,
    check_sizes,
    in_order,
)

NEVER = float("inf")
ENDLESS = 1 << 40  # more micro-batches than there are: what a cap of infinity holds
SLACK = 1e-9
_KINDS = FORWARD, INPUT, WEIGHT
_F, _B, _W = range(3)


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
    m, ranks = problem.micro_batches, clock.ranks
    assert all(rank.done[_W] == m for rank in ranks), "a rule always comes to its end"
    spans = [rank.last - problem.arrival(at) for at, rank in enumerate(ranks)]
    idle = tuple(span - problem.work(at) for at, span in enumerate(spans))
    cost = max(rank.last for rank in ranks) if problem.barrier else max(spans)
    return Made(tuple("".join(rank.order) for rank in ranks), cost, idle)


def timetable_of(name: str, micro_batches: int, orders: Sequence[str]) -> Timetable:
    """Return the timetable whose ranks run these kinds, each in the order of micro-batches."""
    rows = (list(zip(order, repeat(rank))) for rank, order in enumerate(orders))
    return Timetable(name, len(orders), micro_batches, in_order(rows, micro_batches))


class _Rank:
    """The state of one rank as time goes on; mutable, lives as long as one `follow`.

    Passes of one kind go in the order of micro-batches, so the count of those done says which is
    next.  looks: when it looks again; other entries of the agenda are stale.  waits: whether it
    looks for what comes.  sends: for each kind who waits for what it makes, the list of when that
    arrives there, and the transfer.
    """

    __slots__ = (
        "ahead", "at", "done", "fill", "gradients", "inputs", "last", "looks", "memory", "order",
        "sends", "takes", "wait", "waits",
    )  # fmt: skip

    def __init__(self, problem: Problem, rule: Rule, at: int) -> None:
        times, m = problem.times, problem.micro_batches
        self.at, self.ahead = at, rule.ahead[at]
        self.takes = times.forward[at], times.input_grad[at], times.weight_grad[at]
        self.fill, self.wait = rule.fill[at] * self.takes[_W], rule.wait[at] * self.takes[_F]
        # When the input of each forward and of each backward arrives, so far as it is known; of one
        # more, which never comes.
        self.inputs = [NEVER if at else 0.0] * m + [NEVER]
        self.gradients = [NEVER] * (m + 1)
        self.sends: list[tuple[_Rank, list[float], float] | None] = [None] * len(_KINDS)
        self.done = [0] * len(_KINDS)
        self.memory = self.last = self.looks = 0.0
        self.waits = False
        self.order: list[str] = []


class _Clock:
    """All ranks, and an agenda of when each looks what it can do; mutable."""

    def __init__(self, problem: Problem, rule: Rule) -> None:
        budget, transfer = problem.budget, problem.times.transfer
        self.count, self.held, self.cap = problem.micro_batches, budget.held, budget.cap + SLACK
        self.adds = budget.held, budget.kept - budget.held, -budget.kept
        self.ranks = [_Rank(problem, rule, at) for at in range(problem.ranks)]
        self.agenda = [(0.0, at) for at in range(problem.ranks)]
        for (before, rank), takes in zip(pairwise(self.ranks), transfer, strict=True):
            before.sends[_F] = rank, rank.inputs, takes
            rank.sends[_B] = before, before.gradients, takes
        self.ranks[-1].sends[_F] = self.ranks[-1], self.ranks[-1].gradients, 0.0

    def run(self) -> None:
        """Let whoever is free earliest decide, until all have done all."""
        agenda, ranks, count, held, cap = self.agenda, self.ranks, self.count, self.held, self.cap
        begin = self._begin
        while agenda:
            now, at = agenda[0]
            rank = ranks[at]
            forwards, backwards, weights = rank.done
            if now != rank.looks or weights == count:
                heapq.heappop(agenda)
                continue
            gradient, given = rank.gradients[backwards], NEVER
            if gradient <= now:
                begin(now, rank, _B)
                continue
            if forwards - backwards < rank.ahead and rank.memory + held <= cap:
                given = rank.inputs[forwards]
            if given <= now and gradient > now + rank.wait:
                begin(now, rank, _F)
                continue
            # A forward that could run but waits for the backward is not what to look out for.
            soon = gradient if given <= now or gradient < given else given
            if weights < backwards and now + rank.takes[_W] <= soon + rank.fill:
                begin(now, rank, _W)
            else:
                rank.waits, rank.looks = True, soon
                heapq.heappop(agenda)
                if soon < NEVER:
                    heapq.heappush(agenda, (soon, at))

    def _begin(self, now: float, rank: _Rank, kind: int) -> None:
        """Begin the next pass of the rank whose turn it is, the first of the agenda.

        When it is free again takes that place: one sift, not two.
        """
        done = rank.done
        n = done[kind]
        done[kind] = n + 1
        rank.memory += self.adds[kind]
        rank.order.append(_KINDS[kind])
        end = rank.last = rank.looks = now + rank.takes[kind]
        rank.waits = False
        heapq.heapreplace(self.agenda, (end, rank.at))
        sends = rank.sends[kind]
        if sends is not None:
            other, arrivals, transfer = sends
            arrives = arrivals[n] = end + transfer
            if other.waits and arrives < other.looks:
                other.looks = arrives
                heapq.heappush(self.agenda, (arrives, other.at))
