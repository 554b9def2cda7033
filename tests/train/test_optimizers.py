"""Every optimizer that is known: steps, state and schedules as torch has them."""

import copy
from typing import Any

import pytest
import torch
from tests.sweep import few
from tests.train.nets import Net, assert_same, batch, eager_step, mean_square

import tilewright as tw

Optimizer = torch.optim.Optimizer

KNOWN: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "amsgrad": True}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    (torch.optim.RMSprop, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (torch.optim.Adadelta, {"rho": 0.5}),
]
each = pytest.mark.parametrize(
    ("cls", "settings"), few(KNOWN, torch.optim.AdamW, torch.optim.Adagrad)
)


def make(cls: Any, net: Net, settings: dict[str, Any]) -> Optimizer:
    groups = [
        {"params": net.first.parameters(), "lr": 0.01},
        {"params": net.second.parameters(), "lr": 0.02},
    ]
    optimizer: Optimizer = cls(groups, **settings)
    return optimizer


@each
def test_state_goes_from_torch_to_us_and_back(cls: Any, settings: dict[str, Any]) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(cls, ours, settings), make(cls, theirs, settings)
    step = tw.train_step(ours, mean_square, optimizer, *batch())
    for seed in range(3):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    moved = make(cls, ours, settings)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3, 6):
        eager_step(ours, moved, batch(seed))
        eager_step(theirs, reference, batch(seed))
    optimizer.load_state_dict(copy.deepcopy(moved.state_dict()))
    for seed in range(6, 9):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    mine, other = optimizer.state_dict()["state"], reference.state_dict()["state"]
    assert mine.keys() == other.keys()
    for number, entries in other.items():
        assert mine[number].keys() == entries.keys()
        for name, value in entries.items():
            torch.testing.assert_close(mine[number][name], value, rtol=1e-4, atol=1e-6)


@each
def test_thirty_steps_follow_float64_as_closely_as_eager_float32(
    cls: Any, settings: dict[str, Any]
) -> None:
    ours = Net()
    theirs, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    step = tw.train_step(ours, mean_square, make(cls, ours, settings), *batch())
    reference, best = make(cls, theirs, settings), make(cls, exact, settings)
    widest = 0.0
    for seed in range(30):
        tensors = batch(seed)
        wide = (tensors[0].double(), tensors[1].double())
        truth = eager_step(exact, best, wide).item()
        widest = max(widest, abs(eager_step(theirs, reference, tensors).item() - truth))
        assert abs(step(*tensors).item() - truth) <= 2 * widest + 1e-6 * abs(truth)


@each
def test_a_schedule_compiles_nothing_again(cls: Any, settings: dict[str, Any]) -> None:
    cycles = "momentum" in settings or "Adam" in cls.__name__
    ours = Net()
    theirs = copy.deepcopy(ours)
    made = []
    for net in (ours, theirs):
        optimizer = make(cls, net, settings)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=[0.02, 0.05], total_steps=8, cycle_momentum=cycles
        )
        made.append((optimizer, schedule))
    (optimizer, schedule), (reference, other) = made
    step = tw.train_step(ours, mean_square, optimizer, *batch())
    program = step.program
    for seed in range(8):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
        if seed < 7:
            schedule.step()
            other.step()
        assert_same(ours, theirs)
    assert step.program is program


def test_parameters_of_different_age_share_a_step_where_nothing_reads_the_count() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.RMSprop(net.parameters()) for net in (ours, theirs))
    step = tw.train_step(ours, mean_square, optimizer, *batch())
    for seed in range(6):
        for net in (ours, theirs):
            net.first.requires_grad_(seed >= 3)
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    assert optimizer.state[ours.first.weight]["step"] == 3
    assert optimizer.state[ours.second.weight]["step"] == 6


def test_plain_sgd_keeps_no_state() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    step = tw.train_step(model, torch.nn.functional.mse_loss, optimizer, x, target)
    step(x, target)
    step(x, target)
    assert optimizer.state_dict()["state"] == {}
