"""Rules for calls that work element by element, and for constants.

The idea: a family of overloads (`add.Tensor`, `mul.Scalar`, ...) is one function that gives the
rule for each; what torch says beside the operator (type promotion with 0-d tensors, `dtype=`
arguments) becomes casts.  A rule that is given something its operator cannot do returns None.
This module does not know the overloads' names.
"""

from typing import Any

import numpy as np
import torch

from tilewright.base.dtypes import BF16, F16
from tilewright.capture.call import Call, Made, Operand, Rule, reads
from tilewright.capture.template import dtype_of
from tilewright.graph.ir import Value

# ---------------------------------------------------------------------------- pointwise


def unary(operator: str, *attributes: str) -> Rule:
    """op(self, attributes...): every attribute has ATen's name."""

    @reads(operator)
    def rule(call: Call) -> Made:
        value = call["self"] if "self" in call.arguments else call["input"]
        return call.emit(operator, value, **{name: call[name] for name in attributes})

    return rule


def binary(operator: str, *attributes: str) -> Rule:
    """op(self, other, attributes...), operands first brought to torch's common element type."""

    @reads(operator)
    def rule(call: Call) -> Made:
        left, right = _common(call, "self", "other")
        if not isinstance(left, Value) and not isinstance(right, Value):
            return None
        return call.emit(operator, left, right, **{name: call[name] for name in attributes})

    return rule


def comparison(operator: str) -> Rule:
    """op(self, other): a number beside a half type is rounded to that first, as torch rounds it."""

    @reads(operator)
    def rule(call: Call) -> Made:
        operands = _common(call, "self", "other")
        value = next((one for one in operands if isinstance(one, Value)), None)
        if value is None:
            return None
        return call.emit(operator, *(_beside(value, one) for one in operands))

    return rule


def _beside(value: Any, operand: Any) -> Any:
    """Return what an operand is that is compared with a value: of a half type, a number is rounded
    to that first; a size that varies is no number yet, and stays what it is."""
    half = value.type.dtype if isinstance(value, Value) else None
    if half not in (BF16, F16) or type(operand) not in (int, float):
        return operand
    with np.errstate(over="ignore"):
        return float(np.asarray(operand, half.numpy))


def pair(operator: str, left: str, right: str) -> Rule:
    """op(left, right), operands first brought to torch's common element type."""

    @reads(operator)
    def rule(call: Call) -> Made:
        a, b = _common(call, left, right)
        return call.emit(operator, a, b)

    return rule


def _common(call: Call, *names: str) -> list[Any]:
    """Return the operands, each tensor cast to the type torch computes in.

    A 0-d tensor and a number do not widen a type of their own kind; our operators know that of
    numbers only.
    """
    operands = [call[name] for name in names]
    fakes = [
        call.fake(name) if isinstance(operand, Value) else operand
        for name, operand in zip(names, operands, strict=True)
    ]
    common = dtype_of(torch.result_type(*fakes))
    if common is None:
        return operands
    return [
        call.cast(operand, common, wish=name) if isinstance(operand, Value) else operand
        for name, operand in zip(names, operands, strict=True)
    ]


@reads("rsub")
def reversed_sub(call: Call) -> Made:
    """rsub(self, other, alpha) --> other - alpha * self."""
    if call["alpha"] != 1:
        return None
    return call.emit("rsub", call["self"], call["other"])


@reads("elu", "celu", "selu")
def elu(call: Call) -> Made:
    """elu(self, alpha, scale, input_scale): elu, selu or neither."""
    if call["scale"] == 1 and call["input_scale"] == 1:
        return call.emit("elu", call["self"], alpha=call["alpha"])
    if call["scale"] == 1 and call["alpha"] * call["input_scale"] == 1:
        return call.emit("celu", call["self"], alpha=call["alpha"])
    if abs(call["scale"] - 1.0507009873554805) < 1e-15 and call["input_scale"] == 1:
        return call.emit("selu", call["self"])
    return None


@reads("log_sigmoid")
def log_sigmoid(call: Call) -> Made:
    """log_sigmoid_forward(self) -> (y, buffer); the buffer is for backward."""
    if any(user.args[1] != 0 for user in call.node.users):
        return None
    return (call.emit("log_sigmoid", call["self"], wish="y"), None)


@reads("floor_divide", "div", "trunc")
def divide(call: Call) -> Made:
    """div(self, other, rounding_mode)."""
    left, right = _common(call, "self", "other")
    mode = call["rounding_mode"]
    if mode == "floor":
        return call.emit("floor_divide", left, right)
    if mode is None:
        return call.emit("div", left, right)
    if call.result.dtype.kind != "float":
        return None
    return call.emit("trunc", call.emit("div", left, right, wish="quotient"))


@reads("clamp")
def clamp(call: Call) -> Made:
    """clamp(self, min, max) with numbers."""
    value, bounds = call["self"], (call.arguments.get(name) for name in ("min", "max"))
    low, high = (_beside(value, bound) for bound in bounds)
    return call.emit("clamp", value, min=low, max=high)


@reads("clamp_tensor", "clamp_min", "clamp_max")
def clamp_tensors(call: Call) -> Made:
    """clamp(self, min, max) with tensors, one of them at least."""
    given = [name for name in ("self", "min", "max") if call[name] is not None]
    operands = [call.cast(call[name], call.result.dtype, wish=name) for name in given]
    operator = "clamp_tensor" if len(given) == 3 else f"clamp_{given[1]}"
    return call.emit(operator, *operands)


@reads("nan_to_num")
def nan_to_num(call: Call) -> Made:
    """nan_to_num(self, nan, posinf, neginf): what is not said is 0, and the type's largest."""
    if call.result.dtype.kind != "float":
        return call.emit("nan_to_num", call["self"])
    limit = torch.finfo(call.fake("self").dtype).max
    chosen = {"nan": 0.0, "posinf": limit, "neginf": -limit}
    attrs: dict[str, Any] = {name: float(other if call[name] is None else call[name])
             for name, other in chosen.items()}  # fmt: skip
    return call.emit("nan_to_num", call["self"], **attrs)


@reads("where")
def where(call: Call) -> Made:
    """where(condition, self, other)."""
    left, right = _common(call, "self", "other")
    return call.emit("where", call["condition"], left, right)


@reads("masked_fill", "expand")
def masked_fill(call: Call) -> Made:
    """masked_fill(self, mask, value)."""
    value = call["value"]
    if isinstance(value, Value):
        value = call.cast(value, call.result.dtype)
    shaped = _expanded(call, call["self"])
    return call.emit("masked_fill", shaped, call["mask"], value)


def _expanded(call: Call, value: Value) -> Value:
    shape = tuple(dim for dim in call.result.shape if isinstance(dim, int))
    return value if value.type.shape == shape else call.emit("expand", value, wish="x", shape=shape)


@reads("cross")
def crossed(call: Call) -> Made:
    """linalg_cross(self, other, dim)."""
    a, b = _common(call, "self", "other")
    return call.emit("cross", a, b, dim=call["dim"])


@reads("addcmul")
def fused_product(call: Call) -> Made:
    """fma(a, b, c), which Dynamo makes of addcmul_ and add_ with alpha: a * b + c."""
    return call.emit("addcmul", call["c"], call["a"], call["b"], value=1)


def addc(operator: str) -> Rule:
    """addcmul(self, tensor1, tensor2, value) and addcdiv."""

    @reads(operator)
    def rule(call: Call) -> Made:
        names = ("self", "tensor1", "tensor2")
        operands = [call.cast(call[name], call.result.dtype, wish=name) for name in names]
        return call.emit(operator, *operands, value=call["value"])

    return rule


@reads("lerp")
def lerp(call: Call) -> Made:
    """lerp(self, end, weight)."""
    return call.emit("lerp", call["self"], call["end"], call["weight"])


# ---------------------------------------------------------------------------- copies and casts


def unchanged(call: Call) -> Made:
    """A copy, or another layout of the same elements: the operand itself."""
    value: Value = call["self"]
    return value if value.type == call.result else None


same = reads()(unchanged)


@reads("cast")
def to_copy(call: Call) -> Made:
    """_to_copy(self, dtype): a cast, or nothing."""
    value = call["self"]
    return value if value.type == call.result else call.emit("cast", value, dtype=_result(call))


@reads("expand")
def copy(call: Call) -> Made:
    """copy(self, src): `src` in the type and shape of `self`."""
    value = _expanded(call, call.cast(call["src"], call.result.dtype))
    return value


@reads("stop_gradient")
def stop(call: Call) -> Made:
    """stop_gradient(x), detach(x)."""
    return call.emit("stop_gradient", call["self"] if "self" in call.arguments else call["x"])


def _result(call: Call) -> str:
    return call.result.dtype.name


# ---------------------------------------------------------------------------- constants


def filled(value: bool | int | float | None = None, name: str = "fill_value") -> Rule:
    """full, zeros, ones, and their `_like` and `new_` forms: one number everywhere."""

    @reads("full")
    def rule(call: Call) -> Made:
        number = call[name] if value is None else value
        if not isinstance(number, bool | int | float):
            return None
        shape = call.result.shape
        return call.emit("full", shape=shape, value=number, dtype=_result(call))  # type: ignore[arg-type]

    return rule


@reads("full", "masked_fill")
def fill_number(call: Call) -> Made:
    """fill(self, value) with a number."""
    return _over(call, call["value"]) if _is_result(call) else filled(name="value").read(call)


@reads("expand", "full", "masked_fill")
def fill(call: Call) -> Made:
    """fill(self, value) with a tensor of no dims: it in the type and shape of `self`."""
    value = call.cast(call["value"], call.result.dtype)
    return _over(call, value) if _is_result(call) else _expanded(call, value)


def _is_result(call: Call) -> bool:
    return any(user.op == "output" for user in call.node.users)


def _over(call: Call, value: Operand) -> Value:
    """Fill all of `self`: a result asks for gradients where `self` does, though they are zero."""
    shape = tuple(dim for dim in call.result.shape if isinstance(dim, int))
    mask = call.emit("full", wish="all", shape=shape, value=True, dtype="bool")
    return call.emit("masked_fill", call["self"], mask, value)


@reads("arange")
def arange(call: Call) -> Made:
    """arange(start, end, step)."""
    start, step = call.arguments.get("start") or 0, call.arguments.get("step", 1)
    attrs = {"start": start, "stop": call["end"], "step": step, "dtype": _result(call)}
    return call.emit("arange", **attrs)


@reads("eye")
def eye(call: Call) -> Made:
    """eye(n, m)."""
    columns = call.arguments.get("m", call["n"])
    return call.emit("eye", rows=call["n"], columns=columns, dtype=_result(call))


@reads("linspace")
def linspace(call: Call) -> Made:
    """linspace(start, end, steps) of floats."""
    if call.result.dtype.kind != "float":
        return None
    attrs = {"start": call["start"], "stop": call["end"], "steps": call["steps"]}
    return call.emit("linspace", dtype=_result(call), **attrs)
