"""What no timetable can cost less than, under a budget: the proof beside every searched one.

The idea: three reasons that hold for any order of the passes.

- A rank does all its work, and before its first backward it can only run as many forwards as the
  budget holds, so it idles for what the first micro-batch's way there and back takes longer.  One
  that runs more forwards than fit into that way delays the ranks before it, so those of all ranks
  are chosen together: `_idles_within` asks whether every rank can stay within a given cost.
- Some rank i has to take m forwards and m backwards between the first forward and the last backward
  of a rank j before it, which lie a way there and a way back further out, and at the end j has a
  weight gradient left.
- Weight gradients that wait are held, so rank i must run some of them before its last backward.

This module does not know how a timetable is found.
"""

import math

from tilewright.parallel.timetables.line import SLACK, Problem

ROUNDS = 60


def lower_bound(problem: Problem) -> float:
    """Return a cost that no timetable of a problem is below."""
    ranks = range(problem.ranks)
    idle = _least_idle(problem)
    work = max(
        problem.work(rank) + idle[rank] + (problem.arrival(rank) if problem.barrier else 0.0)
        for rank in ranks
    )
    turning = max(_turning(problem, last, idle[last]) for last in ranks)
    low = max(work, turning)
    return _with_idle(problem, low)


def _with_idle(problem: Problem, low: float) -> float:
    """Raise a bound to the least cost in which all ranks' first backwards fit together."""
    if _idles_within(problem, low):
        return low
    high = low + sum(problem.work(rank) for rank in range(problem.ranks))
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if _idles_within(problem, middle) else (middle, high)
    return low


def _idles_within(problem: Problem, cost: float) -> bool:
    """Say whether each rank can idle so little before its first backward that `cost` may hold.

    From the last rank on, each takes the fewest forwards with which it stays within the cost, as
    fewer let the rank before it begin its first backward earlier.
    """
    times, most = problem.times, min(problem.budget.most, problem.micro_batches)
    start = 0.0  # of a rank's first backward, from the start of its own first forward
    for rank in reversed(range(problem.ranks)):
        forward = times.forward[rank]
        if rank < problem.ranks - 1:
            start += forward + times.input_grad[rank + 1] + 2 * times.transfer[rank]
        else:
            start = forward
        offset = problem.arrival(rank) if problem.barrier else 0.0
        room = cost - problem.work(rank) - offset
        if room < -SLACK * cost:
            return False
        wanted = (start - room) / forward if forward else 1.0
        forwards = max(1, math.ceil(wanted - SLACK))
        if forwards > most:
            return False
        start = max(start, forwards * forward)
    return True


def _least_idle(problem: Problem) -> list[float]:
    """Return how long each rank idles before its first backward, however the others help."""
    times, most = problem.times, min(problem.budget.most, problem.micro_batches)
    idle, start = [], 0.0
    for rank in reversed(range(problem.ranks)):
        start += times.forward[rank]
        if rank < problem.ranks - 1:
            start += times.input_grad[rank + 1] + 2 * times.transfer[rank]
        idle.append(max(0.0, start - most * times.forward[rank]))
    return idle[::-1]


def _turning(problem: Problem, last: int, idle: float) -> float:
    """Return the least cost of a rank before `last`, or of all, if all must turn there."""
    times, m, budget = problem.times, problem.micro_batches, problem.budget
    early, room = 0, budget.cap - budget.held
    if budget.kept * (m - 1) > room:
        early = math.ceil(m - 1 - room / budget.kept - SLACK)
    inside = m * (times.forward[last] + times.input_grad[last])
    inside += early * times.weight_grad[last] + idle
    costs, back = [], 0.0
    for first in reversed(range(last)):
        back += times.transfer[first] + times.input_grad[first]
        there = problem.arrival(last) - (0.0 if problem.barrier else problem.arrival(first))
        costs.append(there + inside + back + times.weight_grad[first])
    return max(costs, default=0.0)
