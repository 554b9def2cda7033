"""A training run from the command line: begun or resumed, made, saved, and said how to go on.

The idea: a plan says everything that decides a run but for its length; it is written into the
checkpoint, and a run goes on only under the same plan.

This module does not know where models and data come from (`subject`).
"""

import math
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tilewright.base.errors import CheckpointError
from tilewright.cli.subject import Data, Subject, data_for, find_subject
from tilewright.train import (
    History,
    LiveLine,
    TrainStep,
    Warmup,
    held_out_loss,
    read_checkpoint,
    restore,
    run,
    save_checkpoint,
    train_step,
)

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True)
class Plan:
    """What decides a run.  settings: arguments of the model's factory, as pairs."""

    model: str
    steps: int
    batch: int
    lr: float
    warmup: int
    clip: float
    seed: int
    settings: tuple[tuple[str, int], ...] = ()

    def begin(self) -> tuple[Subject, Data, torch.optim.Optimizer]:
        """Make the model, its data and its optimizer, all from the seed."""
        subject = find_subject(self.model, self.seed, **dict(self.settings))
        data = data_for(subject, self.batch, self.seed)
        return subject, data, torch.optim.AdamW(subject.model.parameters(), lr=self.lr)

    def rate(self) -> Warmup:
        """Return the learning rate of each step."""
        return Warmup(self.lr, self.warmup)

    def identity(self, data: Data) -> dict[str, Any]:
        """Return what two runs must have in common to be one: all but the length, and the data."""
        words = {name: value for name, value in asdict(self).items() if name != "steps"}
        return {**words, "settings": dict(self.settings), "data": data.fingerprint}


@dataclass(frozen=True, slots=True)
class Session:
    """A run that is ready to go on at step `start`."""

    plan: Plan
    subject: Subject
    data: Data
    step: TrainStep
    start: int
    compile_seconds: float

    @property
    def stop(self) -> int:
        """Where the run ends; one that was at its end goes on for as many steps again."""
        return self.plan.steps if self.start < self.plan.steps else self.start + self.plan.steps

    def held_out(self) -> float:
        """Return the loss on what the run never trains on."""
        return held_out_loss(self.subject.model, self.subject.loss, self.data.held_out)

    def train(self, console: Console, seconds: float = math.inf) -> History:
        """Make the steps, with a live line."""
        line = LiveLine(
            console,
            "tilewright",
            start=self.start,
            stop=self.stop,
            tokens=self.data.per_step,
            unit=self.data.unit,
        )
        with line:
            return run(
                self.step,
                self.step.optimizer,
                self.data.batches,
                self.plan.rate(),
                start=self.start,
                stop=self.stop,
                seconds=seconds,
                tell=line.tell,
            )

    def save(self, path: Path, position: int) -> None:
        """Write a checkpoint from which the run goes on at step `position`."""
        save_checkpoint(path, self.step, position=position, config=self.plan.identity(self.data))


def open_session(plan: Plan, checkpoint: Path | None) -> Session:
    """Compile a run's step, and put a checkpoint into it where one is given."""
    found = None if checkpoint is None else read_checkpoint(checkpoint)
    subject, data, optimizer = plan.begin()
    if found is not None:
        _check_identity(found.path, found.config, plan.identity(data))
    begun = time.perf_counter()
    example = data.batches.at(0)
    step = train_step(subject.model, subject.loss, optimizer, *example, clip_norm=plan.clip)
    seconds = time.perf_counter() - begun
    if found is None:
        return Session(plan, subject, data, step, 0, seconds)
    restore(found, step)
    return Session(plan, subject, data, step, found.position, seconds)


def run_training(plan: Plan, out: Path, console: Console, *, resume: bool) -> bool:
    """Train, save, and say what came of it; False where the run was interrupted."""
    path = out / CHECKPOINT
    session = open_session(plan, path if resume else None)
    console.print(f"  {plan.model}: {_size(session)}; compiled in {session.compile_seconds:.1f} s")
    before = session.held_out()
    history = session.train(console)
    session.save(path, history.stop)
    if history.interrupted:
        tell_how_to_resume(console, path, history.stop)
        return False
    console.print(f"  held-out loss {before:.4f} before, {session.held_out():.4f} after")
    console.print(f"  saved {path}; the same command with --resume goes on from it")
    return True


def tell_how_to_resume(console: Console, path: Path, stop: int) -> None:
    """Say where a run stopped and how it goes on."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    console.print(f"  stopped before step {stop + 1}; saved {path}")
    console.print(f"  go on with: tilewright {shlex.join(words)} --resume", soft_wrap=True)


def _size(session: Session) -> str:
    count = sum(parameter.numel() for parameter in session.subject.model.parameters())
    return f"{count:,} parameters, {session.data.per_step:,} {session.data.unit} a step"


def _check_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in (*wanted, *found):
        if found.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path} is of a run with another {name}",
                expected=f"{name} = {wanted.get(name)!r}",
                found=f"{name} = {found.get(name)!r}",
                known="nothing of it was loaded",
                mend="repeat the options that the run began with, or begin anew without --resume",
            )
