"""Synchronous timetables of a line of stages: GPipe, 1F1B, interleaved, zero bubble H1 and H2.

The idea: each is a rule for one rank alone: how many forwards run ahead, and then forward and
backward in turn.  A number of micro-batches that a rule does not take is rounded up, and what is
too much is dropped again, which leaves a legal order (`only_below`).

This module does not know how long passes take; two-way pipelines are in `two_way`.

Sources: GPipe (arXiv 1811.06965), PipeDream-flush (2006.09503), interleaved (2104.04473),
breadth-first (2211.05953), TeraPipe (2102.07988), zero bubble (2401.10241).
"""

from collections.abc import Iterator

from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Pass,
    Timetable,
    check_sizes,
    only_below,
)


def gpipe(ranks: int, micro_batches: int) -> Timetable:
    """All forwards, then all backwards, the last micro-batch first.

    Bubble (p - 1)(F + B + W); activations of all m micro-batches in flight.
    """
    return _filled_then_drained("gpipe", ranks, micro_batches, 1)


def terapipe(ranks: int, micro_batches: int, slices: int) -> Timetable:
    """GPipe's order over slices of the sequence, so that the fill is a slice's, not a sequence's.

    A slice attends to those before it, so its forward follows theirs and its backward precedes
    theirs.  Where to cut: `cut_tokens`.
    """
    check_sizes("terapipe", slices=slices)
    return _filled_then_drained("terapipe", ranks, micro_batches, slices)


def one_forward_one_backward(ranks: int, micro_batches: int) -> Timetable:
    """Each rank runs ahead by its distance to the last, then one forward, one backward.

    PipeDream-flush, DAPPLE.  Bubble (p - 1)(F + B + W); min(m, p - i) in flight on stage i.
    """
    check_sizes("1f1b", ranks=ranks, micro_batches=micro_batches)
    rows = (
        _in_turn(
            [_one(FORWARD, rank, n) for n in range(micro_batches)],
            [_one(BACKWARD, rank, n) for n in range(micro_batches)],
            ranks - 1 - rank,
        )
        for rank in range(ranks)
    )
    return Timetable("1f1b", ranks, micro_batches, tuple(rows))


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Timetable:
    """Depth first over `chunks` stages on each rank, rank i holding i, i + p, i + 2p, ...

    Micro-batches go in groups of p.  Bubble (p - 1)(F + B + W)/v; on the first rank
    1 + (p - 1)/(p v) times the activations of 1F1B.
    """
    check_sizes("interleaved", ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    whole = -(-micro_batches // ranks) * ranks
    rows = (
        _in_turn(
            list(_grouped(FORWARD, rank, ranks, whole, range(chunks), ranks)),
            list(_grouped(BACKWARD, rank, ranks, whole, range(chunks)[::-1], ranks)),
            2 * (ranks - 1 - rank) + (chunks - 1) * ranks,
        )
        for rank in range(ranks)
    )
    made = Timetable("interleaved", ranks * chunks, whole, tuple(rows))
    return only_below(made, micro_batches)


def breadth_first(ranks: int, micro_batches: int, chunks: int) -> Timetable:
    """All micro-batches through one chunk before the next: each chunk's weights are used twice.

    Bubble as `interleaved`; activations of all m micro-batches in flight, as in GPipe.
    """
    check_sizes("breadth-first", ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    m, rows = micro_batches, []
    for rank in range(ranks):
        forward = _grouped(FORWARD, rank, ranks, m, range(chunks), m)
        backward = _grouped(BACKWARD, rank, ranks, m, range(chunks)[::-1], m)
        rows.append((*forward, *backward))
    return Timetable("breadth-first", ranks * chunks, m, tuple(rows))


def zero_bubble_h1(ranks: int, micro_batches: int) -> Timetable:
    """1F1B whose weight gradients wait, i of them on stage i: the memory of 1F1B.

    Bubble (p - 1)(F + B - W).
    """
    check_sizes("zb-h1", ranks=ranks, micro_batches=micro_batches)
    rows = (_split(rank, micro_batches, ranks - 1 - rank, rank) for rank in range(ranks))
    return Timetable("zb-h1", ranks, micro_batches, tuple(rows))


def zero_bubble_h2(ranks: int, micro_batches: int) -> Timetable:
    """Twice the warm-up of 1F1B, and 2i weight gradients waiting on stage i.

    Bubble (p - 1)(F + B - 2W) where ranks do not wait for each other at the end of a step.
    """
    check_sizes("zb-h2", ranks=ranks, micro_batches=micro_batches)
    rows = (_split(rank, micro_batches, 2 * (ranks - 1 - rank), 2 * rank) for rank in range(ranks))
    return Timetable("zb-h2", ranks, micro_batches, tuple(rows))


def _one(kind: str, stage: int, micro_batch: int) -> Action:
    return (Pass(kind, stage, micro_batch),)


def _filled_then_drained(name: str, ranks: int, micro_batches: int, slices: int) -> Timetable:
    check_sizes(name, ranks=ranks, micro_batches=micro_batches)
    units = micro_batches * slices
    rows = tuple(
        tuple(_one(FORWARD, rank, n) for n in range(units))
        + tuple(_one(BACKWARD, rank, n) for n in reversed(range(units)))
        for rank in range(ranks)
    )
    return Timetable(name, ranks, micro_batches, rows, slices)


def _in_turn(forward: list[Action], backward: list[Action], ahead: int) -> tuple[Action, ...]:
    """Run `ahead` forwards, then a forward and a backward in turn, then the backwards left."""
    made = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        made += (one, other)
    return (*made, *backward[max(0, len(forward) - ahead) :])


def _grouped(
    kind: str, rank: int, ranks: int, micro_batches: int, chunks: range, group: int
) -> Iterator[Action]:
    for start in range(0, micro_batches, group):
        for chunk in chunks:
            for n in range(start, start + group):
                yield _one(kind, chunk * ranks + rank, n)


def _split(stage: int, micro_batches: int, ahead: int, waiting: int) -> tuple[Action, ...]:
    """Run as 1F1B, with the oldest weight gradient whenever more than `waiting` are left."""
    forward = [_one(FORWARD, stage, n) for n in range(micro_batches)]
    backward = [_one(INPUT, stage, n) for n in range(micro_batches)]
    made: list[Action] = []
    late = 0
    for action in _in_turn(forward, backward, ahead):
        made.append(action)
        if action[0].kind == INPUT and action[0].micro_batch - late + 1 > waiting:
            made.append(_one(WEIGHT, stage, late))
            late += 1
    return (*made, *(_one(WEIGHT, stage, n) for n in range(late, micro_batches)))
