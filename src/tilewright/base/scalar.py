"""The scalar functions that an operator's value may use, each declared once.

The idea: a row holds a function's arity, its derivative with respect to each argument (written in
the expression notation, with arguments `a`, `b`, `c` and the result `r`), what kind of value it
gives, and its price.  Reverse mode, forward mode, cost and the conformance sweep read this table.
Kinks are part of the row: the derivative text says what happens at them.

This module does not know how NumPy (`graph.evaluate`) or C (`kernels`) computes a function.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """One scalar function.

    derivative: one expression text per argument; "" where the derivative is zero by definition
    (comparisons, rounding).  result: "same" (promoted type of the arguments), "float" (promoted to
    a floating type), "bool", "int", or a dtype's name.  flops: operations counted for one call.
    change: the result's change where all arguments change (by `da`, `db`), if it is not the sum of
    the arguments' parts: an infinity less an infinity is no number.
    """

    name: str
    arity: int
    derivative: tuple[str, ...]
    result: str = "same"
    flops: int = 1
    change: str = ""


def _row(
    name: str, *derivative: str, result: str = "same", flops: int = 1, change: str = ""
) -> Function:
    return Function(name, len(derivative), derivative, result, flops, change)


FUNCTIONS = (
    # Arithmetic.  `div` is true division; `floordiv` and `mod` follow Python's signs.
    _row("add", "1", "1"),
    _row("sub", "1", "-1"),
    _row("mul", "b", "a"),
    _row("div", "1 / b", "-r / b", result="float", change="(da - db * r) / b"),
    _row("fma", "b", "a", "1", result="float", flops=2),  # a * b + c, rounded once
    _row("floordiv", "", ""),
    _row("mod", "1", "-floor(a / b)"),
    _row("fmod", "1", "-trunc(a / b)"),
    _row("exactdiv", "", "", flops=0),  # in an index only: absent unless divisible
    _row("neg", "-1"),
    _row("abs", "sign(a)"),
    _row("sign", ""),
    _row("reciprocal", "-r * r", result="float"),
    # a ** b: torch's gradients at 0 (b = 0 gives 0; the one of b is 0 where a = 0 and b >= 0).
    _row(
        "pow",
        "0 if b == 0 else b * pow(a, b - 1)",
        "0 if a == 0 and b >= 0 else r * log(a)",
        flops=10,
    ),
    # maximum and minimum halve the gradient at a tie; NaN in either argument wins, and gives both
    # all of it, as in torch.
    _row("max", "0 if a < b else 0.5 if a == b else 1", "0 if b < a else 0.5 if a == b else 1"),
    _row("min", "0 if a > b else 0.5 if a == b else 1", "0 if b > a else 0.5 if a == b else 1"),
    # Comparisons and logic.
    _row("lt", "", "", result="bool"),
    _row("le", "", "", result="bool"),
    _row("gt", "", "", result="bool"),
    _row("ge", "", "", result="bool"),
    _row("eq", "", "", result="bool"),
    _row("ne", "", "", result="bool"),
    _row("and", "", "", result="bool"),
    _row("or", "", "", result="bool"),
    _row("not", "", result="bool"),
    _row("bitand", "", ""),
    _row("bitor", "", ""),
    _row("bitxor", "", ""),
    _row("bitnot", ""),
    _row("isnan", "", result="bool"),
    _row("isinf", "", result="bool"),
    # select(c, a, b) is written `a if c else b`; the branch not taken guards its reads.
    _row("select", "", "1 if a else 0", "0 if a else 1"),
    # Exponentials and powers.
    _row("exp", "r", result="float", flops=8),
    _row("exp2", "r * 0.6931471805599453", result="float", flops=8),
    # Not r + 1, which keeps no digit of a small exp(a).
    _row("expm1", "exp(a)", result="float", flops=10),
    _row("log", "1 / a", result="float", flops=10),
    _row("log2", "1 / (a * 0.6931471805599453)", result="float", flops=10),
    _row("log10", "1 / (a * 2.302585092994046)", result="float", flops=10),
    _row("log1p", "1 / (a + 1)", result="float", flops=10),
    _row("sqrt", "1 / (2 * r)", result="float", flops=4),
    _row("rsqrt", "-0.5 * r * r * r", result="float", flops=4),
    # Trigonometric, hyperbolic, special.
    _row("sin", "cos(a)", result="float", flops=12),
    _row("cos", "-sin(a)", result="float", flops=12),
    _row("tan", "1 + r * r", result="float", flops=16),
    _row("asin", "rsqrt(1 - a * a)", result="float", flops=16),
    _row("acos", "-rsqrt(1 - a * a)", result="float", flops=16),
    _row("atan", "1 / (1 + a * a)", result="float", flops=16),
    _row("atan2", "b / (a * a + b * b)", "-a / (a * a + b * b)", result="float", flops=20),
    _row("sinh", "cosh(a)", result="float", flops=16),
    _row("cosh", "sinh(a)", result="float", flops=16),
    _row("tanh", "1 - r * r", result="float", flops=10),
    _row("asinh", "rsqrt(a * a + 1)", result="float", flops=16),
    _row("acosh", "rsqrt(a * a - 1)", result="float", flops=16),
    _row("atanh", "1 / (1 - a * a)", result="float", flops=16),
    _row("hypot", "a / r", "b / r", result="float", flops=6),
    _row("sigmoid", "r * (1 - r)", result="float", flops=10),
    _row("erf", "1.1283791670955126 * exp(-(a * a))", result="float", flops=14),
    _row("erfc", "-1.1283791670955126 * exp(-(a * a))", result="float", flops=14),
    # The share of a normal distribution below a: 0.5 (1 + erf(a / sqrt 2)), as exact as that is.
    _row("normal_cdf", "0.3989422804014327 * exp(-0.5 * (a * a))", result="float", flops=14),
    # a log(b) and a log(1 + b): 0 where a is, but for NaN; torch's gradients there.
    _row("xlogy", "0 if a == 0 and b <= 0 else log(b)", "a / b", result="float", flops=11),
    _row(
        "xlog1py", "0 if a == 0 and b <= -1 else log1p(b)", "a / (b + 1)", result="float", flops=11
    ),
    _row("copysign", "0 if a == 0 else r / a", "", result="float"),
    # Rounding (derivative zero everywhere, as torch has it).
    _row("floor", ""),
    _row("ceil", ""),
    _row("trunc", ""),
    _row("round", ""),  # half to even
    # Conversions: round to the type; the derivative passes between floating types.
    *(_row(name, "1", result=name, flops=0) for name in ("f64", "f32", "bf16", "f16")),
    *(_row(name, "", result=name, flops=0) for name in ("i64", "i32", "i16", "i8", "u8", "bool")),
    # uniform(seed, i): Philox4x32-10 keyed by seed, counter i; its first word, in [0, 1).
    _row("uniform", "", "", result="f32", flops=40),
)
BY_NAME = {function.name: function for function in FUNCTIONS}
