"""What branches on gradients or on identity is compiled for each answer, and each call answered."""

from collections.abc import Callable

import pytest
import torch

import tilewright as tw

Tensor = torch.Tensor


def _asks_a_tensor(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if a.requires_grad else a * 3 + 0 * b


def _asks_an_intermediate(a: Tensor, b: Tensor) -> Tensor:
    product = a * b
    return product + 1 if product.is_leaf else product - 1


def _asks_the_mode(a: Tensor, b: Tensor) -> Tensor:
    return a + b if torch.is_grad_enabled() else a - b


def _asks_in_a_sum(a: Tensor, b: Tensor) -> Tensor:
    return a * sum(tensor.requires_grad for tensor in (a, b)) + b


def _asks_of_a_class(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if isinstance(a, torch.nn.Parameter) else a * 3 + 0 * b


def _asks_for_the_class(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if type(a) is torch.Tensor else a * 3 + 0 * b


def _asks_whether_one(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if a is b else a * b


def _asks_whether_two(a: Tensor, b: Tensor) -> Tensor:
    return a + 1 if a is not b and b is not None else b - 1


@pytest.mark.parametrize(
    "function",
    [
        _asks_a_tensor,
        _asks_an_intermediate,
        _asks_the_mode,
        _asks_in_a_sum,
        _asks_of_a_class,
        _asks_for_the_class,
        _asks_whether_one,
        _asks_whether_two,
    ],
)
def test_what_asks_of_gradients_or_identity_is_answered_in_each_call(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, y, z = torch.randn(8, requires_grad=True), torch.randn(8), torch.randn(8)
    compiled = tw.compile(function, y, z)
    made = x * 1  # which asks for gradients, and is no leaf
    parameter = torch.nn.Parameter(z)
    for _ in range(2):
        for given in ((y, z), (x, y), (made, y), (y, x), (x, x), (y, y), (parameter, y)):
            for grad in (True, False):
                for _ in range(5):  # after some of which C makes calls as wholes
                    with torch.set_grad_enabled(grad):
                        torch.testing.assert_close(compiled(*given), function(*given))
    assert len(compiled._versions) <= 12  # two modes, and a version for each that eager tells apart


@pytest.mark.parametrize("frozen", [False, True])
def test_whether_a_parameter_asks_for_gradients_is_followed(frozen: bool) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            trained: Tensor = self.inner(x)
            return trained + 1 if self.inner.weight.requires_grad else trained - 1

    model, x = Net(), torch.randn(3, 4)
    with torch.no_grad():
        compiled = tw.compile(model, x, options=tw.Options(frozen=frozen))
        for trained in (True, False, True):
            model.inner.requires_grad_(trained)
            for _ in range(3):
                torch.testing.assert_close(compiled(x), model(x))


def test_whether_an_argument_is_the_parameter_is_followed() -> None:
    model, other = torch.nn.Linear(4, 4), torch.randn(4, 4)

    def tied(x: Tensor, table: Tensor) -> Tensor:
        return x @ table if table is model.weight else model(x) * table.sum()

    x = torch.randn(3, 4)
    compiled = tw.compile(tied, x, other)
    for table in (other, model.weight, other, model.weight):
        torch.testing.assert_close(compiled(x, table), tied(x, table))


_GLOBAL = torch.randn(8)


def _asks_whether_global(a: Tensor) -> Tensor:
    return a * 2 if a is _GLOBAL else a * 3


def _asks_a_global(a: Tensor) -> Tensor:
    return a + 1 if _GLOBAL.requires_grad else a - 1


def _reads_a_global(a: Tensor) -> Tensor:
    return a * _GLOBAL + 1


def _looks_through_a_list(a: Tensor) -> Tensor:
    return a * 2 if any(a is other for other in [_GLOBAL, _GLOBAL]) else a * 5


@pytest.mark.parametrize(
    "function", [_asks_whether_global, _asks_a_global, _reads_a_global, _looks_through_a_list]
)
@pytest.mark.parametrize("first", [False, True], ids=["another", "the global"])
def test_what_is_asked_of_tensors_that_no_graph_reads_is_answered_in_each_call(
    function: Callable[[Tensor], Tensor], first: bool
) -> None:
    x = torch.randn(8)
    with torch.no_grad():
        compiled = tw.compile(function, _GLOBAL if first else x)
        for asks in (False, True, False):
            _GLOBAL.requires_grad_(asks)
            for given in (x, _GLOBAL, x + 1, _GLOBAL):
                for _ in range(4):
                    torch.testing.assert_close(compiled(given), function(given))
    assert len(compiled._versions) <= 4


def test_whether_weights_are_tied_is_followed() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x)
            return made * 2 if self.inner.weight is self.outer.weight else made

    model, x = Net(), torch.randn(3, 4)
    compiled = tw.compile(model, x)
    own = model.outer.weight
    for _ in range(2):
        for weight in (own, model.inner.weight):
            model.outer.weight = weight
            for _ in range(3):
                torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("grad", [True, False])
def test_a_derivative_of_what_asks_for_the_mode_is_compiled_once(grad: bool) -> None:
    def loss(x: Tensor) -> Tensor:
        return (x * x).sum() if x.requires_grad and torch.is_grad_enabled() else x.sum()

    x = torch.randn(4)
    gradient = tw.grad(loss)
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            torch.testing.assert_close(gradient(x), 2 * x)
    assert [len(versions) for versions in gradient._made.values()] == [1]


def test_an_argument_that_is_a_parameter_too_is_one_only_then() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(8), requires_grad=False)

        def forward(self, a: Tensor) -> Tensor:
            return a * self.scale + 1

    model, x = Scaled(), torch.randn(8)
    for first in (model.scale, x):
        compiled = tw.compile(model, first)
        for given in (model.scale, x, model.scale, x + 1):
            for _ in range(5):
                torch.testing.assert_close(compiled(given), model(given))


def test_whether_an_argument_has_a_gradient_is_followed() -> None:
    def doubled(a: Tensor) -> Tensor:
        return a * 2 if a.grad is None else a * 3

    plain, other = torch.randn(8), torch.randn(8, requires_grad=True)
    other.grad = torch.ones(8)
    for first in (plain, other):
        compiled = tw.compile(doubled, first)
        with torch.no_grad():
            for given in (plain, other, plain, other):
                for _ in range(4):
                    torch.testing.assert_close(compiled(given), doubled(given))


def test_what_is_asked_of_a_tensor_inside_an_object_is_followed() -> None:
    class Box:
        tensor = torch.randn(8)

    def asked(a: Tensor, box: Box) -> Tensor:
        return a * 2 if box.tensor.requires_grad else a * 3

    x, box = torch.randn(8), Box()
    compiled = tw.compile(asked, x, box)
    for asks in (False, True, False):
        box.tensor.requires_grad_(asks)
        for _ in range(3):
            torch.testing.assert_close(compiled(x, box), asked(x, box))
