"""What is compiled follows what it was compiled from: modules, closures, globals, torch's modes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import tilewright as tw
from tilewright.base.errors import FallbackWarning, ShapeError

Tensor = torch.Tensor


def test_training_mode_is_followed_both_ways() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
    model.train()
    torch.manual_seed(1)
    dropped = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(dropped, model(x))


def test_another_parameter_in_the_place_of_one_is_used() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    model.weight = torch.nn.Parameter(torch.zeros(4, 4))
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.weight.grad is not None


def test_autocast_is_followed() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
    assert compiled(x).dtype == torch.float32


def test_what_was_compiled_without_gradients_has_them_when_they_are_on() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = tw.compile(model, x)
    compiled(x).sum().backward()
    assert model.weight.grad is not None


def test_a_call_that_does_not_fit_is_refused_after_a_change_too() -> None:
    model = torch.nn.Dropout(0.5)
    compiled = tw.compile(model, torch.randn(3, 4))
    model.eval()
    with pytest.raises(ShapeError, match="another shape"):
        compiled(torch.randn(2, 4))


# ---------------------------------------------------------------------------- closures and globals

FACTOR = 2
TABLE = torch.arange(3.0)


class Settings:
    scale = 3.0


SETTINGS = Settings()


def _reaching() -> tuple[Callable[[Tensor], Tensor], dict[str, Callable[[], Any]]]:
    """Return a function of what lies around it, and changes of that, by name."""
    weight = torch.ones(3)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()
    numbers = {"bias": 1.0, "row": torch.ones(3)}
    many = [torch.ones(3)]

    def f(x: Tensor) -> Tensor:
        h = layers(x) * weight * TABLE + numbers["row"] + many[0]
        return h * FACTOR * SETTINGS.scale + numbers["bias"]

    def rebind(name: str) -> None:
        nonlocal weight, layers
        if name == "weight":
            weight = torch.full((3,), 5.0)
        else:
            layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()

    def ask() -> None:
        weight.requires_grad_()

    return f, {
        "values in place": lambda: weight.mul_(3),
        "a tensor of the closure": lambda: rebind("weight"),
        "a module of the closure": lambda: rebind("layers"),
        "a parameter of it": lambda: setattr(
            layers[0], "weight", torch.nn.Parameter(torch.ones(3, 3))
        ),
        "its mode": lambda: layers.train(),
        "its hooks": lambda: layers.register_forward_hook(lambda _, __, out: out * 2),
        "a number in a dict": lambda: numbers.__setitem__("bias", 9.0),
        "a tensor in a dict": lambda: numbers.__setitem__("row", torch.zeros(3)),
        "a tensor in a list": lambda: many.__setitem__(0, torch.zeros(3)),
        "a longer list": lambda: many.insert(0, torch.zeros(3)),
        "what asks for gradients": ask,
    }


@pytest.mark.parametrize("name", _reaching()[1])
def test_what_a_function_reaches_is_followed(name: str) -> None:
    fn, changes = _reaching()
    x = torch.randn(2, 3)
    compiled = tw.compile(fn, x)
    torch.testing.assert_close(compiled(x), fn(x))
    changes[name]()
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    expected = fn(x)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == expected.requires_grad


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (globals(), "FACTOR", 7),
        (globals(), "TABLE", torch.ones(3)),
        (globals(), "SETTINGS", type("Other", (Settings,), {"scale": 4.0})()),
        (SETTINGS.__dict__, "scale", 0.5),
    ],
    ids=["number", "tensor", "object", "attribute"],
)
def test_globals_are_followed(
    place: dict[str, Any], name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, _ = _reaching()
    x = torch.randn(2, 3)
    compiled = tw.compile(fn, x)
    before = compiled(x)
    with monkeypatch.context() as patch:
        patch.setitem(place, name, value)
        torch.testing.assert_close(compiled(x), fn(x))
    torch.testing.assert_close(compiled(x), before)


def test_a_training_step_follows_the_closure_of_its_loss() -> None:
    weight = 1.0

    def loss(y: Tensor) -> Tensor:
        return y.sum() * weight

    model = torch.nn.Linear(2, 1)
    step = tw.train_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.0), torch.ones(1, 2))
    first = step(torch.ones(1, 2))
    weight = 2.0
    torch.testing.assert_close(step(torch.ones(1, 2)), first * 2)


def test_the_default_element_type_is_followed() -> None:
    x = torch.ones(2)
    compiled = tw.compile(lambda x: x + torch.ones(2), x)
    try:
        torch.set_default_dtype(torch.float64)
        assert compiled(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert compiled(x).dtype == torch.float32


def test_what_is_unchanged_is_not_compiled_again() -> None:
    fn, changes = _reaching()
    x = torch.randn(2, 3)
    compiled = tw.compile(fn, x)
    captured = compiled.captured
    changes["values in place"]()
    compiled(torch.randn(2, 3))
    with torch.no_grad():
        compiled(torch.randn(2, 6)[:, ::2])  # no order of dims: it is copied
    torch.set_num_threads(torch.get_num_threads())
    assert compiled.captured is captured


# ---------------------------------------------------------------------------- gradients


def test_gradients_that_the_example_did_not_ask_for_are_eagers() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x * 2
        return x * scale + y.detach() * y

    for asking in ((True, False), (False, True), (True, True)):
        compiled = tw.compile(f, torch.ones(3), torch.ones(3))
        for _ in range(2):
            ours = [torch.linspace(0, 1, 3).requires_grad_(asks) for asks in asking]
            eager = [
                tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in ours
            ]
            compiled(*ours).sum().backward()
            f(*eager).sum().backward()
            for mine, theirs in zip(ours, eager, strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)


# ---------------------------------------------------------------------------- transforms

TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "vmap": lambda f, x: torch.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(f)(x[0]),
    "jvp": lambda f, x: torch.func.jvp(f, (x[0],), (x[1],)),
    "hessian": lambda f, x: torch.func.hessian(f)(x[0]),
    "per-sample gradients": lambda f, x: torch.vmap(torch.func.grad(f))(x),
    "forward mode": lambda f, x: _forward_mode(f, x[0], x[1]),
}


def _forward_mode(f: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, direction))).tangent


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore::tilewright.base.errors.FallbackWarning")
def test_under_a_transform_a_call_is_left_to_eager_and_counted(
    name: str, fallbacks: list[str]
) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).sin().sum()

    x = torch.linspace(0, 1, 6).reshape(2, 3)
    transform = TRANSFORMS[name]
    compiled = tw.compile(f, x[0])
    torch.testing.assert_close(transform(compiled, x), transform(f, x))
    assert fallbacks
    assert "under a transform" in fallbacks[0]
    fallbacks.clear()
    bordering = torch.compile(f, backend="tilewright")
    torch.testing.assert_close(transform(bordering, x), transform(f, x))


def test_a_transform_is_announced() -> None:
    compiled = tw.compile(lambda x: x * 2, torch.ones(3))
    with pytest.warns(FallbackWarning, match="under a transform of functions"):
        torch.vmap(compiled)(torch.ones(2, 3))


@pytest.mark.parametrize(
    "function",
    [lambda a, b: a * b + a, lambda a, b: b * 2 + 0 * a.shape[0], lambda a, b: a - b.detach()],
    ids=["both", "one", "detached"],
)
def test_a_call_of_one_tensor_twice_leaves_other_calls_as_they_were(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    x, y = torch.randn(8, requires_grad=True), torch.randn(8)
    compiled = tw.compile(function, y, x)
    for _ in range(3):
        for given in ((x, y), (x, x), (y, y), (y, x), (x, y)):
            torch.testing.assert_close(compiled(*given), function(*given))


def test_a_change_beside_one_tensor_twice_leaves_other_calls_as_they_were() -> None:
    class Scaled(torch.nn.Module):
        scale = 2.0

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * self.scale + 0 * b.shape[0]

    model, x, y = Scaled(), torch.randn(8), torch.randn(8)
    compiled = tw.compile(model, x, y)
    for scale in (3.0, 4.0):
        model.scale = scale
        for given in ((x, x), (x, y), (y, x), (y, y)):
            torch.testing.assert_close(compiled(*given), model(*given))
    with pytest.raises(ShapeError):
        compiled(x, torch.randn(9))


def test_an_argument_of_which_only_the_shape_counts_is_checked_too() -> None:
    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b.shape[0]

    x, y = torch.randn(8), torch.randn(8)
    compiled = tw.compile(scaled, x, y)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tw.train_step(model, lambda out, b: out.mean() * b.shape[0], optimizer, x, y)
    for _ in range(8):
        with pytest.raises(ShapeError):
            compiled(x, torch.randn(9))
        with pytest.raises(ShapeError):
            step(x, torch.randn(9))
        torch.testing.assert_close(compiled(x, y), scaled(x, y))
        step(x, y)
