"""What torch gets wrong while it traces is as eager has it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from tilewright.base.errors import MutationError

WAYS: dict[str, Callable[..., Any]] = {
    "compile": lambda fn, *inputs: tw.compile(fn, *inputs)(*inputs),
    "backend": lambda fn, *inputs: torch.compile(fn, backend="tilewright", fullgraph=True)(*inputs),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

LABELS = [
    [[0, 2, -1, 1], [1, -1, 0, 0], [3, 2, 1, 0], [-1, 1, 2, 3]],
    [[2, 0, -1, 1]],
    [2, 0, -1, 1],
    [-1, -1],
    [[0], [-1]],
]


@ways
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_end_at_the_first_of_minus_one(
    way: Callable[..., Any], reduction: str, labels: list[Any]
) -> None:
    torch._dynamo.reset()
    target = torch.tensor(labels)
    x = torch.randn(target.shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    exact = x.detach().double().requires_grad_()

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    found, expected = way(loss, x, target), loss(exact, target)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected.float())
    gradients = [torch.autograd.grad(y.sum(), z)[0] for y, z in ((found, x), (expected, exact))]
    torch.testing.assert_close(gradients[0], gradients[1].float())


class Averaged(nn.Module):
    """A layer beside the running mean of its weights, moved by lists at every call."""

    def __init__(self, *, following: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean = copy.deepcopy(self.layer).requires_grad_(following)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean, layer = list(self.mean.parameters()), list(self.layer.parameters())
            torch._foreach_mul_(mean, 0.9)
            torch._foreach_add_(mean, layer, alpha=0.1)
        return (self.layer(x) * self.mean(x)).sum()


@ways
def test_lists_that_are_changed_without_gradients_carry_none(way: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    model, x = Averaged(following=False), torch.randn(3, 4)
    eager = copy.deepcopy(model)
    way(model, x).backward()
    eager(x).backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_lists_that_ask_for_gradients_are_not_changed_without() -> None:
    with pytest.raises(MutationError, match="under no_grad"):
        tw.compile(Averaged(following=True), torch.randn(3, 4))


@ways
def test_lists_that_are_changed_carry_gradients(way: Callable[..., Any]) -> None:
    torch._dynamo.reset()

    def moved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = [x * 2, x + 1]
        torch._foreach_mul_(parts, [w, w.exp()])
        torch._foreach_add_(parts, [w, x])
        return parts[0] * parts[1]

    inputs = [torch.randn(5, requires_grad=True) for _ in range(2)]
    found = torch.autograd.grad(way(moved, *inputs).sum(), inputs)
    expected = torch.autograd.grad(moved(*inputs).sum(), inputs)
    torch.testing.assert_close(found, expected)
