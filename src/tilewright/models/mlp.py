"""A multi-layer perceptron with ReLU between its linear layers.

The idea: the smallest model that trains; its step is dominated by what surrounds the arithmetic.
Knows nothing but torch.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """Linear layers of the given sizes, each but the last followed by a ReLU."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"an mlp needs an input and an output size, got sizes={tuple(sizes)}")
        self.sizes = tuple(sizes)
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in pairwise(sizes))

    def forward(self, x_bi: Tensor) -> Tensor:
        x = x_bi
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def mlp(sizes: Sequence[int] = (64, 128, 128, 10)) -> Mlp:
    """An MLP with the given sizes, input first."""
    return Mlp(sizes)


def example_batch(model: Mlp, batch: int = 32, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normal inputs and uniform class targets that fit `model`."""
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, model.sizes[0], generator=source)
    targets = torch.randint(model.sizes[-1], (batch,), generator=source)
    return inputs, targets


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of class scores."""
    return F.cross_entropy(output, target)
