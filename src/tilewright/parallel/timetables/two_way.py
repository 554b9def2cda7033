"""Timetables of pipelines that run both ways: Chimera, DualPipe, DualPipeV.

The idea: rank i holds stage i for the micro-batches that go down and the stage opposite for those
that go up, so that one direction fills the other's bubble.  Even micro-batches go down, odd ones
up.  DualPipeV folds the same order: one pipeline of 2p stages goes down the ranks and comes back.

This module does not know how long passes take.

Sources: Chimera (arXiv 2107.06925), DualPipe (DeepSeek-V3, 2412.19437, and its published steps).
"""

from collections import deque
from dataclasses import dataclass, field

from tilewright.base.errors import OptionError
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


def chimera(ranks: int, micro_batches: int) -> Timetable:
    """Two 1F1B pipelines, one down and one up, that fit into each other without a clash.

    In units of p micro-batches, half of them each way.  Where a backward takes as long as a
    forward, micro-batch 2j of a unit is on stage s forward in slot s + 2j and backward in slot
    2p - 1 - s + 2j, likewise those that go up; modulo 2p no two of a rank coincide, so units follow
    each other every 2p slots.  Bubble (p - 2)/(2m + p - 2) of the total; each stage is held twice.
    p is even.
    """
    check_sizes("chimera", ranks=ranks, micro_batches=micro_batches)
    _check_even("chimera", ranks)
    rows = []
    for rank in range(ranks):
        slots: list[tuple[int, Action]] = []
        for n in range(micro_batches):
            unit, place = divmod(n, ranks)
            stage = rank if n % 2 == 0 else ranks - 1 - rank
            start = 2 * ranks * unit + place - n % 2
            slots.append((start + stage, (Pass(FORWARD, stage, n),)))
            slots.append((start + 2 * ranks - 1 - stage, (Pass(BACKWARD, stage, n),)))
        rows.append(tuple(action for _, action in sorted(slots, key=lambda slot: slot[0])))
    return Timetable("chimera", ranks, micro_batches, tuple(rows))


def dualpipe(ranks: int, micro_batches: int) -> Timetable:
    """Both ways at once, forward of one direction overlapped with backward of the other.

    Bubble (p/2 - 1)(F&B + B - 3W), B a whole backward; p + 1 activations, each stage held twice.
    p is even; the micro-batches are at least 2p, fewer are what is left of such an order.
    """
    check_sizes("dualpipe", ranks=ranks, micro_batches=micro_batches)
    _check_even("dualpipe", ranks)
    half = ranks // 2
    whole = _whole(ranks, micro_batches)
    rows = []
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)
        first = 0 if rank < half else 1  # the direction that enters nearer to this rank
        stages = (rank, ranks - 1 - rank)
        row = _Row(
            (stages[first], stages[1 - first]),
            ((2, first), (2, 1 - first)),
            middle=near == half - 1,
        )
        row.fill(half, near, whole // 2 - ranks + near + 1)
        rows.append(tuple(row.actions))
    made = Timetable("dualpipe", ranks, whole, tuple(rows))
    return only_below(made, micro_batches)


def dualpipe_v(ranks: int, micro_batches: int) -> Timetable:
    """DualPipe folded: 2p stages on p ranks, rank i holding stages i and 2p - 1 - i.

    Bubble and activations as DualPipe's of 2p stages; each stage is held once.
    """
    check_sizes("dualpipe-v", ranks=ranks, micro_batches=micro_batches)
    whole = _whole(ranks, micro_batches)
    rows = []
    for rank in range(ranks):
        row = _Row((rank, 2 * ranks - 1 - rank), ((1, 0), (1, 0)), middle=rank == ranks - 1)
        row.fill(ranks, rank, whole - 2 * ranks + rank + 1)
        rows.append(tuple(row.actions))
    made = Timetable("dualpipe-v", 2 * ranks, whole, tuple(rows))
    return only_below(made, micro_batches)


@dataclass(slots=True)
class _Row:
    """One rank's order as it grows, by DualPipe's eight steps; mutable.

    stages: of phase 0 and 1.  numbering: for each phase the step and the start of its
    micro-batches.  middle: whether the ways cross on this rank: its first pair overlaps nothing.
    """

    stages: tuple[int, int]
    numbering: tuple[tuple[int, int], tuple[int, int]]
    middle: bool
    actions: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    late: deque[Pass] = field(default_factory=deque)

    def fill(self, half: int, near: int, steady: int) -> None:
        """Append all eight steps.  half: the largest `near` + 1.  near: the rank's distance from
        where its phase 0 enters.  steady: rounds of the main step."""
        far = half - near - 1
        for _ in range(2 * far):
            self._run(self._forward(0))
        for _ in range(near + 1):
            self._run(self._forward(0))
            self._run(self._forward(1))
        for _ in range(far):
            self._run(self._input(1))
            self._weight()
            self._run(self._forward(1))
        for at in range(steady):
            if at == 0 and self.middle:
                self._run(self._forward(0))
                self._run(self._backward(1))
            else:
                self._run(self._forward(0), self._backward(1))
            self._run(self._forward(1), self._backward(0))
        for _ in range(far):
            self._run(self._backward(1))
            self._run(self._forward(1), self._backward(0))
        self._drain(near)
        for _ in range(far):
            self._weight()
            self._run(self._input(0))
        for _ in range(near + 1):
            self._weight()

    def _drain(self, near: int) -> None:
        """Run backwards of both phases in turn; from the middle on, weight gradients wait."""
        split = False
        for at in range(near + 1):
            middle = at == (near + 1) // 2
            split = split or (middle and near % 2 == 1)
            self._run(self._input(1) if split else self._backward(1))
            split = split or (middle and near % 2 == 0)
            self._run(self._input(0) if split else self._backward(0))

    def _run(self, *parts: Pass) -> None:
        self.actions.append(parts)

    def _forward(self, phase: int) -> Pass:
        made = Pass(FORWARD, self.stages[phase], self._number(phase, self.forwards[phase]))
        self.forwards[phase] += 1
        return made

    def _backward(self, phase: int) -> Pass:
        made = Pass(BACKWARD, self.stages[phase], self._number(phase, self.backwards[phase]))
        self.backwards[phase] += 1
        return made

    def _input(self, phase: int) -> Pass:
        stage, n = self.stages[phase], self._number(phase, self.backwards[phase])
        self.backwards[phase] += 1
        self.late.append(Pass(WEIGHT, stage, n))
        return Pass(INPUT, stage, n)

    def _weight(self) -> None:
        self._run(self.late.popleft())

    def _number(self, phase: int, count: int) -> int:
        step, start = self.numbering[phase]
        return start + step * count


def _whole(ranks: int, micro_batches: int) -> int:
    """Return the smallest even number of micro-batches that the eight steps take."""
    return max(2 * ranks, micro_batches + micro_batches % 2)


def _check_even(name: str, ranks: int) -> None:
    if ranks % 2:
        raise OptionError(
            f"a {name} timetable needs an even number of stages",
            expected="an even number, as each rank holds two opposite stages",
            found=str(ranks),
            mend="take one more or one fewer, or dualpipe-v, which folds one pipeline instead",
        )
