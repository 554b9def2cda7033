"""The scalar functions of `base.scalar` in NumPy, and the types that they work in.

The idea: a `Number` is an array with a dtype and a flag that says that it is weak (made of Python
numbers and loops only, so that it takes the other side's type); `apply` promotes, computes and says
what type came out.  Both ways of evaluating a formula call this one table.

`wide` keeps every float in float64 and rounds nothing: the high-precision oracle.

This module does not know loops, reads or formulas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import BOOL, F32, F64, I32, I64, DType

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Number:
    """Elements of one type.  data: held in the type's compute type.  weak: takes others' types."""

    data: Array
    dtype: DType
    weak: bool = False


def held(dtype: DType, *, wide: bool) -> np.dtype:
    """Return the NumPy type that values of `dtype` are computed in."""
    if wide and dtype.kind == "float":
        return F64.numpy
    return dtype.compute.numpy


def literal(value: bool | int | float) -> Number:
    """Return a Python number as a weak Number (floats exact, in float64)."""
    if isinstance(value, bool):
        return Number(np.asarray(value), BOOL, weak=True)
    if isinstance(value, int):
        return Number(np.asarray(value, dtype=np.int64), I64, weak=True)
    return Number(np.asarray(value, dtype=np.float64), F32, weak=True)


def integers(data: Array) -> Number:
    """Return loop indices as a Number: i64 unless they meet another type."""
    return Number(data, I64, weak=True)


def promote(numbers: Sequence[Number]) -> tuple[DType, bool]:
    """Return the type that the numbers meet in, and whether that is weak."""
    order = {"bool": 0, "int": 1, "float": 2}
    strong = [number.dtype for number in numbers if not number.weak]
    weak = [number.dtype for number in numbers if number.weak]
    highest = max(weak, key=lambda dtype: order[dtype.kind], default=None)
    if not strong:
        assert highest is not None, "a function of no arguments has no type"
        return highest, True
    result = strong[0]
    for dtype in strong[1:]:
        result = dtypes.promote(result, dtype)
    if highest is not None and order[highest.kind] > order[result.kind]:
        result = highest  # I64 or F32: what torch makes of an int or a float without a type
    return result, False


def cast(number: Number, dtype: DType, *, wide: bool, weak: bool = False) -> Number:
    """Return the number as `dtype`, which is a compute type; a weak float stays exact."""
    target = F64.numpy if weak and dtype.kind == "float" else held(dtype, wide=wide)
    return Number(_convert(number.data, target), dtype, weak)


def round_to(number: Number, dtype: DType, *, wide: bool) -> Number:
    """Round to `dtype` (a half type too), and go on in the type that it is computed in."""
    data = number.data
    if not wide or dtype.kind != "float":
        data = _convert(data, dtype.numpy)
    return Number(_convert(data, held(dtype, wide=wide)), dtype.compute)


def store(number: Number, dtype: DType, *, wide: bool) -> Array:
    """Return the elements rounded to `dtype`, in the NumPy type that holds a tensor of it."""
    if wide and dtype.kind == "float":
        return _convert(number.data, F64.numpy)
    return _convert(number.data, dtype.numpy)


def truth(number: Number) -> Array:
    """Return whether each element counts as true (NaN does)."""
    return np.asarray(number.data if number.data.dtype == np.bool_ else number.data != 0)


def apply(fn: str, args: Sequence[Number], *, wide: bool) -> Number:
    """Return `fn` of the arguments, element by element, broadcasting."""
    row = scalar.BY_NAME[fn]
    assert len(args) == row.arity, f"{fn} takes {row.arity} arguments, not {len(args)}"
    if fn in dtypes.BY_NAME:
        return round_to(args[0], dtypes.BY_NAME[fn], wide=wide)
    if fn in _LOGIC:
        return Number(np.asarray(_LOGIC[fn](*(truth(arg) for arg in args))), BOOL)
    if fn == "select":
        return select(args[0], args[1], args[2], wide=wide)
    if fn == "uniform":
        return Number(uniform(args[0].data, args[1].data).astype(held(F32, wide=wide)), F32)
    common, weak = promote(args)
    if row.result == "float" and common.kind != "float":
        common = F32
    if common == BOOL and fn in ("add", "sub", "mul", "neg"):
        common = I64
    numbers = [cast(arg, common, wide=wide, weak=weak) for arg in args]
    result = np.asarray(FUNCTIONS[fn](*(number.data for number in numbers)))
    if row.result == "bool":
        return Number(result, BOOL)
    return Number(result.astype(numbers[0].data.dtype, copy=False), common, weak)


def select(cond: Number, yes: Number, no: Number, *, wide: bool) -> Number:
    """Return `yes` where `cond` is true, else `no`."""
    common, weak = promote((yes, no))
    a = cast(yes, common, wide=wide, weak=weak).data
    b = cast(no, common, wide=wide, weak=weak).data
    return Number(np.where(truth(cond), a, b), common, weak)


def philox(counter: Sequence[ArrayLike], key: Sequence[ArrayLike]) -> tuple[Array, ...]:
    """Return the four words of Philox4x32-10 (Salmon et al., 2011) as uint64 below 2**32."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(word).astype(np.uint64) for word in counter)
    k0, k1 = (np.asarray(word).astype(np.uint64) for word in key)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & low, (p0 >> shift) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3


def uniform(seed: Array, index: Array) -> Array:
    """Return float32 in [0, 1): the first Philox word of counter `index` under key `seed`."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key = np.asarray(seed).astype(np.int64).astype(np.uint64)
    at = np.asarray(index).astype(np.int64).astype(np.uint64)
    zero = np.uint64(0)
    word = philox((at & low, at >> shift, zero, zero), (key & low, key >> shift))[0]
    return np.asarray((word >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24))


# ------------------------------------------------------------------------------------ conversions


def _convert(data: Array, target: np.dtype) -> Array:
    if data.dtype == target:
        return data
    if target == np.bool_:
        return np.asarray(data != 0)
    if data.dtype.kind == "f" and target.kind in "iu" and target not in (I32.numpy, I64.numpy):
        # C converts by way of int, so that out of range the low bits are kept.
        return data.astype(np.int32).astype(target)
    return data.astype(target)


# ---------------------------------------------------------------------------------------- functions


def _divide(a: Array, b: Array) -> Array:
    return np.asarray(np.true_divide(a, b))


def _fma(a: Array, b: Array, c: Array) -> Array:
    # float64 holds a product of two float32 exactly; NumPy has nothing wider for float64 itself.
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return np.asarray(exact.astype(a.dtype))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    # An integer to a negative power is 0, but for 1 and -1.
    whole = np.power(a, np.abs(b))
    unit = np.where(np.abs(a) == 1, whole, 0)
    return np.asarray(np.where(b < 0, unit, whole))


def _sign(a: Array) -> Array:
    signs = np.where(a > 0, 1, np.where(a < 0, -1, 0))  # NaN gives 0, as in torch
    return np.asarray(signs.astype(a.dtype))


def _sigmoid(a: Array) -> Array:
    one = a.dtype.type(1)
    return np.asarray(one / (one + np.exp(-a)))


def _times_logarithm(a: Array, b: Array, of: Callable[[Array], Array]) -> Array:
    return np.asarray(np.where(np.isnan(b), b, np.where(a == 0, 0, a * of(b))))


def _special(of: Callable[[float], float]) -> Callable[[Array], Array]:
    def each(a: Array) -> Array:
        flat = np.fromiter(map(of, a.ravel().tolist()), dtype=np.float64, count=a.size)
        return flat.reshape(a.shape).astype(a.dtype)

    return each


def _rounded(of: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def each(a: Array) -> Array:
        return np.asarray(of(a)) if a.dtype.kind == "f" else a

    return each


_LOGIC: dict[str, Callable[..., Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "fma": _fma,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "exactdiv": np.floor_divide,  # whoever calls knows where it is absent
    "neg": np.negative,
    "abs": np.abs,
    "sign": _sign,
    "reciprocal": lambda a: a.dtype.type(1) / a,
    "pow": _power,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitnot": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "xlogy": lambda a, b: _times_logarithm(a, b, np.log),
    "xlog1py": lambda a, b: _times_logarithm(a, b, np.log1p),
    "sigmoid": _sigmoid,
    "erf": _special(math.erf),
    "erfc": _special(math.erfc),
    "normal_cdf": _special(lambda a: 0.5 * math.erfc(-a * math.sqrt(0.5))),
    "floor": _rounded(np.floor),
    "ceil": _rounded(np.ceil),
    "trunc": _rounded(np.trunc),
    "round": _rounded(np.rint),
}
