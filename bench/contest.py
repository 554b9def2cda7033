"""Contenders' processes, and the race between them: alternating blocks, disturbed ones repeated.

The idea: whoever runs has the machine alone.  Blocks alternate with a pause between them, because
idle thread pools spin for a while; a block during which something else used the processors is
thrown away and run again, and one that had to be kept says so.  Does not know models.
"""

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import Span


@dataclass(frozen=True, slots=True)
class Rules:
    """How a race is run: `foreign` is the CPU seconds per second that others may use."""

    blocks: int = 15
    seconds: float = 0.5
    pause: float = 0.15
    foreign: float = 0.08
    repeats: int = 30
    patience: float = 900.0


@dataclass(frozen=True, slots=True)
class Block:
    """One accepted sample."""

    seconds_per_step: float
    foreign: float
    disturbed: bool


class ContenderError(Exception):
    """A contender could not do what it was asked; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How to start a contender's process."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]


class Contestant:
    """A running contender's process (mutable: it holds pipes)."""

    def __init__(self, entry: Entry, scratch: Path) -> None:
        self.name = entry.name
        self.log = scratch / f"{entry.name}.log"
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                entry.command,
                cwd=entry.folder,
                env=dict(entry.environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """The answer to one request; raises ContenderError with the contender's own words."""
        assert self.process.stdin is not None, "contestants are started with pipes"
        assert self.process.stdout is not None, "contestants are started with pipes"
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        if not select.select([self.process.stdout], [], [], patience)[0]:
            self.process.kill()
            raise ContenderError(f"no answer to {request['do']!r} within {patience:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise ContenderError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None, "contestants are started with pipes"
        assert self.process.stdout is not None, "contestants are started with pipes"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _last_words(self) -> str:
        self.process.wait(10)
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with status {self.process.returncode}"


@dataclass(slots=True)
class Score:
    """What is known of a contender at the end (mutable: filled while the race runs)."""

    blocks: list[Block] = field(default_factory=list)
    thrown_away: int = 0
    cold_seconds: float | None = None
    cold_foreign: float | None = None
    observed: list[float] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    peak_mib: float | None = None
    error: str = ""


def race(
    entries: Sequence[Entry], scratch: Path, rules: Rules, tell: Callable[[str], None]
) -> dict[str, Score]:
    """Start every entry, alternate blocks between them, ask for memory, and end them."""
    scores = {entry.name: Score() for entry in entries}
    runners: list[Contestant] = []
    try:
        for entry in entries:
            tell(f"{entry.name}: start")
            runners.append(Contestant(entry, scratch))
            _attempt(scores, runners, runners[-1], lambda r, s: _start(r, s, rules))
        for number in range(rules.blocks):
            tell(f"block {number + 1} of {rules.blocks}")
            turn = number % max(1, len(runners))
            for runner in (*runners[turn:], *runners[:turn]):
                _attempt(scores, runners, runner, lambda r, s: _block(r, s, rules))
        for runner in tuple(runners):
            _attempt(scores, runners, runner, lambda r, s: _memory(r, s, rules))
    finally:
        for runner in runners:
            runner.close()
    return scores


def _attempt(
    scores: dict[str, Score],
    runners: list[Contestant],
    runner: Contestant,
    act: Callable[[Contestant, Score], None],
) -> None:
    """Do `act`; a contender that fails leaves the race, and its score says why."""
    score = scores[runner.name]
    try:
        act(runner, score)
    except ContenderError as error:
        score.error = str(error)
        runners.remove(runner)
        runner.close()


def _start(runner: Contestant, score: Score, rules: Rules) -> None:
    with Span() as span:
        answer = runner.ask({"do": "start"}, rules.patience)
    score.cold_seconds = answer["cold_seconds"]
    score.cold_foreign = span.foreign(answer["cpu_seconds"])
    score.observed, score.notes = answer["observed"], answer["notes"]


def _block(runner: Contestant, score: Score, rules: Rules) -> None:
    """One accepted block; when the repeats are used up, the least disturbed one is kept."""
    tried: list[Block] = []
    while True:
        time.sleep(rules.pause)
        with Span() as span:
            answer = runner.ask({"do": "block", "seconds": rules.seconds}, rules.patience)
        foreign = span.foreign(answer["cpu_seconds"])
        disturbed = foreign > rules.foreign
        tried.append(Block(answer["seconds_per_step"], foreign, disturbed))
        if not disturbed or score.thrown_away >= rules.repeats:
            break
        score.thrown_away += 1
    score.blocks.append(min(tried, key=lambda block: block.foreign))


def _memory(runner: Contestant, score: Score, rules: Rules) -> None:
    score.peak_mib = runner.ask({"do": "memory"}, rules.patience)["peak_kib"] / 1024
