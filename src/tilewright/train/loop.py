"""The loop around a step: rates, batches, a moment told after each step, and stopping well.

The idea: a batch and a learning rate are functions of the step's number alone, so that a run is
where its number is; Ctrl-C ends the loop after the step at hand, never in the middle of one.

This module does not know what is trained, nor how progress is shown.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch

from tilewright.train.prepare import LossFunction

Step = Callable[..., torch.Tensor]


class Batches(Protocol):
    """Where batches come from: any step can be asked for."""

    def at(self, step: int) -> tuple[Any, ...]:
        """Return the batch of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Warmup:
    """A learning rate that rises in a line to `peak` over the first `steps`, then stays.

    It does not depend on how long a run will be, so a run may be made longer.
    """

    peak: float
    steps: int = 0

    def at(self, step: int) -> float:
        """Return the rate of a step."""
        return self.peak * min(1.0, (step + 1) / (self.steps + 1))


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known after a step: its number, the loss before it, how long the loop has run."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class History:
    """What a loop did.  interrupted: it was asked to stop.  stop: the number of the next step."""

    losses: tuple[float, ...]
    seconds: float
    stop: int
    interrupted: bool = False


@dataclass(slots=True)
class Stop:
    """Whether the loop has been asked to stop."""

    asked: bool = False


def run(
    step: Step,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    rate: Warmup,
    *,
    start: int,
    stop: int,
    seconds: float = math.inf,
    tell: Callable[[Moment], None] = lambda _: None,
) -> History:
    """Make the steps `start` to `stop`, fewer where `seconds` are over or Ctrl-C is pressed.

    step: called with a batch, returns the loss; it moves the parameters.
    """
    losses: list[float] = []
    begun = time.perf_counter()
    passed = 0.0
    with stopping() as ending:
        for number in range(start, stop):
            for group in optimizer.param_groups:
                group["lr"] = rate.at(number)
            losses.append(step(*batches.at(number)).item())
            passed = time.perf_counter() - begun
            tell(Moment(number, losses[-1], passed))
            if ending.asked or passed > seconds:
                break
    return History(tuple(losses), passed, start + len(losses), ending.asked)


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """While inside, the first Ctrl-C only asks to stop; the second one interrupts as usual."""
    ending = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if ending.asked:
            signal.default_int_handler(number, frame)
        ending.asked = True

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: signals are another's business
        yield ending
        return
    try:
        yield ending
    finally:
        signal.signal(signal.SIGINT, before)


def held_out_loss(
    module: torch.nn.Module, loss_fn: LossFunction, batches: Sequence[tuple[Any, ...]]
) -> float:
    """Return the mean loss over batches, in evaluation mode, by PyTorch itself."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            losses = [loss_fn(module(batch[0]), *batch[1:]).item() for batch in batches]
    finally:
        module.train(training)
    return sum(losses) / len(losses)


def generate(
    module: torch.nn.Module,
    prompt: torch.Tensor,
    count: int,
    *,
    context: int,
    temperature: float = 0.8,
    seed: int = 0,
) -> torch.Tensor:
    """Return a prompt of token ids with `count` more, drawn one by one from the model's logits."""
    source = torch.Generator().manual_seed(seed)
    training = module.training
    module.eval()
    ids = prompt
    try:
        with torch.no_grad():
            for _ in range(count):
                logits = module(ids[-context:][None])[0, -1].double()
                shares = torch.softmax(logits / temperature, dim=-1)
                ids = torch.cat((ids, torch.multinomial(shares, 1, generator=source)))
    finally:
        module.train(training)
    return ids
