"""What a training step refuses, in full, and that nothing has moved when it does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.nets import Net, assert_bits, batch, mean_square, sgd

from tilewright import train_step
from tilewright.base.errors import (
    CaptureError,
    CheckpointError,
    OptimizerError,
    OptionError,
    ShapeError,
    TilewrightError,
)
from tilewright.train import TrainStep

Golden = Callable[[str, str], None]


def refused(golden: Golden, name: str, action: Callable[[], Any], kind: type) -> None:
    with pytest.raises(kind) as caught:
        action()
    assert isinstance(caught.value, TilewrightError)
    golden(f"{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


@pytest.mark.parametrize("rate", [float("nan"), -0.1, float("inf")])
def test_a_rate_that_is_none_is_refused_and_moves_nothing(golden: Golden, rate: float) -> None:
    net = Net()
    optimizer = sgd(net)
    step = train_step(net, mean_square, optimizer, *batch())
    before = copy.deepcopy(net)
    optimizer.param_groups[0]["lr"] = rate
    refused(golden, f"rate_{rate}", lambda: step(*batch()), OptimizerError)
    assert_bits(net, before)
    optimizer.param_groups[0]["lr"] = 0.1
    step(*batch())


def test_an_unknown_optimizer_is_refused(golden: Golden) -> None:
    net = Net()
    optimizer = torch.optim.Adamax(net.parameters())
    refused(
        golden,
        "unknown_optimizer",
        lambda: train_step(net, mean_square, optimizer, *batch()),
        OptimizerError,
    )


def test_a_step_without_an_example_is_refused(golden: Golden) -> None:
    net = Net()
    refused(golden, "no_example", lambda: train_step(net, mean_square, sgd(net)), OptionError)


def test_another_batch_shape_is_refused_and_moves_nothing(golden: Golden) -> None:
    net = Net()
    step = train_step(net, mean_square, sgd(net), *batch())
    before = copy.deepcopy(net)
    refused(golden, "batch_shape", lambda: step(torch.ones(7, 3), torch.ones(7, 2)), ShapeError)
    assert_bits(net, before)


def test_hooks_of_the_optimizer_are_refused(golden: Golden) -> None:
    net = Net()
    optimizer = sgd(net)
    optimizer.register_step_post_hook(lambda *_: None)
    refused(
        golden,
        "optimizer_hooks",
        lambda: train_step(net, mean_square, optimizer, *batch()),
        OptimizerError,
    )


def test_hooks_of_a_gradient_are_refused(golden: Golden) -> None:
    net = Net()
    net.first.weight.register_hook(lambda gradient: gradient * 2)
    refused(
        golden,
        "gradient_hooks",
        lambda: train_step(net, mean_square, sgd(net), *batch()),
        CaptureError,
    )


def test_a_loss_that_is_not_one_number_is_refused(golden: Golden) -> None:
    net = Net()
    refused(
        golden,
        "loss_of_rank_two",
        lambda: train_step(net, lambda output, target: output - target, sgd(net), *batch()),
        ShapeError,
    )


def test_a_loss_without_gradient_is_refused(golden: Golden) -> None:
    net = Net()
    refused(
        golden,
        "loss_without_gradient",
        lambda: train_step(net, lambda o, t: mean_square(o.detach(), t), sgd(net), *batch()),
        CaptureError,
    )


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_leaves_no_gradient_is_refused(golden: Golden, norm: float) -> None:
    net = Net()
    refused(
        golden,
        f"clip_{norm}",
        lambda: train_step(net, mean_square, sgd(net), *batch(), clip_norm=norm),
        OptionError,
    )


def test_the_state_of_another_step_is_refused(golden: Golden) -> None:
    net = Net()
    step: TrainStep = train_step(net, mean_square, sgd(net), *batch())
    refused(
        golden,
        "foreign_state",
        lambda: step.load_state_dict({"count": 3, "seed": 5}),
        CheckpointError,
    )
    assert step.count == 0
