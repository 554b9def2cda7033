"""Whether a timetable is legal: every pass is there once, and no rank waits for ever.

The idea: a timetable is judged whoever made it.  First its parts (what pairs may be, that each
micro-batch goes forward and back through every stage once, on one rank), then its order (`ticks`:
what is needed is run, and no circle), weights (`versions`), and its messages (`rendezvous`).

This module does not know how timetables are made or how long they take.
"""

from collections import Counter

from tilewright.base.errors import TimetableError
from tilewright.parallel.timetables.rendezvous import check_rendezvous
from tilewright.parallel.timetables.ticks import ticks
from tilewright.parallel.timetables.timetable import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    UPDATE,
    WEIGHT,
    Action,
    Pass,
    Timetable,
)
from tilewright.parallel.timetables.versions import trace_versions

WAYS = (Counter({FORWARD: 1, BACKWARD: 1}), Counter({FORWARD: 1, INPUT: 1, WEIGHT: 1}))


def verify_timetable(timetable: Timetable) -> None:
    """Raise TimetableError if a timetable cannot run, or does not do what a step must."""
    runs: dict[tuple[int, int], list[tuple[int, Pass]]] = {}
    for rank, actions in enumerate(timetable.ranks):
        for at, action in enumerate(actions):
            _check_action(timetable, rank, at, action)
            for part in action:
                if part.kind != UPDATE:
                    runs.setdefault((part.stage, part.micro_batch), []).append((rank, part))
    ticks(timetable)
    trace_versions(timetable)
    for stage in range(timetable.stages):
        for n in range(timetable.units):
            _check_passes(timetable, stage, n, runs.get((stage, n), []))
    check_rendezvous(timetable)


def _check_action(timetable: Timetable, rank: int, at: int, action: Action) -> None:
    where = f"timetable {timetable.name}, rank {rank}, action {at + 1}"
    text = "&".join(map(str, action))
    kinds = sorted(part.kind for part in action)
    if len(kinds) != 1 and kinds not in ([INPUT, FORWARD], [BACKWARD, FORWARD]):
        raise TimetableError(
            f"{text} is no action",
            expected="one pass, or an overlapped pair of a forward and a backward",
            found=text or "nothing",
            where=where,
            mend="write the passes as actions one after the other",
        )
    for part in action:
        known = part.kind in KINDS and part.stage < timetable.stages
        if not known or part.micro_batch >= timetable.units:
            raise TimetableError(
                f"{part} is no pass of this timetable",
                expected=f"stages below {timetable.stages}, micro-batches below {timetable.units}, "
                f"and one of {', '.join(KINDS)}",
                found=str(part),
                where=where,
            )


def _check_passes(timetable: Timetable, stage: int, n: int, runs: list[tuple[int, Pass]]) -> None:
    kinds = Counter(part.kind for _, part in runs)
    if kinds not in WAYS:
        raise TimetableError(
            f"micro-batch {n} does not go forward and back through stage {stage} once",
            expected=f"{stage}F{n} and {stage}BW{n}, or {stage}F{n}, {stage}B{n} and {stage}W{n}",
            found=", ".join(f"{part} on rank {rank}" for rank, part in runs) or "none of them",
            where=f"timetable {timetable.name}",
            mend="add what is missing and take away what is there twice",
        )
    if len({rank for rank, _ in runs}) > 1:
        raise TimetableError(
            f"micro-batch {n} goes forward through stage {stage} on one rank and back on another",
            expected="all passes of a micro-batch over a stage where its activations are",
            found=", ".join(f"{part} on rank {rank}" for rank, part in runs),
            where=f"timetable {timetable.name}",
            mend="move them to one rank",
        )
