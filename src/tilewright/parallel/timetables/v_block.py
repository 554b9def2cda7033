"""V-Half and V-Min: pipelines folded as ZB-V's, in half and in a third of 1F1B's activations.

The idea: all passes taken to last one tick, a rank spends six on a micro-batch, so if the passes of
one micro-batch, its building block, fall on different ticks modulo six, every sixth tick the same
block can begin.  How long a block holds activations is how far its passes lie apart, and that is
chosen: by how many ticks a pass of each kind follows that on the rank before.

This module does not know real times: the order is that of equal passes.

Source: Pipeline Parallelism with Controllable Memory (arXiv 2405.15362); the turns are ours.
"""

from dataclasses import dataclass
from itertools import permutations, product

from tilewright.parallel.timetables.timetable import (
    FORWARD,
    INPUT,
    WEIGHT,
    Pass,
    Timetable,
    check_sizes,
)

PERIOD = 6

Steps = tuple[int, int, int, int]
"""Ticks from rank to rank: forward down, forward up, backward down, backward up."""
HALF: Steps = (2, 1, 2, 1)
LEAST: Steps = (1, 1, 1, 1)


def v_half(ranks: int, micro_batches: int) -> Timetable:
    """About half of the activations of 1F1B, and about half of its bubble.

    At most p/2 + 3/2 activations of a rank's micro-batch.
    """
    return _repeated("v-half", ranks, micro_batches, HALF)


def v_min(ranks: int, micro_batches: int) -> Timetable:
    """About a third of the activations of 1F1B, and about two thirds of its bubble.

    At most p/3 + 4/3 activations of a rank's micro-batch.
    """
    return _repeated("v-min", ranks, micro_batches, LEAST)


@dataclass(frozen=True, slots=True)
class _Block:
    """The ticks of one micro-batch on every rank.

    turns: ticks from the forward's last upper stage to its first lower, from its last lower to the
    backward's first, and from the backward's last lower stage to its first upper.
    """

    ranks: int
    steps: Steps
    turns: tuple[int, int, int]

    def ticks(self, rank: int) -> tuple[int, int, int, int]:
        """Return when a rank runs its upper and lower forward, its lower and upper backward."""
        down, up, back, home = self.steps
        last = self.ranks - 1
        lower = down * last + self.turns[0] + up * (last - rank)
        turned = down * last + self.turns[0] + up * last + self.turns[1]
        upper = turned + back * last + self.turns[2] + home * (last - rank)
        return down * rank, lower, turned + back * rank, upper

    @property
    def fits(self) -> bool:
        """Whether the passes of each rank fall on different ticks of a period."""
        return all(
            len({tick % PERIOD for tick in self.ticks(rank)}) == 4 for rank in range(self.ranks)
        )


def _repeated(name: str, ranks: int, micro_batches: int, steps: Steps) -> Timetable:
    check_sizes(name, ranks=ranks, micro_batches=micro_batches)
    turns = sorted(product(range(1, PERIOD + 1), repeat=3), key=lambda turn: (sum(turn), turn))
    blocks = (_Block(ranks, steps, (a, b, c)) for a, b, c in turns)
    block = next(block for block in blocks if block.fits)
    rows = []
    for rank in range(ranks):
        passes = sorted(_passes(block, rank), key=lambda one: one[2] % PERIOD)
        begun = [(kind, stage, tick // PERIOD) for kind, stage, tick in passes]
        rows.append(
            tuple(
                (Pass(kind, stage, period - late),)
                for period in range(micro_batches + max(late for _, _, late in begun))
                for kind, stage, late in begun
                if 0 <= period - late < micro_batches
            )
        )
    return Timetable(name, 2 * ranks, micro_batches, tuple(rows))


def _passes(block: _Block, rank: int) -> list[tuple[str, int, int]]:
    """Return (kind, stage, tick) of a rank's block, weight gradients as soon as there is a tick."""
    ticks = block.ticks(rank)
    upper, lower = rank, 2 * block.ranks - 1 - rank
    _, _, first, second = ticks
    free = [tick for tick in range(PERIOD) if tick not in {one % PERIOD for one in ticks}]
    late = min(
        ([first + _until(first, a), second + _until(second, b)] for a, b in permutations(free)),
        key=sum,
    )
    return [
        (FORWARD, upper, ticks[0]),
        (FORWARD, lower, ticks[1]),
        (INPUT, lower, first),
        (INPUT, upper, second),
        (WEIGHT, lower, late[0]),
        (WEIGHT, upper, late[1]),
    ]


def _until(tick: int, place: int) -> int:
    """Return how many ticks after one, at least 1, a place of the period comes."""
    return (place - tick - 1) % PERIOD + 1
