"""Half floats that are only moved, as the words they are.

The idea: where nothing is computed from a value, a copy of it is a copy of its bits.  A body whose
formulas only choose between elements of one half type is the same body over integers of that width:
nothing is widened, rounded or asked whether it is a NaN, and a constant is its bits.

This module does not know loops or C; a type of words is printed as any other.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import BF16, F16, I16, DType
from tilewright.base.expr import Call, Const, Expr, Read, walk
from tilewright.graph.ir import Formula, TensorType
from tilewright.kernels.body import Body

_HALVES = (BF16, F16)


def as_words(body: Body) -> Body:
    """Return the body with all that is only moved as integers.

    ::

        bf16: v0[i] = a0[i] if i < 7 else 1.0    -->    i16: v0[i] = a0[i] if i < 7 else 16256
    """
    types = {tensor.name: tensor.type for tensor in body.inputs}
    types |= {name: formula.type for name, formula in body.formulas}
    moved = {name for name, type_ in types.items() if type_.dtype in _HALVES}
    before = 0
    while moved and len(moved) != before:
        before = len(moved)
        for name, formula in body.formulas:
            if name in moved and not _only_moves(formula, types, moved):
                moved.discard(name)
            if name not in moved:
                moved -= {read.tensor for read in _reads(formula)}
    if not moved:
        return body
    inputs = tuple(
        replace(tensor, type=_words(tensor.type)) if tensor.name in moved else tensor
        for tensor in body.inputs
    )
    formulas = tuple(
        (name, _as_words(formula) if name in moved else formula) for name, formula in body.formulas
    )
    return replace(body, inputs=inputs, formulas=formulas)


def _only_moves(formula: Formula, types: dict[str, TensorType], moved: set[str]) -> bool:
    """Say whether each element of the result is one of tensors that are moved, or a constant."""
    dtype = formula.type.dtype
    if formula.op != "=":
        return False
    asked = [part for part in (formula.where, *formula.index) if part is not None]
    waiting = [formula.value, formula.fill]
    while waiting:
        match waiting.pop():
            case Const(value) if type(value) in (bool, int, float):
                continue
            case Call("select", (condition, yes, no)):
                asked.append(condition)
                waiting += [yes, no]
            case Call(fn, (inner,)) if fn == dtype.compute.name:
                waiting.append(inner)
            case Read(tensor, index, default) if tensor in moved and types[tensor].dtype == dtype:
                asked += index
                waiting += [] if default is None else [default]
            case _:
                return False
    read = (node.tensor for part in asked for node in walk(part) if isinstance(node, Read))
    return moved.isdisjoint(read)


def _reads(formula: Formula) -> Iterator[Read]:
    parts = (formula.value, formula.where, formula.at, formula.fill, *formula.index)
    for part in parts:
        if part is not None:
            yield from (node for node in walk(part) if isinstance(node, Read))


def _as_words(formula: Formula) -> Formula:
    dtype = formula.type.dtype
    value, fill = _bits(formula.value, dtype), _bits(formula.fill, dtype)
    return replace(formula, value=value, fill=fill, type=_words(formula.type))


def _bits(expr: Expr, dtype: DType) -> Expr:
    """Return what is moved with each constant as its bits; conditions and indices stay."""
    match expr:
        case Const(value):
            with np.errstate(over="ignore"):
                number = np.float32(value).astype(dtype.numpy)
            return Const(int(number.view(np.int16)))
        case Call("select", (condition, yes, no)):
            return Call("select", (condition, _bits(yes, dtype), _bits(no, dtype)))
        case Call(_, (inner,)):
            return _bits(inner, dtype)
        case Read(tensor, index, default) if default is not None:
            return Read(tensor, index, _bits(default, dtype))
    return expr


def _words(type_: TensorType) -> TensorType:
    return replace(type_, dtype=I16)
