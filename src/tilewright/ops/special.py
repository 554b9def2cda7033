"""The page of special functions: pointwise functions that losses and distributions are made of.

The idea: as on the pointwise page, each row is the scalar expression itself; where a formula would
be 0 times infinity, a select says what holds there, in the value and so in the gradient.

This module does not know functions that need a series (lgamma, erfinv): those are torch's own.
"""

import math

from tilewright.base.dtypes import DType
from tilewright.base.syntax import show_number
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node
from tilewright.ops.operator import (
    Attrs,
    Operator,
    Sample,
    Tangents,
    Types,
    promoted,
    sample,
    write,
)

_ANY = "f[2, 3]"
_PAIR = ("f[7] = -2, 0, 2, inf, -inf, 3, 1", "f[7] = -1, 0, 2, inf, -inf, 4, 0.5")
_WITH_NAN = ("f[5] = nan, 1, nan, 2, -1", "f[5] = 1, nan, nan, 2, 3")


def _function(
    line: str, doc: str, *samples: Sample, dtype: str = "float", kink: str = "", eager: str = ""
) -> Operator:
    name = line.partition("(")[0]
    operands = line.partition("(")[2].partition(")")[0].partition(";")[0].split(",")
    call = ", ".join(f"{{{operand.strip()}}}" for operand in operands)
    return Operator(
        line, doc, dtype=dtype, kink=kink, eager=eager or f"torch.{name}({call})", samples=samples
    )


def _is_float(types: Types, attrs: Attrs) -> bool:
    numbers = tuple(attrs[name] for name in ("low", "high") if name in attrs)
    return promoted(types, numbers).kind == "float"


def _clamp_min(types: Types, attrs: Attrs) -> str:
    nan = "nan if isnan(x[...]) or isnan(low[...]) else " if _is_float(types, attrs) else ""
    return f"y[...] = {nan}low[...] if x[...] < low[...] else x[...]"


def _clamp_max(types: Types, attrs: Attrs) -> str:
    nan = "nan if isnan(x[...]) or isnan(high[...]) else " if _is_float(types, attrs) else ""
    return f"y[...] = {nan}high[...] if x[...] > high[...] else x[...]"


def _signbit(types: Types, _: Attrs) -> str:
    floating = types[0].dtype.kind == "float"
    return "y[...] = copysign(1.0, x[...]) < 0" if floating else "y[...] = x[...] < 0"


def _round_decimals(_: Types, attrs: Attrs) -> str:
    decimals = attrs["decimals"]
    assert isinstance(decimals, int), "digits are counted"
    power = show_number(10.0 ** abs(decimals))
    if decimals >= 0:
        return f"y[...] = round(x[...] * {power}) / {power}"
    return f"y[...] = round(x[...] / {power}) * {power}"


def _logit(_: Types, attrs: Attrs) -> str:
    eps = attrs["eps"]
    if eps is None:
        return "y[...] = log(x[...] / (1 - x[...]))"
    assert isinstance(eps, int | float), "a bound is a number"
    low, high = show_number(float(eps)), show_number(1 - float(eps))
    held = f"({low} if x[...] < {low} else {high} if x[...] > {high} else x[...])"
    return f"y[...] = log({held} / (1 - {held}))"


def _logit_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), eps = node.inputs, node.attr("eps")
    slope = "dy[...] / (x[...] * (1 - x[...]))"
    low, high, outside = 0.0, 1.0, "nan"
    if eps is not None:
        assert isinstance(eps, int | float), "a bound is a number"
        low, high, outside = float(eps), 1 - float(eps), "0"
    else:
        slope = f"dy[...] * inf if x[...] == 0 or x[...] == 1 else {slope}"
    body = f"y[...] = {outside} if x[...] < low or x[...] > high else {slope}"
    made = write(
        builder, body, dy=dy, x=x, low=low, high=high, dtype=x.type.dtype, origin=node.origin
    )
    return (made,)


def _nan_to_num(types: Types, attrs: Attrs) -> str:
    if types[0].dtype.kind != "float":
        return "y[...] = x[...]"
    words = []
    for name, condition in (("nan", "isnan(x[...])"), ("posinf", "x[...] == inf"),
                            ("neginf", "x[...] == -inf")):  # fmt: skip
        value = attrs[name]
        assert isinstance(value, int | float), f"{name} is replaced by a number"
        words.append(f"{show_number(float(value))} if {condition} else ")
    return f"y[...] = {''.join(words)}x[...]"


def _heaviside_dtype(types: Types, _: Attrs) -> DType:
    return types[0].dtype


_LOGADD = "a[...] if a[...] == b[...] and isinf(a[...]) else "
_DEGREE, _RADIAN = math.pi / 180, 180 / math.pi

PAGE = (
    _function("asinh(x)  y[...] = asinh(x[...])", "Inverse hyperbolic sine.",
              sample(_ANY), sample("f[6] = -inf, -1e30, -0.0, 0, 1e-9, inf")),
    _function("acosh(x)  y[...] = acosh(x[...])", "Inverse hyperbolic cosine, from 1 upwards.",
              sample("f[5] = 1, 1.5, 2, 1e30, inf"), sample("f[2] = 0.5, -3")),
    _function("atanh(x)  y[...] = atanh(x[...])", "Inverse hyperbolic tangent, inside (-1, 1).",
              sample("f[6] = -1, -0.5, -0.0, 0.25, 0.9, 1"), sample("f[2] = 1.5, -3")),
    _function("hypot(a, b)  y[...] = hypot(a[...], b[...])",
              "The length of the point (a, b), without overflow.",
              sample(_ANY, "f[3]"), sample("f[3] = 3, 0, 1e200", "f[3] = 4, 2, 1e200"),
              dtype="promote"),
    _function("copysign(a, b)  y[...] = copysign(a[...], b[...])",
              "The magnitude of a with the sign of b.",
              sample("f[5] = 1, -1, 0, 2, -3", "f[5] = -1, -0.0, -2, 0, 5"), sample(_ANY, -1.5),
              kink="the gradient at a = 0 is 0"),
    _function("xlogy(a, b)  y[...] = xlogy(a[...], b[...])",
              "a log(b), which is 0 where a is, but for NaN.",
              sample(_ANY, "f[3] > 0"), sample("f[4] = 0, 0, 2, 1", "f[4] = 2, 0.5, 3, 0.25"),
              kink="where a = 0 and b <= 0 the gradient of a is 0"),
    _function("xlog1py(a, b)  y[...] = xlog1py(a[...], b[...])",
              "a log(1 + b), which is 0 where a is, but for NaN.",
              sample(_ANY, "f[3] > 0"), sample("f[3] = 0, 0, 2", "f[3] = 1, -0.5, 3"),
              kink="where a = 0 and b <= -1 the gradient of a is 0",
              eager="torch.special.xlog1py({a}, {b})"),
    _function(f"logaddexp(a, b)  y[...] = {_LOGADD}max(a[...], b[...]) "
              "+ log1p(exp(-abs(a[...] - b[...])))",
              "log(exp(a) + exp(b)), without overflow.",
              sample(_ANY, "f[3]"), sample("f[3] = 1000, -1000, 2", "f[3] = 1001, -999, 2"),
              dtype="promote"),
    _function(f"logaddexp2(a, b)  y[...] = {_LOGADD}max(a[...], b[...]) "
              "+ log1p(exp2(-abs(a[...] - b[...]))) * 1.4426950408889634",
              "log2(2**a + 2**b), without overflow.",
              sample(_ANY, "f[3]"), sample("f[3] = 1000, -1000, 2", "f[3] = 1001, -999, 2"),
              dtype="promote"),
    _function("sinc(x)  y[...] = 1 if x[...] == 0 else "
              f"sin({math.pi!r} * x[...]) / ({math.pi!r} * x[...])",
              "sin(pi x) / (pi x), and 1 at 0.", sample(_ANY), sample("f[3] = 0, -0.0, 0.25"),
              kink="the gradient at 0 is 0"),
    _function(f"deg2rad(x)  y[...] = x[...] * {_DEGREE!r}", "Degrees to radians.", sample(_ANY)),
    _function(f"rad2deg(x)  y[...] = x[...] * {_RADIAN!r}", "Radians to degrees.", sample(_ANY)),
    _function("frac(x)  y[...] = x[...] - trunc(x[...])", "What truncation takes away.",
              sample("f[5] = -1.5, -0.25, 0, 0.75, 2.5"), dtype="promote"),
    Operator(
        "round_decimals(x; decimals)  y[...] = round(x[...] * 10**decimals) / 10**decimals",
        "Round to decimal digits, halves to even.",
        declare=_round_decimals,
        kink="the gradient is 0",
        eager="torch.round({x}, decimals={decimals})",
        samples=(sample("c[4] = -1.256, 0.125, 3.14159, 2.5", decimals=2),
                 sample("c[3] = 149, -251, 250", decimals=-2)),
    ),
    _function("fmax(a, b)  y[...] = a[...] if a[...] >= b[...] or isnan(b[...]) else b[...]",
              "The larger one; a number wins over NaN.",
              sample(*_PAIR), sample(*_WITH_NAN), dtype="promote",
              kink="a tie gives all of the gradient to a"),
    _function("fmin(a, b)  y[...] = a[...] if a[...] <= b[...] or isnan(b[...]) else b[...]",
              "The smaller one; a number wins over NaN.",
              sample(*_PAIR), sample(*_WITH_NAN), dtype="promote",
              kink="a tie gives all of the gradient to a"),
    Operator(
        "clamp_min(x, low)  y[...] = nan if isnan(x[...]) or isnan(low[...]) else "
        "low[...] if x[...] < low[...] else x[...]",
        "At least a tensor's element; NaN wins.",
        declare=_clamp_min,
        kink="on the bound the gradient goes to x",
        eager="torch.clamp_min({x}, {low})",
        samples=(sample(*_PAIR), sample(*_WITH_NAN), sample("i[4] < 9", "i[4] < 9")),
    ),
    Operator(
        "clamp_max(x, high)  y[...] = nan if isnan(x[...]) or isnan(high[...]) else "
        "high[...] if x[...] > high[...] else x[...]",
        "At most a tensor's element; NaN wins.",
        declare=_clamp_max,
        kink="on the bound the gradient goes to x",
        eager="torch.clamp_max({x}, {high})",
        samples=(sample(*_PAIR), sample(*_WITH_NAN), sample("i[4] < 9", "i[4] < 9")),
    ),
    Operator(
        "heaviside(x, edge)  y[...] = edge[...] if x[...] == 0 else 1 if x[...] > 0 else 0",
        "The step from 0 to 1; what holds at 0 is told.",
        dtype=_heaviside_dtype,
        eager="torch.heaviside({x}, {edge})",
        samples=(sample("c[4] = -1, 0, 2, nan", "c[4] = 0.5, 0.5, 0.5, 0.5"),),
    ),
    Operator(
        "logit(x; eps=None)  y[...] = log(x[...] / (1 - x[...]))",
        "The inverse of the sigmoid; x first limited to [eps, 1 - eps], if asked.",
        declare=_logit,
        dtype="float",
        vjp=_logit_vjp,
        vjp_reason="at 1 the derived form is 0 times infinity; outside [0, 1] it is NaN, as in "
        "torch",
        kink="on the bounds eps and 1 - eps the gradient passes",
        eager="torch.logit({x}, {eps})",
        samples=(sample("f[5] = 0.25, 0.5, 0.9, 0, 1"), sample("f[5] = 0.25, 0.5, 1, 0.05, 0.1",
                 eps=0.1)),
    ),
    Operator(
        "nan_to_num(x; nan=0.0, posinf=0.0, neginf=0.0)  y[...] = nan if isnan(x[...]) else "
        "posinf if x[...] == inf else neginf if x[...] == -inf else x[...]",
        "Numbers in the place of NaN and infinities.",
        declare=_nan_to_num,
        kink="what is replaced has the gradient 0",
        eager="torch.nan_to_num({x}, {nan}, {posinf}, {neginf})",
        samples=(sample("f[5] = nan, inf, -inf, 1, -2", nan=0.5, posinf=9.0, neginf=-9.0),
                 sample("i[4] < 9")),
    ),
    Operator(
        "signbit(x)  y[...] = copysign(1.0, x[...]) < 0",
        "Whether the sign is minus, that of -0.0 and NaN too.",
        declare=_signbit,
        dtype="bool",
        eager="torch.signbit({x})",
        samples=(sample("c[5] = -1, -0.0, 0, 2, -inf"), sample("i[4] < 9")),
    ),
)  # fmt: skip
