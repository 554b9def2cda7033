"""A compiled step and the tensors it is run on.

The idea: the tensors are the module's and the optimizer's own.  Before every step their identity is
compared; where state was replaced it is taken over, and where it asks for another Program the
answer says so.

This module does not know how the step was compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, getitem, is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tilewright.base.facts import Facts
from tilewright.capture import Captured
from tilewright.compiler import Built
from tilewright.runtime.calls import Front
from tilewright.runtime.settled import quick_of
from tilewright.runtime.unchanged import Unchanged
from tilewright.train import optimizers
from tilewright.train.facts import facts_of
from tilewright.train.joint import Rate, Training

# What a setting is whose value cannot become another one while it is the same object.
_FIXED = (bool, int, float, str, type(None))

# Of names that are one look-up each: they are asked of every parameter, before every step.
_gradient_hooks = attrgetter("_backward_hooks")
_later_hooks = attrgetter("_post_accumulate_grad_hooks")

MOST_LESSONS = 16
"""How often a step may learn what its tensors look like, where they keep looking otherwise."""
MOST_PATIENCE = 32
"""Steps after which it is learned what they look at, however often that was in vain."""


class _Seen(NamedTuple):
    """An optimizer's state when it was last looked through.

    parameters, entries: those that have a state, and that.  owners, names, tensors: for each tensor
    in use, whose state it is in, by which name.
    """

    parameters: tuple[torch.Tensor, ...]
    entries: tuple[dict[str, Any], ...]
    owners: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]


class _Said(NamedTuple):
    """What a group of an optimizer's holds: names, values, and the parameters."""

    names: list[str]
    values: list[Any]
    parameters: list[torch.Tensor]

    @classmethod
    def by(cls, optimizer: torch.optim.Optimizer) -> "list[_Said]":
        return [
            cls([*group], [*group.values()], [*group["params"]]) for group in optimizer.param_groups
        ]

    def is_of(self, group: Mapping[str, Any]) -> bool:
        """Say whether all are the same objects, which need not be comparable."""
        if [*group] != self.names or not all(map(is_, group.values(), self.values)):
            return False
        held = group["params"]
        return len(held) == len(self.parameters) and all(map(is_, held, self.parameters))

    def is_fixed(self) -> bool:
        """Say whether another value of a setting is always another object."""
        parts = chain.from_iterable(
            value if type(value) is tuple else (value,)
            for name, value in zip(self.names, self.values, strict=True)
            if name != "params"
        )
        return all(type(part) in _FIXED for part in parts)


@dataclass(slots=True)
class Active:
    """A compiled step and the tensors it is run on.

    owners: for each update, its parameter.  begins: whether any momentum begins with this step.
    held: the state tensors in use, by update.  said: the optimizer's settings when they were last
    read; None where one may change unseen, as a tensor does.  counts: the step counts of all
    updates, one vector that the optimizer's own `step` tensors are views of.  counted: the same
    memory.  begun: of parameters whose state begins with the next step, what it was.
    inputs: what follows the forward graph's inputs: seed, scale, rates, clocks, slots.
    settled: runs the step on tensors like earlier ones, and gives None for others.  unchanged:
    whether module and loss are what they were; unmoved: whether the optimizer is too.  front: steps
    as wholes, while it is.  steady: the steps looked at since anything moved; after `patience` of
    them it is learned what they looked at.
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
    seen: _Seen | None = None
    said: list[_Said] | None = None
    counts: torch.Tensor | None = None
    counted: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    version: int = -1
    begun: tuple[tuple[torch.Tensor, dict[str, Any]], ...] = ()
    inputs: tuple[torch.Tensor, ...] = ()
    settled: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor] | None] | None = None
    lessons: int = 0
    unchanged: Unchanged = field(default_factory=Unchanged)
    unmoved: Unchanged = field(default_factory=Unchanged)
    front: Front = field(default_factory=Front)
    steady: int = 0
    patience: int = 2

    def learn(self, inputs: Sequence[torch.Tensor]) -> None:
        """Let `settled` be what runs the step on tensors like these, if there is such."""
        if self.lessons < MOST_LESSONS:
            self.lessons += 1
            self.settled = self.built.settled(inputs) or self.settled

    def forget_whole(self) -> None:
        """Let the next steps be looked at: what is run on, or by which settings, is another."""
        self.unmoved.forget()
        self.front.forget()
        self.steady = 0

    def learn_whole(
        self,
        rule: optimizers.Rule,
        optimizer: torch.optim.Optimizer,
        batch: Sequence[Any],
        owner: dict[str, Any],
    ) -> None:
        """After a look at all that nothing had moved: learn what it looked at, if that has been so
        for some steps, and for more each time, as a schedule may move a rate at every step.

        owner: the dict in which `optimizer` is found.
        """
        self.steady += 1
        if self.steady >= self.patience:
            self.steady, self.patience = 0, min(2 * self.patience, MOST_PATIENCE)
            found = self.facts(rule, optimizer, batch)
            own = Facts(((owner, False, ("optimizer", optimizer)),), (), (), ())
            self.unmoved.take(None if found is None else found.and_also(own))

    def learn_front(self, made: NDArray[np.int64], arity: int) -> None:
        """Let C make the next steps as this one was made, of which nothing had changed.

        made: how many steps were.  arity: of how many arguments a call is.
        """
        if self.settled is None:
            return
        own, state = self.captured.sources, (*self.captured.state, *self.inputs)
        first = len(self.captured.state)
        sources = (*own, *(-1 - first - at for at in range(len(self.inputs))))
        tallies = (made,) if self.counts is None else (made, self.counted)
        holds, quick = self.unmoved.holds, quick_of(self.settled)
        self.front.learn(holds, quick, sources, state, arity, tallies)

    def facts(
        self, rule: optimizers.Rule, optimizer: torch.optim.Optimizer, batch: Sequence[Any]
    ) -> Facts | None:
        """Return what is looked at before a step, as facts; None where that is not known."""
        found = self.captured.watch.facts(batch, grad=True)
        said, seen = self.said, self.seen
        if found is None or said is None or seen is None or self.begins:
            return None
        groups = [(zip(s.names, s.values, strict=True), s.parameters) for s in said]
        state = zip(seen.parameters, seen.entries, strict=True)
        tensors = zip(seen.owners, seen.names, seen.tensors, strict=True)
        own = facts_of(optimizer, groups, state, tensors, self.counts)
        # Last: what another thread changes meanwhile is seen here, or is no fact any more.
        if own is None or not self.follows(rule, optimizer) or not self.holds(optimizer):
            return None
        return found.and_also(own) if self.said is said and self.seen is seen else None

    def follows(self, rule: optimizers.Rule, optimizer: torch.optim.Optimizer) -> bool:
        """Say whether the optimizer's settings are those compiled in; if so, put those that may
        move where the Program reads them.

        Raises OptimizerError for a setting that is impossible, and for hooks of the optimizer's;
        hooks of a parameter's are refused where the step is compiled again.
        """
        optimizers.refuse_hooks(optimizer)
        if any(map(_gradient_hooks, self.owners)) or any(map(_later_hooks, self.owners)):
            return False
        known, groups = self.said, optimizer.param_groups
        if known is not None and len(known) == len(groups) and all(map(_Said.is_of, known, groups)):
            return True
        said = _Said.by(optimizer)
        rates = optimizers.rates_of(rule, optimizer)
        if optimizers.settings_of(rule, optimizer) != self.settings:
            return False
        self.forget_whole()
        self.said = None  # an interrupt may come before the end
        self.set_rates(rates)
        self.said = said if all(map(_Said.is_fixed, said)) else None
        return True

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Say whether the optimizer's state still is the tensors in use."""
        if len(self.held) != len(self.owners):
            return False
        if self.counts is not None and self.counts._version != self.version:
            return False
        state = optimizer.state
        if self.seen is not None and _is_seen(self.seen, state):
            return True  # quicker than to look up each
        self.seen = None
        # Torch makes a state by looking it up: an optimizer without any has none.
        found = [
            (state[owner], name, tensor)
            for owner, entries in zip(self.owners, self.held, strict=True)
            for name, tensor in entries
        ]
        if any(entry.get(name) is not tensor for entry, name, tensor in found):
            return False
        entries, names, tensors = zip(*found, strict=True) if found else ((), (), ())
        self.seen = _Seen(tuple(state), tuple(state.values()), entries, names, tensors)
        return True

    @torch.inference_mode(mode=False)  # state that is made in it could not be followed
    def adopt(self, rule: optimizers.Rule, optimizer: torch.optim.Optimizer) -> bool:
        """Take over the optimizer's state as it is now; False where it needs another Program."""
        self.forget_whole()
        self.held = ()  # an interrupt may come before the end
        moved = self.training.moved
        states = [
            optimizer.state[owner] if update.slots or rule.counts else {}
            for owner, update in zip(self.owners, moved, strict=True)
        ]
        groups = [optimizer.param_groups[update.group] for update in moved]
        for update, group, state in zip(moved, groups, states, strict=True):
            if optimizers.begins(rule, group, state) != update.begins:
                return False
        had = [dict(state) for state in states]
        for owner, group, state in zip(self.owners, groups, states, strict=True):
            optimizers.complete_state(rule, group, owner, state)
        self.begun = tuple(
            (owner, before)
            for owner, before, state in zip(self.owners, had, states, strict=True)
            if any(before.get(name) is not made for name, made in state.items())
        )
        if rule.counts and not self._count_together(states):
            return False
        names = [(*update.slots, *(("step",) if rule.counts else ())) for update in moved]
        self.seen = None
        self.inputs = self._inputs(states)
        self.held = tuple(
            tuple((name, state[name]) for name in wanted)
            for wanted, state in zip(names, states, strict=True)
        )
        return True

    def set_rates(self, rates: Mapping[Rate, float]) -> None:
        """Put learning rates and momenta where the Program reads them."""
        for place, rate in enumerate(self.training.rates):
            if rates[rate] != self.known_rates[place]:
                self.rates[place].fill_(rates[rate])
                self.known_rates[place] = rates[rate]

    def withdraw(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step that moved nothing: the state that would have begun with it has not."""
        for owner, before in self.begun:
            state = optimizer.state[owner]
            state.clear()
            state.update(before)
            if not state:
                del optimizer.state[owner]
            self.held = ()
        self.begun = ()

    def advance(self) -> None:
        """Count the step."""
        if self.begins:
            self.held = ()  # what begins momentum is another Program than what goes on with it
        if self.counts is not None:
            self.counted += 1  # on the memory of `counts`, without a call of torch
        self.begun = ()

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


def _is_seen(seen: _Seen, state: Mapping[torch.Tensor, dict[str, Any]]) -> bool:
    """Say whether an optimizer's state holds the tensors that it did."""
    if len(state) != len(seen.entries) or not all(map(is_, state, seen.parameters)):
        return False
    if not all(map(is_, state.values(), seen.entries)):
        return False
    try:
        return all(map(is_, map(getitem, seen.owners, seen.names), seen.tensors))
    except KeyError:
        return False
