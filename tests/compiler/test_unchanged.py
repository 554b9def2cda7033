"""C says that a function is what it was only where Python would say so, of any change to it."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from torch import nn

import tilewright as tw
from tilewright.capture.facts import facts_of
from tilewright.runtime.unchanged import Unchanged, unlearned

Tensor = torch.Tensor
Change = Callable[[Any], object]

FACTOR = 2.0


class Scale:
    by = 3.0


SCALE = Scale()


def doubled(x: Tensor, times: float = 2.0) -> Tensor:
    return x * times


class Net(nn.Module):
    """What reads a module's own attributes, its class's, a global, a function and a table."""

    slope = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.last = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
        self.register_buffer("shift", torch.ones(3))
        self.bound, self.pair, self.table = 1.0, (2.0, 3.0), {"a": 4.0}
        self.other = Scale()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.leaky_relu(layer(x), self.slope)
        y: Tensor = doubled(self.last(x)) * FACTOR * SCALE.by * self.pair[1] + self.shift
        return y * self.table["a"] * self.other.by + self.bound


def _hooked(net: Net) -> None:
    net.layers[1].register_forward_hook(lambda _, __, out: out * 2)


def _hooked_before(net: Net) -> None:
    net.last.register_forward_pre_hook(lambda _, given: (given[0] * 2,))


def _set(*path: str, value: Callable[[], Any]) -> Change:
    def change(net: Net) -> None:
        owner: Any = net
        for name in path[:-1]:
            owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
        setattr(owner, path[-1], value())

    return change


CHANGES: dict[str, Change] = {
    "nothing": lambda _: None,
    "values in place": lambda net: net.layers[0].weight.data.mul_(2),
    "a parameter": _set("layers", "0", "weight", value=lambda: nn.Parameter(torch.zeros(4, 4))),
    "a parameter's memory": lambda net: setattr(net.shift, "data", torch.zeros(3)),
    "a parameter less": _set("last", "0", "bias", value=lambda: None),
    "a buffer": _set("shift", value=lambda: torch.zeros(3)),
    "a layer": lambda net: net.layers.__setitem__(0, nn.Linear(4, 4)),
    "a layer more": lambda net: net.layers.append(nn.Linear(4, 4)),
    "a layer of another kind": lambda net: net.last._modules.update({"1": nn.Tanh()}),
    "layers in another order": lambda net: net.layers._modules.update(
        {"0": net.layers[1], "1": net.layers[0]}
    ),
    "its mode": lambda net: net.train(),
    "the mode of a layer": lambda net: net.last[1].train(),
    "a hook": _hooked,
    "a hook before": _hooked_before,
    "a number": _set("bound", value=lambda: 9.0),
    "an equal number": _set("bound", value=lambda: float("1.0")),
    "a tuple": _set("pair", value=lambda: (1.0, 7.0)),
    "an item of a dict": lambda net: net.table.update(a=0.5),
    "an object": _set("other", value=lambda: type("Other", (), {"by": 5.0})()),
    "an attribute of an object": _set("other", "by", value=lambda: 6.0),
    "an attribute over that of a class": _set("slope", value=lambda: 0.7),
    "what asks for gradients": lambda net: net.layers[0].weight.requires_grad_(),
    "all attributes": lambda net: setattr(net, "__dict__", {**net.__dict__, "bound": 2.0}),
    "its class": lambda net: setattr(net, "__class__", type("Net", (Net,), {"slope": 0.9})),
    "an attribute that nobody reads": _set("unread", value=lambda: 1),
}


def _known(compiled: Any, x: Tensor) -> Any:
    """Return what says in C whether all is as it was, once it does."""
    for _ in range(4):
        compiled(x)
    unchanged = compiled._current.unchanged
    assert unchanged.holds()
    return unchanged


OFTEN = ("nothing", "a parameter", "its mode", "a hook", "an item of a dict", "its class")


@pytest.mark.parametrize("name", few(CHANGES, *OFTEN))
def test_a_change_that_python_sees_c_sees(name: str) -> None:
    net, x = Net().eval().requires_grad_(requires_grad=False), torch.randn(2, 4)
    compiled = tw.compile(net, x)
    unchanged, watch = _known(compiled, x), compiled.captured.watch
    CHANGES[name](net)
    assert watch.reaches((x,), {}) or not unchanged.holds()
    if name in ("nothing", "values in place"):
        assert unchanged.holds()
    for _ in range(4):
        torch.manual_seed(0)
        found = compiled(x)
        torch.manual_seed(0)
        expected = net(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad


def test_what_is_put_back_is_known_again() -> None:
    net, x = Net().eval().requires_grad_(requires_grad=False), torch.randn(2, 4)
    compiled = tw.compile(net, x)
    unchanged = _known(compiled, x)
    for name, other in (("bound", 2.0), ("shift", torch.zeros(3))):
        before = getattr(net, name)
        setattr(net, name, other)
        assert not unchanged.holds()
        setattr(net, name, before)
        assert unchanged.holds()
        torch.testing.assert_close(compiled(x), net(x))


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("mode", "differs"),
    [
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), True),
        (lambda: _default(torch.float64), True),
        (lambda: torch.device("cpu"), True),
        (torch.enable_grad, True),
        (torch.no_grad, False),
        (torch.inference_mode, False),
    ],
    ids=["autocast", "dtype", "device", "grad", "no grad", "inference"],
)
def test_modes_of_torch_are_asked_for(mode: Callable[[], Any], differs: bool) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = tw.compile(net, x)
        unchanged = _known(compiled, x)
        with mode():
            assert unchanged.holds() != differs
            found, expected = compiled(x), net(x)
            assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
        assert unchanged.holds() or differs


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (globals(), "FACTOR", 7.0),
        (globals(), "SCALE", type("Other", (Scale,), {"by": 4.0})()),
        (globals(), "doubled", lambda x: x * 5),
        (vars(F), "leaky_relu", lambda x, slope: x * slope),
        (vars(SCALE), "by", 0.5),
    ],
    ids=["number", "object", "function", "function of torch", "attribute"],
)
def test_what_is_global_is_asked_for(
    place: dict[str, Any], name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net().eval().requires_grad_(requires_grad=False), torch.randn(2, 4)
    compiled = tw.compile(net, x)
    unchanged, watch = _known(compiled, x), compiled.captured.watch
    with monkeypatch.context() as patch:
        patch.setitem(place, name, value)
        assert watch.reaches((x,), {}) or not unchanged.holds()
        torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(compiled(x), net(x))
    globals()["unread"] = object()  # as a loop of a script does, whose dict is written in each turn
    _known(compiled, x)


def test_a_property_of_a_class_stands_before_what_an_object_holds() -> None:
    class Given:
        def __init__(self) -> None:
            self.by = 2.0

    given, x = Given(), torch.randn(4)
    compiled = tw.compile(lambda x: x * given.by, x)
    unchanged = _known(compiled, x)
    Given.by = property(lambda _: 5.0)  # type: ignore[assignment]
    assert not unchanged.holds()
    torch.testing.assert_close(compiled(x), x * 5)


class Asked:
    """Has a method, which another one in its own dict hides."""

    def by(self) -> float:
        return 2.0


def test_a_method_is_its_classs_only_while_no_dict_hides_it() -> None:
    for before, after in (({}, {"by": float}), ({"a": 1}, {"a": 1, "by": float})):
        for change in (
            lambda one, to: setattr(one, "__dict__", to),
            lambda one, to: vars(one).update(to),
        ):
            asked, unchanged = Asked(), Unchanged()
            vars(asked).update(before)
            for _ in range(2):
                unchanged.learn(
                    lambda asked=asked: facts_of(None, ("G['asked'].by",), {}, {"asked": asked})
                )
            assert unchanged.holds()
            change(asked, after)
            assert not unchanged.holds()


def test_the_code_of_a_function_is_asked_for() -> None:
    net, x = Net().eval().requires_grad_(requires_grad=False), torch.randn(2, 4)
    compiled = tw.compile(net, x)
    unchanged, before = _known(compiled, x), doubled.__code__
    try:
        doubled.__code__ = (lambda x, times=1.0: x * times * 3).__code__
        assert not unchanged.holds()
        torch.testing.assert_close(compiled(x), net(x))
    finally:
        doubled.__code__ = before


def test_a_closure_is_asked_for() -> None:
    weight, number = torch.ones(4), 2.0

    def f(x: Tensor) -> Tensor:
        return x * weight + number

    x = torch.randn(4)
    compiled = tw.compile(f, x)
    unchanged = _known(compiled, x)
    weight = torch.zeros(4)
    assert not unchanged.holds()
    torch.testing.assert_close(compiled(x), f(x))
    unchanged = _known(compiled, x)
    number = 3.0
    assert not unchanged.holds()
    torch.testing.assert_close(compiled(x), f(x))


def test_what_cannot_be_said_as_facts_is_left_to_python() -> None:
    many = [torch.ones(4), torch.ones(4)]

    def f(x: Tensor) -> Tensor:
        return x * many[0] + len(many)

    x = torch.randn(4)
    compiled = tw.compile(f, x)
    for _ in range(4):
        compiled(x)
    assert compiled._current.unchanged.holds is unlearned
    many.append(torch.ones(4))
    torch.testing.assert_close(compiled(x), f(x))


def test_a_training_step_is_asked_for_too() -> None:
    net, x = Net().train(), torch.randn(2, 4)
    net.last[1].p = 0.0
    other = copy.deepcopy(net)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-5) for one in (net, other)]
    step = tw.train_step(net, torch.sum, optimizers[0], x)
    for turn in range(10):
        if turn in (4, 8):
            assert step._active.unchanged.holds()
            net.bound = other.bound = 5.0 + turn
            assert not step._active.unchanged.holds()
        loss = other(x).sum()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        torch.testing.assert_close(step(x), loss.detach())
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
