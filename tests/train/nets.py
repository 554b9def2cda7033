"""What the tests of this folder share: a small net, batches, and torch's own step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tilewright.runtime.calls import types, unfronted
from tilewright.train import TrainStep

Batch = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """Two layers around a ReLU."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5, bias=bias)
        self.second = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(F.relu(self.first(x)))
        return out


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def batch(seed: int = 0) -> Batch:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, generator=source), torch.randn(4, 2, generator=source)


def eager_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, tensors: Batch, clip: float | None = None
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = mean_square(net(tensors[0]), tensors[1])
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return loss.detach()


def is_whole(step: TrainStep) -> bool:
    """Say whether C makes the next step, where it makes any."""
    return types() is None or step._active.front.call is not unfronted


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], other[name], rtol=1e-5, atol=1e-6, msg=name)


def assert_bits(ours: nn.Module, theirs: nn.Module) -> None:
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


def adamw(net: nn.Module, **settings: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(net.parameters(), **{"lr": 0.01, **settings})


def sgd(net: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})
