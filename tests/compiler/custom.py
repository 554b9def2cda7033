"""Custom `autograd.Function`s, one difficulty each, and what calls them.

The idea: every row is a function of float64 parameters; its backward is seldom the derivative of
its forward, so that only a gradient that goes through it can be right.
This module does not know what is compared.
"""

from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


class Straight(torch.autograd.Function):
    """Rounds; the gradient passes as if it did not."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy


class Reversed(torch.autograd.Function):
    """The identity, as a view; the gradient is turned round and scaled by a plain number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * dy, None


class Everything(torch.autograd.Function):
    """Saved arguments and intermediates, a plain flag, three results, one without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, y: Tensor, flip: bool = False) -> Any:
        inner = torch.exp(y)
        ctx.save_for_backward(x, inner)
        ctx.scale, ctx.shape = scale, x.shape
        where = x > 0
        ctx.mark_non_differentiable(where)
        return (x - y if flip else x * inner), inner.sum(1), where

    @staticmethod
    def backward(ctx: Any, da: Tensor, db: Tensor, _: Tensor) -> Any:
        x, inner = ctx.saved_tensors
        dx = dy = None
        if ctx.needs_input_grad[0]:
            dx = da * ctx.scale + db[:, None].expand(ctx.shape)
        if ctx.needs_input_grad[2]:
            dy = torch.where(x > 0, da * inner * 7, 0.25)
        return dx, None, dy, None


class Half(torch.autograd.Function):
    """No gradient for the second argument, whoever asks for it; saves its own result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        result = torch.tanh(x) + y
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return dy * result, None


class Broadcast(torch.autograd.Function):
    """Gives its smaller argument a gradient of the larger one's shape, in another element type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + row

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return (dy * 2).float(), dy * x


class FirstOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(_: Any, da: Tensor, db: Tensor) -> Tensor:
        return da * 10 + db * 100


class Fills(torch.autograd.Function):
    """A backward that writes into a copy, by index, and multiplies matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.relu(x @ w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        passed = dy.clone()
        passed[x @ w < 0] = 0
        passed[0] *= 2
        table = torch.linspace(0, 1, 2400, dtype=dy.dtype)  # too long to be written out
        return passed @ w.t() * table[-1], x.t() @ passed + table[600:601]


class Inner(torch.autograd.Function):
    """Calls another custom function in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return Straight.apply(x) * 2

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return Straight.apply(dy * 4) + x


class Scaled(nn.Module):
    """A function that reads a parameter, as an argument, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4))
        self.register_buffer("shift", torch.full((4,), 0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        first, second, where = Everything.apply(x * 2, 3.0, self.weight)
        return (Half.apply(first, self.shift) * where).sum(1) + second


MODULE = Scaled()


def _views(x: Tensor) -> Tensor:
    h = x * 2
    return Reversed.apply(h[1:], 0.5).sum() + (Reversed.apply(h, 2.0) * h).sum()


def _in_place_after(x: Tensor) -> Tensor:
    y = Straight.apply(x * 3)
    y.mul_(x)
    y[0] += 1
    return y


# Name -> (function, the shape of each parameter ...).
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "straight": (lambda x: Straight.apply(x * 3) * x, (3, 4)),
    "of a parameter alone": (lambda x: Straight.apply(x), (3, 4)),
    "twice": (lambda x: Straight.apply(Straight.apply(x) * 1.5), (3, 4)),
    "empty": (lambda x: Straight.apply(x), (0, 4)),
    "of one number": (lambda x: Reversed.apply(x * 1, 3.0) * 1, ()),
    "views": (_views, (3, 4)),
    "everything": (lambda x, y: Everything.apply(x, 2.5, y), (3, 4), (3, 4)),
    "flag": (lambda x, y: Everything.apply(x, 2.5, y, True), (3, 4), (3, 4)),
    "no gradient": (lambda x, y: (Half.apply(x, y), y * 2), (3, 4), (3, 4)),
    "no gradient at all": (lambda x, y: Half.apply(x.detach(), y) * x, (3, 4), (3, 4)),
    "broadcast": (lambda x, y: Broadcast.apply(x, y), (3, 4), (1, 4)),
    "first of two": (lambda x: FirstOfTwo.apply(x)[0], (3, 4)),
    "second of two": (lambda x: FirstOfTwo.apply(x)[1].exp(), (3, 4)),
    "fills": (lambda x, w: Fills.apply(x, w), (3, 4), (4, 5)),
    "inner": (lambda x: Inner.apply(x * 3), (3, 4)),
    "in place after": (_in_place_after, (3, 4)),
    "checkpointed": (
        lambda x: torch.utils.checkpoint.checkpoint(
            lambda a: Straight.apply(a * 3) * a, x, use_reentrant=False
        ),
        (3, 4),
    ),
    "in a module": (lambda x, w: torch.func.functional_call(MODULE, {"weight": w}, (x,)), (3, 4),
                    (3, 4)),
}  # fmt: skip
