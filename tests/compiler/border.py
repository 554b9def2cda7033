"""Modules that try the border between torch and compiled graphs, one difficulty each.

The idea: every module takes the same (3, 4) float32 tensor and is small; what is hard about it is
in its name.  This module does not know what is compared.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Forward = Callable[[nn.Module, torch.Tensor], Any]


class Bordering(nn.Module):
    """Two linear layers, a batch norm, buffers, and a forward of its own."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("count", torch.tensor(0))
        self.body = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Record:
    value: torch.Tensor
    length: int
    inner: dict[str, torch.Tensor]


class Cube(torch.autograd.Function):
    """x^3 with a backward that nobody would derive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return dy * x * 10


def integers(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return h.argmax(1), h > 0, (h * 10).long(), h.sum()


def zero_dims(m: Any, x: torch.Tensor) -> Any:
    scalar = m.first(x).mean()
    return scalar, scalar * torch.tensor(2.0), m.second.bias[0]


def empty(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return h[:0], h[:, 2:2].sum(1), torch.cat([h, h[:0]]), h[:0].sum()


def views(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return h, h.t(), h[1], h[:, ::2], h.reshape(-1), x.view(2, 6), m.first.weight.t()


def transposed(m: Any, x: torch.Tensor) -> Any:
    """Fresh results that eager lays out otherwise than row by row."""
    h = m.first(x)
    return h.t() * 2, h.t().contiguous(), torch.empty_like(h.t()).copy_(h.t()), h.t().exp() + 1


def hidden_slices(m: Any, x: torch.Tensor) -> Any:
    """Results that are slices of tensors that are no results themselves."""
    h = m.first(x)
    return (h * 2)[:, 1:3], h.exp()[1:], (h + 1).unsqueeze(1).expand(3, 5, 6)


def argument_in_place(m: Any, x: torch.Tensor) -> Any:
    x = x.detach()
    before = x * 1
    x.mul_(2).add_(1)
    x[0].zero_()
    return m.first(before), m.first(x)


def same_result_twice(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return h, h, [h, {"again": h}], x


def structures(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return {"a": h, "b": [h * 2, None, 3], "c": Pair(h + 1, h - 1), "d": "text"}


def record(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return Record(h, 3, {"x": x * 2})


def no_grad_region(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        scale = m.first(x).abs().amax(1, keepdim=True)
    h = m.first(x) / scale
    return h, scale, h.detach() * 2, h * h.detach()


def buffers(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    with torch.no_grad():
        m.seen.mul_(0.9).add_(h.mean(0), alpha=0.1)
        m.count.add_(1)
    return h * m.seen + m.count


def statistics(m: Any, x: torch.Tensor) -> Any:
    return m.second(F.relu(m.norm(m.first(x))))


def statistics_twice(m: Any, x: torch.Tensor) -> Any:
    h = m.norm(m.first(x))
    return m.norm(h * 2) + h


def checkpointed(m: Any, x: torch.Tensor) -> Any:
    h = checkpoint(lambda a: torch.tanh(m.first(a)), x, use_reentrant=False)
    return checkpoint(m.second, h, use_reentrant=False)


def tied(m: Any, x: torch.Tensor) -> Any:
    return F.linear(F.linear(x, m.first.weight), m.first.weight.t()) + m.first.weight.sum()


def frozen(m: Any, x: torch.Tensor) -> Any:
    return m.first(x) * m.frozen, m.frozen * 2


def half(m: Any, x: torch.Tensor) -> Any:
    h = m.first.to(torch.bfloat16)(x.to(torch.bfloat16))
    return h, F.softmax(h, 1), F.layer_norm(h, (6,)).float()


def autocast(m: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        h = m.first(x)
        y = torch.softmax(h, 1)
        with torch.autocast("cpu", enabled=False):
            z = m.second(h.float())
    return h, y, z


def custom_function(m: Any, x: torch.Tensor) -> Any:
    return Cube.apply(m.first(x))


def expanded(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    return h.sum(1, keepdim=True).expand(3, 6) + h, x[0].expand(5, 4)


def constants(m: Any, x: torch.Tensor) -> Any:
    table = torch.tensor([1.0, -math.inf, math.nan, -0.0, 2.5, 1e-40])
    return m.first(x) * 2 + torch.where(table.isfinite(), table, 0.0), table, torch.arange(3)


def in_place_inside(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    h += 1
    h[:, 1] *= 2
    h[0].mul_(3)
    h[:, 3:5] = x[:, :2]
    return h.relu_()


def diagonal_in_place(m: Any, x: torch.Tensor) -> Any:
    """Written through strides: torch's own derivative of the functional form is wrong."""
    h = m.first(x)
    h.fill_diagonal_(0.5)
    g = m.first(x).clone()
    g.as_strided((2, 2), (1, 6), 3).mul_(x[:2, :2])
    return h, g


def only_input(_: Any, x: torch.Tensor) -> Any:
    return x


def nothing_differentiable(_: Any, x: torch.Tensor) -> Any:
    return (x > 0).sum(), x.argsort(1)


def sorted_values(m: Any, x: torch.Tensor) -> Any:
    values, order = m.first(x).sort(1)
    top = m.first(x).topk(2, dim=1)
    return values, order, top.values, top.indices


def double(m: Any, x: torch.Tensor) -> Any:
    return m.first(x).double().cumsum(1), F.linear(x.double(), m.first.weight.double())


def steps(m: Any, x: torch.Tensor) -> Any:
    """Operators whose gradient is zero everywhere, and operators that have none."""
    h = m.first(x)
    return h.floor(), torch.round(m.second.bias), h.sign() * 2, torch.trunc(h), h > m.frozen


def partly_used(m: Any, x: torch.Tensor) -> Any:
    """A result of integers keeps what only it depends on from having a gradient."""
    return m.first(x), m.second(m.norm(m.first(x))).argmax(1)


def in_training_only(m: Any, x: torch.Tensor) -> Any:
    return m.first(x) * 2 if m.training else m.first(x)


def losses(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x)
    target = torch.tensor([1, -100, 4])
    return F.cross_entropy(h, target), F.mse_loss(h, torch.zeros_like(h)), F.gelu(h).norm()


def attention(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x).reshape(1, 3, 2, 3).transpose(1, 2)
    masked = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    free = F.scaled_dot_product_attention(h, h, h)
    causal = F.scaled_dot_product_attention(h, h, h, is_causal=True)
    return free, causal, F.scaled_dot_product_attention(h, h, h, attn_mask=masked)


MODULES: dict[str, Forward] = {
    function.__name__: function
    for function in (
        integers, zero_dims, empty, views, transposed, hidden_slices, argument_in_place,
        same_result_twice, structures, record, no_grad_region, buffers, statistics,
        statistics_twice, checkpointed, tied, frozen, half, autocast, custom_function, expanded,
        constants, in_place_inside, diagonal_in_place, only_input, nothing_differentiable,
        sorted_values, double, steps, partly_used, in_training_only, losses, attention,
    )
}  # fmt: skip
