"""The pointwise page: one element of the result from one element of each operand.

The idea: each row is the scalar expression itself, broadcast over `...`; what happens at a kink is
visible in it (`0 if x <= 0 else x` has the gradient 0 at 0, and keeps NaN).

This module does not know activations (`activations`) or reductions (`reduce`).
"""

from tilewright.base.dtypes import BOOL, DType
from tilewright.ops.operator import (
    Attrs,
    Operator,
    Sample,
    Types,
    dtype_attribute,
    promoted,
    sample,
)

_ANY = "f[2, 3]"
_KINKS = "f[7] = -inf, -2, -0.5, 0, 0.5, 2, inf"
_TIES = ("f[6] = -1, 0, 2, inf, -inf, 3", "f[6] = -1, 0, 1, inf, 2, 4")


def _unary(
    name: str,
    value: str,
    doc: str,
    *samples: Sample,
    dtype: str = "promote",
    eager: str = "",
    kink: str = "",
) -> Operator:
    return Operator(
        f"{name}(x)  y[...] = {value}",
        doc,
        dtype=dtype,
        kink=kink,
        eager=eager or f"torch.{name}({{x}})",
        samples=samples or (sample(_ANY),),
    )


def _binary(
    name: str,
    value: str,
    doc: str,
    *samples: Sample,
    dtype: str = "promote",
    eager: str = "",
    kink: str = "",
) -> Operator:
    return Operator(
        f"{name}(a, b)  y[...] = {value}",
        doc,
        dtype=dtype,
        kink=kink,
        eager=eager or f"torch.{name}({{a}}, {{b}})",
        samples=samples or (sample(_ANY, "f[3]"), sample("f[2, 1]", "f[1, 3]"), sample(_ANY, 2.5)),
    )


def _compare(name: str, symbol: str) -> Operator:
    return _binary(
        name,
        f"a[...] {symbol} b[...]",
        f"Say whether a {symbol} b; false for NaN except by `!=`.",
        sample(*_TIES),
        sample(_ANY, 0.0),
        sample("i[4] < 3", "i[4] < 3"),
        dtype="bool",
    )


def _logic(name: str, value: str, doc: str) -> Operator:
    return _binary(
        name, value, doc, sample("b[8]", "b[8]"), sample("b[2, 3]", "b[3]"), dtype="bool"
    )


# ------------------------------------------------------------------------- rows that ask attributes


def _add(_: Types, attrs: Attrs) -> str:
    return "y[...] = a[...] + b[...]" if attrs["alpha"] == 1 else "y[...] = a[...] + alpha * b[...]"


def _sub(_: Types, attrs: Attrs) -> str:
    return "y[...] = a[...] - b[...]" if attrs["alpha"] == 1 else "y[...] = a[...] - alpha * b[...]"


def _pow(_: Types, attrs: Attrs) -> str:
    """Small exponents are products, as in torch: they keep NaN and infinities as it does."""
    exponent = attrs.get("b")
    whole = {1: "a[...]", 2: "a[...] * a[...]", 3: "a[...] * a[...] * a[...]", 0.5: "sqrt(a[...])"}
    if isinstance(exponent, int | float) and not isinstance(exponent, bool) and exponent in whole:
        return f"y[...] = {whole[exponent]}"
    return "y[...] = pow(a[...], b[...])"


def _clamp(types: Types, attrs: Attrs) -> str:
    low, high = attrs["min"], attrs["max"]
    assert low is not None or high is not None, "clamp needs a bound"
    floating = _clamp_dtype(types, attrs).kind == "float"
    inside, outside = [], []
    if high is not None:
        inside.append("x[...] <= max")
        outside.append("max if x[...] > max else ")
    if low is not None:
        inside.append("x[...] >= min")
        # Bounds that cross: torch gives the upper one everywhere.
        crossed = isinstance(low, int | float) and isinstance(high, int | float) and low > high
        outside.append(f"{'max' if crossed else 'min'} if x[...] < min else ")
    if not floating:
        return f"y[...] = {''.join(outside)}x[...]"
    if low != low or high != high:  # a bound that is NaN, which nothing is inside of
        outside = []
    return f"y[...] = x[...] if {' and '.join(inside)} else {''.join(outside)}nan"


def _clamp_dtype(types: Types, attrs: Attrs) -> DType:
    return promoted(types, tuple(v for k in ("min", "max") if (v := attrs[k]) is not None))


def _clamp_tensor(types: Types, _: Attrs) -> str:
    if promoted(types, ()).kind != "float":
        return (
            "y[...] = high[...] if x[...] > high[...] or low[...] > high[...] "
            "else low[...] if x[...] < low[...] else x[...]"
        )
    return (
        "y[...] = x[...] if x[...] <= high[...] and x[...] >= low[...] else nan "
        "if isnan(x[...]) or isnan(low[...]) or isnan(high[...]) else high[...] "
        "if x[...] > high[...] or low[...] > high[...] else low[...]"
    )


def _cast(_: Types, attrs: Attrs) -> str:
    return f"y[...] = {attrs['dtype']}(x[...])"


def _where_dtype(types: Types, attrs: Attrs) -> DType:
    numbers = tuple(attrs[name] for name in ("a", "b") if name in attrs)
    return promoted(types[1:], numbers)


def _mask_dtype(types: Types, _: Attrs) -> DType:
    return types[0].dtype


def _bits_dtype(types: Types, attrs: Attrs) -> DType:
    numbers = tuple(attrs[name] for name in ("a", "b") if name in attrs)
    return promoted(types, numbers)


def _bits(name: str, fn: str) -> Operator:
    """Logic on booleans, bit by bit on integers."""
    truth = {"bitand": "and", "bitor": "or"}

    def body(types: Types, attrs: Attrs) -> str:
        if _bits_dtype(types, attrs) != BOOL:
            return f"y[...] = {fn}(a[...], b[...])"
        if fn == "bitxor":
            return "y[...] = bool(a[...]) != bool(b[...])"
        return f"y[...] = a[...] {truth[fn]} b[...]"

    return Operator(
        f"{name}(a, b)  y[...] = {fn}(a[...], b[...])",
        "Combine bit by bit; booleans as truth values.",
        declare=body,
        eager=f"torch.{name}({{a}}, {{b}})",
        samples=(sample("b[8]", "b[8]"), sample("i[9] < 8", "i[9] < 8"), sample("i[9] < 8", 5)),
    )


ARITHMETIC = (
    Operator(
        "add(a, b; alpha=1)  y[...] = a[...] + alpha * b[...]",
        "Add, the second operand times alpha.",
        declare=_add,
        eager="torch.add({a}, {b}, alpha={alpha})",
        samples=(
            sample(_ANY, "f[3]"),
            sample("f[2, 1]", "f[1, 3]"),
            sample(_ANY, 2.5),
            sample(_ANY, _ANY, alpha=0.5),
            sample("i[4] < 9", 3),
        ),
    ),
    Operator(
        "sub(a, b; alpha=1)  y[...] = a[...] - alpha * b[...]",
        "Subtract the second operand times alpha.",
        declare=_sub,
        eager="torch.sub({a}, {b}, alpha={alpha})",
        samples=(sample(_ANY, "f[3]"), sample(_ANY, 2.5), sample(_ANY, _ANY, alpha=2)),
    ),
    Operator(
        "rsub(a, b)  y[...] = b[...] - a[...]",
        "Subtract the first operand from the second.",
        eager="torch.rsub({a}, {b})",
        samples=(sample(_ANY, "f[3]"), sample(_ANY, 1.0)),
    ),
    _binary("mul", "a[...] * b[...]", "Multiply."),
    _binary(
        "div",
        "a[...] / b[...]",
        "Divide; integers give float32.",
        sample(_ANY, "f[3] > 0"),
        sample(_ANY, 2.0),
        sample("f[4] = 0, 1, -1, inf", "f[4] = 0, 0, 0, inf"),
        dtype="float",
    ),
    _binary(
        "floor_divide",
        "floordiv(a[...], b[...])",
        "Divide and round down.",
        sample("c[6] = -7, 7, -7, 7, 5, 6", "c[6] = 2, 2, -2, -2, 5, 4"),
        sample("i[5] < 20", 3),
        kink="the gradient is 0 everywhere",
    ),
    _binary(
        "remainder",
        "a[...] % b[...]",
        "The rest of the floor division; it has the divisor's sign.",
        sample("f[6] = -7, 7, -7, 7, 5, 6", "f[6] = 2.5, 2.5, -2, -2, 5, 4"),
        sample("f[5]", 0.75),
        sample("i[5] < 20", 3),
    ),
    _binary(
        "fmod",
        "fmod(a[...], b[...])",
        "The rest of the division rounded towards 0; it has the dividend's sign.",
        sample("f[6] = -7, 7, -7, 7, 5, 6", "f[6] = 2.5, 2.5, -2, -2, 5, 4"),
        sample("f[5]", 0.75),
    ),
    Operator(
        "pow(a, b)  y[...] = pow(a[...], b[...])",
        "Raise to a power.",
        declare=_pow,
        kink="at 0 ** 0 the gradient is 0 for both; that of b is 0 where a = 0 and b >= 0",
        eager="torch.pow({a}, {b})",
        samples=(
            sample("f[2, 3] > 0", _ANY),
            sample("f[5] = 0, 0, 0, 2, 1", "f[5] = 0, 1, 2, 0, 3"),
            *(sample(_ANY, exponent) for exponent in (0.0, 1.0, 2.0, 3.0, 4.0)),
            *(sample("f[3] = 0, 1, 4", exponent) for exponent in (0.5, 1.5, 2)),
            *(sample("f[4] > 0", exponent) for exponent in (-0.5, -1.0, -2.0)),
            sample(2.0, _ANY),
            sample(_ANY, 2),
        ),
    ),
    _unary("neg", "-x[...]", "Negate.", sample(_ANY), sample(_KINKS)),
    _unary("abs", "abs(x[...])", "The magnitude.", sample(_KINKS), kink="the gradient at 0 is 0"),
    _unary(
        "sign",
        "sign(x[...])",
        "-1, 0 or 1.",
        sample(_KINKS),
        sample("b[3]"),
        kink="the gradient is 0",
    ),
    _unary("reciprocal", "1 / x[...]", "One over it.", sample("f[2, 3] > 0"), dtype="float"),
    _binary(
        "maximum",
        "max(a[...], b[...])",
        "The larger one; NaN wins.",
        sample(*_TIES),
        sample(_ANY, "f[3]"),
        kink="a tie gives each operand half of the gradient",
    ),
    _binary(
        "minimum",
        "min(a[...], b[...])",
        "The smaller one; NaN wins.",
        sample(*_TIES),
        sample(_ANY, "f[3]"),
        kink="a tie gives each operand half of the gradient",
    ),
    Operator(
        "clamp(x; min=None, max=None)  y[...] = x[...] if x[...] <= max and x[...] >= min else "
        "max if x[...] > max else min if x[...] < min else nan",
        "Limit to the range between two numbers; NaN wins.",
        declare=_clamp,
        dtype=_clamp_dtype,
        kink="on a bound the gradient is 1, at NaN it is 0",
        eager="torch.clamp({x}, {min}, {max})",
        samples=(
            sample("f[6] = -2, -1, 0, 1, 2, inf", min=-1.0, max=1.0),
            sample("f[6] = -2, -1, 0, 1, 2, inf", min=0.0),
            sample("f[6] = -2, -1, 0, 1, 2, inf", max=1.0),
            sample("f[4] = -3, 0, 0.5, 3", min=1.0, max=-1.0),
            sample("f[4] = -3, nan, 0.5, 3", min=-1.0, max=1.0),
            sample("i[5] < 9", min=2, max=5),
        ),
    ),
    Operator(
        "clamp_tensor(x, low, high)  "
        "y[...] = x[...] if x[...] <= high[...] and x[...] >= low[...] else nan "
        "if isnan(x[...]) or isnan(low[...]) or isnan(high[...]) else high[...] "
        "if x[...] > high[...] or low[...] > high[...] else low[...]",
        "Limit to the range between two tensors; NaN wins.",
        declare=_clamp_tensor,
        kink="on a bound the gradient goes to x, at NaN it is 0",
        eager="torch.clamp({x}, {low}, {high})",
        samples=(
            sample("f[5] = -2, -1, 0, 1, 2", "f[5] = -1, -1, -1, 2, 1", "f[5] = 1, 1, 1, 0, 1"),
            sample("i[4] < 9", "i[4] < 5", "i[4] < 9"),
        ),
    ),
    Operator(
        "lerp(a, b, weight)  y[...] = a[...] + weight[...] * (b[...] - a[...]) "
        "if abs(weight[...]) < 0.5 else b[...] - (b[...] - a[...]) * (1 - weight[...])",
        "Go from a to b by weight.",
        kink="computed from the nearer end, as in torch",
        eager="torch.lerp({a}, {b}, {weight})",
        samples=(sample(_ANY, _ANY, 0.25), sample(_ANY, _ANY, 0.75), sample(_ANY, _ANY, _ANY)),
    ),
    Operator(
        "addcmul(x, a, b; value=1)  y[...] = x[...] + value * a[...] * b[...]",
        "Add value times a product.",
        eager="torch.addcmul({x}, {a}, {b}, value={value})",
        samples=(sample(_ANY, "f[3]", "f[2, 1]", value=0.5), sample(_ANY, _ANY, _ANY)),
    ),
    Operator(
        "addcdiv(x, a, b; value=1)  y[...] = x[...] + value * (a[...] / b[...])",
        "Add value times a quotient.",
        eager="torch.addcdiv({x}, {a}, {b}, value={value})",
        samples=(sample(_ANY, "f[3]", "f[2, 1] > 0", value=0.5),),
    ),
)

ELEMENTARY = (
    *(
        _unary(name, f"{name}(x[...])", doc, *samples, dtype="float")
        for name, doc, samples in (
            ("exp", "e to the power.", (sample(_ANY), sample(_KINKS))),
            ("exp2", "2 to the power.", ()),
            ("expm1", "exp(x) - 1, exact near 0.", (sample(_ANY), sample(_KINKS))),
            ("log", "The natural logarithm.", (sample("f[2, 3] > 0"), sample("f[2] = 0, inf"))),
            ("log2", "The logarithm to base 2.", (sample("f[2, 3] > 0"),)),
            ("log10", "The logarithm to base 10.", (sample("f[2, 3] > 0"),)),
            ("log1p", "log(1 + x), exact near 0.", (sample("f[2, 3] > 0"),)),
            ("sqrt", "The square root.", (sample("f[2, 3] > 0"), sample("f[2] = 0, 4"))),
            ("rsqrt", "One over the square root.", (sample("f[2, 3] > 0"),)),
            ("sin", "Sine.", ()),
            ("cos", "Cosine.", ()),
            ("tan", "Tangent.", ()),
            ("asin", "Arc sine.", (sample("f[4] = -0.9, -0.1, 0, 0.5"),)),
            ("acos", "Arc cosine.", (sample("f[4] = -0.9, -0.1, 0, 0.5"),)),
            ("atan", "Arc tangent.", ()),
            ("sinh", "Hyperbolic sine.", ()),
            ("cosh", "Hyperbolic cosine.", ()),
            ("tanh", "Hyperbolic tangent.", (sample(_ANY), sample(_KINKS))),
            ("sigmoid", "1 / (1 + exp(-x)).", (sample(_ANY), sample(_KINKS))),
            ("erf", "The error function.", (sample(_ANY), sample(_KINKS))),
            ("erfc", "1 - erf(x), exact for large x.", ()),
        )
    ),
    *(
        _unary(name, f"{name}(x[...])", doc, sample("f[6] = -1.5, -0.5, 0, 0.5, 1.5, 2.5"))
        for name, doc in (
            ("floor", "Round down."),
            ("ceil", "Round up."),
            ("trunc", "Round towards 0."),
            ("round", "Round to the nearest, halves to even."),
        )
    ),
    _binary(
        "atan2", "atan2(a[...], b[...])", "The angle of the point (b, a).", sample(_ANY, _ANY),
        dtype="float",
    ),
)  # fmt: skip

LOGIC = (
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _logic("logical_and", "a[...] and b[...]", "Whether both count as true."),
    _logic("logical_or", "a[...] or b[...]", "Whether one counts as true."),
    _logic("logical_xor", "bool(a[...]) != bool(b[...])", "Whether just one counts as true."),
    _unary("logical_not", "not x[...]", "Whether it is false.", sample("b[6]"), dtype="bool"),
    _bits("bitwise_and", "bitand"),
    _bits("bitwise_or", "bitor"),
    _bits("bitwise_xor", "bitxor"),
    Operator(
        "bitwise_not(x)  y[...] = bitnot(x[...])",
        "Invert every bit; booleans as truth values.",
        declare=lambda types, _: (
            "y[...] = not x[...]" if types[0].dtype == BOOL else "y[...] = bitnot(x[...])"
        ),
        eager="torch.bitwise_not({x})",
        samples=(sample("b[6]"), sample("i[6] < 9")),
    ),
    _unary("isnan", "isnan(x[...])", "Whether it is NaN.", sample("f[3] = nan, 1, inf"),
           dtype="bool"),
    _unary("isinf", "isinf(x[...])", "Whether it is infinite.", sample("f[4] = nan, 1, inf, -inf"),
           dtype="bool"),
    _unary("isfinite", "not (isnan(x[...]) or isinf(x[...]))", "Whether it is a finite number.",
           sample("f[4] = nan, 1, inf, -inf"), dtype="bool"),
    Operator(
        "where(cond, a, b)  y[...] = a[...] if cond[...] else b[...]",
        "Choose by a condition.",
        dtype=_where_dtype,
        kink="the operand not chosen gets the gradient 0, whatever it holds",
        eager="torch.where({cond}, {a}, {b})",
        samples=(
            sample("b[2, 3]", _ANY, "f[3]"),
            sample("b[2, 1]", _ANY, 0.0),
            sample("b[4]", "f[4] = nan, inf, 1, 2", "f[4] = 1, nan, inf, 2"),
            sample("b[3]", 1.0, 2.0),
        ),
    ),
    Operator(
        "masked_fill(x, mask, value)  y[...] = value[...] if mask[...] else x[...]",
        "Put a number where the mask holds.",
        dtype=_mask_dtype,
        eager="{x}.masked_fill({mask}, {value})",
        samples=(
            sample(_ANY, "b[2, 3]", -1.5),
            sample(_ANY, "b[3]", float("-inf")),
            sample(_ANY, "b[3]", "f[] = 2"),
        ),
    ),
)  # fmt: skip

CONVERSIONS = (
    Operator(
        "cast(x; dtype)  y[...] = dtype(x[...])",
        "Convert to another element type.",
        declare=_cast,
        dtype=dtype_attribute,
        eager="{x}.to({dtype})",
        samples=(
            sample(_ANY, dtype="f32"),
            sample(_ANY, dtype="bf16"),
            sample("f[5] = -1.5, -0.5, 0, 0.5, 2.5", dtype="i64"),
            sample("f[3] = 0, 0.25, -1", dtype="bool"),
            sample("b[4]", dtype="f64"),
        ),
    ),
    _unary("clone", "x[...]", "The same values.", eager="torch.clone({x})"),
    Operator(
        "stop_gradient(x)  y[...] = x[...]",
        "The same values, through which no gradient goes.",
        vjp=lambda builder, node, tangents: (None,),  # noqa: ARG005
        vjp_reason="this is what the operator is for",
        eager="{x}.detach()",
        samples=(sample(_ANY),),
    ),
)

PAGE = (*ARITHMETIC, *ELEMENTARY, *LOGIC, *CONVERSIONS)
