"""Functions written with torch's control flow, each beside its twin in plain Python."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tests.versions import OLD_TORCH
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

Tensor = torch.Tensor
Function = Callable[..., Any]
TABLE = torch.linspace(-1, 1, 2048, dtype=torch.float64).reshape(512, 4)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def branches(x: Tensor, w: Tensor) -> Any:
    """Branches that close over a weight, a number, and a long constant; two results."""
    shift = 0.5

    def then(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x @ w), (x * shift).sum()

    def otherwise(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * x + TABLE[:3]) * 2, x.prod() + w.sum()

    return torch.cond(x.sum() > 0, then, otherwise, (x,))


def branches_twin(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        return torch.tanh(x @ w), (x * 0.5).sum()
    return (x * x + TABLE[:3]) * 2, x.prod() + w.sum()


def nested(x: Tensor, w: Tensor) -> Tensor:
    """A cond in a branch, a predicate of one element, a detached operand."""

    def inner(x: Tensor) -> Tensor:
        return torch.cond((x > 0).any(), lambda x: x.exp() * x.detach(), lambda x: x * w[0], (x,))

    y = torch.cond(x[:1, 0] > 0, inner, lambda x: F.softmax(x, -1), (x,))
    return (y * w.sum()).cumsum(0)


def nested_twin(x: Tensor, w: Tensor) -> Tensor:
    y = F.softmax(x, -1)
    if x[0, 0] > 0:
        y = x.exp() * x.detach() if (x > 0).any() else x * w[0]
    return (y * w.sum()).cumsum(0)


def under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = torch.cond((x > 0).sum(), lambda x: x.exp(), lambda x: x * 3, (x,))
    return (scale * x) @ w


def under_no_grad_twin(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.exp() if x.sum() > 0 else x * 3
    return (scale * x) @ w


def recurrent(x: Tensor, w: Tensor) -> Any:
    """A scan with trees as carry and element, and a weight closed over."""

    def step(carry: dict[str, Tensor], at: tuple[Tensor, Tensor]) -> Any:
        row, gate = at
        h = torch.tanh(carry["h"] @ w + row * torch.sigmoid(gate))
        n = carry["n"] + 1
        return {"h": h, "n": n}, (h * n, row.sum())

    first = {"h": x[0] * 0.5, "n": torch.ones((), dtype=x.dtype) * w.sum()}
    last, (rows, sums) = scan(step, first, (x, x.flip(0)))
    return last["h"], last["n"], rows, sums


def recurrent_twin(x: Tensor, w: Tensor) -> Any:
    h, n, rows, sums = x[0] * 0.5, w.sum(), [], []
    for row, gate in zip(x, x.flip(0), strict=True):
        h, n = torch.tanh(h @ w + row * torch.sigmoid(gate)), n + 1
        rows.append(h * n)
        sums.append(row.sum())
    return h, n, torch.stack(rows), torch.stack(sums)


def along_columns_backwards(x: Tensor, w: Tensor) -> Any:
    def step(carry: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.sin(carry) * column
        return made, made + w.sum()

    return scan(step, w[0, :3].clone(), x, dim=1, reverse=True)


def along_columns_backwards_twin(x: Tensor, w: Tensor) -> Any:
    carry, found = w[0, :3], []
    for column in reversed(x.unbind(1)):
        carry = torch.sin(carry) * column
        found.append(carry + w.sum())
    # Older versions stack in front, whatever dim they read along.
    return carry, torch.stack(found[::-1], 0 if OLD_TORCH else 1)


def mapped(x: Tensor, w: Tensor) -> Tensor:
    made: Tensor = torch_map(lambda row, w: torch.tanh(row @ w).softmax(-1), x, w)
    return made


def mapped_twin(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).softmax(-1)


def associative(x: Tensor, w: Tensor) -> Tensor:
    made: Tensor = associative_scan(lambda a, b: a * b + b, x @ w, 0, combine_mode="generic")
    return made


def associative_twin(x: Tensor, w: Tensor) -> Tensor:
    rows = list((x @ w).unbind(0))
    for at in range(1, len(rows)):
        rows[at] = rows[at - 1] * rows[at] + rows[at]
    return torch.stack(rows)


@dataclass(frozen=True, slots=True)
class Twins:
    """A function, its twin, and the signs of the arguments that take it everywhere."""

    fn: Function
    twin: Function
    signs: tuple[int, ...] = (1,)


DIFFERENTIABLE: dict[str, Twins] = {
    "cond": Twins(branches, branches_twin, (1, -1)),
    "nested cond": Twins(nested, nested_twin, (1, -1)),
    "cond under no_grad": Twins(under_no_grad, under_no_grad_twin, (1, -1)),
    "scan": Twins(recurrent, recurrent_twin),
    "scan along columns, backwards": Twins(along_columns_backwards, along_columns_backwards_twin),
    "map": Twins(mapped, mapped_twin),
    "associative scan": Twins(associative, associative_twin),
}


def halved(x: Tensor, limit: Tensor) -> Any:
    """Two carries, one of them an integer, and a limit closed over."""

    def test(x: Tensor, _: Tensor) -> Tensor:
        return x.abs().sum() > limit

    def body(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x * 0.5, n + 1

    return while_loop(test, body, (x, torch.zeros((), dtype=torch.int64)))


def halved_twin(x: Tensor, limit: Tensor) -> Any:
    n = torch.zeros((), dtype=torch.int64)
    while x.abs().sum() > limit:
        x, n = x * 0.5, n + 1
    return x, n


class Net(torch.nn.Module):
    """A recurrent net written as a scan, whose head depends on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(6, 3)
        self.plain = torch.nn.Linear(3, 2)
        self.sharp = torch.nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            made = torch.tanh(self.cell(torch.cat([h, row], -1)))
            return made, made.clone()

        last, _ = scan(step, torch.zeros_like(x[0]), x)
        head: Tensor = torch.cond(last.sum() > 0, self.plain, lambda h: self.sharp(h) * 2, (last,))
        return head


class Twin(Net):
    """The same net in plain Python."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for row in x:
            h = torch.tanh(self.cell(torch.cat([h, row], -1)))
        found: Tensor = self.plain(h) if h.sum() > 0 else self.sharp(h) * 2
        return found
