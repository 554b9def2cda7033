"""Steps that C makes as wholes, while nothing has moved: what was so before may be so again."""

import copy
from collections import UserList, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.nets import Net, adamw, assert_same, batch, eager_step, is_whole, mean_square, sgd

from tilewright import train_step
from tilewright.runtime.calls import types
from tilewright.train import TrainStep


def _whole_step() -> TrainStep:
    net = Net()
    step = train_step(net, mean_square, sgd(net), *batch())
    for _ in range(9):
        step(*batch())
    assert is_whole(step)
    return step


Go = Callable[[], object]


def _with_another_state(optimizer: torch.optim.Optimizer, go: Go) -> None:
    mine, optimizer.state = optimizer.state, defaultdict(dict)
    go()
    optimizer.state = mine


def _at_another_rate(optimizer: torch.optim.Optimizer, go: Go) -> None:
    group = optimizer.param_groups[0]
    rate, group["lr"] = group["lr"], 0.5
    go()
    group["lr"] = rate


def _with_another_state_and_rate(optimizer: torch.optim.Optimizer, go: Go) -> None:
    _at_another_rate(optimizer, lambda: _with_another_state(optimizer, go))


def _with_clones(optimizer: torch.optim.Optimizer, go: Go) -> None:
    before = {parameter: dict(entry) for parameter, entry in optimizer.state.items()}
    for entry in optimizer.state.values():
        entry.update({name: value.clone() for name, value in entry.items()})
    go()
    for parameter, entry in before.items():
        optimizer.state[parameter].update(entry)


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize(
    "between", [_with_another_state, _with_another_state_and_rate, _with_clones, _at_another_rate]
)
def test_a_step_between_on_other_state_or_at_another_rate_stays_one(
    make: Callable[..., torch.optim.Optimizer],
    between: Callable[[torch.optim.Optimizer, Go], None],
) -> None:
    """What was so before is so again, and C knew it: but it was of other tensors."""
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(ours), make(theirs, foreach=False)
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(9):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert is_whole(step)
    between(optimizer, lambda: step(*batch(1)))
    between(reference, lambda: eager_step(theirs, reference, batch(1)))
    for seed in range(4):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
        assert_same(ours, theirs)


def test_inputs_that_are_asked_for_between_leave_steps_as_they_were() -> None:
    step = _whole_step()
    theirs = copy.deepcopy(step.module)
    reference = sgd(theirs)
    reference.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    group = step.optimizer.param_groups[0]
    rate, group["lr"] = group["lr"], 0.5
    step.inputs(*batch())
    group["lr"] = rate
    step(*batch())
    eager_step(theirs, reference, batch())
    assert_same(step.module, theirs)


class _Listed(UserList[Any]):
    """A list that is none."""


@pytest.mark.parametrize("kind", [tuple, _Listed])
def test_parameters_that_lie_in_no_list_are_moved(kind: Any) -> None:
    step = _whole_step()
    theirs = copy.deepcopy(step.module)
    reference = sgd(theirs)
    reference.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    step.optimizer.param_groups[0]["params"] = kind(step.optimizer.param_groups[0]["params"])
    for seed in range(9):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
        assert_same(step.module, theirs)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_another_optimizer_in_the_place_of_one_is_used(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    step = _whole_step()
    theirs = copy.deepcopy(step.module)
    step.optimizer, reference = make(step.module), make(theirs)
    for seed in range(6):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
        assert_same(step.module, theirs)


def test_after_a_schedule_steps_are_wholes_again() -> None:
    step = _whole_step()
    for at in range(40):
        step.optimizer.param_groups[0]["lr"] = 0.1 + at / 1000
        step(*batch())
        assert not is_whole(step) or types() is None
    for _ in range(40):
        step(*batch())
    assert is_whole(step)


def test_a_loss_that_asks_for_the_mode_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target) ** 2).mean() if output.requires_grad else output.sum()

    net = Net()
    step = train_step(net, loss, sgd(net), *batch())
    step(*batch())
    monkeypatch.setattr(TrainStep, "_compile_again", None)
    step_twice = step._active
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            for _ in range(4):
                step(*batch())
    assert step._active is step_twice


def test_a_target_that_is_the_modules_own_is_that_only_then() -> None:
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.register_buffer("shift", torch.randn(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inner(x) + self.shift
            return made

    ours, x = Shifted(), torch.randn(4, 3)
    theirs = copy.deepcopy(ours)
    optimizer, reference = sgd(ours), sgd(theirs)
    step = train_step(ours, torch.nn.functional.mse_loss, optimizer, x, ours.shift)
    for target in (ours.shift, torch.randn(4, 3), ours.shift):
        for _ in range(8):
            step(x, target)
            reference.zero_grad()
            torch.nn.functional.mse_loss(theirs(x), target).backward()
            reference.step()
        assert_same(ours, theirs)


def test_hooks_that_are_gone_leave_steps_whole() -> None:
    step = _whole_step()
    next(step.module.parameters()).register_hook(torch.neg).remove()
    for _ in range(40):
        step(*batch())
    assert is_whole(step)
