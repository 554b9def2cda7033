"""Pipelines that never flush: PipeDream, PipeDream-2BW, PipeMare and AMPNet, version by version.

The idea: weights are updated while micro-batches are under way, so every pass says which version of
its stage's weights it reads, and every update which it makes.  The order is that of 1F1B (AMPNet's
is whatever arrives first); what differs is who keeps which version, and that is a function of the
order.

This module does not know what a version's numbers are, or how fast a model learns from them.

Sources: PipeDream (arXiv 1806.03377), PipeDream-2BW (2006.09503), PipeMare (1910.05124), AMPNet
(1705.09786).
"""

from collections.abc import Callable

from tilewright.parallel.timetables.line import Budget, Problem, Rule, follow
from tilewright.parallel.timetables.orders import one_forward_one_backward
from tilewright.parallel.timetables.times import even_times
from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    UPDATE,
    Action,
    Pass,
    Timetable,
    check_sizes,
)

Version = Callable[[str, int, int], int]
"""Which version a pass reads: (kind, micro-batch, updates so far on its rank)."""


def pipedream(ranks: int, micro_batches: int) -> Timetable:
    """An update after every backward; a backward reads the version that its forward read.

    The forward on stage i lacks the p - 1 - i updates before its own; p - i versions are held.
    """
    table = one_forward_one_backward(ranks, micro_batches)
    rows = (_versioned(row, 1, _stashed()) for row in table.ranks)
    return Timetable("pipedream", ranks, micro_batches, tuple(rows))


def pipedream_2bw(ranks: int, micro_batches: int) -> Timetable:
    """An update for every p micro-batches, and two versions on every rank.

    A micro-batch reads, on all stages alike, the version that was newest where it entered, so the
    gradients of an update are at most one version old.
    """
    table = one_forward_one_backward(ranks, micro_batches)
    entered = {
        part.micro_batch: part.version
        for (part,) in _versioned(table.ranks[0], ranks, _current)
        if part.kind == FORWARD and part.version is not None
    }
    rows = (_versioned(row, ranks, lambda _, n, __: entered[n]) for row in table.ranks)
    return Timetable("pipedream-2bw", ranks, micro_batches, tuple(rows))


def pipemare(ranks: int, micro_batches: int) -> Timetable:
    """An update for every p micro-batches, and one version: passes read what is there.

    A backward so reads a later version than its forward where an update came between.
    """
    table = one_forward_one_backward(ranks, micro_batches)
    rows = (_versioned(row, ranks, _current) for row in table.ranks)
    return Timetable("pipemare", ranks, micro_batches, tuple(rows))


def ampnet(ranks: int, micro_batches: int, in_flight: int) -> Timetable:
    """Each rank runs what has arrived, backwards first, and updates after each; one version.

    in_flight: how many micro-batches may be under way in the whole pipeline.  What arrives when is
    that of forwards of one tick and backwards of two.
    """
    check_sizes("ampnet", ranks=ranks, micro_batches=micro_batches, in_flight=in_flight)
    problem = Problem(micro_batches, even_times(ranks, 1.0, 2.0, 0.0), Budget(float(in_flight)))
    none = (0.0,) * ranks
    orders = follow(problem, Rule((in_flight,) * ranks, none, none)).orders
    rows = []
    for rank, order in enumerate(orders):
        count = {FORWARD: 0, BACKWARD: 0}
        row: list[Action] = []
        for letter in order:
            if letter in (FORWARD, INPUT):
                kind = FORWARD if letter == FORWARD else BACKWARD
                row.append((Pass(kind, rank, count[kind]),))
                count[kind] += 1
        rows.append(_versioned(tuple(row), 1, _current))
    return Timetable("ampnet", ranks, micro_batches, tuple(rows))


def _versioned(row: tuple[Action, ...], group: int, version: Version) -> tuple[Action, ...]:
    """Add versions to a rank's passes, and an update after every `group` backwards and the last."""
    made: list[Action] = []
    updates = 0
    last = max(part.micro_batch for (part,) in row)
    for (part,) in row:
        n = part.micro_batch
        read = version(part.kind, n, updates)
        made.append((Pass(part.kind, part.stage, n, read),))
        if part.kind == BACKWARD and ((n + 1) % group == 0 or n == last):
            updates += 1
            made.append((Pass(UPDATE, part.stage, n, updates),))
    return tuple(made)


def _current(_kind: str, _micro_batch: int, updates: int) -> int:
    return updates


def _stashed() -> Version:
    """Return a reader that gives a backward the version its forward read."""
    stash: dict[int, int] = {}

    def version(kind: str, micro_batch: int, updates: int) -> int:
        if kind == FORWARD:
            stash[micro_batch] = updates
        return stash[micro_batch]

    return version
