"""Arguments and buffers that get values which gradients flow from, in place, as in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.sweep import swept
from torch import nn

import tilewright as tw
from tilewright.base.errors import MutationError

Tensor = torch.Tensor


def _scaled(x: Tensor, y: Tensor) -> Any:
    x.mul_(2)
    return x.sum() * y.sum()


def _old_and_new(x: Tensor, y: Tensor) -> Any:
    before = x * 3
    x.add_(y).mul_(2)
    return before + x, x.t()[1:], x


def _both(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    y.mul_(x)
    return (x * y).sum()


def _nothing_returned(x: Tensor, y: Tensor) -> None:
    x.mul_(y)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__.strip("_"): f for f in (_scaled, _old_and_new, _both, _nothing_returned)
}


def _run(call: Callable[..., Any], asking: tuple[bool, bool]) -> list[Any]:
    """Change computed tensors; use what came back and what was changed; return all there is."""
    leaves = [
        torch.linspace(-1 - k, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_(asks)
        for k, asks in enumerate(asking)
    ]
    x, y = (leaf * 1.5 for leaf in leaves)
    made = call(x, y)
    results = [r for r in (made if isinstance(made, tuple) else (made,)) if r is not None]
    total = sum((r.exp().sum() for r in results), (x * x).sum() + (y * 3).sum())
    shown = [t.requires_grad for t in (x, y, *results)], [t._version for t in (x, y)]
    total.backward()
    return [
        shown,
        x.detach(),
        y.detach(),
        *(r.detach() for r in results),
        *(p.grad for p in leaves),
    ]


@pytest.mark.parametrize("asking", [(True, True), swept((True, False)), swept((False, True))])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_changed_in_place_are_eagers(
    name: str, asking: tuple[bool, bool], fallbacks: list[str]
) -> None:
    fn = FUNCTIONS[name]
    examples = (torch.ones(3, 4, dtype=torch.float64).requires_grad_(asks) * 1 for asks in asking)
    expected = _run(fn, asking)
    (asked, versions), *values = expected
    for call in (tw.compile(fn, *examples), torch.compile(fn, backend="tilewright")):
        for _ in range(2):
            (mine, counted), *found = _run(call, asking)
            assert mine == asked
            assert all((ours > 0) == (its > 0) for ours, its in zip(counted, versions, strict=True))
            torch.testing.assert_close(found, values, rtol=1e-12, atol=1e-13)
    assert fallbacks == []


class Accumulates(nn.Module):
    """A buffer that remembers with its gradient, from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("state", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.state.mul_(0.5).add_(x * self.weight)
        return self.state * 3 + x * self.weight.exp()


def test_a_buffer_carries_its_gradient_to_the_next_call(fallbacks: list[str]) -> None:
    found = []
    for how in ("eager", "compile", "torch"):
        model = Accumulates()
        x = torch.linspace(0, 1, 3, dtype=torch.float64)
        compiled = torch.compile(model, backend="tilewright")
        call = {"eager": model, "compile": tw.compile(model, x), "torch": compiled}[how]
        total = sum(call(x + k).sum() for k in range(3))
        assert model.state.requires_grad
        total.backward()
        found.append((total.detach(), model.state.detach(), model.weight.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found[2], found[0], rtol=1e-12, atol=1e-13)
    assert fallbacks == []


def _run_on_a_view(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
    leaf = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    base = leaf * 2
    result = call(base[1])
    (result + base.sum()).backward()
    return result.detach(), leaf.grad


@pytest.mark.filterwarnings("ignore::tilewright.base.errors.FallbackWarning")
def test_a_view_is_left_to_eager(fallbacks: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(3)
        return x.sum()

    compiled = tw.compile(f, torch.ones(4, dtype=torch.float64, requires_grad=True) * 1)
    with pytest.raises(MutationError, match="a view is changed in place"):
        _run_on_a_view(compiled)
    found = _run_on_a_view(torch.compile(f, backend="tilewright"))
    torch.testing.assert_close(found, _run_on_a_view(f))
    assert len(fallbacks) == 1
