"""What cannot be captured and be right: a typed error, whole, at the user's line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tilewright.base.errors import (
    CaptureError,
    DataDependentShapeError,
    DTypeError,
    MutationError,
    ShapeError,
    TilewrightError,
)
from tilewright.capture import capture


def _misfit(x: torch.Tensor) -> torch.Tensor:
    h = x.reshape(2, 3)
    return h @ h


def _bad_index(x: torch.Tensor) -> torch.Tensor:
    return x.gather(0, x)


def _mask(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(x).abs()


class _Remembering(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return x


class _Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x * self.weight


class _Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.weight
        seen = h.detach()
        h += 1
        return h * seen


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.round_()
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # noqa: ARG004
        return grad


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return _Straight.apply(x * 2)


class _Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # noqa: ARG004
        return grad.mul_(2)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return _Doubling.apply(x * 2)


class _Turning(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # noqa: ARG004
        return -grad


def _turned(x: torch.Tensor) -> torch.Tensor:
    return _Turning.apply(x)


def _inner_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda t: t.sin().sum())(x)


class _Holder:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def _held(x: torch.Tensor) -> _Holder:
    return _Holder(x + 1)


def _line(fn: Callable[..., Any], offset: int) -> int:
    code = fn.forward.__code__ if isinstance(fn, type) else fn.__code__
    return code.co_firstlineno + offset


REFUSED: list[tuple[str, Callable[[], Any], type[TilewrightError], str]] = [
    (
        "shapes that do not fit",
        lambda: capture(_misfit, torch.ones(6)),
        ShapeError,
        f"""matmul cannot be applied to operands of these shapes
  expected  a and b must have same reduction dim, but got [2, 3] X [2, 3]
  found     float32[2, 3], float32[2, 3]
  where     {__file__}:{_line(_misfit, 2)}   return h @ h
  mend      make the sizes fit, at this line or where its operands are made""",
    ),
    (
        "element types that do not fit",
        lambda: capture(_bad_index, torch.ones(6)),
        DTypeError,
        f"""gather cannot be applied to operands of these element types
  expected  gather(): Expected dtype int32/int64 for index, but got torch.float32
  found     float32[6], float32[6]
  where     {__file__}:{_line(_bad_index, 1)}   return x.gather(0, x)
  mend      convert an operand at this line with .to(dtype)""",
    ),
    (
        "a size that depends on data",
        lambda: capture(_mask, torch.ones(6)),
        DataDependentShapeError,
        f"""the shape or value that indexing gives depends on the data in a tensor
  expected  every size to follow from the sizes of the inputs
  found     aten.nonzero.default, whose result is known only when it runs
  where     {__file__}:{_line(_mask, 1)}   return x[x > 0].sum()
  mend      compute it outside, pass it in as a number, or use an operator of fixed size \
(torch.where in place of boolean indexing)""",
    ),
    (
        "a branch that depends on data",
        lambda: capture(_branch, torch.ones(6)),
        DataDependentShapeError,
        f"""a shape or a branch depends on the values in a tensor
  expected  sizes and control flow that follow from the sizes of the inputs
  found     Data-dependent branching
  where     {__file__}:{_line(_branch, 1)}   return x if x.sum() > 0 else -x
  mend      compute it outside and pass it in as a number, or use torch.where""",
    ),
    (
        "a number read from a tensor",
        lambda: capture(_item, torch.ones(6)),
        DataDependentShapeError,
        f"""the shape or value that item gives depends on the data in a tensor
  expected  every size to follow from the sizes of the inputs
  found     aten._local_scalar_dense.default, whose result is known only when it runs
  where     {__file__}:{_line(_item, 1)}   return x * x.sum().item()
  mend      compute it outside, pass it in as a number, or use an operator of fixed size \
(torch.where in place of boolean indexing)""",
    ),
    (
        "complex numbers",
        lambda: capture(_complex, torch.ones(6)),
        CaptureError,
        f"""a tensor of element type complex64
  expected  bool, int8 to int64, uint8, float16, bfloat16, float32 or float64
  found     torch.complex64
  where     {__file__}:{_line(_complex, 1)}   return torch.fft.fft(x).abs()
  mend      keep it outside the captured function""",
    ),
    (
        "a complex argument",
        lambda: capture(torch.abs, torch.ones(6, dtype=torch.complex64)),
        CaptureError,
        """argument 'arg0' is of a kind that cannot be captured
  expected  dense real tensors on the CPU
  found     a complex tensor, torch.complex64
  mend      convert it before the call""",
    ),
    (
        "an attribute that is set",
        lambda: capture(_Remembering(), torch.ones(6)),
        CaptureError,
        """the function changes Python objects that outlive it
  expected  results that are returned, and buffers that are changed in place
  found     changes of self
  mend      return the value in place of storing it in an attribute, list or dict""",
    ),
    (
        "a parameter changed where gradients are off",
        lambda: capture(_Clamped(), torch.ones(6)),
        MutationError,
        f"""a tensor that requires gradients is changed in place under no_grad
  expected  in-place operators under no_grad to change tensors without gradients
  found     float32[6] changed by clamp_, which autograd cannot see
  where     {__file__}:{_line(_Clamped, 2)}   self.weight.clamp_(-1, 1)
  mend      change it outside the captured function, or compute a fresh tensor""",
    ),
    (
        "a tensor changed behind a detached alias",
        lambda: capture(_Written(), torch.ones(6)),
        MutationError,
        f"""a tensor is changed in place while a detached alias of it is alive
  expected  no in-place operator on memory that detach() or no_grad has aliased
  found     float32[6] changed by iadd
  known     the alias was made by detach at {__file__}:{_line(_Written, 2)}   seen = h.detach()
  where     {__file__}:{_line(_Written, 3)}   h += 1
  mend      detach a copy: x.detach().clone()""",
    ),
    (
        "a custom function that changes its argument",
        lambda: capture(_rounded, torch.ones(6, requires_grad=True)),
        MutationError,
        f"""a custom autograd.Function changes its argument in place
  expected  a forward that returns fresh tensors
  found     a result that is an argument, written to
  where     {__file__}:{_line(_rounded, 1)}   return _Straight.apply(x * 2)
  mend      compute a fresh tensor in its forward, or call it outside of what is compiled""",
    ),
    (
        "a custom backward that changes its tangent",
        lambda: capture(_doubled, torch.ones(6, requires_grad=True)),
        MutationError,
        f"""the backward of a custom autograd.Function changes what it is given in place
  expected  gradients that are fresh tensors
  found     1 of its tangents and saved tensors written
  where     {__file__}:{_line(_doubled, 1)}   return _Doubling.apply(x * 2)
  mend      change a copy: grad.clone()""",
    ),
    (
        "a custom gradient of a view of an argument",
        lambda: capture(_turned, torch.ones(6, requires_grad=True)),
        CaptureError,
        f"""a result of a custom autograd.Function shares memory with an argument or result
  expected  results with memory of their own
  found     a view of shape (6,) with a gradient written by hand
  where     {__file__}:{_line(_turned, 1)}   return _Turning.apply(x)
  mend      return a copy: x.clone()""",
    ),
    (
        "a result of an unknown class",
        lambda: capture(_held, torch.ones(6)),
        CaptureError,
        f"""the result holds an object of class _Holder
  expected  tensors, plain values, and lists, tuples, dicts or dataclasses of them
  found     {__name__}._Holder
  mend      return its tensors (for a language model: use_cache=False), or register the class \
with torch.utils._pytree""",
    ),
]


@pytest.mark.parametrize(
    ("act", "kind", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_cannot_be_captured_is_refused_at_the_users_line(
    act: Callable[[], Any], kind: type[TilewrightError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        act()
    assert str(caught.value) == message


def test_a_derivative_taken_inside_is_captured_as_what_is_asked() -> None:
    graph = capture(_inner_gradient, torch.ones(3)).graph
    assert [node.op for node in graph.nodes] == ["mark", "sin", "sum", "pull"]


def test_the_forward_of_a_custom_function_is_captured_where_no_gradient_is_asked() -> None:
    graph = capture(_doubled, torch.ones(6)).graph
    assert [node.op for node in graph.nodes] == ["mul", "mul"]


def test_an_argument_that_shares_memory_with_one_that_is_changed_is_refused() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    base = torch.ones(6)
    with pytest.raises(MutationError, match="shares memory with another one is changed in place"):
        capture(f, base[:4], base[2:])
