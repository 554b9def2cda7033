"""The arguments of an ATen call as text-like data, and back.

The idea: a library node keeps its call as nested tuples in which operands are numbered, so that a
graph prints, parses and hashes without torch; only here do they become torch's values again.

    template = ("%", i) | ("list", template...) | ("dtype", name) | ("device", name)
             | ("layout", name) | ("memory_format", name) | None | bool | int | float | str

This module does not know nodes of either graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import CaptureError
from tilewright.graph.ir import Attr

_TORCH_DTYPES = {dtype: getattr(torch, dtype.torch_name) for dtype in dtypes.ALL}
_DTYPES = {theirs: ours for ours, theirs in _TORCH_DTYPES.items()}


def dtype_of(dtype: torch.dtype) -> DType | None:
    """Return our element type for torch's, or None where there is none (complex, float8)."""
    return _DTYPES.get(dtype)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's element type for ours."""
    found: torch.dtype = _TORCH_DTYPES[dtype]
    return found


def encode(value: Any, operand: Callable[[Any], int | None]) -> Attr:
    """Turn an argument into a template; `operand` numbers what is a tensor operand, else None."""
    number = operand(value)
    if number is not None:
        return ("%", number)
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple() | torch.Size():
            return ("list", *(encode(item, operand) for item in value))
        case torch.dtype():
            ours = dtype_of(value)
            if ours is not None:
                return ("dtype", ours.name)
        case torch.device():
            return ("device", str(value))
        case torch.layout():
            return ("layout", str(value).removeprefix("torch."))
        case torch.memory_format():
            return ("memory_format", str(value).removeprefix("torch."))
    raise CaptureError(
        "an operator has an argument that a graph cannot hold",
        expected="tensors, numbers, texts, element types, and lists of these",
        found=f"{value!r}, of type {type(value).__name__}",
    )


def decode(template: Attr, operands: Sequence[Any]) -> Any:
    """Turn a template into an argument, with `operands` in the numbered places."""
    if not isinstance(template, tuple):
        return template
    head, *rest = template
    if head == "%":
        return operands[_number(rest[0])]
    if head == "list":
        return [decode(item, operands) for item in rest]
    (name,) = rest
    assert isinstance(name, str), f"a template names {name!r}, which is not a text"
    if head == "dtype":
        return torch_dtype(dtypes.BY_NAME[name])
    if head == "device":
        return torch.device(name)
    assert head in ("layout", "memory_format"), f"a template starts with {head!r}"
    return getattr(torch, name)


def _number(value: Attr) -> int:
    assert isinstance(value, int), f"an operand is numbered {value!r}"
    return value
