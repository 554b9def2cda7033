"""C makes calls as wholes that are in all like earlier ones; whatever changes is seen."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.test_settled import OTHERS
from torch import nn
from torch.autograd import forward_ad

import tilewright as tw
from tilewright.base.errors import FallbackWarning, OptionError, TilewrightError
from tilewright.runtime import calls
from tilewright.runtime.calls import Front, types, unfronted, unsettled

Tensor = torch.Tensor
SIZE = 64

needs_c = pytest.mark.skipif(types() is None, reason="C makes no calls for this Python")


def three(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a * b + c) * d


def inputs() -> list[Tensor]:
    return [torch.randn(SIZE) for _ in range(4)]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 3)).eval()


def fronted(function: Callable[..., Tensor], *args: Tensor, **options: Any) -> Any:
    """Return a function compiled, and called until C makes its calls."""
    with torch.no_grad():
        compiled = tw.compile(function, *args, options=tw.Options(**options))
        for _ in range(8):
            compiled(*args)
    assert is_fronted(compiled)
    return compiled


def is_fronted(compiled: Any) -> bool:
    return compiled._current.front.call is not unfronted


@needs_c
@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.enable_grad, torch.inference_mode], ids=lambda m: m.__name__
)
def test_calls_that_are_not_like_earlier_ones_are_answered_as_eager_does(
    others: str, mode: Any
) -> None:
    compiled = fronted(three, *inputs())
    for _ in range(3):
        given = OTHERS[others](inputs())
        with mode():
            ours, eager = compiled(*given), three(*given)
        torch.testing.assert_close(ours, eager, check_stride=True)
        assert (ours.requires_grad, ours.is_inference()) == (
            eager.requires_grad,
            eager.is_inference(),
        )
        torch.testing.assert_close(compiled(*(like := inputs())), three(*like))


def _replace(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.randn(32, SIZE))


def _swap(model: nn.Sequential) -> None:
    model[0].weight.data = torch.randn(32, SIZE)


def _write(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.mul_(3)


def _layer(model: nn.Sequential) -> None:
    model[1] = nn.GELU()


def _hook(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda *given: given[-1] + 1)


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "another parameter": _replace,
    "another value's memory": _swap,
    "a write": _write,
    "another layer": _layer,
    "a hook": _hook,
    "no parameter asks": lambda model: model.requires_grad_(requires_grad=False),
    "another type": lambda model: model.double().float(),
}


@needs_c
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen_by_the_next_call(change: str, frozen: bool) -> None:
    model, x = net(), torch.randn(5, SIZE)
    compiled = fronted(model, x, frozen=frozen)
    CHANGES[change](model)
    if frozen and change == "another value's memory":
        compiled.refresh()
    with torch.no_grad():
        for _ in range(8):
            torch.testing.assert_close(compiled(x), model(x))
    assert is_fronted(compiled) or change == "a hook", "such calls are C's again"


@needs_c
def test_training_and_gradients_are_seen() -> None:
    model, x = net(), torch.randn(5, SIZE)
    compiled = fronted(model, x)
    ours = compiled(x)  # gradients are on
    model[0].weight.grad = None
    ours.sum().backward()
    found = model[0].weight.grad
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, model[0].weight.grad)
    model.train()
    with torch.no_grad():
        assert not torch.equal(compiled(x), compiled(x)), "each call draws"
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


@needs_c
def test_modes_of_torch_are_seen() -> None:
    compiled, given = fronted(three, *inputs()), inputs()
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(given[0], torch.ones(SIZE))
        with pytest.warns(FallbackWarning):
            primal, tangent = forward_ad.unpack_dual(compiled(dual, *given[1:]))
        torch.testing.assert_close(primal, three(*given))
        torch.testing.assert_close(tangent, given[1] * given[3])
    with torch.no_grad(), pytest.warns(FallbackWarning):
        mapped = torch.func.vmap(compiled)(*(torch.stack([x, -x]) for x in given))
    torch.testing.assert_close(mapped[0], three(*given))
    model, x = net(), torch.randn(5, SIZE)
    compiled = fronted(model, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


@needs_c
def test_what_does_not_fit_is_refused_as_ever() -> None:
    compiled, given = fronted(three, *inputs()), inputs()
    with torch.no_grad():
        for wrong in (given[:3], [*given, given[0]], [*given[:3], torch.randn(SIZE + 1)]):
            with pytest.raises((TilewrightError, TypeError)):
                compiled(*wrong)
        with pytest.raises(OptionError):
            compiled(*given[:3], d=given[3])
        torch.testing.assert_close(compiled(*given), three(*given))


@needs_c
def test_copies_and_pickles_learn_anew() -> None:
    model, x = net(), torch.randn(5, SIZE)
    compiled = fronted(model, x)
    other = copy.deepcopy(compiled._current.front)
    assert other.call is unfronted
    assert pickle.loads(pickle.dumps(compiled._current.front)).call is unfronted


@needs_c
def test_a_function_and_its_tensors_are_let_go_of() -> None:
    model, x = net(), torch.randn(5, SIZE)
    compiled = fronted(model, x)
    gone = [weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(compiled)]
    del model, compiled
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


@needs_c
def test_what_no_longer_holds_is_let_go_of() -> None:
    class Noting(nn.Module):
        note: Any = None

        def forward(self, x: Tensor) -> Tensor:
            return x.relu() * 2

    class Thing:
        pass

    model, x, gone = Noting(), torch.randn(5, SIZE), []
    compiled = fronted(model, x)
    for _ in range(40):
        model.note = Thing()
        gone.append(weakref.ref(model.note))
        with torch.no_grad():
            for _ in range(4):
                compiled(x)
    model.note = None
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
    gc.collect()
    assert not any(ref() is not None for ref in gone)


# ---- the type itself ----------------------------------------------------------------------------


def made(
    holds: Callable[[], Any],
    quick: Callable[..., Any],
    sources: tuple[int, ...] = (1, -1, 0, -2),
    state: tuple[Any, ...] = ("s", "t"),
    arity: int = 2,
) -> Callable[..., Any]:
    front = Front()
    front.learn(holds, quick, sources, state, arity)
    return front.call


@needs_c
def test_inputs_are_picked_out_of_arguments_and_state() -> None:
    seen: list[Any] = []

    def quick(given: Any) -> tuple[Any, ...]:
        seen.append(given)
        return ("first", "second")

    call = made(lambda: True, quick)
    assert call("x", "y") == "first"
    assert seen == [("y", "s", "x", "t")]
    assert call("x") is None
    assert call("x", "y", "z") is None
    assert call("x", y="y") is None
    assert len(seen) == 1, "nothing runs for others"


@needs_c
def test_nothing_runs_where_the_function_may_have_changed() -> None:
    def never(_: Any) -> None:
        raise AssertionError

    assert made(lambda: False, never)("x", "y") is None
    assert made(lambda: None, never)("x", "y") is None
    assert made(lambda: True, lambda _: None)("x", "y") is None

    def fails(*_: Any) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made(fails, never)("x", "y")
    with pytest.raises(ZeroDivisionError):
        made(lambda: True, fails)("x", "y")


@needs_c
@pytest.mark.parametrize("sources", [(2,), (-3,)])
def test_sources_that_are_nowhere_are_refused(sources: tuple[int, ...]) -> None:
    with pytest.raises(IndexError, match="no argument's"):
        made(lambda: True, lambda _: None, sources)


def test_calls_that_are_pythons_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front()
    front.learn(lambda: True, None, (0,), (), 1)
    front.learn(lambda: True, unsettled, (0,), (), 1)
    assert front.call is unfronted
    monkeypatch.setattr(calls, "types", lambda: None)
    front.learn(lambda: True, lambda _: ("y",), (0,), (), 1)
    assert front.call is unfronted
