"""The backward of a custom `autograd.Function` is the gradient, whatever its forward computes."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.compiler.custom import FUNCTIONS, FirstOfTwo, Half, Reversed, Scaled, Straight
from tests.sweep import few

import tilewright as tw
from tilewright.base.errors import CaptureError, FallbackWarning, MutationError
from tilewright.capture import capture, replay

Tensor = torch.Tensor

# Dynamo itself makes an instance of a custom function's class.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def _parameters(shapes: Sequence[tuple[int, ...]], asking: Sequence[bool]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(asks)
        for shape, asks in zip(shapes, asking, strict=True)
    ]


def _results_and_gradients(call: Any, parameters: list[Tensor]) -> list[Any]:
    made = call(*parameters)
    results = [made] if isinstance(made, Tensor) else list(made)
    flowing = [result for result in results if result.requires_grad]
    weights = [torch.linspace(1, 2, r.numel(), dtype=r.dtype).reshape(r.shape) for r in flowing]
    torch.autograd.backward(flowing, weights)
    shown = [(result.detach(), result.requires_grad) for result in results]
    return [*shown, *(parameter.grad for parameter in parameters)]


def _assert_equal(ours: list[Any], eager: list[Any]) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-13)


# (row, which of its parameters ask for gradients)
CASES = [(name, (True,) * (len(row) - 1)) for name, row in FUNCTIONS.items()]
CASES += [("everything", (True, False)), ("everything", (False, True)), ("fills", (False, True))]


@pytest.mark.parametrize(
    ("name", "asks"),
    few(CASES, "straight", "everything", "views", "in place after", "checkpointed", "empty"),
)
def test_values_and_gradients_are_eagers(
    name: str, asks: tuple[bool, ...], fallbacks: list[str]
) -> None:
    fn, *shapes = FUNCTIONS[name]
    expected = _results_and_gradients(fn, _parameters(shapes, asks))
    compiled = tw.compile(fn, *_parameters(shapes, asks))
    _assert_equal(_results_and_gradients(compiled, _parameters(shapes, asks)), expected)
    bordering = torch.compile(fn, backend="tilewright")
    _assert_equal(_results_and_gradients(bordering, _parameters(shapes, asks)), expected)
    assert fallbacks == []


def test_a_replay_of_the_capture_has_the_gradient_too() -> None:
    fn, *shapes = FUNCTIONS["everything"]

    def replayed(*parameters: Tensor) -> Any:
        captured = capture(fn, *parameters)
        return captured.answer(parameters, parameters, replay(captured.graph, parameters))

    ours = _results_and_gradients(replayed, _parameters(shapes, (True, True)))
    _assert_equal(ours, _results_and_gradients(fn, _parameters(shapes, (True, True))))


def test_a_training_step_goes_through_it() -> None:
    ours, eager = Scaled(), Scaled()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, eager)]
    batch = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4)
    trained = tw.train_step(ours, lambda out: out.square().sum(), optimizers[0], batch)
    for _ in range(3):
        optimizers[1].zero_grad()
        loss = eager(batch).square().sum()
        loss.backward()
        optimizers[1].step()
        torch.testing.assert_close(trained(batch), loss.detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours.weight, eager.weight, rtol=1e-12, atol=1e-13)


def test_sizes_may_vary_from_call_to_call(fallbacks: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        return Straight.apply(x * 3).sum(1) * x.shape[0]

    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    for size in (2, 5, 3):
        ours, eager = (torch.linspace(0, 1, 4 * size).reshape(size, 4) for _ in range(2))
        compiled(ours.requires_grad_()).sum().backward()
        f(eager.requires_grad_()).sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)
    assert fallbacks == []


def test_a_call_that_asks_for_gradients_where_the_example_did_not_is_compiled_anew() -> None:
    compiled = tw.compile(lambda x: Straight.apply(x * 2), torch.ones(3))
    x = torch.linspace(0, 1, 3).requires_grad_()
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_second_derivative_is_refused() -> None:
    compiled = tw.compile(lambda x: FirstOfTwo.apply(x)[0] * x, torch.ones(3, requires_grad=True))
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(CaptureError, match="cannot be differentiated again"):
        torch.autograd.grad(first.sum(), x)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy * 5


class Spoils(torch.autograd.Function):
    """Its backward changes the tangent in place: what else reads that tangent sees it."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy.mul_(3)


# What is refused, so that its graph is left to eager: a function, the error, its words.
LEFT = {
    "mark_dirty": (lambda x: Dirty.apply(x * 1), MutationError, "changes its argument in place"),
    "tangent": (lambda x: Spoils.apply(x * 1) * x, MutationError, "changes what it is given"),
    "argument": (lambda x: Reversed.apply(x, 2.0), CaptureError, "shares memory with an argument"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_expressed_is_left_to_eager(name: str, fallbacks: list[str]) -> None:
    fn, error, said = LEFT[name]
    x = torch.linspace(0, 1, 3, dtype=torch.float64).requires_grad_()
    with pytest.raises(error, match=said):
        tw.compile(fn, x)
    ours, eager = (copy.deepcopy(x) for _ in range(2))
    fn(eager).square().sum().backward()
    with pytest.warns(FallbackWarning, match=said):
        torch.compile(fn, backend="tilewright")(ours).square().sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)
    assert len(fallbacks) == 1


def test_one_tensor_for_two_arguments_is_what_dynamo_leaves_to_python() -> None:
    def f(x: Tensor) -> Tensor:
        return Half.apply(x, x) * 2

    x = torch.linspace(0, 1, 3).requires_grad_()
    with pytest.raises(CaptureError, match="cannot be captured as a whole"):
        tw.compile(f, x)
    found, expected = (
        torch.autograd.grad(call(x).sum(), x)
        for call in (torch.compile(f, backend="tilewright"), f)
    )
    torch.testing.assert_close(found, expected)
