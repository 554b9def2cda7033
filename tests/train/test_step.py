"""A compiled step moves parameters, buffers and state as torch's own loop does."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from tests.train.nets import (
    Net,
    adamw,
    assert_bits,
    assert_same,
    batch,
    eager_step,
    mean_square,
    sgd,
)
from torch import nn

import tilewright as tw
from tilewright import Options, train_step
from tilewright.graph.evaluate_scalar import uniform
from tilewright.models import gpt
from tilewright.runtime import segments

# ----------------------------------------------------------------------------------- trajectories


@pytest.mark.parametrize("make", few([adamw, sgd], adamw))
def test_thirty_steps_follow_float64_as_closely_as_eager_float32(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    ours = Net()
    theirs, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    step = train_step(ours, mean_square, make(ours), *batch(), clip_norm=0.5)
    reference, best = make(theirs), make(exact)
    widest = 0.0
    for seed in range(30):
        tensors = batch(seed)
        wide = (tensors[0].double(), tensors[1].double())
        truth = eager_step(exact, best, wide, 0.5).item()
        widest = max(widest, abs(eager_step(theirs, reference, tensors, 0.5).item() - truth))
        loss = step(*tensors)
        assert loss.shape == ()
        assert not loss.requires_grad
        assert abs(loss.item() - truth) <= 2 * widest + 1e-6 * abs(truth)


def test_state_that_begins_in_inference_mode_is_as_any_other() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    step, other = (
        train_step(net, mean_square, adamw(net), *batch(), clip_norm=0.5) for net in (ours, theirs)
    )
    with torch.inference_mode():
        step(*batch(0))
    other(*batch(0))
    for seed in (1, 2):
        assert step(*batch(seed)) == other(*batch(seed))
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_tensor_may_be_the_learning_rate() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    rate = torch.tensor(0.1)
    step = train_step(ours, mean_square, sgd(ours, lr=rate), *batch())
    reference = sgd(theirs, lr=rate, foreach=False)
    for seed in range(3):
        rate.mul_(0.5)
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)


def test_another_setting_of_the_optimizer_compiles_again() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = adamw(ours), adamw(theirs)
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(4):
        if seed == 2:
            for each in (optimizer, reference):
                each.param_groups[0]["weight_decay"] = 0.5
                each.param_groups[0]["betas"] = (0.5, 0.9)
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)


# ------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("make", few([adamw, sgd], adamw))
def test_state_goes_from_torch_to_us_and_back(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(ours), make(theirs)
    for seed in range(3):  # both by torch
        eager_step(ours, optimizer, batch(seed))
        eager_step(theirs, reference, batch(seed))
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(3, 6):  # ours by Tilewright
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    moved = make(ours)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(6, 9):  # by torch again, in another optimizer
        eager_step(ours, moved, batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    mine, other = moved.state_dict()["state"], reference.state_dict()["state"]
    assert mine.keys() == other.keys()
    for number, entries in other.items():
        for name, value in entries.items():
            torch.testing.assert_close(mine[number][name], value, rtol=1e-5, atol=1e-6)


def test_torch_and_a_compiled_step_may_take_turns() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = adamw(ours), adamw(theirs)
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(6):
        if seed % 2:
            step(*batch(seed))
        else:
            eager_step(ours, optimizer, batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)


@pytest.mark.parametrize("make", few([adamw, sgd], adamw))
def test_a_loaded_state_is_taken_up_bit_for_bit(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    net = Net()
    optimizer = make(net)
    step = train_step(net, mean_square, optimizer, *batch())
    for seed in range(3):
        step(*batch(seed))
    kept = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    straight = [step(*batch(seed)).item() for seed in range(3, 6)]
    after = copy.deepcopy(net)
    net.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    again = [step(*batch(seed)).item() for seed in range(3, 6)]
    assert again == straight
    assert_bits(net, after)


def test_momentum_that_is_exchanged_and_put_back_is_followed_each_time() -> None:
    net = Net()
    optimizer = sgd(net)
    step = train_step(net, mean_square, optimizer, *batch())
    for _ in range(2):
        step(*batch())
    parameter = net.second.weight
    one = optimizer.state[parameter]["momentum_buffer"]
    other = one.clone()
    for used, rests in ((other, one), (one, other), (other, one)):
        before = used.clone(), rests.clone()
        optimizer.state[parameter]["momentum_buffer"] = used
        step(*batch())
        assert not torch.equal(used, before[0])
        assert torch.equal(rests, before[1])


def test_state_that_is_cleared_begins_again() -> None:
    net = Net()
    theirs = copy.deepcopy(net)
    optimizer, other = adamw(net), adamw(theirs)
    step = train_step(net, mean_square, optimizer, *batch())
    for at in range(3):
        if at == 1:
            optimizer.state.clear()
            other.state.clear()
        step(*batch(at))
        eager_step(theirs, other, batch(at))
    assert_same(net, theirs)
    assert len(optimizer.state) == len(other.state)


def test_a_team_of_threads_trains_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            net = gpt.gpt_small()
            inputs = gpt.example_batch(net, 2)
            step = train_step(net, gpt.loss, adamw(net), *inputs)
            assert segments.is_wide(step.program)
            found.append([step(*inputs).item() for _ in range(4)])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_state_is_made_at_the_first_step_as_torch_makes_it() -> None:
    net = Net()
    optimizer = adamw(net)
    step = train_step(net, mean_square, optimizer, *batch())
    assert len(optimizer.state) == 0
    step(*batch())
    for parameter in net.parameters():
        entries = optimizer.state[parameter]
        assert list(entries) == ["step", "exp_avg", "exp_avg_sq"]
        assert entries["step"] == 1
        assert entries["step"].shape == ()
        assert entries["step"].dtype == torch.float32


def test_parameters_of_different_age_keep_their_own_step_counts() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = adamw(ours), adamw(theirs)
    step = train_step(ours, mean_square, optimizer, *batch())
    for seed in range(6):
        for net in (ours, theirs):
            net.first.requires_grad_(seed >= 3)
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    assert optimizer.state[ours.first.weight]["step"] == 3
    assert optimizer.state[ours.second.weight]["step"] == 6


# ------------------------------------------------------------------------------------- debug mode


def test_debug_mode_agrees_at_every_step() -> None:
    net = Net()
    step = train_step(net, mean_square, adamw(net), *batch(), options=Options(check="eager"))
    losses = [step(*batch()).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


# ------------------------------------------------------------------------------------- the module


def test_tied_parameters_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 3)
            self.head = nn.Linear(3, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.table(ids))
            return out

    ours = Tied()
    theirs = copy.deepcopy(ours)
    ids = torch.tensor([[1, 2, 6], [1, 1, 0]])
    loss = lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten())  # noqa: E731
    step = train_step(ours, loss, adamw(ours), ids, ids)
    reference = adamw(theirs)
    for _ in range(3):
        step(ids, ids)
        reference.zero_grad()
        loss(theirs(ids), ids).backward()
        reference.step()
    assert_same(ours, theirs)
    assert ours.head.weight is ours.table.weight


class Normed(nn.Module):
    """A layer, batch norm, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.norm(self.first(x)))
        return out


def test_running_statistics_move_as_in_eager_and_rest_in_evaluation() -> None:
    ours = Normed()
    theirs = copy.deepcopy(ours)
    step = train_step(ours, mean_square, sgd(ours), *batch())
    reference = sgd(theirs)
    for seed in range(6):
        for net in (ours, theirs):
            net.train(seed < 3)
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    assert ours.norm.num_batches_tracked == 3


def test_a_parameter_put_in_the_place_of_another_is_seen() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = sgd(ours), sgd(theirs)
    step = train_step(ours, mean_square, optimizer, *batch())
    step(*batch(0))
    eager_step(theirs, reference, batch(0))
    fresh = torch.ones(5)
    for net in (ours, theirs):
        net.first.bias = nn.Parameter(fresh.clone())  # which no optimizer has
    for seed in range(1, 3):
        step(*batch(seed))
        eager_step(theirs, reference, batch(seed))
    assert_same(ours, theirs)
    assert torch.equal(ours.first.bias, fresh)


class Pulled(nn.Module):
    """A force: the gradient of an energy by the input, taken inside of the model."""

    def __init__(self, take: Callable[..., Any]) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.head = nn.Linear(3, 2)
        self.take = take

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        force = self.take(lambda at: self.energy(at).sum())(x)
        out: torch.Tensor = self.head(x + force)
        return out


@pytest.mark.parametrize("parts", few([1, 2], 1))
@pytest.mark.parametrize(
    "take",
    few([torch.func.grad, tw.grad], tw.grad),
    ids={tw.grad: "ours", torch.func.grad: "torch"}.get,
)
def test_a_derivative_taken_inside_of_the_model_is_trained_through(take: Any, parts: int) -> None:
    ours = Pulled(take)
    theirs = copy.deepcopy(ours)
    theirs.take = torch.func.grad
    step = train_step(ours, mean_square, sgd(ours), *batch(), accumulate=parts)
    reference = sgd(theirs)
    for seed in range(3):
        loss = step(*batch(seed))
        torch.testing.assert_close(loss, eager_step(theirs, reference, batch(seed)))
    assert_same(ours, theirs)


def test_a_loss_with_parameters_of_its_own_trains_them() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return mean_square(output * self.scale, target)

    ours, loss = Net(), Scaled()
    theirs, other = copy.deepcopy(ours), copy.deepcopy(loss)
    optimizer = torch.optim.SGD([*ours.parameters(), *loss.parameters()], lr=0.1)
    reference = torch.optim.SGD([*theirs.parameters(), *other.parameters()], lr=0.1)
    step = train_step(ours, loss, optimizer, *batch())
    for seed in range(3):
        step(*batch(seed))
        reference.zero_grad()
        inputs, targets = batch(seed)
        other(theirs(inputs), targets).backward()
        reference.step()
    assert_same(ours, theirs)
    assert_same(loss, other)


def test_autograd_is_told_that_parameters_have_changed() -> None:
    net = Net()
    step = train_step(net, mean_square, sgd(net), *batch())
    loss = mean_square(net(batch()[0]), batch()[1])
    step(*batch())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ------------------------------------------------------------------------------------------- masks


class Dropping(nn.Module):
    """Dropout between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 50)
        self.second = nn.Linear(50, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.first(x), 0.25, self.training)
        out: torch.Tensor = self.second(F.dropout(F.relu(hidden), 0.5, self.training))
        return out


def our_mask(seed: int, stream: int, shape: Sequence[int], keep: float) -> torch.Tensor:
    count = int(np.prod(shape))
    numbers = (stream << 32) + np.arange(count, dtype=np.int64)
    drawn = uniform(np.asarray(seed), numbers)
    return torch.tensor(drawn < np.float32(keep)).reshape(*shape) / keep


def test_with_dropout_a_step_is_eager_with_our_masks() -> None:
    ours = Dropping()
    theirs = copy.deepcopy(ours)
    step = train_step(ours, mean_square, sgd(ours), *batch())
    reference = sgd(theirs)
    assert step.seed is not None
    drawn = []
    for number in range(4):
        inputs, targets = batch(number)
        masks = [
            our_mask(step.seed + number, k, (4, 50), keep) for k, keep in enumerate((0.75, 0.5))
        ]
        drawn.append(masks[0])
        loss = step(inputs, targets)
        reference.zero_grad()
        hidden = F.relu(theirs.first(inputs) * masks[0]) * masks[1]
        expected = mean_square(theirs.second(hidden), targets)
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    assert_same(ours, theirs)
    assert not torch.equal(drawn[0], drawn[1])


def test_masks_go_on_where_the_state_was_taken() -> None:
    net = Dropping()
    optimizer = sgd(net)
    step = train_step(net, mean_square, optimizer, *batch())
    for seed in range(2):
        step(*batch(seed))
    kept = copy.deepcopy((net.state_dict(), optimizer.state_dict(), step.state_dict()))
    straight = [step(*batch(seed)).item() for seed in range(2, 5)]
    torch.manual_seed(99)
    other = Dropping()
    fresh = sgd(other)
    resumed = train_step(other, mean_square, fresh, *batch())
    other.load_state_dict(kept[0])
    fresh.load_state_dict(kept[1])
    resumed.load_state_dict(kept[2])
    assert [resumed(*batch(seed)).item() for seed in range(2, 5)] == straight
    assert_bits(net, other)


def test_noise_that_torch_draws_goes_on_with_its_generator() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x + torch.rand_like(x))
            return out

    net = Noisy()
    optimizer = sgd(net)
    step = train_step(net, mean_square, optimizer, *batch())
    step(*batch())
    kept = copy.deepcopy((net.state_dict(), optimizer.state_dict(), step.state_dict()))
    straight = [step(*batch()).item() for _ in range(3)]
    assert len(set(straight)) == 3
    net.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    step.load_state_dict(kept[2])
    assert [step(*batch()).item() for _ in range(3)] == straight


def test_the_seed_comes_from_torch_s_generator() -> None:
    seeds = []
    for number in (1, 1, 2):
        torch.manual_seed(number)
        net = Dropping()
        seeds.append(train_step(net, mean_square, sgd(net), *batch()).seed)
    assert seeds[0] == seeds[1] != seeds[2]
