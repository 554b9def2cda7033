"""Calls of compiled modules that are out of the ordinary: layouts, sizes, threads, state."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.agreement import seen_strides
from tests.sweep import swept
from torch import nn

import tilewright as tw
from tilewright.base.errors import CaptureError, FallbackWarning, LibraryCallError, OptionError
from tilewright.compiler import backend as border
from tilewright.compiler import compiled as programs

Tensor = torch.Tensor


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def _both(
    fn: Callable[..., Any], *args: Tensor, tangent: Tensor | None = None
) -> tuple[list[Any], list[Any]]:
    """Return results and gradients of all floating arguments, ours and eager's."""
    found = []
    for call in (torch.compile(fn, backend="tilewright"), fn):
        own = [_again(arg) for arg in args]
        result = call(*own)
        asking = [arg for arg in own if arg.requires_grad]
        result.backward(torch.ones_like(result) if tangent is None else tangent)
        found.append([result.detach(), *(arg.grad for arg in asking)])
    return found[0], found[1]


def _again(arg: Tensor) -> Tensor:
    """The same values in the same places of memory of its own."""
    base = torch.zeros(arg.untyped_storage().nbytes() // arg.element_size(), dtype=arg.dtype)
    view = base.as_strided(arg.shape, arg.stride(), arg.storage_offset())
    return view.copy_(arg.detach()).requires_grad_(arg.requires_grad)


def _assert_same(ours: list[Any], eager: list[Any]) -> None:
    for mine, theirs in zip(ours, eager, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert seen_strides(mine) == seen_strides(theirs)
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "layout",
    [
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(3, 8)[:, ::2],
        lambda: torch.randn(5, 4)[2:],
        lambda: torch.randn(1, 4).expand(3, 4),
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(10).as_strided((3, 4), (3, 1)),
        lambda: torch.randn(3, 4).flip(0)[:, 1:2].expand(3, 4),
    ],
    ids=["transposed", "strided", "offset", "rows", "columns", "overlapping", "column of a flip"],
)
def test_arguments_may_lie_in_memory_as_they_like(
    layout: Callable[[], Tensor], fallbacks: list[str]
) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.tanh(x) @ x.t() + x.sum(1)

    eager = f
    x = layout()
    compiled = torch.compile(f, backend="tilewright")
    torch.testing.assert_close(compiled(x), eager(x))
    gradients = []
    for call in (compiled, eager):
        leaf = x.clone().requires_grad_()
        view = leaf.as_strided(leaf.shape, leaf.stride())
        call(view).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert fallbacks == []


@pytest.mark.parametrize(
    "tangent",
    [
        torch.randn(4, 3).t(),
        torch.randn(1, 1).expand(3, 4),
        torch.randn(3, 8)[:, ::2],
        torch.ones(()).expand(3, 4),
    ],
    ids=["transposed", "expanded", "strided", "scalar"],
)
def test_tangents_may_lie_in_memory_as_they_like(tangent: Tensor, fallbacks: list[str]) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.exp(x) @ w + x

    ours, eager = _both(f, x, w, tangent=tangent)
    _assert_same(ours, eager)
    assert fallbacks == []


def test_channels_last_arguments_give_what_eager_gives(fallbacks: list[str]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ours, eager = copy.deepcopy(net), net
    ours, eager = (m.to(memory_format=torch.channels_last) for m in (ours, eager))
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    found, expected = torch.compile(ours, backend="tilewright")(x), eager(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        assert mine.grad.stride() == theirs.grad.stride()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert fallbacks == []


def test_one_tensor_passed_twice_gets_both_gradients(fallbacks: list[str]) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * b.sin() + a

    compiled = torch.compile(f, backend="tilewright")
    grads = []
    for call in (compiled, f):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        call(x, x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    assert fallbacks == []


@pytest.mark.parametrize("dynamic", [True, swept(None)])
def test_sizes_may_change_from_call_to_call(dynamic: bool | None, fallbacks: list[str]) -> None:
    net = _net()
    compiled = torch.compile(net, backend="tilewright", dynamic=dynamic)
    for size in (3, 5, 7, 5, 2, 1, 0):
        x = torch.randn(size, 4)
        found, expected = compiled(x), net(x)
        torch.testing.assert_close(found, expected)
        ours = torch.autograd.grad(found.sum(), list(net.parameters()))
        theirs = torch.autograd.grad(expected.sum(), list(net.parameters()))
        for mine, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, their)
    assert fallbacks == []


def test_numbers_may_change_from_call_to_call(fallbacks: list[str]) -> None:
    def f(x: Tensor, scale: float, times: int) -> Tensor:
        return (x * scale).repeat(times) + times

    compiled = torch.compile(f, backend="tilewright")
    x = torch.randn(3)
    for scale, times in ((0.5, 1), (0.25, 2), (3.0, 3), (-0.0, 4)):
        torch.testing.assert_close(compiled(x, scale, times), f(x, scale, times))
    assert fallbacks == []


def test_a_retained_graph_gives_its_gradients_again(fallbacks: list[str]) -> None:
    net = _net()
    x = torch.randn(3, 4, requires_grad=True)
    out = torch.compile(net, backend="tilewright")(x).sum()
    (first,) = torch.autograd.grad(out, x, retain_graph=True)
    (second,) = torch.autograd.grad(out, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)
    assert fallbacks == []


def test_a_second_derivative_is_refused_and_never_wrong() -> None:
    compiled = torch.compile(lambda x: (x**3).sum(), backend="tilewright")
    x = torch.randn(4, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    torch.testing.assert_close(first, 3 * x**2)
    with pytest.raises(CaptureError, match="cannot be differentiated again"):
        torch.autograd.grad(first.sum(), x)


def test_only_some_inputs_may_ask_for_gradients(fallbacks: list[str]) -> None:
    net = _net()
    compiled = torch.compile(net, backend="tilewright")
    x = torch.randn(3, 4)
    for asking in ((True, False), (False, True), (False, False), (True, True)):
        net[0].weight.requires_grad_(asking[0])
        x.requires_grad_(asking[1])
        wanted = [t for t in (net[0].weight, net[2].bias, x) if t.requires_grad]
        found = torch.autograd.grad(compiled(x).sum(), wanted)
        expected = torch.autograd.grad(net(x).sum(), wanted)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert fallbacks == []


def test_what_no_used_result_depends_on_has_no_gradient(fallbacks: list[str]) -> None:
    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * w, (x + v).tanh(), v.floor()

    def gradients(call: Callable[..., Any], used: int) -> list[Tensor | None]:
        own = [torch.linspace(-1, 1, 4).add(k).requires_grad_() for k in range(3)]
        call(*own)[used].sum().backward()
        return [tensor.grad for tensor in own]

    compiled = torch.compile(f, backend="tilewright")
    for used in range(3):
        _assert_same(gradients(compiled, used), gradients(f, used))
    assert fallbacks == []


def test_gradients_of_hooks_and_accumulation_are_eagers(fallbacks: list[str]) -> None:
    net = _net()
    compiled = torch.compile(net, backend="tilewright")
    x = torch.randn(3, 4)
    seen: list[Tensor] = []
    handle = net[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    for _ in range(2):
        compiled(x).sum().backward()
    handle.remove()
    ours = net[0].weight.grad.clone()
    net.zero_grad()
    for _ in range(2):
        net(x).sum().backward()
    torch.testing.assert_close(ours, net[0].weight.grad)
    torch.testing.assert_close(seen[0] + seen[1], ours)
    assert fallbacks == []


def test_changed_and_loaded_weights_are_seen_by_the_next_call(fallbacks: list[str]) -> None:
    net, other = _net(), _net()
    compiled = torch.compile(net, backend="tilewright")
    handle = tw.compile(net, torch.randn(3, 4))
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), net(x))
    net.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(handle(x), other(x))
    with torch.no_grad():
        net[0].weight.mul_(2)
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(handle(x), net(x))
    net[2].weight.data = torch.zeros_like(net[2].weight)
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(handle(x), net(x))
    twin = copy.deepcopy(net)
    torch.testing.assert_close(torch.compile(twin, backend="tilewright")(x), net(x))
    assert fallbacks == []


def test_one_compiled_function_may_run_in_several_threads_at_once() -> None:
    net = _net()
    compiled = tw.compile(net, torch.randn(3, 4))
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        expected = net(x)
        gradient = torch.autograd.grad(expected.sum(), net[0].weight)[0]
        for _ in range(50):
            found = compiled(x)
            mine = torch.autograd.grad(found.sum(), net[0].weight)[0]
            if not torch.allclose(found, expected, atol=1e-6) or not torch.allclose(
                mine, gradient, atol=1e-6
            ):
                wrong.append(f"thread {seed}")
                return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_swapped_buffers_are_swapped() -> None:
    class Swap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(4))
            self.register_buffer("b", torch.ones(4))
            self.register_buffer("c", torch.arange(4.0))

        def forward(self, x: Tensor) -> Tensor:
            old, turned = self.a.clone(), self.c.flip(0)
            self.a.copy_(self.b)
            self.b.copy_(old)
            self.c.copy_(turned)
            return x + old + self.c

    ours, eager = Swap(), Swap()
    compiled = torch.compile(ours, backend="tilewright")
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(compiled(x), eager(x))
        for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_view_of_an_updated_input_still_shows_its_old_values() -> None:
    def f(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        old = state.t()[1:]
        state.mul_(0.5).add_(x)
        return old.exp().sum(0) + state.sum(1), old * 2

    def run(call: Callable[..., Any]) -> list[Tensor]:
        state = torch.arange(12.0).reshape(3, 4) / 6
        return [*call(state, torch.ones(3, 4)), state]

    def g(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        old = state.clone().t()[1:]
        state.mul_(0.5).add_(x)
        return old.exp().sum(0) + state.sum(1), old * 2

    for fn in (f, g):
        ours, eager = run(torch.compile(fn, backend="tilewright")), run(fn)
        for mine, theirs in zip(ours, eager, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, swept(torch.float64), swept(torch.float16)])
def test_whole_modules_may_be_of_another_type(dtype: torch.dtype, fallbacks: list[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3), nn.Softmax(1))
    ours = copy.deepcopy(net).to(dtype)
    exact = copy.deepcopy(ours).double()
    x = torch.randn(5, 4).to(dtype)
    found, expected = torch.compile(ours, backend="tilewright")(x), exact(x.double())
    assert found.dtype == dtype
    weights = torch.randn(5, 3).to(dtype)
    found.backward(weights)
    expected.backward(weights.double())
    rounding = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)
    for mine, true in zip(ours.parameters(), exact.parameters(), strict=True):
        assert mine.grad.dtype == dtype
        scale = float(true.grad.abs().max())
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=0, atol=rounding * scale)
    assert fallbacks == []


def test_inference_mode_is_served(fallbacks: list[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    ours = copy.deepcopy(net)
    compiled = torch.compile(ours, backend="tilewright")
    x = torch.randn(3, 4)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(compiled(x), net(x))
    for mine, theirs in zip(ours.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert fallbacks == []


@pytest.mark.parametrize(
    "shape", [(2, 3, 1, 5), swept((1, 3, 4, 5)), swept((2, 1, 4, 5)), swept((2, 3, 4, 1))]
)
def test_products_with_dims_of_one_step_are_products(
    shape: tuple[int, ...], fallbacks: list[str]
) -> None:
    """A loop of one iteration plays no part in a product, whichever dim it is."""
    b, h, m, k = shape

    def f(x: Tensor, y: Tensor) -> Tensor:
        scaled = torch.einsum("bhmk,bhnk->bhmn", x, y) * 0.125
        return torch.einsum("bhmn,bhnk->bmhk", scaled, y).reshape(b, m, h * k)

    for turned in (False, True):
        x = torch.randn(shape, requires_grad=True)
        y = torch.randn(b, 2, h, k).transpose(1, 2) if turned else torch.randn(b, h, 2, k)
        ours, eager = _both(f, x, y.requires_grad_())
        _assert_same(ours, eager)
    assert fallbacks == []


# ---------------------------------------------------------------------------- fallbacks, options


def test_a_mistake_of_our_own_is_a_counted_fallback_that_says_so(
    fallbacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(programs, "build_derived", broken)
    net = _net()
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match=r"a mistake of Tilewright's own.*KeyError: 'lost'"):
        found = torch.compile(net, backend="tilewright")(x)
    assert torch.equal(found, net(x))
    assert len(fallbacks) == 1


@pytest.mark.parametrize("train", [True, False])
def test_a_first_run_that_fails_leaves_everything_as_it_was_and_eager_takes_over(
    train: bool, fallbacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, eager = (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)) for _ in range(2))
    ours.load_state_dict(eager.state_dict())
    compiled = torch.compile(ours, backend="tilewright")
    original = border.Runs.compiled

    def failing(self: programs.Runs, wanted: tuple[int, ...]) -> Any:
        run = original(self, wanted)

        def after_running(inputs: Any) -> Any:
            run(inputs)
            raise AssertionError("too late")

        return after_running

    monkeypatch.setattr(border.Runs, "compiled", failing)
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(train):
        with pytest.warns(FallbackWarning, match="too late"):
            found = compiled(x)
        torch.testing.assert_close(found, eager(x))
        torch.testing.assert_close(compiled(x), eager(x))
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(fallbacks) == 1


def test_the_users_own_mistake_is_not_hidden_by_a_fallback(fallbacks: list[str]) -> None:
    table = nn.Embedding(5, 3)
    compiled = torch.compile(table, backend="tilewright")
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 7]))
    torch.testing.assert_close(compiled(torch.tensor([1, 4])), table(torch.tensor([1, 4])))
    assert fallbacks == []


def test_library_calls_that_are_forbidden_raise_and_never_fall_back(fallbacks: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sort(x).values

    x = torch.randn(300)  # a row that is too long to be sorted by counting
    with pytest.raises(LibraryCallError):
        tw.compile(f, x, options=tw.Options(library=False))
    with pytest.raises(Exception, match="Options\\(library=False\\)"):
        torch.compile(f, backend="tilewright", options={"library": False})(x)
    assert fallbacks == []


def test_without_library_calls_everything_is_a_kernel() -> None:
    net = _net()
    x = torch.randn(3, 4)
    compiled = tw.compile(net, x, options=tw.Options(library=False))
    torch.testing.assert_close(compiled(x), net(x))
    compiled(x).sum().backward()
    ours = net[0].weight.grad.clone()
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(ours, net[0].weight.grad)


def test_options_are_told_apart_from_what_is_none() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(Exception, match="unknown option"):
        torch.compile(_net(), backend="tilewright", options={"fusion": True})(x)
    with pytest.raises(Exception, match="has no meaning for this backend"):
        torch.compile(_net(), backend="tilewright", mode="max-autotune")(x)
    with pytest.raises(OptionError):
        tw.Options(check="torch")
