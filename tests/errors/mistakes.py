"""Models and functions with one mistake each: what the golden messages point at."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor


class Block(nn.Module):
    """Its second layer does not take what the first gives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        return x + self.down(hidden)


class Stack(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(6), Block(width)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Mixed(nn.Module):
    """A table of another element type than the activations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(4, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.tanh(x)
        return scores @ self.table


class DecaysItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        with torch.no_grad():
            self.weight.mul_(0.9)
        return y


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return self.last + 1


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embedding(ids).sum(1)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy * 2.0


def keeps_positive(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def scales_by_item(x: Tensor) -> Tensor:
    return x * x.max().item()


def writes_past_autograd(x: Tensor) -> Tensor:
    hidden = x * 2
    hidden.data.clamp_(min=0)
    return hidden * x


def adds_to_argument(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def adds_first_to_second(a: Tensor, b: Tensor) -> Tensor:
    b.add_(a)
    return b * 2


def transposes_argument(x: Tensor) -> Tensor:
    x.t_()
    return x * 2


def prints(x: Tensor) -> Tensor:
    print(x.sum())
    return x * 2


def raises(x: Tensor) -> Tensor:
    if x.shape[0] != 3:
        raise ValueError("three rows are needed")
    return x


def asserts(x: Tensor) -> Tensor:
    assert x.shape[0] == 3, "three rows are needed"
    return x


def sorts(x: Tensor) -> Tensor:
    return torch.sort(x.repeat(1, 100)).values


def uses_custom_function(x: Tensor) -> Tensor:
    return Doubles.apply(x * 1)


def takes_a_gradient(x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad((x**2).sum(), x)
    return found


def divides_integers(a: Tensor, b: Tensor) -> Tensor:
    return a // b


def softmax_of_missing_dim(x: Tensor) -> Tensor:
    return F.softmax(x, 5)


def counts_letters(_: Tensor) -> object:
    return object()


def overwrites_argument(x: Tensor) -> Tensor:
    x.copy_(torch.ones_like(x))
    return x * 2


def doubles_in_place(x: Tensor) -> Tensor:
    return x.mul_(2).sum()


def packs(x: Tensor) -> Tensor:
    return nn.utils.rnn.pack_padded_sequence(x, [2, 1]).data * 2


def draws(x: Tensor) -> Tensor:
    return x + torch.rand(())


def centres(x: Tensor) -> Tensor:
    return x - x.mean(0)
