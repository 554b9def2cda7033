"""A process that trains the demo's model by PyTorch itself: eager, or with torch.compile.

The idea: a contender has a process to itself, so that memory, thread pools and compile time are its
own.  It answers requests, one JSON object per line: `begin` (from a plan, and a checkpoint where
one is given), `train` (telling every moment), `block` (times steps), `memory`.

This module does not know Tilewright's compiler; what it shares with the demo is plan and data.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.cli.gauge import Gauge, seconds_per_step
from tilewright.cli.session import Plan
from tilewright.cli.subject import Data
from tilewright.train import Moment, read_checkpoint, restore_eager, run

Answer = dict[str, Any]
EAGER, COMPILE = "eager", "torch.compile"


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that PyTorch trains."""

    plan: Plan
    data: Data
    loss: Callable[..., torch.Tensor]
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Make a step as any training loop does."""
        self.optimizer.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self.optimizer.step()
        return loss.detach()


def begin(kind: str, plan: Plan, checkpoint: str | None) -> tuple[Peer, float]:
    """Make the model; compile it by a first forward and backward pass; returns the seconds."""
    subject, data, optimizer = plan.begin()
    if checkpoint is not None:
        restore_eager(read_checkpoint(Path(checkpoint)), subject.model, optimizer)

    def whole(*batch: torch.Tensor) -> torch.Tensor:
        return subject.loss(subject.model(batch[0]), *batch[1:])

    loss = torch.compile(whole, fullgraph=True) if kind == COMPILE else whole
    begun = time.perf_counter()
    loss(*data.batches.at(0)).backward()
    seconds = time.perf_counter() - begun
    optimizer.zero_grad()
    return Peer(plan, data, loss, subject.model, optimizer), seconds


def serve(kind: str) -> None:
    """Answer requests on standard input until it closes."""
    kept = os.dup(1)  # what libraries print goes to standard error
    os.dup2(2, 1)
    with os.fdopen(kept, "w") as answers:

        def answer(**words: Any) -> None:
            answers.write(json.dumps(words) + "\n")
            answers.flush()

        if kind == COMPILE:  # its import is no part of compile time, nor of what a step needs
            importlib.import_module("torch._inductor.compile_fx")
        gauge, peer = Gauge.now(), None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "begin":
                    peer, seconds = begin(kind, _plan(request["plan"]), request["checkpoint"])
                    answer(seconds=seconds)
                    continue
                assert peer is not None, "a peer is begun before anything else is asked of it"
                _answer(peer, gauge, request, answer)
            except Exception as error:
                answer(error=f"{type(error).__name__}: {error}"[:1000])


def _answer(peer: Peer, gauge: Gauge, request: Answer, answer: Callable[..., None]) -> None:
    example = peer.data.batches.at(0)

    def again() -> torch.Tensor:
        return peer.step(*example)

    match request["do"]:
        case "train":
            answer(losses=_train(peer, request, answer))
        case "block":
            answer(seconds=seconds_per_step(again, request["seconds"]))
        case "memory":
            answer(mib=gauge.peak_mib(again))


def _train(peer: Peer, request: Answer, answer: Callable[..., None]) -> tuple[float, ...]:
    def tell(moment: Moment) -> None:
        answer(moment=asdict(moment))

    history = run(
        peer.step,
        peer.optimizer,
        peer.data.batches,
        peer.plan.rate(),
        start=request["start"],
        stop=request["stop"],
        seconds=request["seconds"],
        tell=tell,
    )
    return history.losses


def _plan(words: dict[str, Any]) -> Plan:
    settings = tuple((name, value) for name, value in words.pop("settings"))
    return Plan(**words, settings=settings)


if __name__ == "__main__":
    serve(sys.argv[1])
