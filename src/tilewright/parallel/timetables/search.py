"""Search for the cheapest timetable of a line of stages under an activation budget.

The idea: start from the rules that the lower bound suggests, change the numbers of a few
neighbouring ranks at a time, and keep what is not worse; now and then begin again from a start of
another kind.  The lower bound (`bounds`) says how good the best is, and ends the search where it is
reached.  Everything is drawn from one seed and counted in trials, so a search gives the same
timetable on any machine.

This module does not know what a proof by integer programming is (`prove`).
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.parallel.timetables.bounds import lower_bound
from tilewright.parallel.timetables.line import (
    SLACK,
    Budget,
    Made,
    Problem,
    Rule,
    follow,
    timetable_of,
)
from tilewright.parallel.timetables.times import even_times
from tilewright.parallel.timetables.timetable import Timetable, check_sizes

MOST_TRIALS, FEWEST_TRIALS = 4000, 200
FEW_TRIALS, FEW_PASSES = 12, 50_000
# Micro-batches for each rank, by which a short search judges.
BEGINNING = 2
# What trials of large problems are bounded by: about 10 seconds of one core.
MOST_PASSES = 6_000_000
STARTING_FILLS = (1.0, 0.5)
RESTART = 0.02
WIDTHS = (1, 1, 1, 2, 4, 8)
# Of equal costs the timetable with less idle time of all ranks is nearer to a better one.
IDLE_WEIGHT = 1e-3


@dataclass(frozen=True, slots=True)
class Searched:
    """The best timetable found, its cost, and what no timetable can be below.

    trials: how many were looked at.  method: what found it.
    """

    timetable: Timetable
    cost: float
    bound: float
    trials: int
    method: str

    @property
    def gap(self) -> float:
        """How far the cost may be above the best there is, as a share of it; 0 is a proof."""
        above = max(0.0, self.cost - self.bound)
        if not above:
            return 0.0  # a bound of nothing may be reached too
        return above / self.bound if self.bound else math.inf

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that there is none better."""
        return self.gap <= 1e-6

    def __str__(self) -> str:
        proof = "optimal" if self.optimal else f"gap {self.gap:.4%}"
        return (
            f"cost {self.cost:.6g}, lower bound {self.bound:.6g} ({proof}), "
            f"{self.trials} trials, {self.method}"
        )


Progress = Callable[[int, float, float], None]
"""Told the number of trials, the best cost and the lower bound, when one of them changes."""


def search_timetable(
    problem: Problem,
    *,
    trials: int = 0,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Searched:
    """Return the best timetable that is found in a number of trials, or sooner if it is optimal.

    trials: 0 for as many as take about 10 seconds, and at most 4,000.  Ctrl-C ends the search and
    returns the best so far.
    """
    hunt = _Hunt(problem, random.Random(seed), progress)
    try:
        hunt.search(trials or trials_for(problem))
    except KeyboardInterrupt:
        if hunt.best is None:
            raise
    assert hunt.best is not None, "one trial is made"
    made = timetable_of("searched", problem.micro_batches, hunt.best.orders)
    return Searched(made, hunt.best.cost, hunt.bound, hunt.trials, "search by rules")


def zero_bubble_1p(ranks: int, micro_batches: int) -> Timetable:
    """Return what a short search finds in the memory of 1F1B, for passes of equal times.

    Where the times are known, `search_timetable` with a cap of p activations finds better ones.
    """
    check_sizes("zb-1p", ranks=ranks, micro_batches=micro_batches)
    problem = Problem(micro_batches, even_times(ranks), Budget(float(ranks)))
    return follow_briefly("zb-1p", problem)


def zero_bubble_2p(ranks: int, micro_batches: int) -> Timetable:
    """Return what a short search finds in twice the memory of 1F1B, for passes of equal times.

    Where the times are known, `search_timetable` with a cap of 2p activations finds better ones.
    """
    check_sizes("zb-2p", ranks=ranks, micro_batches=micro_batches)
    problem = Problem(micro_batches, even_times(ranks), Budget(2.0 * ranks))
    return follow_briefly("zb-2p", problem)


def follow_briefly(name: str, problem: Problem) -> Timetable:
    """Return what the best rule of a short search gives.

    The rule is that for the beginning of the problem, `BEGINNING` micro-batches for each rank: how
    many more there are makes no difference to it, nor to what comes before them.
    """
    few = min(problem.micro_batches, BEGINNING * problem.ranks)
    rule = _best_rule(replace(problem, micro_batches=few))
    return timetable_of(name, problem.micro_batches, follow(problem, rule).orders)


@lru_cache(maxsize=64)
def _best_rule(problem: Problem) -> Rule:
    """Return the best rule of a few trials, fewer where each takes longer."""
    passes = 3 * problem.ranks * problem.micro_batches
    hunt = _Hunt(problem, random.Random(0), lambda *_: None)
    hunt.search(max(1, min(FEW_TRIALS, FEW_PASSES // passes)))
    assert hunt.best_rule is not None, "one trial is made"
    return hunt.best_rule


def trials_for(problem: Problem) -> int:
    """Return how many trials a search makes by default: fewer where each takes longer."""
    passes = 3 * problem.ranks * problem.micro_batches
    return max(FEWEST_TRIALS, min(MOST_TRIALS, MOST_PASSES // passes))


class _Hunt:
    """The state of a search; mutable."""

    def __init__(self, problem: Problem, source: random.Random, progress: Progress) -> None:
        self.problem, self.source, self.progress = problem, source, progress
        self.bound = lower_bound(problem)
        self.most = min(problem.budget.most, problem.micro_batches)
        self.starts = list(_starts(problem.ranks, self.most))
        self.trials = 0
        self.best: Made | None = None
        self.best_rule: Rule | None = None
        self.rule: Rule | None = None
        self.score = float("inf")

    @property
    def reached(self) -> bool:
        return self.best is not None and self.best.cost <= self.bound * (1 + SLACK)

    def search(self, trials: int) -> None:
        """Look at rules, until one is as good as the bound."""
        while self.trials < trials and not self.reached:
            self.step()

    def step(self) -> None:
        """Look at one rule."""
        if self.trials < len(self.starts):
            rule = self.starts[self.trials]
        elif self.rule is None or self.source.random() < RESTART:
            rule = self.source.choice(self.starts)
        else:
            rule = self._changed(self.rule)
        made = follow(self.problem, rule)
        self.trials += 1
        score = made.cost + IDLE_WEIGHT * sum(made.idle) / len(made.idle)
        if score <= self.score:
            self.rule, self.score = rule, score
        if self.best is None or made.cost < self.best.cost * (1 - SLACK):
            self.best, self.best_rule = made, rule
            self.progress(self.trials, made.cost, self.bound)

    def _changed(self, rule: Rule) -> Rule:
        """Return a rule in which one number of some neighbouring ranks is another."""
        ranks, draw = self.problem.ranks, self.source
        low = draw.randrange(ranks)
        high = min(ranks, low + draw.choice(WIDTHS))
        what = draw.choice(("ahead", "ahead", "fill", "fill", "fill", "wait"))
        if what == "ahead":
            by = draw.choice((-1, 1))
            ahead = (max(1, min(self.most, count + by)) for count in rule.ahead[low:high])
            return replace(rule, ahead=(*rule.ahead[:low], *ahead, *rule.ahead[high:]))
        share = draw.choice((0.0, 1.0, draw.random(), draw.random()))
        if what == "fill":
            fill = (*rule.fill[:low], *(share,) * (high - low), *rule.fill[high:])
            return replace(rule, fill=fill)
        wait = (*rule.wait[:low], *(share,) * (high - low), *rule.wait[high:])
        return replace(rule, wait=wait)


def _starts(ranks: int, most: int) -> Iterator[Rule]:
    """Yield rules that let each rank run ahead for the way to the last rank and back.

    Ranks before some place run a forward further, which hides a way that is longer than that by
    transfers; all stay within the `most` that the budget holds.
    """
    way = [2 * (ranks - rank) - 1 if most > ranks else ranks - rank for rank in range(ranks)]
    for split in range(ranks + 1):
        for fill in STARTING_FILLS:
            for more in (0, 1):
                ahead = (count + more + (rank < split) for rank, count in enumerate(way))
                held = tuple(max(1, min(most, count)) for count in ahead)
                yield Rule(held, (fill,) * ranks, (0.0,) * ranks)
