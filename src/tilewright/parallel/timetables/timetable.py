"""A pipeline's timetable as data: for each rank, what it computes, in order.

The idea: an action is one pass of a stage over a micro-batch, or an overlapped pair of two; a rank
runs its actions one after the other, each as soon as what it needs is there.  Which rank holds a
stage, who sends what to whom, ticks and bubbles all follow, so none of it is stored.  A timetable
prints as text and parses back (`read_timetable`); drawing, checking, simulating and executing are
consumers of the same value.

Notation
--------
A pass is written stage, kind, micro-batch, and where weights come in versions the version::

    0F3      forward of micro-batch 3 on stage 0
    0B3      its backward: the gradient with respect to the input only
    0W3      its gradient with respect to the weights only (after 0B3)
    0BW3     both at once: the backward of 0B3 and 0W3 as one pass
    1F5&0BW3 an overlapped pair: the rank runs both as one action
    0F3@2    forward on weights that were updated twice
    0U3@1    the update that makes version 1, of gradients up to micro-batch 3

This module does not know how long anything takes, or what makes a timetable legal (`verify`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, repeat
from typing import NamedTuple

from tilewright.base.errors import OptionError

FORWARD, INPUT, WEIGHT, BACKWARD, UPDATE = "F", "B", "W", "BW", "U"
KINDS = (FORWARD, INPUT, WEIGHT, BACKWARD, UPDATE)


class Pass(NamedTuple):  # made by the hundred thousand: a third of a dataclass's time
    """One pass of a stage over a micro-batch (of a slice of one, where there are token slices).

    kind: F forward, B gradient of the input, W gradient of the weights, BW both, U an update.
    version: which weights a pass reads, or an update makes; None where a step ends in one update.
    """

    kind: str
    stage: int
    micro_batch: int
    version: int | None = None

    def __str__(self) -> str:
        version = "" if self.version is None else f"@{self.version}"
        return f"{self.stage}{self.kind}{self.micro_batch}{version}"


Action = tuple[Pass, ...]
"""What a rank does at one time: one pass, or an overlapped pair."""


def in_order(
    rows: Iterable[Sequence[tuple[str, int]]], micro_batches: int
) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of ranks that run passes of these (kind, stage), one at a time, each for
    the micro-batches in their order.

    Orders have hundreds of thousands of passes, and are read rank by rank: they are made so, by C,
    of numbers that all share, to lie side by side in memory.
    """
    made: Callable[[tuple[object, ...]], Pass] = partial(tuple.__new__, Pass)
    numbers, found = list(range(micro_batches)), []
    for row in rows:
        following = {
            (kind, stage): zip(map(made, zip(repeat(kind), repeat(stage), numbers, repeat(None))))
            for kind, stage in set(row)
        }
        found.append(tuple(map(next, map(following.__getitem__, row))))
        assert len(found[-1]) == len(row), "no pass is run more often than there are micro-batches"
    return tuple(found)


@dataclass(frozen=True)
class Timetable:
    """For each rank the actions that it runs, in order.

    stages: of the whole pipeline, 0 to stages - 1.  micro_batches: of a step, or of the run where
    weights are updated without a flush.  slices: parts that a sequence is cut into (TeraPipe);
    slice k of micro-batch n is numbered n * slices + k in every pass.
    """

    name: str
    stages: int
    micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]
    slices: int = 1

    def __str__(self) -> str:
        return show_timetable(self)

    @property
    def units(self) -> int:
        """How many micro-batches, or slices of them, pass through every stage."""
        return self.micro_batches * self.slices

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages whose weights a rank holds, from the first."""
        return self._stages_of[rank]

    @cached_property
    def _stages_of(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(sorted({stage for _, stage, _, _ in chain.from_iterable(actions)}))
            for actions in self.ranks
        )

    @cached_property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage, for the first micro-batch where stages have replicas."""
        ranks = self.rank_of
        return tuple(ranks[stage, 0] for stage in range(self.stages))

    @cached_property
    def rank_of(self) -> dict[tuple[int, int], int]:
        """Which rank runs (stage, micro-batch) forward."""
        return {
            (stage, n): rank
            for rank, actions in enumerate(self.ranks)
            for kind, stage, n, _ in chain.from_iterable(actions)
            if kind == FORWARD
        }

    @cached_property
    def forwards_of(self) -> Mapping[tuple[int, int], int]:
        """How many forwards a rank runs of a stage, by (rank, stage)."""
        return Counter((rank, stage) for (stage, _), rank in self.rank_of.items())


def show_timetable(timetable: Timetable) -> str:
    """Return the text of a timetable: `read_timetable(show_timetable(t)) == t`."""
    head = (
        f"timetable {timetable.name} stages {timetable.stages} "
        f"micro-batches {timetable.micro_batches}"
    )
    if timetable.slices > 1:
        head += f" slices {timetable.slices}"
    lines = [head]
    for rank, actions in enumerate(timetable.ranks):
        words = ["&".join(map(str, action)) for action in actions]
        lines.append(" ".join([f"rank {rank}:", *words]))
    return "\n".join(lines) + "\n"


def check_sizes(name: str, **sizes: int) -> None:
    """Refuse a number of ranks, micro-batches, chunks or slices below 1."""
    for what, size in sizes.items():
        if size < 1:
            raise OptionError(
                f"a {name} timetable needs at least one of {what.replace('_', '-')}",
                expected=f"{what.replace('_', '-')} of 1 or more",
                found=str(size),
            )


def only_below(timetable: Timetable, micro_batches: int) -> Timetable:
    """Drop the passes of later micro-batches.

    What is left of a legal timetable is legal: every pass needs only passes of its own micro-batch
    (slices of one stay together), and taking passes out of an order leaves an order.
    """
    units = micro_batches * timetable.slices
    ranks = tuple(
        tuple(
            kept
            for action in actions
            if (kept := tuple(part for part in action if part.micro_batch < units))
        )
        for actions in timetable.ranks
    )
    return Timetable(timetable.name, timetable.stages, micro_batches, ranks, timetable.slices)
