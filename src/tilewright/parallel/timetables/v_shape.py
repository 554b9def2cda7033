"""ZB-V: two stages on each rank, the line going down the ranks and back up, without a bubble.

The idea: rank i holds stages i and 2p - 1 - i, so the last stage is on the rank of the first, and
the backward of a micro-batch begins where its forward ended.  All passes taken to last one tick,
each rank decides by one rule, tick after tick.  If its activations fill its budget and a weight
gradient is left, it runs that; else the first that can run of: the backward of its upper stage, the
forward of its lower, the forward of its upper, the backward of its lower; else a weight gradient.

This module does not know real times: the order is that of equal passes.

Source: Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), whose ZB-V has the same
placement, memory and bubble; the rule is ours.
"""

from collections import deque

from tilewright.parallel.timetables.timetable import (
    FORWARD,
    INPUT,
    WEIGHT,
    Timetable,
    check_sizes,
    in_order,
)


def zero_bubble_v(ranks: int, micro_batches: int) -> Timetable:
    """No bubble where T_F = T_B = T_W and m >= 2p, in the activations of 1F1B's first rank.

    2p halves of a rank's activations are held at most, even if a weight gradient needs as much as
    what came before it (M_W = M_B).
    """
    check_sizes("zb-v", ranks=ranks, micro_batches=micro_batches)
    fold = _Fold(ranks, micro_batches)
    while fold.left:
        fold.tick()
    rows = in_order(fold.rows, micro_batches)
    return Timetable("zb-v", 2 * ranks, micro_batches, rows)


class _Fold:
    """All ranks, tick after tick; mutable.  Counts say how many passes of a stage are done."""

    def __init__(self, ranks: int, micro_batches: int) -> None:
        self.ranks = ranks
        # Before stage 0, which is at -1 too, all is there.
        self.forwards, self.backwards = [*[0] * (2 * ranks), micro_batches], [0] * (2 * ranks)
        self.held = [0] * ranks
        self.late: list[deque[int]] = [deque() for _ in range(ranks)]  # stages, in order
        self.rows: list[list[tuple[str, int]]] = [[] for _ in range(ranks)]
        self.left = 6 * ranks * micro_batches

    def tick(self) -> None:
        """Let every rank run one pass, of what was done before this tick."""
        chosen = list(map(self._choose, range(self.ranks)))
        assert any(chosen), "some rank can always run something"
        for rank, found in enumerate(chosen):
            if found is not None:
                self._run(rank, found)

    def _choose(self, rank: int) -> tuple[str, int] | None:
        """Return the kind and the stage of what a rank runs next."""
        upper, lower = rank, 2 * self.ranks - 1 - rank
        forwards, backwards, late = self.forwards, self.backwards, self.late[rank]
        full = self.held[rank] >= 2 * self.ranks
        if full and late:
            return WEIGHT, late[0]
        if backwards[upper] < backwards[upper + 1]:
            return INPUT, upper
        if not full:
            if forwards[lower] < forwards[lower - 1]:
                return FORWARD, lower
            if forwards[upper] < forwards[upper - 1]:
                return FORWARD, upper
        if backwards[lower] < (backwards[lower + 1] if rank else forwards[lower]):
            return INPUT, lower
        return (WEIGHT, late[0]) if late else None

    def _run(self, rank: int, found: tuple[str, int]) -> None:
        self.rows[rank].append(found)
        self.left -= 1
        kind, stage = found
        if kind == FORWARD:
            self.forwards[stage] += 1
            self.held[rank] += 1
        elif kind == INPUT:
            self.backwards[stage] += 1
            self.late[rank].append(stage)
        else:
            self.late[rank].popleft()
            self.held[rank] -= 1
