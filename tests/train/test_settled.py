"""A step like an earlier one is not looked at again; whatever has changed since is."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.nets import (
    Batch,
    Net,
    adamw,
    assert_same,
    batch,
    eager_step,
    is_whole,
    mean_square,
    sgd,
)
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tilewright import train_step
from tilewright.base.errors import (
    CaptureError,
    DTypeError,
    IndexRangeError,
    OptimizerError,
    OptionError,
    ShapeError,
)
from tilewright.train import TrainStep

Change = Callable[[Net, torch.optim.Optimizer], Any]


def _is_settled(step: TrainStep) -> bool:
    """Make a step; say whether it was not looked at."""
    lessons = step._active.lessons
    step(*batch())
    return step._active.lessons == lessons


def _set(name: str, value: Any) -> Change:
    def change(_: Net, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0][name] = value

    return change


def _add_a_group(net: Net, optimizer: torch.optim.Optimizer) -> None:
    net.first.weight.requires_grad_(requires_grad=False)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})


def _exchange(net: Net, optimizer: torch.optim.Optimizer) -> None:
    entries = optimizer.state[net.second.weight]
    name = "exp_avg" if "exp_avg" in entries else "momentum_buffer"
    entries[name] = torch.full_like(entries[name], 0.25)


def _other_memory(net: Net, _: torch.optim.Optimizer) -> None:
    net.first.weight.data = torch.arange(15.0).view(5, 3) / 10


def _other_strides(net: Net, _: torch.optim.Optimizer) -> None:
    net.first.weight.data = (torch.arange(15.0) / 10).view(3, 5).t()


def _write(net: Net, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        net.first.weight.mul_(0.5)


def _reload(_: Net, optimizer: torch.optim.Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.05
    for entries in state["state"].values():
        for name in entries:
            entries[name] = entries[name] * 2
    optimizer.load_state_dict(state)


def _put_in_place(net: Net, _: torch.optim.Optimizer) -> None:
    net.first.bias = nn.Parameter(torch.ones(5))  # which no optimizer has


def _hook(net: Net, _: torch.optim.Optimizer) -> None:
    net.first.register_forward_hook(lambda *given: given[-1] * 0.5)


def _age(_: Net, optimizer: torch.optim.Optimizer) -> None:
    for entries in optimizer.state.values():
        if "step" in entries:
            entries["step"] += 5


CHANGES: dict[str, Change] = {
    "nothing": lambda *_: None,
    "learning rate": _set("lr", 0.2),
    "learning rate 0": _set("lr", 0),
    "learning rate, a tensor": _set("lr", torch.tensor(0.03)),
    "weight decay": _set("weight_decay", 0.5),
    "maximize": _set("maximize", True),
    "one more group": _add_a_group,
    "parameter's memory": _other_memory,
    "parameter's strides": _other_strides,
    "parameter's values": _write,
    "another parameter": _put_in_place,
    "frozen parameter": lambda net, _: net.second.weight.requires_grad_(requires_grad=False),
    "state of one": _exchange,
    "no state": lambda _, optimizer: optimizer.state.clear(),
    "loaded state": _reload,
    "age": _age,
    "hook": _hook,
    "evaluation": lambda net, _: net.eval(),
}
MAKES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Change]]] = {
    "sgd": (sgd, {"momentum": _set("momentum", 0.5), "nesterov": _set("nesterov", True)}),
    "adamw": (adamw, {"betas": _set("betas", (0.5, 0.9)), "eps": _set("eps", 0.1)}),
}


@pytest.mark.parametrize("steps", [3, 8], ids=["looked at", "whole"])
@pytest.mark.parametrize(
    ("make", "change"),
    [(make, change) for make, (_, own) in MAKES.items() for change in (*CHANGES, *own)],
)
def test_what_changes_between_steps_is_followed_as_torch_does(
    make: str, change: str, steps: int
) -> None:
    begin, own = MAKES[make]
    ours = Net()
    theirs = copy.deepcopy(ours)
    # Slow, as one change climbs: what grows without bound grows its differences of rounding too.
    optimizer, reference = begin(ours, lr=0.01), begin(theirs, lr=0.01, foreach=False)
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(steps):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert _is_settled(step)
    assert is_whole(step) or steps == 3
    eager_step(theirs, reference, batch())
    for net, each in ((ours, optimizer), (theirs, reference)):
        {**CHANGES, **own}[change](net, each)
    for seed in range(4, 12):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
        assert_same(ours, theirs)
    assert step.count == steps + 9


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_schedule_that_moves_the_rate_at_every_step_leaves_steps_settled(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(ours), make(theirs)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda at: 1 / (1 + at))
        for each in (optimizer, reference)
    ]
    step = train_step(ours, mean_square, optimizer, *batch())
    for at in range(6):
        assert _is_settled(step) == (at > 0)
        eager_step(theirs, reference, batch())
        for schedule in schedules:
            schedule.step()
        assert_same(ours, theirs)


def test_a_rate_in_a_tensor_is_read_at_every_step() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    rate = torch.tensor(0.1)
    step = train_step(ours, mean_square, adamw(ours, lr=rate), *batch())
    reference = adamw(theirs, lr=rate, foreach=False)
    for at in range(5):
        rate.mul_(0.5)
        assert _is_settled(step) == (at > 0)
        eager_step(theirs, reference, batch())
        assert_same(ours, theirs)


def _settled_step(whole: bool = False) -> TrainStep:
    net = Net()
    step = train_step(net, mean_square, sgd(net), *batch())
    for _ in range(8 if whole else 1):
        step(*batch())
    assert _is_settled(step)
    assert is_whole(step) or not whole
    return step


def _wide(tensors: Batch) -> tuple[Any, ...]:
    return tensors[0].double(), tensors[1]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("others", "error"),
    [
        (lambda tensors: tensors[:1], OptionError),
        (lambda tensors: (*tensors, tensors[0]), OptionError),
        (lambda tensors: (tensors[0][:3], tensors[1]), ShapeError),
        (_wide, DTypeError),
        (lambda tensors: (tensors[0].tolist(), tensors[1]), DTypeError),
        (lambda tensors: (tensors[0], 1.0), DTypeError),
    ],
    ids=["too few", "too many", "shape", "dtype", "list", "number"],
)
def test_a_batch_that_does_not_fit_is_refused_as_at_the_first_step(
    others: Callable[[Batch], tuple[Any, ...]], error: type[Exception], whole: bool
) -> None:
    net = Net()
    fresh, settled = train_step(net, mean_square, sgd(net), *batch()), _settled_step(whole)
    wrong = others(batch())
    with pytest.raises(error) as first:
        fresh(*wrong)
    before = copy.deepcopy(settled.module.state_dict())
    with pytest.raises(error) as later:
        settled(*wrong)
    assert str(later.value) == str(first.value)
    after = settled.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def _of_two_groups(net: Net) -> torch.optim.Optimizer:
    halves = [net.first, net.second]
    groups = [{"params": [*half.parameters()]} for half in halves]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("steps", [2, 6])
def test_groups_in_another_order_keep_their_rates(steps: int) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = _of_two_groups(ours), _of_two_groups(theirs)
    for each in (optimizer, reference):
        each.param_groups[0]["lr"] = 0.01
    step = train_step(ours, mean_square, optimizer, *batch())
    for _ in range(4):
        for each in (optimizer, reference):
            each.param_groups.reverse()
        for _ in range(steps):
            step(*batch())
            eager_step(theirs, reference, batch())
        assert_same(ours, theirs)


def _exchange_one(groups: list[dict[str, Any]]) -> None:
    first, second = (group["params"] for group in groups)
    first[1], second[1] = second[1], first[1]


def _exchange_all(groups: list[dict[str, Any]]) -> None:
    first, second = groups
    first["params"], second["params"] = second["params"], first["params"]


@pytest.mark.parametrize("steps", [3, 8])
@pytest.mark.parametrize("exchange", [_exchange_one, _exchange_all])
def test_parameters_that_change_groups_are_moved_by_their_new_rate(
    exchange: Callable[[list[dict[str, Any]]], None], steps: int
) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = _of_two_groups(ours), _of_two_groups(theirs)
    for each in (optimizer, reference):
        each.param_groups[0]["lr"] = 0.01
    step = train_step(ours, mean_square, optimizer, *batch())
    for _ in range(3):
        for _ in range(steps):
            step(*batch())
            eager_step(theirs, reference, batch())
        assert is_whole(step) or steps == 3
        assert_same(ours, theirs)
        for each in (optimizer, reference):
            exchange(each.param_groups)


def test_settings_in_tensors_are_read_at_every_step() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    decay = torch.tensor(0.1)
    step = train_step(ours, mean_square, sgd(ours, weight_decay=decay), *batch())
    reference = sgd(theirs, weight_decay=decay, foreach=False)
    for at in range(4):
        decay.fill_(0.1 * at)
        step(*batch())
        eager_step(theirs, reference, batch())
        assert_same(ours, theirs)


@pytest.mark.parametrize("steps", [3, 8])
def test_states_that_are_exchanged_are_seen(steps: int) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    twin = copy.deepcopy(net)
    optimizer, reference = (
        torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (net, twin)
    )
    some = torch.ones(4, 3), torch.zeros(4, 3)
    step = train_step(net, nn.functional.mse_loss, optimizer, *some)
    for _ in range(3):
        for _ in range(steps):
            step(*some)
            reference.zero_grad()
            nn.functional.mse_loss(twin(some[0]), some[1]).backward()
            reference.step()
        assert_same(net, twin)
        for each, owner in ((optimizer, net), (reference, twin)):
            first, second = owner[0].weight, owner[1].weight
            state = dict(each.state)
            state[first], state[second] = state[second], state[first]
            each.state = defaultdict(dict, state)  # in the same order, under other names


@pytest.mark.parametrize("steps", [0, 3, 9], ids=["first", "settled", "whole"])
def test_a_step_that_raises_counts_as_one_that_has_written(steps: int) -> None:
    """Else what is kept of its parameters, or saved for a gradient, would be taken as current."""
    net = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ids, targets = torch.tensor([1, 3]), torch.zeros(2, 2)
    step = train_step(net, nn.functional.mse_loss, optimizer, ids, targets)
    for _ in range(steps):
        step(ids, targets)
    before = [parameter._version for parameter in net.parameters()]
    with pytest.raises(IndexRangeError):
        step(torch.tensor([1, 9]), targets)
    after = [parameter._version for parameter in net.parameters()]
    assert all(now > then for then, now in zip(before, after, strict=True))


def _hook_a_gradient(step: TrainStep) -> Any:
    return next(step.module.parameters()).register_hook(lambda gradient: gradient * 0)


def _hook_the_optimizer(step: TrainStep) -> Any:
    return step.optimizer.register_step_pre_hook(lambda *_: None)


def _hook_every_optimizer(_: TrainStep) -> Any:
    return register_optimizer_step_post_hook(lambda *_: None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("hook", [_hook_a_gradient, _hook_the_optimizer, _hook_every_optimizer])
def test_hooks_that_come_later_are_refused_until_they_are_gone(
    hook: Callable[[TrainStep], Any], whole: bool
) -> None:
    step = _settled_step(whole)
    for _ in range(2):
        before = copy.deepcopy(step.module.state_dict())
        handle = hook(step)
        try:
            with pytest.raises((CaptureError, OptimizerError), match="hooks"):
                step(*batch())
        finally:
            handle.remove()
        now = step.module.state_dict()
        assert all(torch.equal(before[name], found) for name, found in now.items())
        for _ in range(8):
            step(*batch())


def test_groups_that_are_put_together_anew_are_read_again() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = _of_two_groups(ours), _of_two_groups(theirs)
    step = train_step(ours, mean_square, optimizer, *batch())
    for at in range(4):
        step(*batch())
        eager_step(theirs, reference, batch())
        for each, net in ((optimizer, ours), (reference, theirs)):
            each.param_groups[0]["params"] = [*net.first.parameters()]  # the same, in another list
            each.param_groups[at % 2]["lr"] = 0.1 / (at + 1)
            each.param_groups[0]["note"] = torch.ones(2)
        assert_same(ours, theirs)


@pytest.mark.parametrize("whole", [False, True])
def test_a_rate_that_is_impossible_is_refused(whole: bool) -> None:
    step = _settled_step(whole)
    for rate in (-1.0, float("nan"), float("inf")):
        step.optimizer.param_groups[0]["lr"] = rate
        for _ in range(2):
            with pytest.raises(OptimizerError):
                step(*batch())
    step.optimizer.param_groups[0]["lr"] = 0.1
    step(*batch())


@pytest.mark.parametrize("every", [2, 8])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_mode_that_a_step_is_called_in_changes_nothing(mode: Any, every: int) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    step = train_step(ours, mean_square, sgd(ours), *batch())
    reference = sgd(theirs)
    for seed in range(3 * every):
        with mode() if seed % every == every - 1 else torch.enable_grad():
            loss = step(*batch(seed))
        assert loss == pytest.approx(eager_step(theirs, reference, batch(seed)).item())
        assert not loss.requires_grad
    assert_same(ours, theirs)


@pytest.mark.parametrize("every", [2, 8])
def test_rows_of_a_batch_that_lie_otherwise_are_read_as_they_lie(every: int) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    step = train_step(ours, mean_square, sgd(ours), *batch())
    reference = sgd(theirs)
    for seed in range(2 * every):
        inputs, targets = batch(seed)
        plain = seed % every < every - 1
        turned = inputs.clone().requires_grad_() if plain else inputs.t().contiguous().t()
        step(turned, targets)
        eager_step(theirs, reference, (inputs, targets))
    assert_same(ours, theirs)


@pytest.mark.parametrize("whole", [False, True])
def test_autograd_is_told_of_a_settled_step(whole: bool) -> None:
    step = _settled_step(whole)
    weight = step.module.second.weight
    result = (weight * weight).sum()
    assert _is_settled(step)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
