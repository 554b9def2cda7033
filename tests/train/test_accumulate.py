"""A batch taken in parts: means of their losses and gradients, statistics from part to part."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.sweep import few
from tests.train.nets import Net, adamw, assert_same, batch, mean_square, sgd
from torch import nn
from torch.amp.grad_scaler import GradScaler

import tilewright as tw
from tilewright.base.errors import OptionError, ShapeError


def eager_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, tensors: Any, parts: int, clip: float
) -> torch.Tensor:
    optimizer.zero_grad()
    total = torch.zeros(())
    for x, target in zip(*(tensor.chunk(parts) for tensor in tensors), strict=True):
        loss = mean_square(net(x), target) / parts
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return total


class Normed(Net):
    """With statistics that each part moves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


@pytest.mark.parametrize("make", few([adamw, sgd], adamw))
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_accumulate_as_a_loop_of_eager_does(make: Any, parts: int) -> None:
    torch.manual_seed(0)
    ours = Normed() if parts == 2 else Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(ours), make(theirs)
    step = tw.train_step(ours, mean_square, optimizer, *batch(), clip_norm=0.5, accumulate=parts)
    for seed in range(4):
        found = step(*batch(seed))
        expected = eager_step(theirs, reference, batch(seed), parts, 0.5)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert_same(ours, theirs)


def test_every_part_has_masks_of_its_own() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x * self.weight, 0.5)

    net = Dropped()
    x = torch.ones(2, 64)
    step = tw.train_step(
        net, lambda y, _: y.sum(), torch.optim.SGD(net.parameters(), lr=1.0), x, x, accumulate=2
    )
    step(x, x)
    # Each of two rows keeps a weight or not; where both did or none, the masks agree.
    moved = (1 - net.weight.detach()).unique().tolist()
    assert moved == [0.0, 1.0, 2.0]


def test_a_scaled_step_accumulates_too() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    step = tw.train_step(
        ours, mean_square, sgd(ours), *batch(), accumulate=2, scaler=GradScaler("cpu")
    )
    plain = tw.train_step(theirs, mean_square, sgd(theirs), *batch(), accumulate=2)
    for seed in range(3):
        torch.testing.assert_close(step(*batch(seed)), plain(*batch(seed)))
    assert_same(ours, theirs)


def test_memory_is_that_of_a_part() -> None:
    def arena(parts: int) -> int:
        net = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())))
        x = torch.randn(256, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = tw.train_step(net, mean_square, optimizer, x, x, accumulate=parts)
        return step.program.arena_bytes

    assert arena(8) < 0.5 * arena(1)


@pytest.mark.parametrize("parts", [0, 2.0, True])
def test_a_number_of_parts_that_is_none_is_refused(parts: Any) -> None:
    net = Net()
    with pytest.raises(OptionError, match="number of parts"):
        tw.train_step(net, mean_square, sgd(net), *batch(), accumulate=parts)


def test_a_batch_that_does_not_part_is_refused(golden: Callable[[str, str], None]) -> None:
    net = Net()
    with pytest.raises(ShapeError) as refused:
        tw.train_step(net, mean_square, sgd(net), *batch(), accumulate=3)
    golden("accumulate_uneven.txt", f"ShapeError: {refused.value}")
