"""What no timetable can cost less than, under a budget: the proof beside every searched one.

The idea: reasons that hold for any order of the passes.

- A rank does all its work, and before its first backward it can only run as many forwards as the
  budget holds, so it idles for what the first micro-batch's way there and back takes longer.  One
  that runs more forwards than fit into that way delays the ranks before it, so those of all ranks
  are chosen together: `_idles_within` asks whether every rank can stay within a given cost.
- From its last forward on, a rank waits for that micro-batch's way there and back, and has no more
  to do than what was still held when that forward began.
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
    ways = _ways(problem)
    least = [_work_and_drain(problem, rank, way) for rank, way in enumerate(ways)]
    most = min(problem.budget.most, problem.micro_batches)
    idle = [
        max(0.0, way - most * forward)
        for way, forward in zip(ways, problem.times.forward, strict=True)
    ]
    turning = max(_turning(problem, last, idle[last]) for last in ranks)
    low = max(turning, *least)
    if most == problem.micro_batches:
        # All forwards may come before the first backward, so the two waits may be one.
        least = [_offset(problem, rank) + problem.work(rank) for rank in ranks]
    return _with_idle(problem, low, least)


def _with_idle(problem: Problem, low: float, least: list[float]) -> float:
    """Raise a bound to the least cost in which all ranks' first backwards fit together.

    least: the cost of each rank if it idled in no time before its first backward.
    """
    if _idles_within(problem, low, least):
        return low
    high = low + sum(problem.work(rank) for rank in range(problem.ranks))
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if _idles_within(problem, middle, least) else (middle, high)
    return low


def _idles_within(problem: Problem, cost: float, least: list[float]) -> bool:
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
        room = cost - least[rank]
        if room < -SLACK * cost:
            return False
        wanted = (start - room) / forward if forward else 1.0
        forwards = max(1, math.ceil(wanted - SLACK))
        if forwards > most:
            return False
        start = max(start, forwards * forward)
    return True


def _ways(problem: Problem) -> list[float]:
    """Return for each rank the time from a forward's start to its backward's, at the least."""
    times, ways, way = problem.times, [], 0.0
    for rank in reversed(range(problem.ranks)):
        way += times.forward[rank]
        if rank < problem.ranks - 1:
            way += times.input_grad[rank + 1] + 2 * times.transfer[rank]
        ways.append(way)
    return ways[::-1]


def _work_and_drain(problem: Problem, rank: int, way: float) -> float:
    """Return the least cost of a rank for its work and its wait after the last forward."""
    times, m, budget = problem.times, problem.micro_batches, problem.budget
    forward, backward, weight = (
        part[rank] for part in (times.forward, times.input_grad, times.weight_grad)
    )
    left = 0.0  # the most work that can be left when the last forward begins
    for flying in range(1, min(budget.most, m) + 1):
        late, room = m - flying, budget.cap - flying * budget.held
        if budget.kept * late > room:
            late = math.floor(room / budget.kept + SLACK)
        left = max(left, forward + flying * backward + (flying + late) * weight)
    waits = max(0.0, way + backward + weight - left)
    return _offset(problem, rank) + problem.work(rank) + waits


def _offset(problem: Problem, rank: int) -> float:
    return problem.arrival(rank) if problem.barrier else 0.0


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
