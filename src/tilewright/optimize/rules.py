"""Rewrites of scalar values that keep every bit: for NaN, infinities and signed zeros too.

The idea: a rule is a function with its before and after; it returns the simpler value or None.  A
rule that also changes what type a value is computed in is not applied (`Algebraic` sees to that).
What looks like a rule and is none is listed in `REFUSED` with a counter-example.

This module does not know formulas or graphs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtypes import BOOL, BY_NAME, DType
from tilewright.base.expr import Call, Const, Expr, Read, reads
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import Size
from tilewright.graph.evaluate_scalar import apply, literal
from tilewright.graph.notation import infer
from tilewright.graph.total import Extents, conjuncts, decided, of_indices


@dataclass(frozen=True, slots=True)
class Context:
    """What rules may ask about: the operands' element types, and the loops' extents."""

    dtypes: Mapping[str, DType]
    extents: Extents

    def dtype(self, value: Expr) -> DType:
        """Return the type a value is computed in."""
        return infer(value, self.dtypes)

    def exact(self, value: Expr) -> DType:
        """Return the narrowest type known to hold a value: of the tensor read, or of a cast."""
        match value:
            case Read(tensor, _, None):
                return self.dtypes[tensor]
            case Call(fn, _) if fn in BY_NAME:
                return BY_NAME[fn]
        return self.dtype(value)


Rule = Callable[[Expr, Context], Expr | None]


def _is(value: Expr, number: float) -> bool:
    """Say whether a value is this constant, the sign of a zero included."""
    match value:
        case Const(found) if not isinstance(found, bool | Size):
            return found == number and math.copysign(1, found) == math.copysign(1, number)
    return False


def times_one(value: Expr, _: Context) -> Expr | None:
    """x * 1, 1 * x, x / 1 --> x"""
    match value:
        case Call("mul" | "div", (x, one)) if _is(one, 1):
            return x
        case Call("mul", (one, x)) if _is(one, 1):
            return x
    return None


def minus_zero(value: Expr, context: Context) -> Expr | None:
    """x - 0, x + -0.0, and x + 0 where x is no -0.0 --> x"""
    match value:
        case Call("sub", (x, zero)) if _is(zero, 0):
            return x
        case Call("add", (x, zero)) | Call("add", (zero, x)) if _is(zero, -0.0):
            return x
        case Call("add", (x, zero)) | Call("add", (zero, x)) if _is(zero, 0):
            return x if is_never_negative_zero(x, context) else None
    return None


def is_never_negative_zero(value: Expr, context: Context) -> bool:
    """Say whether a value is proved not to be -0.0."""
    if context.exact(value).kind != "float":
        return True
    match value:
        case Const(number):
            return not (number == 0 and math.copysign(1, number) < 0)
        case Call("exp" | "exp2" | "abs" | "sigmoid" | "normal_cdf" | "uniform", _):
            return True
        case Call("mul", (a, b)):
            return a == b
        case Call("add", (a, b)):  # only -0.0 + -0.0 is -0.0
            return is_never_negative_zero(a, context) or is_never_negative_zero(b, context)
        case Call("select", (_, a, b)) | Call("max" | "min", (a, b)):
            return is_never_negative_zero(a, context) and is_never_negative_zero(b, context)
        case Call(fn, (a,)) if fn in BY_NAME:
            return is_never_negative_zero(a, context) and not _shrinks(fn, context.exact(a))
    return False


def _shrinks(to: str, source: DType) -> bool:
    """Say whether a conversion may round a small negative number to -0.0."""
    return not holds(BY_NAME[to], source)


def double_negation(value: Expr, context: Context) -> Expr | None:
    """-(-x) --> x;  not not c --> c;  x * -1 --> -x;  abs(-x), abs(abs(x)) --> abs(x)"""
    match value:
        case Call("neg", (Call("neg", (x,)),)):
            return x
        case Call("not", (Call("not", (c,)),)) if context.dtype(c) == BOOL:
            return c
        case Call("mul", (x, minus)) | Call("mul", (minus, x)) if _is(minus, -1):
            return Call("neg", (x,))
        case Call("abs", (Call("neg" | "abs", (x,)),)):
            return Call("abs", (x,))
    return None


def decided_select(value: Expr, context: Context) -> Expr | None:
    """a if true else b --> a;  a if c else a --> a;  a if not c else b --> b if c else a"""
    match value:
        case Call("select", (cond, a, b)):
            known = decided(cond, context.extents)
            if known is not None:
                return a if known else b
            # A condition that reads may be absent, or raise: then so does the select.
            if a == b and not reads(cond):
                return a
            if isinstance(cond, Call) and cond.fn == "not":
                return Call("select", (cond.args[0], b, a))
    return None


def logic(value: Expr, context: Context) -> Expr | None:
    """c and true, c or false --> c;  c and c, c or c --> c"""
    match value:
        case Call("and" | "or" as fn, (a, b)):
            for one, other in ((a, b), (b, a)):
                known = decided(one, context.extents)
                if known is (fn == "and") and context.dtype(other) == BOOL:
                    return other
                if known is not None and known is not (fn == "and") and not reads(other):
                    return Const(known)
            if a == b and context.dtype(a) == BOOL:
                return a
    return None


_BEYOND = {"le": "gt", "ge": "lt"}


def clamped(value: Expr, _: Context) -> Expr | None:
    """x if x <= 2 and x >= 1 else 2 if x > 2 else 1 if x < 1 else nan
    --> 2 if x > 2 else 1 if x < 1 else x (which is NaN where it is neither)"""
    match value:
        case Call("select", (inside, x, outside)):
            beyond = {_beyond(one, x) for one in conjuncts(inside)}
            return None if None in beyond else _chosen_or(outside, x, beyond)
    return None


def _beyond(condition: Expr, x: Expr) -> Expr | None:
    """Return where x lies on the other side of a bound, if that is a number other than NaN."""
    match condition:
        case Call("le" | "ge" as fn, (one, Const(bound))) if one == x and bound == bound:
            return Call(_BEYOND[fn], condition.args)
    return None


def _chosen_or(value: Expr, x: Expr, conditions: set[Expr | None]) -> Expr | None:
    """Put x for the NaN that a chain of choices ends with, if it asks just these conditions."""
    match value:
        case Call("select", (asked, chosen, others)) if asked in conditions:
            rest = _chosen_or(others, x, conditions - {asked})
            return None if rest is None else Call("select", (asked, chosen, rest))
        case Const(number) if number != number and not conditions:
            return x
    return None


def small_power(value: Expr, _: Context) -> Expr | None:
    """x^1 --> x;  x^2 --> x * x;  x^3 --> x * x * x;  x^-1 --> reciprocal(x);  x^0.5 --> sqrt(x)

    These are what torch computes for such powers; the cube alone may differ in its last bit.
    """
    match value:
        case Call("pow", (x, Const(power))) if not isinstance(power, bool):
            if power == 1:
                return x
            if power == 2:
                return Call("mul", (x, x))
            if power == 3:
                return Call("mul", (Call("mul", (x, x)), x))
            if power == -1:
                return Call("reciprocal", (x,))
            if power == 0.5:
                return Call("sqrt", (x,))
    return None


def power_of_two_divisor(value: Expr, context: Context) -> Expr | None:
    """x / 2 --> x * 0.5, and any power of two whose reciprocal is no subnormal: both are exact"""
    match value:
        case Call("div", (x, Const(number))) if context.dtype(x).kind == "float":
            if isinstance(number, bool | Size) or number == 0 or not math.isfinite(number):
                return None
            mantissa, exponent = math.frexp(number)
            if abs(mantissa) == 0.5 and -100 < exponent < 100 and exponent != 1:
                return Call("mul", (x, Const(1.0 / number)))
    return None


def idle_cast(value: Expr, context: Context) -> Expr | None:
    """f32(x) of an f32 --> x;  f32(bf16(x)) of a bf16 x --> f32(x);  bf16(f32(x)) --> bf16(x)"""
    match value:
        case Call(outer, (Call(inner, (x,)) as cast,)) if outer in BY_NAME and inner in BY_NAME:
            if holds(BY_NAME[inner], context.exact(x)) and not _is_weak_number(x):
                return Call(outer, (x,))
            if outer == inner:
                return cast
        case Call(fn, (x,)) if fn in BY_NAME:
            dtype = BY_NAME[fn]
            if context.exact(x) == dtype and not _is_weak_number(x):
                return x
    return None


def _is_weak_number(value: Expr) -> bool:
    return isinstance(value, Const) or of_indices(value)


def holds(wide: DType, narrow: DType) -> bool:
    """Say whether every value of one type is a value of the other, found again by converting."""
    if wide == narrow:
        return True
    order = {"bool": 0, "int": 1, "float": 2}
    if wide.kind == narrow.kind == "float":
        return wide.bytes > narrow.bytes
    if wide.kind == narrow.kind == "int":
        signs = (wide.name[0], narrow.name[0])
        return wide.bytes > narrow.bytes and signs != ("u", "i")
    if order[wide.kind] < order[narrow.kind]:
        return False
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(wide.name, 8 * wide.bytes)
    return narrow.kind == "bool" or 8 * narrow.bytes <= digits


def extreme_of_itself(value: Expr, context: Context) -> Expr | None:
    """max(x, x), min(x, x), max(x, -inf), min(x, inf) --> x (NaN stays NaN)"""
    match value:
        case Call("max" | "min" as fn, (a, b)):
            if a == b:
                return a
            worst = -math.inf if fn == "max" else math.inf
            for one, other in ((a, b), (b, a)):
                if _is(one, worst) and context.dtype(other).kind == "float":
                    return other
    return None


def known_value(value: Expr, _: Context) -> Expr | None:
    """f(constants) --> a constant;  f32(0.5) of a number that is one --> 0.5 (where types allow)"""
    match value:
        case Call(fn, (Const(number),)) if fn in BY_NAME:
            return _converted(number, BY_NAME[fn])
        case Call(fn, args) if fn not in ("uniform", "exactdiv") and fn in FUNCTIONS:
            if not args or not all(isinstance(arg, Const) for arg in args):
                return None
            numbers = [literal(arg.value) for arg in args if isinstance(arg, Const)]
            with np.errstate(all="ignore"):
                found = apply(fn, numbers, wide=False).data
            kind = {"b": bool, "i": int, "f": float}.get(found.dtype.kind)
            return None if kind is None else Const(kind(found))
    return None


def _converted(number: bool | int | float, dtype: DType) -> Expr | None:
    """Return a number as a tensor of the type gives it back, None where that is not said."""
    if dtype.kind == "float":
        with np.errstate(all="ignore"):
            return Const(float(dtype.numpy.type(number)))
    if not math.isfinite(number) or number != int(number):
        return None
    if dtype.kind == "bool":
        return Const(bool(number))
    limits = np.iinfo(dtype.numpy)
    return Const(int(number)) if limits.min <= number <= limits.max else None


RULES: tuple[Rule, ...] = (
    known_value,
    times_one,
    minus_zero,
    double_negation,
    decided_select,
    clamped,
    logic,
    small_power,
    power_of_two_divisor,
    idle_cast,
    extreme_of_itself,
)

# What is no rule: (before, after, the operand for which they differ).
REFUSED: tuple[tuple[str, str, float], ...] = (
    ("x + 0", "x", -0.0),
    ("0 - x", "-x", 0.0),
    ("x * 0", "0.0", math.inf),
    ("x - x", "0.0", math.inf),
    ("x / x", "1.0", 0.0),
    ("sqrt(x * x)", "abs(x)", 1e30),
    ("exp(log(x))", "x", -1.0),
    ("log(exp(x))", "x", 200.0),
    ("x * 3 / 3", "x", 3e38),
    ("x / 3", "x * 0.3333333333333333", 7.0),
    ("x + 1 - 1", "x", 1e-9),
    ("x if x > 0 else 0", "max(x, 0)", math.nan),
    ("not (x < 1)", "x >= 1", math.nan),
    ("true if x == x else false", "true", math.nan),
    ("1 / (1 / x)", "x", 1e-45),
    ("f32(bf16(x))", "x", 1.001),
)
