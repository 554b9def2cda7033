"""The best timetable of a small problem, with proof, by integer programming.

The idea: the zero-bubble paper's programme (arXiv 2401.10241), less what is known without loss of
generality.  Micro-batches are alike, so each kind of pass goes in their order on every rank, and
only passes of different kinds on one rank need a binary that says which goes first, and only where
the order of a micro-batch's own passes does not decide it.  To the usual either-or constraints come
the sums of what goes before a pass, which make the relaxed programme tight.  A search gives the
horizon, and the bound of `bounds` stands in it.

This module does not know a search that is fast: binaries grow with the square of micro-batches.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.parallel.timetables.bounds import lower_bound
from tilewright.parallel.timetables.line import Problem, timetable_of
from tilewright.parallel.timetables.search import Searched, search_timetable
from tilewright.parallel.timetables.simulate import simulate
from tilewright.parallel.timetables.timetable import FORWARD, INPUT, WEIGHT

Op = tuple[str, int]
"""(kind, micro-batch) of the rank in question."""
Sum = tuple[float, list[tuple[float, int]]]
"""A constant, and factors of variables."""

# A pass of the second kind may go before a later one of the first.
RIVALS = ((FORWARD, INPUT), (FORWARD, WEIGHT), (INPUT, WEIGHT))
GAP = 1e-7
# Trials of the search before the proof: more is the solver's business.
SEARCHED = 500


def prove_timetable(problem: Problem, *, seconds: float = 60.0, seed: int = 0) -> Searched:
    """Return a timetable that is proved optimal, or the best of a time with its lower bound.

    Does nothing beyond a search where that reaches the lower bound.
    """
    found = search_timetable(problem, trials=SEARCHED, seed=seed)
    if found.optimal:
        return found
    programme = _Programme(problem, found.cost)
    solved = programme.solve(seconds)
    bound, made, cost = found.bound, found.timetable, found.cost
    if solved.status == 0 or solved.mip_dual_bound is not None:
        bound = max(bound, float(solved.mip_dual_bound))
    if solved.x is not None:
        other = timetable_of("proved", problem.micro_batches, programme.orders(solved.x))
        run = simulate(other, problem.times)
        now = run.makespan if problem.barrier else run.longest
        if now < cost:
            made, cost = other, now
    return Searched(made, cost, min(bound, cost), found.trials, "integer programming")


@dataclass(slots=True)
class _Rows:
    """Constraints `sum of factor * variable >= low` as they are written; mutable."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)

    def add(self, low: float, *terms: tuple[float, int]) -> None:
        for factor, column in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.factors.append(factor)
        self.low.append(low)


class _Programme:
    """The variables and constraints of a problem; mutable while it is written.

    Variables: the start of every pass, 1 for every pair whose later kind goes first, the cost.
    """

    def __init__(self, problem: Problem, horizon: float) -> None:
        self.problem, self.horizon, self.rows = problem, horizon, _Rows()
        times, m, ranks = problem.times, problem.micro_batches, range(problem.ranks)
        self.takes = {
            FORWARD: times.forward,
            INPUT: times.input_grad,
            WEIGHT: times.weight_grad,
        }
        ops = [(rank, kind, n) for rank in ranks for kind in self.takes for n in range(m)]
        self.start = {op: at for at, op in enumerate(ops)}
        pairs = [
            (rank, (later, k), (first, j))
            for rank in ranks
            for first, later in RIVALS
            for j in range(m)
            for k in range(j)
        ]
        self.before = {pair: len(ops) + at for at, pair in enumerate(pairs)}
        self.cost = len(ops) + len(pairs)

    def solve(self, seconds: float) -> Any:
        """Write all constraints, and let HiGHS solve them."""
        # SciPy takes a second to import, and who only prices a plan does not need it.
        from scipy.optimize import LinearConstraint, milp
        from scipy.sparse import coo_array

        for rank in range(self.problem.ranks):
            self._line(rank)
            self._either_or(rank)
            self._together(rank)
            self._sums(rank)
            self._memory(rank)
        columns = self.cost + 1
        aim, integral = np.zeros(columns), np.zeros(columns)
        aim[self.cost] = 1
        integral[len(self.start) : self.cost] = 1
        rows = self.rows
        shape = (len(rows.low), columns)
        matrix = coo_array((rows.factors, (rows.rows, rows.columns)), shape).tocsr()
        return milp(
            aim,
            integrality=integral,
            bounds=self._bounds(),
            constraints=LinearConstraint(matrix, rows.low, np.inf),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )

    def orders(self, solution: np.ndarray) -> list[str]:
        """Return the kinds of each rank's passes in the order of their starts."""
        found = []
        for rank in range(self.problem.ranks):
            ops = [(solution[at], op) for op, at in self.start.items() if op[0] == rank]
            found.append("".join(kind for _, (_, kind, _) in sorted(ops, key=lambda op: op[0])))
        return found

    def _bounds(self) -> Any:
        from scipy.optimize import Bounds

        low, high = np.zeros(self.cost + 1), np.ones(self.cost + 1)
        for (rank, kind, n), at in self.start.items():
            arrival = self.problem.arrival(rank)
            first = kind == FORWARD and n == 0
            low[at] = arrival
            high[at] = arrival if first else self._end(rank)
        low[self.cost], high[self.cost] = lower_bound(self.problem), self.horizon
        return Bounds(low, high)

    def _end(self, rank: int) -> float:
        """Return when a rank must be done if the cost is the horizon's."""
        return self.horizon + (0.0 if self.problem.barrier else self.problem.arrival(rank))

    def _line(self, rank: int) -> None:
        """A pass follows what it needs, and those of its kind before it."""
        times, ranks = self.problem.times, self.problem.ranks
        for n in range(self.problem.micro_batches):
            forward, backward, weight = (self.start[rank, kind, n] for kind in self.takes)
            self.rows.add(times.forward[rank], (1, backward), (-1, forward))
            self.rows.add(times.input_grad[rank], (1, weight), (-1, backward))
            if rank:
                arrives = times.forward[rank - 1] + times.transfer[rank - 1]
                self.rows.add(arrives, (1, forward), (-1, self.start[rank - 1, FORWARD, n]))
            if rank < ranks - 1:
                arrives = times.input_grad[rank + 1] + times.transfer[rank]
                self.rows.add(arrives, (1, backward), (-1, self.start[rank + 1, INPUT, n]))
            if n:
                for kind, takes in self.takes.items():
                    now, before = self.start[rank, kind, n], self.start[rank, kind, n - 1]
                    self.rows.add(takes[rank], (1, now), (-1, before))

    def _either_or(self, rank: int) -> None:
        """Of two passes of a rank one is over before the other begins."""
        span = self._end(rank) - self.problem.arrival(rank)
        for (where, one, other), first in self.before.items():
            if where != rank:
                continue
            a, b = self.start[rank, *one], self.start[rank, *other]
            takes_a, takes_b = self.takes[one[0]][rank], self.takes[other[0]][rank]
            self.rows.add(takes_a - span, (1, b), (-1, a), (-span, first))
            self.rows.add(takes_b, (1, a), (-1, b), (span, first))

    def _together(self, rank: int) -> None:
        """What goes first takes with it what goes before it."""
        for (where, (kind, k), (rival, j)), first in self.before.items():
            if where != rank:
                continue
            if k:
                self._implies(first, self.before[rank, (kind, k - 1), (rival, j)])
            if (rank, (kind, k), (rival, j + 1)) in self.before:
                self._implies(first, self.before[rank, (kind, k), (rival, j + 1)])
            if (kind, rival) == (WEIGHT, FORWARD):
                self._implies(first, self.before[rank, (INPUT, k), (FORWARD, j)])

    def _implies(self, one: int, other: int) -> None:
        self.rows.add(0.0, (1, other), (-1, one))

    def _sums(self, rank: int) -> None:
        """A pass begins after all that goes before it, and the rank ends after all the rest."""
        arrival, work = self.problem.arrival(rank), self.problem.work(rank)
        offset = 0.0 if self.problem.barrier else arrival
        for (where, kind, n), at in self.start.items():
            if where != rank:
                continue
            known, terms = self._earlier(rank, (kind, n))
            minus = [(-factor, column) for factor, column in terms]
            self.rows.add(arrival + known, (1, at), *minus)
            self.rows.add(work - known - offset, (1, self.cost), (-1, at), *terms)

    def _earlier(self, rank: int, op: Op) -> Sum:
        """Return the time of a rank's passes that go before one."""
        (kind, n), m = op, self.problem.micro_batches
        known, terms = 0.0, []
        for other, takes in self.takes.items():
            time = takes[rank]
            for k in range(m):
                if (rank, (other, k), op) in self.before:
                    terms.append((time, self.before[rank, (other, k), op]))
                elif (rank, op, (other, k)) in self.before:
                    known += time
                    terms.append((-time, self.before[rank, op, (other, k)]))
                elif k < n or (k == n and _comes_first(other, kind)):
                    known += time
        return known, terms

    def _memory(self, rank: int) -> None:
        """No forward begins where its activations would not fit."""
        budget = self.problem.budget
        for n in range(1, self.problem.micro_batches):
            freed = []
            for k in range(n):
                backward = self.before[rank, (INPUT, k), (FORWARD, n)]
                weight = self.before[rank, (WEIGHT, k), (FORWARD, n)]
                freed += [(budget.held - budget.kept, backward), (budget.kept, weight)]
            self.rows.add(budget.held * (n + 1) - budget.cap, *freed)


def _comes_first(one: str, other: str) -> bool:
    """Say whether a micro-batch's pass of a kind goes before its pass of another."""
    order = (FORWARD, INPUT, WEIGHT)
    return order.index(one) < order.index(other)
