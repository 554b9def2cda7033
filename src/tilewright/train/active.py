"""A compiled step and the tensors it is run on.

The idea: the tensors are the module's and the optimizer's own.  Before every step their identity is
compared; where state was replaced it is taken over, and where it asks for another Program the
answer says so.

This module does not know how the step was compiled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilewright.capture import Captured
from tilewright.compiler import Built
from tilewright.train import optimizers
from tilewright.train.joint import Rate, Training


@dataclass(slots=True)
class Active:
    """A compiled step and the tensors it is run on.

    owners: for each update, its parameter.  begins: whether any momentum begins with this step.
    held: the state tensors in use, by update.  seen: names and tensors of the whole state when it
    was last looked through.  counts: the step counts of all updates, one vector that the
    optimizer's own `step` tensors are views of.  counted: the same memory.  inputs: what follows
    the forward graph's inputs: seed, scale, rates, clocks, slots.
    """

    captured: Captured
    training: Training
    built: Built
    settings: optimizers.Settings
    owners: tuple[torch.Tensor, ...]
    begins: bool
    draws: bool
    seed: torch.Tensor | None
    scale: torch.Tensor | None
    rates: tuple[torch.Tensor, ...]
    known_rates: list[float]
    held: tuple[tuple[tuple[str, torch.Tensor], ...], ...] = ()
    seen: Sequence[object] | None = None
    counts: torch.Tensor | None = None
    counted: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    version: int = -1
    inputs: tuple[torch.Tensor, ...] = ()

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Say whether the optimizer's state still is the tensors in use."""
        if len(self.held) != len(self.owners):
            return False
        if self.counts is not None and self.counts._version != self.version:
            return False
        state = optimizer.state
        seen = [part for entries in state.values() for pair in entries.items() for part in pair]
        if self.seen is not None and len(seen) == len(self.seen) and all(map(is_, seen, self.seen)):
            return True  # quicker than to look up each
        for owner, entries in zip(self.owners, self.held, strict=True):
            # Torch makes a state by looking it up: an optimizer without any has none.
            if any(state[owner].get(name) is not tensor for name, tensor in entries):
                return False
        self.seen = seen
        return True

    def adopt(self, rule: optimizers.Rule, optimizer: torch.optim.Optimizer) -> bool:
        """Take over the optimizer's state as it is now; False where it needs another Program."""
        moved = self.training.moved
        states = [
            optimizer.state[owner] if update.slots or rule.counts else {}
            for owner, update in zip(self.owners, moved, strict=True)
        ]
        groups = [optimizer.param_groups[update.group] for update in moved]
        for update, group, state in zip(moved, groups, states, strict=True):
            if optimizers.begins(rule, group, state) != update.begins:
                return False
        for owner, group, state in zip(self.owners, groups, states, strict=True):
            optimizers.complete_state(rule, group, owner, state)
        if rule.counts and not self._count_together(states):
            return False
        names = [(*update.slots, *(("step",) if rule.counts else ())) for update in moved]
        self.held = tuple(
            tuple((name, state[name]) for name in wanted)
            for wanted, state in zip(names, states, strict=True)
        )
        self.seen = None
        self.inputs = self._inputs(states)
        return True

    def set_rates(self, rates: Mapping[Rate, float]) -> None:
        """Put learning rates and momenta where the Program reads them."""
        for place, rate in enumerate(self.training.rates):
            if rates[rate] != self.known_rates[place]:
                self.rates[place].fill_(rates[rate])
                self.known_rates[place] = rates[rate]

    def withdraw(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step that moved nothing: momentum that would have begun with it has not begun."""
        for owner, update in zip(self.owners, self.training.moved, strict=True):
            if update.begins:
                optimizer.state[owner].pop("momentum_buffer", None)
                self.held = ()

    def advance(self) -> None:
        """Count the step."""
        if self.begins:
            self.held = ()  # what begins momentum is another Program than what goes on with it
        if self.counts is not None:
            self.counted += 1  # on the memory of `counts`, without a call of torch

    def _count_together(self, states: Sequence[dict[str, Any]]) -> bool:
        """Make the step counts one vector; False where they part otherwise than compiled for."""
        values = [float(state["step"]) for state in states]
        by_clock: dict[int | None, float] = {}
        for update, value in zip(self.training.moved, values, strict=True):
            if update.clock is not None and by_clock.setdefault(update.clock, value) != value:
                return False
        self.counted = np.array(values, np.float32)
        self.counts = torch.from_numpy(self.counted)
        for state, count in zip(states, self.counts.unbind(), strict=True):
            state["step"] = count
        self.version = self.counts._version
        return True

    def _inputs(self, states: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, ...]:
        moved = self.training.moved
        found = [own for own in (self.seed, self.scale) if own is not None]
        found += self.rates
        for clock in self.training.clocks:
            first = next(k for k, update in enumerate(moved) if update.clock == clock)
            found.append(states[first]["step"])
        for update, state in zip(moved, states, strict=True):
            found += [state[slot] for slot in update.slots]
        return tuple(found)
