"""Layouts, aliases, grad modes and backward around a compiled function are as in eager."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from torch import nn

import tilewright as tw
from tilewright.base.errors import CaptureError, FallbackWarning
from tilewright.compiler.backend import backend

from .roads import Tensor, agree, asking, compiled

# ---------------------------------------------------------------------------- layouts


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: asking(4, 3).detach().t().requires_grad_(),
    "sliced": lambda: torch.randn(6, 8)[::2, ::2].requires_grad_(),
    "offset": lambda: torch.randn(20)[8:].view(3, 4).requires_grad_(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4).requires_grad_(),
    "expanded_row": lambda: torch.randn(4).expand(3, 4).requires_grad_(),
    "scalar_expanded": lambda: torch.randn(()).expand(3, 4).requires_grad_(),
    "windows": lambda: torch.randn(6).as_strided((3, 4), (1, 1)).requires_grad_(),
    "negated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj().imag.requires_grad_(),
    "column": lambda: torch.randn(3, 4, 2)[..., 1].requires_grad_(),
    "flat_steps": lambda: torch.empty_strided((3, 4), (100, 7)).normal_().requires_grad_(),
}


@pytest.mark.parametrize("layout", few(LAYOUTS, "expanded", "windows", "negated"))
def test_inputs_may_be_laid_out_in_any_way(layout: str) -> None:
    x = LAYOUTS[layout]()
    agree(lambda x, w: (x * 2 + x.sum(0), x @ w, x.exp().t()), x, asking(4, 5))
    agree(lambda x: (x, x.t(), x.view_as(x), x[1:], x * 1), x.detach())
    agree(lambda x: (x, x * 1, x.sum(1)), x)


OVERLAPPING = {"expanded", "expanded_row", "scalar_expanded", "windows"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_inputs_pass_gradients_on(layout: str, fallbacks: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        agree(lambda x: (x.t(), x.view_as(x), x[1:], x * 1), LAYOUTS[layout]())
    assert len(fallbacks) == (layout in OVERLAPPING)


def test_a_call_may_lay_out_its_arguments_in_another_way_than_the_example() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x * 1, x[1:], x.unsqueeze(0)

    call = tw.compile(fn, torch.randn(3, 4))
    for _ in range(2):
        for make in LAYOUTS.values():
            x = make().detach()
            for mine, theirs in zip(call(x), fn(x), strict=True):
                assert torch.equal(mine, theirs)
                assert mine.stride() == theirs.stride()
            assert call(x)[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tangents_may_be_laid_out_in_any_way(layout: str) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.tanh(x) * x

    x = torch.randn(3, 4)
    tangent = LAYOUTS[layout]().detach()
    gradients = []
    for call in (fn, compiled(fn)):
        leaf = x.clone().requires_grad_()
        call(leaf).backward(tangent)
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_tangent_of_another_type_is_refused_as_in_eager() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.exp()

    for call in (fn, compiled(fn)):
        with pytest.raises(RuntimeError):
            call(asking(3)).backward(torch.ones(4))


# ---------------------------------------------------------------------------- memory


def halves(x: Tensor) -> Any:
    y = x * 2
    return y[:2], y[2:], y, x, x.detach(), x[0], y


def test_views_alias_what_they_alias_in_eager() -> None:
    agree(halves, asking(4, 3))
    agree(halves, torch.randn(4, 3))


def test_a_view_of_an_input_may_be_written_afterwards() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(2, 6), x.t()

    ours = compiled(fn)
    x = torch.zeros(3, 4)
    flat, turned = ours(x)
    flat[0, 0] = 1
    turned[3, 2] = 2
    assert x[0, 0] == 1
    assert x[2, 3] == 2


def test_a_result_may_be_changed_in_place_afterwards() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, (x * 3)[1:]

    found = []
    for call in (fn, compiled(fn)):
        x = torch.linspace(0, 1, 6).requires_grad_()
        y, z = call(x)
        y.mul_(2)
        z.add_(y[1:])
        (y.sum() + z.sum()).backward()
        found.append((y.detach(), z.detach(), x.grad))
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)


OWN_RESULT: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "exponential": lambda x: (x @ x.mT).exp(),
    "twice": lambda x: (lambda y: (y, y))(x.softmax(0)),
    "after another": lambda x: (x.sin(), (x @ x.mT / 9).tanh()),
}


def _all(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", OWN_RESULT)
def test_a_result_that_its_own_derivative_reads_is_kept_without_a_copy(name: str) -> None:
    fn = OWN_RESULT[name]
    x = torch.randn(5, 40, dtype=torch.float64)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = tw.compile(fn, mine)
    pairs = [(_all(ours(mine)), mine), (_all(fn(theirs)), theirs)]
    weights = [torch.randn_like(result) for result in pairs[0][0]]
    for _ in range(2):
        for results, _ in pairs:
            torch.autograd.backward(results, weights, retain_graph=True)
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-13)
    (forward, _), *_ = ours._runs.pairs.values()
    assert len(forward.program.outputs) == len(set(_all(fn(x))))
    for results, _ in pairs:
        with torch.no_grad():
            results[-1].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.backward(results, weights)


def _relu_and_what_it_was_given(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 3 - 1
    return h, h.relu()


def _recurrent(x: Tensor) -> tuple[Tensor, Tensor]:
    h, steps = x[0], []
    for row in x:
        h = torch.tanh(h * 0.5 + row)
        steps.append(h)
    return torch.stack(steps), h


def _attention(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.scaled_dot_product_attention(x, x, x), x.sum(0)


def _quotient(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x @ x.mT) / x.exp(), x.sum(0)


def _normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.normalize(x, dim=0), x.sum(0)


@pytest.mark.parametrize(
    "fn", [_relu_and_what_it_was_given, _recurrent, _attention, _quotient, _normalized]
)
def test_a_result_of_which_eager_keeps_something_else_may_be_changed(
    fn: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    found = []
    for call in (fn, compiled(fn)):
        x = torch.linspace(-1, 1, 144, dtype=torch.float64).view(12, 12).requires_grad_()
        h, y = call(x)
        h.mul_(-1)
        (h.sum() + (y * y.detach()).sum()).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-13)


def test_memory_of_a_result_that_is_kept_backward_is_not_used_again_before() -> None:
    x, z = (torch.randn(1024, 512).requires_grad_() for _ in range(2))
    ours = compiled(OWN_RESULT["softmax"])
    weight = torch.randn(1024, 512)
    loss = (ours(x) * weight).sum()  # nobody has the result any more: the backward alone
    for _ in range(3):
        ours(z)
    loss.backward()
    exact = x.detach().double().requires_grad_()
    (exact.softmax(-1) * weight).sum().backward()
    torch.testing.assert_close(x.grad, exact.grad.float(), rtol=1e-4, atol=1e-6)


def test_results_of_one_call_outlive_the_next() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2).relu()

    ours = compiled(fn)
    first = ours(torch.ones(100))
    second = ours(torch.full((100,), 3.0))
    assert (first == 2).all()
    assert (second == 6).all()


def test_an_input_that_is_needed_backward_may_not_be_changed_before() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sum()

    for call in (fn, compiled(fn)):
        x, w = torch.ones(3), asking(3)
        loss = call(x, w)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_overlapping_inputs_one_of_them_changed() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    memory = torch.arange(6.0)
    wanted = memory.clone()
    expected = fn(wanted[:4], wanted[2:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = compiled(fn)(memory[:4], memory[2:])
    assert torch.equal(found, expected)
    assert torch.equal(memory, wanted)


def test_one_tensor_given_twice() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x * y, x, y, x + 1

    x = asking(3)
    agree(fn, x, x)
    agree(fn, x, asking(3))
    agree(fn, x, x.detach()[:])


# ---------------------------------------------------------------------------- grad modes


def test_modes_may_change_between_calls() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    ours = compiled(fn)
    x, w = torch.randn(3, 4), asking(4, 5)
    for _ in range(2):
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with mode():
                found, expected = ours(x, w), fn(x, w)
            assert found.requires_grad == expected.requires_grad
            assert found.is_inference() == expected.is_inference()
            torch.testing.assert_close(found, expected)
        w.requires_grad_(not w.requires_grad)


def test_tensors_made_in_inference_mode_are_taken() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).cumsum(0).sort(0).values

    with torch.inference_mode():
        x = torch.randn(3, 4)
    w = torch.randn(4, 5)
    ours = compiled(fn)
    torch.testing.assert_close(ours(x, w), fn(x, w))
    torch.testing.assert_close(ours(x.clone(), w), fn(x, w))


def test_autocast_around_and_inside() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        with torch.autocast("cpu", enabled=False):
            g = x @ w
        return h, g

    ours = compiled(fn)
    x, w = torch.randn(3, 4), asking(4, 5)
    for enabled in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found, expected = ours(x, w), fn(x, w)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_requires_grad_may_change_between_calls() -> None:
    model = nn.Linear(4, 3)
    ours = compiled(model)
    x = torch.randn(2, 4)
    for weight, bias in ((True, True), (True, False), (False, True), (False, False), (True, True)):
        model.weight.requires_grad_(weight)
        model.bias.requires_grad_(bias)
        model.zero_grad()
        y = ours(x)
        assert y.requires_grad == (weight or bias)
        if y.requires_grad:
            y.sum().backward()
        assert (model.weight.grad is not None) == weight
        assert (model.bias.grad is not None) == bias


# ---------------------------------------------------------------------------- backward


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_serves_gradients_that_its_example_did_not_ask_for(
    dynamic: bool, fallbacks: list[str]
) -> None:
    """Dynamo compiles anew then, but for modules that it takes to be as they were."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def spied(module: Any, examples: Any) -> Callable[..., Any]:
        graph = backend(module, examples)

        def call(*args: Any) -> Any:
            calls.append((graph, args))
            return graph(*args)

        return call

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w)

    torch.compile(f, backend=spied, dynamic=dynamic)(torch.ones(3, 4), torch.ones(4, 5))
    ((graph, example),) = calls
    for asks in ((True, False), (True, True), (False, False), (True, False)):
        x, w = (
            torch.randn(3, 4).requires_grad_(asks[0]),
            torch.randn(4, 5).requires_grad_(asks[1]),
        )
        given = iter((x, w))
        (found,) = graph(*(next(given) if isinstance(a, Tensor) else a for a in example))
        expected = f(x, w)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == any(asks)
        if any(asks):
            wanted = [t for t in (x, w) if t.requires_grad]
            pairs = (torch.autograd.grad(y.square().sum(), wanted) for y in (found, expected))
            torch.testing.assert_close(*pairs)
    assert fallbacks == []


def test_backward_twice_needs_retain_graph() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.exp() * x).sum()

    for call in (fn, compiled(fn)):
        x = torch.ones(3, requires_grad=True)
        loss = call(x)
        loss.backward(retain_graph=True)
        once = x.grad.clone()
        loss.backward()
        torch.testing.assert_close(x.grad, 2 * once)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_a_second_derivative_is_refused_in_words() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.exp() * x).sum()

    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(fn)(x), x, create_graph=True)
    torch.testing.assert_close(first, 2 * torch.e * torch.ones(3))
    with pytest.raises(CaptureError, match="cannot be differentiated again"):
        first.sum().backward()


def test_part_of_the_results_may_be_differentiated() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.exp(), w * 2, (x > 0).sum()

    for call in (fn, compiled(fn)):
        x, w = asking(3), asking(3)
        y, _, count = call(x, w)
        assert not count.requires_grad
        y.sum().backward()
        assert x.grad is not None
        assert w.grad is None


# ------------------------------------------------------------------------------------ 16 bits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_a_network_of_16_bits_with_batch_norm_trains_in_kernels(
    dtype: torch.dtype, fallbacks: list[str]
) -> None:
    ours = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()).to(dtype)
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    x = torch.randn(4, 3, 6, 6).to(dtype)
    found = []
    for model in (torch.compile(ours, backend="tilewright"), eager, exact):
        y = model(x.double() if model is exact else x)
        (y.double() ** 2).sum().backward()
        net = ours if model not in (eager, exact) else model
        gradients = [p.grad for p in net.parameters()]
        found.append([y.detach(), *gradients, *(b for b in net.buffers() if b.is_floating_point())])
    assert fallbacks == []
    for mine, theirs, true in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype == dtype
        usual = (theirs.double() - true).norm()
        rounding = torch.finfo(dtype).eps * true.norm()
        assert (mine.double() - true).norm() <= 2 * usual + rounding
