"""The type that a scalar expression is computed in.

The idea: torch's promotion, with Python numbers weak; half types are computed in float32.
This module does not know what is done with the result.
"""

from collections.abc import Mapping

from tilewright.base.dtypes import BOOL, BY_NAME, F32, I64, DType, promote
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.base.scalar import BY_NAME as FUNCTIONS


def infer(expr: Expr, dtypes: Mapping[str, DType]) -> DType:
    """Return the type a value is computed in, given its operands' element types.

    Half types are computed in float32.  Python numbers are weak: they take the other side's type,
    and only their kind counts (a float beside an integer gives float32).  Loops are weak int64.
    """
    dtype, _ = _infer(expr, dtypes)
    return dtype


def _infer(expr: Expr, dtypes: Mapping[str, DType]) -> tuple[DType, bool]:
    """Return the type and whether it is weak (made of Python numbers and loops alone)."""
    match expr:
        case Const(value):
            return (
                BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32
            ), True
        case Sym(_):
            return I64, True
        case Read(tensor, _, default):
            dtype = dtypes[tensor].compute
            return (
                (dtype, False)
                if default is None
                else _join((dtype, False), _infer(default, dtypes))
            )
        case Call(fn, args):
            return _infer_call(fn, [_infer(arg, dtypes) for arg in args])


def _infer_call(fn: str, kinds: list[tuple[DType, bool]]) -> tuple[DType, bool]:
    result = FUNCTIONS[fn].result
    if result == "bool":
        return BOOL, False
    if result in BY_NAME:
        return BY_NAME[result].compute, False
    if fn == "select":
        kinds = kinds[1:]
    joined = kinds[0]
    for kind in kinds[1:]:
        joined = _join(joined, kind)
    if result == "float" and joined[0].kind != "float":
        return F32, joined[1]
    if joined[0] == BOOL and fn in ("add", "sub", "mul", "neg"):
        return I64, joined[1]
    return joined


def _join(a: tuple[DType, bool], b: tuple[DType, bool]) -> tuple[DType, bool]:
    order = {"bool": 0, "int": 1, "float": 2}
    if a[1] == b[1]:
        return promote(a[0], b[0]), a[1]
    weak, strong = (a[0], b[0]) if a[1] else (b[0], a[0])
    if order[weak.kind] > order[strong.kind]:
        return (F32 if weak.kind == "float" else I64), False
    return strong, False
