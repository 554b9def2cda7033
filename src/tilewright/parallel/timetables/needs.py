"""What a pass needs before it can run: the rules that make an order a pipeline.

The idea: a forward needs the stage before it, a backward the stage after it and its own forward, a
weight gradient its own backward; with token slices a forward needs the slice before it and a
backward the slice after it.  Whoever waits names what it waits for by (kind, stage, micro-batch).

This module does not know ranks or times.
"""

from dataclasses import dataclass

from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    UPDATE,
    WEIGHT,
    Pass,
    Timetable,
)

Key = tuple[str, int, int]
"""(kind, stage, micro-batch), where a whole backward counts as the gradient of its input."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Answers what passes of a timetable need."""

    stages: int
    slices: int

    def key(self, part: Pass) -> Key:
        """Return the name under which others wait for a pass."""
        kind = INPUT if part.kind == BACKWARD else part.kind
        return kind, part.stage, part.micro_batch

    def of(self, part: Pass) -> tuple[Key, ...]:
        """Return what must be done before a pass."""
        stage, n = part.stage, part.micro_batch
        if part.kind in (WEIGHT, UPDATE):
            return ((INPUT, stage, n),)
        if part.kind == FORWARD:
            before = () if stage == 0 else ((FORWARD, stage - 1, n),)
            return before if n % self.slices == 0 else (*before, (FORWARD, stage, n - 1))
        own = (FORWARD, stage, n)
        after = (own,) if stage == self.stages - 1 else (own, (INPUT, stage + 1, n))
        return after if (n + 1) % self.slices == 0 else (*after, (INPUT, stage, n + 1))


def needs_of(timetable: Timetable) -> Needs:
    """Return the rules of a timetable."""
    return Needs(timetable.stages, timetable.slices)
