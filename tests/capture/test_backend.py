"""What torch.compile hands over, captured and replayed, is eager: results, gradients, buffers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.capture.replay_backend import ReplayBackend
from torch import nn
from torch.utils.checkpoint import checkpoint


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.outer = nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x)).relu_()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("table", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        h += 1
        h[:, 1] *= 2
        h[0].mul_(3)
        with torch.no_grad():
            self.seen.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.table[1] = h[0]
        return h * self.seen + self.table.sum()


class Instances(nn.Module):
    """Writes statistics without a gradient beside a result with one, and reads them again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x.reshape(3, 2, 2).sin())
        return (h * self.norm.running_mean[:, None] + self.norm.running_var.sum()).reshape(3, 4)


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            scale = self.fc(x).abs().amax(1, keepdim=True)
            first, second = self.fc(x).split(2, dim=1)
        h = self.fc(x) / scale + torch.cat([second, first], 1)
        return h * h.detach() + self.fc.weight.data.sum(), scale


class Dropped(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.fc(x), self.p)
        h = h + x
        h = F.dropout(h, self.p, training=self.training)
        h += 1
        return F.dropout(h, 0.0) + h


class Attending(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.repeat(1, 2).reshape(1, 3, 8)
        return self.attention(x, x, x, need_weights=False)[0]


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.body, x, self.first, use_reentrant=False)
        return checkpoint(self.body, h, self.second, use_reentrant=False)

    def body(self, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return F.dropout(torch.tanh(layer(x)), 0.5)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.softmax(self.fc(x), -1)
            half = self.out(h) @ h.T
        return half, (half.float() + self.out(x).sum())


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor([1.0, -2.0, 0.0, 0.5])
        other = torch.tensor([1, float("inf"), float("nan"), -0.0])
        mask = torch.tensor([[True, False, False, True]])
        return torch.where(mask, self.fc(x) * weights, other) + torch.arange(4) + torch.tensor(3)


class Pooled(nn.Module):
    """Operators that take another kernel where gradients are off."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.bag = nn.EmbeddingBag(5, 4, mode="max")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool1d(self.conv(x[:, None]), 2)
        return h.sum((1, 2))[:, None] + self.bag(torch.tensor([[0, 1], [1, 2], [4, 4]]))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "batch norm": Normed,
    "in place": InPlace,
    "instance norm": Instances,
    "no_grad": NoGrad,
    "dropout 0": lambda: Dropped(0.0),
    "dropout": lambda: Dropped(0.4),
    "dropout 1": lambda: Dropped(1.0),
    "attention": lambda: Attending(0.0),
    "attention with dropout": lambda: Attending(0.3),
    "checkpoint": Recomputed,
    "autocast": Autocast,
    "constants": Constants,
    "pooled": Pooled,
}


def _leaves(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf is not None]


def _assert_equal(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    assert ours.requires_grad == theirs.requires_grad, what
    assert torch.equal(ours.isnan(), theirs.isnan()), what
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, equal_nan=True, msg=what)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_replay_of_a_captured_module_is_eager(name: str, train: bool) -> None:
    torch.manual_seed(3)
    eager = MODULES[name]().train(train)
    ours = copy.deepcopy(eager)
    backend = ReplayBackend()
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    for seed in range(2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        x_eager, x_ours = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.manual_seed(seed)
        expected = _leaves(eager(x_eager))
        torch.manual_seed(seed)
        found = _leaves(compiled(x_ours))
        for ours_, theirs in zip(found, expected, strict=True):
            _assert_equal(ours_, theirs, name)
        _finite_sum(expected).backward()
        _finite_sum(found).backward()
        torch.testing.assert_close(x_ours.grad, x_eager.grad, rtol=1e-5, atol=1e-6)
    assert len(backend.captured) == 1
    for (key, theirs), (_, mine) in zip(
        eager.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        _assert_equal(mine, theirs, key)
    for (key, parameter), mine in zip(eager.named_parameters(), ours.parameters(), strict=True):
        assert (parameter.grad is None) == (mine.grad is None), key
        if parameter.grad is not None and mine.grad is not None:
            torch.testing.assert_close(mine.grad, parameter.grad, rtol=1e-5, atol=1e-6, msg=key)


def _finite_sum(results: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(())
    for result in results:
        if result.requires_grad:
            total = total + torch.where(result.isfinite(), result, 0.0).float().sin().sum()
    return total


def test_the_users_graph_module_is_left_as_it_is() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return x + y

    kept: list[str] = []

    def backend(module: Any, examples: Any) -> Any:
        before = module.code
        ReplayBackend()(module, examples)
        kept.extend([before, module.code])
        return module.forward

    torch.compile(f, backend=backend)(torch.ones(3, requires_grad=True))
    assert kept[0] == kept[1]


def test_gradient_stops_where_eager_stops_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
            with torch.enable_grad():
                z = x * 3
        return x * y + z + F.gumbel_softmax(x, hard=True)

    torch.manual_seed(1)
    a, b = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
    torch.manual_seed(0)
    f(a).square().sum().backward()
    torch.manual_seed(0)
    torch.compile(f, backend=ReplayBackend())(b).square().sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    torch.testing.assert_close(b.grad, a.grad)


def test_results_that_alias_arguments_and_each_other_still_do() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x * 2
        y.add_(1)
        return x.reshape(6)[1:], h, h.t(), h[1], y, y[0], h.detach(), x[:, ::2]

    def shared(x: torch.Tensor, y: torch.Tensor, out: tuple[torch.Tensor, ...]) -> list[Any]:
        tensors = [x, y, *out]
        return [
            (a.untyped_storage()._cdata == b.untyped_storage()._cdata, a is b)
            for a in tensors
            for b in tensors
        ]

    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 2)
    x2, y2 = x.clone(), y.clone()
    expected = f(x, y)
    found = torch.compile(f, backend=ReplayBackend())(x2, y2)
    assert shared(x2, y2, found) == shared(x, y, expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.storage_offset() == theirs.storage_offset()
        assert torch.equal(ours, theirs)
    assert torch.equal(y, y2)
    found[0][0] = 100.0
    assert x2[0, 1] == 100.0
    found[2][0, 0] = -5.0
    assert found[1][0, 0] == -5.0


def test_a_view_of_an_argument_lets_gradients_through() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t()[1:], x.detach()

    x = torch.randn(2, 3, requires_grad=True)
    view, detached = torch.compile(f, backend=ReplayBackend())(x)
    view.sum().backward()
    assert torch.equal(x.grad, torch.tensor([[0.0, 1, 1], [0, 1, 1]]))
    assert not detached.requires_grad
    assert detached.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("sizes", [(3, 5, 7)])
def test_one_dynamo_graph_serves_several_sizes(sizes: tuple[int, ...]) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3))
    ours = copy.deepcopy(module)
    backend = ReplayBackend()

    def f(net: nn.Module, x: torch.Tensor, t: float) -> torch.Tensor:
        return net(x).reshape(-1) * t + x.shape[0]

    compiled = torch.compile(f, backend=backend, dynamic=True, fullgraph=True)
    for size in sizes:
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(ours, x, 0.5), f(module, x, 0.5))
    assert len(backend.captured) == len(sizes)
    assert all(
        isinstance(d, int) for g in backend.captured for v in g.graph.inputs for d in v.type.shape
    )


def test_ambient_autocast_and_no_grad_are_those_of_the_call() -> None:
    module = nn.Linear(4, 4)
    compiled = torch.compile(module, backend=ReplayBackend())
    x = torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), module(x)
    assert found.dtype == torch.bfloat16
    assert not found.requires_grad
    assert torch.equal(found, expected)
    with torch.inference_mode():
        assert torch.equal(compiled(x), module(x))
