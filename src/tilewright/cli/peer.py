"""A process that trains the demo's model: PyTorch eager, with torch.compile, or Tilewright.

The idea: a contender has a process to itself, so that memory, thread pools and compile time are its
own.  It answers requests, one JSON object per line: `begin` (from a plan, and a checkpoint where
one is given), `train` (telling every moment), `block` (times steps), `memory`.

The demo itself trains with Tilewright; such a process of its own is what its memory is read from.

This module does not know what is compared.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.cli.gauge import Gauge, seconds_per_step
from tilewright.cli.session import Plan
from tilewright.cli.subject import Data, Subject
from tilewright.train import Moment, read_checkpoint, restore_eager, run, train_step

Answer = dict[str, Any]
OURS, EAGER, COMPILE = "tilewright", "eager", "torch.compile"
COMPILERS = {COMPILE: "torch._inductor.compile_fx", OURS: "torch._dynamo"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A model in training; `step` takes a batch and returns the loss."""

    plan: Plan
    data: Data
    optimizer: torch.optim.Optimizer
    step: Callable[..., torch.Tensor]


def begin(kind: str, plan: Plan, checkpoint: str | None) -> tuple[Peer, float]:
    """Make the model; compile its step or, for PyTorch, make one pass; returns the seconds."""
    subject, data, optimizer = plan.begin()
    if checkpoint is not None:
        restore_eager(read_checkpoint(Path(checkpoint)), subject.model, optimizer)
    example = data.batches.at(0)
    begun = time.perf_counter()
    step: Callable[..., torch.Tensor]
    if kind == OURS:
        step = train_step(subject.model, subject.loss, optimizer, *example, clip_norm=plan.clip)
    else:
        step = _torch_step(kind, subject, optimizer, plan.clip, example)
    return Peer(plan, data, optimizer, step), time.perf_counter() - begun


def _torch_step(
    kind: str,
    subject: Subject,
    optimizer: torch.optim.Optimizer,
    clip: float,
    example: Sequence[torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Return a step as any training loop makes it, after a first forward and backward pass."""

    def whole(*batch: torch.Tensor) -> torch.Tensor:
        return subject.loss(subject.model(batch[0]), *batch[1:])

    loss_of = torch.compile(whole, fullgraph=True) if kind == COMPILE else whole

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(subject.model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    loss_of(*example).backward()
    optimizer.zero_grad()
    return step


def serve(kind: str) -> None:
    """Answer requests on standard input until it closes."""
    kept = os.dup(1)  # what libraries print goes to standard error
    os.dup2(2, 1)
    with os.fdopen(kept, "w") as answers:

        def answer(**words: Any) -> None:
            answers.write(json.dumps(words) + "\n")
            answers.flush()

        # What a compiler imports is no part of compile time, nor of what a step needs.
        if kind in COMPILERS:
            importlib.import_module(COMPILERS[kind])
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
