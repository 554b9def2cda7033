"""Regions under torch.utils.checkpoint: values, gradients and masks are eager's."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import tilewright as tw

region = functools.partial(checkpoint, use_reentrant=False)


class Net(nn.Module):
    """Two layers and a norm, put together by a function."""

    def __init__(self, together: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.together = together

    def forward(self, x: Tensor) -> Tensor:
        return self.together(self, x)

    def body(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def _with_numbers(net: Net, x: Tensor) -> Any:
    def body(x: Tensor, count: int, *, scale: float, shift: Tensor) -> Tensor:
        return net.body(x) * scale * count + shift

    return region(body, x, 3, scale=0.5, shift=x)


def _several_results(net: Net, x: Tensor) -> Any:
    def body(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = torch.tanh(net.first(x))
        return net.second(h), (h.mean(), x)

    y, (mean, same) = region(body, x)
    return y * mean + same


def _nested(net: Net, x: Tensor) -> Any:
    def inner(x: Tensor) -> Tensor:
        return torch.tanh(net.first(x))

    return region(lambda x: net.second(region(inner, x).exp()), x)


def _selective(net: Net, x: Tensor) -> Any:
    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        saved = operator == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return region(net.body, x, context_fn=contexts)


REGIONS: dict[str, Callable[[Net, Tensor], Any]] = {
    "reentrant": lambda net, x: checkpoint(net.body, x * 1, use_reentrant=True),
    "with dropout": lambda net, x: region(lambda x: F.dropout(net.body(x), 0.5), x),
    "with numbers": _with_numbers,
    "of several results": _several_results,
    "nested": _nested,
    "selective": _selective,
}


def _run(call: Callable[[Tensor], Tensor], net: Net) -> list[Tensor | None]:
    torch.manual_seed(3)
    net.zero_grad()
    x = torch.linspace(-1, 1, 30).reshape(5, 6).requires_grad_()
    y = call(x)
    y.square().sum().backward()
    parameters = [*net.first.parameters(), *net.second.parameters()]
    return [y.detach(), x.grad, *(parameter.grad for parameter in parameters)]


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_has_eager_s_values_and_gradients(name: str, fallbacks: list[str]) -> None:
    torch.manual_seed(0)
    net = Net(REGIONS[name])
    eager = copy.deepcopy(net)
    compiled = torch.compile(net, backend="tilewright", options={"random": "torch"})
    torch.testing.assert_close(_run(compiled, net), _run(eager, eager))
    assert fallbacks == []


def test_a_region_is_captured_by_tw_compile() -> None:
    net = Net(REGIONS["nested"])
    compiled = tw.compile(net, torch.zeros(5, 6, requires_grad=True))
    torch.testing.assert_close(_run(compiled, net), _run(net, net))


def test_statistics_in_a_region_are_counted_once_as_torch_compile_does() -> None:
    """Eager counts them when it computes a region again, too."""
    net = Net(lambda net, x: region(lambda x: net.norm(net.body(x)), x))
    nets = [copy.deepcopy(net) for _ in range(2)]
    for each, backend in zip(nets, ("tilewright", "aot_eager"), strict=True):
        torch._dynamo.reset()
        _run(torch.compile(each, backend=backend), each)
    ours, theirs = ([*each.norm.buffers()] for each in nets)
    torch.testing.assert_close(ours, theirs)
    assert int(ours[-1]) == 1
