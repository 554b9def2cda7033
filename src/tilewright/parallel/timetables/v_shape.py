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
    Action,
    Pass,
    Timetable,
    check_sizes,
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
    return Timetable("zb-v", 2 * ranks, micro_batches, tuple(map(tuple, fold.rows)))


class _Fold:
    """All ranks, tick after tick; mutable.  Counts say how many passes of a stage are done."""

    def __init__(self, ranks: int, micro_batches: int) -> None:
        self.ranks, self.count = ranks, micro_batches
        self.forwards, self.backwards = [0] * (2 * ranks), [0] * (2 * ranks)
        self.held = [0] * ranks
        self.late: list[deque[Pass]] = [deque() for _ in range(ranks)]
        self.rows: list[list[Action]] = [[] for _ in range(ranks)]
        self.left = 6 * ranks * micro_batches

    def tick(self) -> None:
        """Let every rank run one pass, of what was done before this tick."""
        chosen = [self._choose(rank) for rank in range(self.ranks)]
        assert any(chosen), "some rank can always run something"
        for rank, part in enumerate(chosen):
            if part is not None:
                self._run(rank, part)

    def _choose(self, rank: int) -> Pass | None:
        upper, lower = rank, 2 * self.ranks - 1 - rank
        forwards, backwards, late = self.forwards, self.backwards, self.late[rank]
        full = self.held[rank] >= 2 * self.ranks
        if full and late:
            return late[0]
        if backwards[upper] < backwards[upper + 1]:
            return Pass(INPUT, upper, backwards[upper])
        for stage in (lower, upper):
            given = self.count if stage == 0 else forwards[stage - 1]
            if not full and forwards[stage] < given:
                return Pass(FORWARD, stage, forwards[stage])
        given = forwards[lower] if rank == 0 else backwards[lower + 1]
        if backwards[lower] < given:
            return Pass(INPUT, lower, backwards[lower])
        return late[0] if late else None

    def _run(self, rank: int, part: Pass) -> None:
        self.rows[rank].append((part,))
        self.left -= 1
        if part.kind == FORWARD:
            self.forwards[part.stage] += 1
            self.held[rank] += 1
        elif part.kind == INPUT:
            self.backwards[part.stage] += 1
            self.late[rank].append(Pass(WEIGHT, part.stage, part.micro_batch))
        else:
            self.late[rank].popleft()
            self.held[rank] -= 1
