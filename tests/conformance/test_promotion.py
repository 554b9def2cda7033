"""The result's element type is torch's, for every pair of types and for Python numbers."""

import itertools
import warnings

import numpy as np
import pytest
import torch

from tilewright.base.dtypes import ALL, DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, TensorType
from tilewright.ops import TABLE, eager, emit
from tilewright.ops.pointwise import ARITHMETIC, ELEMENTARY, LOGIC

from .cases import put

NUMBERS = (True, 2, 1.5)
POINTWISE = (*ARITHMETIC, *ELEMENTARY, *LOGIC)
# torch asks for one type where we promote; capture casts before it comes here.
STRICTER_IN_TORCH = {"lerp", "masked_fill", "addcmul", "addcdiv"}
BINARY = [
    operator.name
    for operator in POINTWISE
    if operator.signature.operands == ("a", "b") and operator.name not in STRICTER_IN_TORCH
]
# torch takes no Python number here.
TENSORS_ONLY = {"maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor"}
UNARY = [operator.name for operator in POINTWISE if operator.signature.operands == ("x",)]
REDUCTIONS = ("sum", "prod", "amax", "any", "all", "argmax", "cumsum", "mean", "var", "logsumexp")
MORE = ("relu", "silu", "gelu", "softmax", "clamp", "tril", "cat", "stack")


def ours(name: str, dtypes: tuple[DType, ...], number: object = None) -> tuple[DType, str]:
    builder = Builder()
    shapes = [TensorType((2, 3), dtype) for dtype in dtypes]
    operands = [builder.input("x", type_) for type_ in shapes]
    more = [number] if isinstance(number, bool | int | float) else []
    attrs: dict[str, dict[str, Attr]] = {
        "softmax": {"dim": 1},
        "logsumexp": {"dims": (1,)},
        "cumsum": {"dim": 1},
        "clamp": {"min": 0},
    }
    value, *_ = put(builder, name, [*operands, *more], attrs.get(name, {}))
    text = eager(builder.nodes[-1], tuple(f"tensors[{at}]" for at in range(len(dtypes))))
    return value.type.dtype, text


def theirs(text: str, dtypes: tuple[DType, ...]) -> str | None:
    """Return torch's result type, or None where torch refuses."""
    tensors = [torch.ones((2, 3), dtype=getattr(torch, dtype.torch_name)) for dtype in dtypes]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = eval(text, {"torch": torch, "tensors": tensors})
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    return str(made.dtype).removeprefix("torch.")


def check(name: str, cases: list[tuple[tuple[DType, ...], object]]) -> None:
    agreed = 0
    for dtypes, number in cases:
        found, text = ours(name, dtypes, number)
        wanted = theirs(text, dtypes)
        if wanted is not None:
            assert found.torch_name == wanted, f"{text} of {dtypes}, number {number}"
            agreed += 1
    assert agreed > 0, f"torch refused every case of {name}"


@pytest.mark.parametrize("name", BINARY)
def test_two_tensors_promote_as_in_torch(name: str) -> None:
    check(name, [(pair, None) for pair in itertools.product(ALL, ALL)])


@pytest.mark.parametrize("name", [name for name in BINARY if name not in TENSORS_ONLY])
def test_a_python_number_is_weak_as_in_torch(name: str) -> None:
    check(name, [((dtype,), number) for dtype in ALL for number in NUMBERS])


@pytest.mark.parametrize("name", [*UNARY, *REDUCTIONS, *MORE])
def test_one_tensor_gives_torchs_type(name: str) -> None:
    check(name, [((dtype,), None) for dtype in ALL])


def test_where_promotes_its_branches() -> None:
    for left, right in itertools.product(ALL, ALL):
        builder = Builder()
        cond = builder.input("c", TensorType((2,), ALL[0]))
        a, b = (builder.input("x", TensorType((2,), dtype)) for dtype in (left, right))
        made = emit(builder, "where", cond, a, b)
        assert not isinstance(made, tuple), "where has one result"
        x, y = (torch.ones(2, dtype=getattr(torch, d.torch_name)) for d in (left, right))
        wanted = torch.where(torch.ones(2, dtype=torch.bool), x, y).dtype
        assert made.type.dtype.torch_name == str(wanted).removeprefix("torch.")


@pytest.mark.parametrize("name", ["cat", "stack"])
def test_joins_promote_all_their_operands(name: str) -> None:
    for left, right in itertools.product(ALL, ALL):
        found, text = ours(name, (left, right))
        assert found.torch_name == theirs(text, (left, right))


@pytest.mark.parametrize("dtype", [d for d in ALL if d.kind == "float"])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "batch_norm_eval", "mse_loss"])
def test_composites_keep_half_types(name: str, dtype: DType) -> None:
    builder = Builder()
    counts = {"batch_norm_eval": 3, "mse_loss": 2}
    shapes = {"batch_norm_eval": [(4, 3), (3,), (3,)]}.get(name, [(4, 3)] * counts.get(name, 1))
    operands = [builder.input("x", TensorType(shape, dtype)) for shape in shapes]
    (made,) = put(builder, name, operands, {"dim": 1} if name == "softmax" else {})
    assert made.type.dtype == dtype


def test_every_pointwise_operator_was_asked() -> None:
    asked = {*BINARY, *UNARY, *STRICTER_IN_TORCH, "where", "clamp_tensor"}
    assert asked >= {operator.name for operator in POINTWISE}
    assert {*REDUCTIONS, *MORE} <= set(TABLE)
    assert np.dtype(np.float64) == ALL[-1].numpy
