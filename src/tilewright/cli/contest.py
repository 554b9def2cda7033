"""The demo's contest: Tilewright in this process, PyTorch eager and torch.compile in their own.

The idea: eager first makes the very run that was made here, from the very same start; then all are
timed in alternating blocks with a pause between them, because idle thread pools spin for a while.
Memory is read from processes that did nothing else, Tilewright's too.

This module does not know what the numbers are for.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tilewright.cli.contender import Contender, ContenderError
from tilewright.cli.gauge import seconds_per_step
from tilewright.cli.peer import COMPILE, EAGER, OURS
from tilewright.cli.session import Session
from tilewright.train import LiveLine, Moment

PATIENCE = 90.0  # seconds for a contender to compile
ROUNDS, BLOCK_SECONDS, PAUSE = 5, 0.6, 0.2


@dataclass(slots=True)
class Score:
    """What was measured of one contender; filled in while the contest runs."""

    blocks: list[float] = field(default_factory=list)
    mib: float | None = None
    compile_seconds: float | None = None
    failure: str = ""

    @property
    def seconds(self) -> float | None:
        """The median time of a step."""
        return statistics.median(self.blocks) if self.blocks else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores by contender, and the losses that eager had in the same run."""

    scores: dict[str, Score]
    losses: tuple[float, ...]


def compete(
    session: Session,
    stop: int,
    *,
    seconds: float,
    peers: Sequence[str],
    start: Path | None,
    scratch: Path,
    console: Console,
) -> Outcome:
    """Measure the contenders.

    stop: where our run ended.  peers: EAGER first, which makes the same run, or as much of it as
    `seconds` allow.  start: the checkpoint it began from.  The session's parameters are moved on by
    being timed.
    """
    scores = {OURS: Score(compile_seconds=session.compile_seconds)}
    scores |= {kind: Score() for kind in peers}
    losses: list[float] = []
    with ExitStack() as stack:
        runners: dict[str, Contender] = {}

        def attempt(kind: str, act: Callable[[Contender], None]) -> None:
            if scores[kind].failure:
                return
            try:
                if kind not in runners:
                    runners[kind] = stack.enter_context(Contender(kind, scratch))
                act(runners[kind])
            except ContenderError as error:
                scores[kind].failure = str(error)

        words: dict[str, Any] = {
            "plan": asdict(session.plan),
            "checkpoint": None if start is None else str(start),
        }
        for kind in peers:
            if kind == COMPILE:
                console.print("  torch.compile compiles the same step ...")
            attempt(kind, lambda peer: _begin(peer, scores[peer.kind], words))
            if kind == EAGER:
                attempt(
                    kind,
                    lambda peer: losses.extend(_same_run(peer, session, stop, seconds, console)),
                )
        console.print(f"  timing in {ROUNDS} alternating blocks ...")
        _time(session, scores, attempt)
        for kind in scores:
            attempt(kind, lambda peer: _measure(peer, scores[peer.kind], words))
    if EAGER in scores:
        scores[EAGER].compile_seconds = None
    return Outcome(scores, tuple(losses))


def _begin(peer: Contender, score: Score, words: dict[str, Any]) -> None:
    score.compile_seconds = peer.ask(patience=PATIENCE, do="begin", **words)["seconds"]


def _same_run(
    peer: Contender, session: Session, stop: int, seconds: float, console: Console
) -> list[float]:
    """Let eager make the run that was made here; returns its losses."""
    data = session.data
    line = LiveLine(
        console,
        EAGER,
        start=session.start,
        stop=stop,
        tokens=data.per_step,
        unit=data.unit,
    )
    with line:
        answer = peer.ask(
            lambda moment: line.tell(Moment(**moment)),
            do="train",
            start=session.start,
            stop=stop,
            seconds=seconds,
        )
    losses: list[float] = answer["losses"]
    return losses


def _time(
    session: Session,
    scores: dict[str, Score],
    attempt: Callable[[str, Callable[[Contender], None]], None],
) -> None:
    example = session.data.batches.at(0)

    def again() -> object:
        return session.step(*example)

    def block(kind: str) -> None:
        time.sleep(PAUSE)
        if kind == OURS:
            scores[OURS].blocks.append(seconds_per_step(again, BLOCK_SECONDS))
            return
        attempt(
            kind,
            lambda peer: scores[peer.kind].blocks.append(
                peer.ask(do="block", seconds=BLOCK_SECONDS)["seconds"]
            ),
        )

    kinds = tuple(scores)
    for number in range(ROUNDS):
        turn = number % len(kinds)
        for kind in (*kinds[turn:], *kinds[:turn]):
            block(kind)


def _measure(peer: Contender, score: Score, words: dict[str, Any]) -> None:
    if peer.kind == OURS:  # so far it was this process
        peer.ask(patience=PATIENCE, do="begin", **words)
    score.mib = peer.ask(do="memory")["mib"]
