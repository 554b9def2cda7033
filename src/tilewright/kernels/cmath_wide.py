"""Functions of many lanes as C text, where vectors have 64 or 32 bytes.

The idea: a chain of twenty operations makes a processor wait, so that each is named for four
vectors before the next.  What comes out has the bits of the function of one lane.

- The exponential: k is added to the exponent, where no lane of the four vectors is far from 0;
  where one is, all four go the way of `exp_f32`.
- The error function: both of its polynomials.
- Logarithms of normal numbers.

This module does not know who calls it, nor where the first two go by a table (`cmath_tables`).
"""

from tilewright.kernels.cmath_snippet import Snippet
from tilewright.kernels.cmath_vectors import (
    MOST,
    UNSIGNED,
    each,
    floats,
    fused,
    guarded,
    lanes,
    operation,
    polynomial,
)

FAR = 87  # |x| up to which e^x and all that it is made of are normal numbers
# Of e^r = 1 + r + r^2 q for |r| <= ln 2 / 2: the terms of q, that of the highest power first.
TERMS = (
    "1.98581e-4f",
    "1.39344967e-3f",
    "8.33336183e-3f",
    "4.16664574e-2f",
    "1.66666665e-1f",
    "0.5f",
)
# The same of e^r alone, of which nothing is taken away: 3.1e-9 of it is left, a twentieth of what a
# float32 is rounded by.
EXP_TERMS = (
    "1.3821425e-3f",
    "8.368673e-3f",
    "4.166826e-2f",
    "1.6666521e-1f",
    "4.9999994e-1f",
)


# Of ln(1 + f) = f - f^2/2 + f^3 q for 1 + f in [sqrt(1/2), sqrt 2); the bits of sqrt(1/2); and |x|
# under which ln(1 + x) is x.
LOG_TERMS = (
    "7.03758597e-2f",
    "-1.15145597e-1f",
    "1.16770117e-1f",
    "-1.24201490e-1f",
    "1.42493223e-1f",
    "-1.66680573e-1f",
    "2.00007148e-1f",
    "-2.49999940e-1f",
    "3.33333312e-1f",
)
# By base: 1 / ln base in two parts, and ln 2 / ln base in two, of which the first has 15 bits.
BASES = {
    "2": ("1.44269502f", "1.92596303e-8f", "1.0f", ""),
    "10": ("0.434294492f", "-1.010305e-8f", "0.301025391f", "4.60503907e-6f"),
}
ROOT_BITS = "0x3f3504f3"
NOTHING = "5.9604645e-8f"


# Of erf(x) = x + x q, as a polynomial of x^2, up to ERF_NEAR; beyond, of the root of erfc(x), as
# one of x - ERF_MIDDLE up to ERF_MIDDLE + ERF_LAST, from where on erf rounds to 1.
ERF_TERMS = (
    "-6.47725014e-4f",
    "5.0780214e-3f",
    "-2.68182959e-2f",
    "1.1283098e-1f",
    "-3.76126051e-1f",
    "1.2837917e-1f",
)
ROOT_TERMS = (
    "6.398341e-6f",
    "-1.01114608e-4f",
    "6.31255505e-4f",
    "-1.73746305e-3f",
    "5.60674060e-4f",
    "7.3265545e-3f",
    "-5.1534995e-3f",
    "-4.615898e-2f",
    "7.221382e-2f",
    "1.6561648e-1f",
    "-5.448228e-1f",
    "4.299972e-1f",
)
ERF_NEAR, ERF_MIDDLE, ERF_LAST = "0.8203125f", "0.9375f", "3.03125f"
# Of the root of erfc(a / sqrt 2), which is 1 at 0, as a polynomial of a up to where half of its
# square is less than what is rounded of 1.
NORMAL_TERMS = (
    "3.46479041e-8f",
    "-1.05528841e-6f",
    "1.32378618e-5f",
    "-8.45865143e-5f",
    "2.59136636e-4f",
    "-1.62772849e-4f",
    "-4.69042308e-4f",
    "-3.30417673e-3f",
    "1.08710555e-2f",
    "3.46952155e-2f",
    "-7.9571344e-2f",
    "-3.989425e-1f",
    "1.0f",
)
NORMAL_END = "5.6f"


def _power(of: str, rounding: str, *noted: str) -> tuple[str, ...]:
    """Return the steps to q = e^r and n = k; what is noted is so while n is k and the rounding."""
    return (
        fused("n[k]", of, "zero + 1.44269504f", f"zero + {rounding}"),
        *noted,
        f"n[k] -= {rounding};",
        fused("r[k]", "n[k]", "zero - 0.693145752f", of),
        fused("r[k]", "n[k]", "zero - 1.42860677e-6f", "r[k]"),
        *polynomial("q[k]", "r[k]", (*EXP_TERMS, "1.0f", "1.0f")),
    )


_BITS = "b[k] = (U)n[k];"
# Of a number and a NaN, the least and the greatest are the second operand.
_BOUNDED = (
    operation("vminps", "a[k]", "zero + 89.0f", "x[k]"),
    operation("vmaxps", "a[k]", "zero - 104.0f", "a[k]"),
)
_BY_HALVES = (
    *_BOUNDED,
    *_power("a[k]", "12583166.0f", _BITS),
    # 0 before it is scaled where nothing is left: results that round there are slow on Intel's.
    "q[k] = (V)((U)q[k] & ~(U)(x[k] < zero - 104.0f));",
    "h[k] = b[k] >> 1;",
    "q[k] *= (V)(h[k] << 23);",
    "x[k] = q[k] * (V)((b[k] - h[k]) << 23);",
)
# As integers, numbers without their sign are ordered as they are, and NaN is above all.
_FARTHEST = (operation("vpmaxsd", "far", "far", "(U)x[k] & 0x7fffffff"),)
_NEAR = (*_power("x[k]", "12582912.0f", _BITS), "x[k] = (V)((U)q[k] + (b[k] << 23));")
_ERF = (
    "a[k] = (V)((U)x[k] & 0x7fffffff);",
    "s[k] = a[k] * a[k];",
    *polynomial("q[k]", "s[k]", ERF_TERMS),
    fused("q[k]", "a[k]", "q[k]", "a[k]"),
    f"t[k] = a[k] - {ERF_MIDDLE};",
    operation("vminps", "t[k]", f"zero + {ERF_LAST}", "t[k]"),
    *polynomial("p[k]", "t[k]", ROOT_TERMS),
    fused("p[k]", "p[k]", "p[k]", "zero + 1.0f", "vfnmadd213ps"),
    f"m[k] = (U)(a[k] > zero + {ERF_NEAR});",
    "x[k] = (V)((m[k] & (U)p[k]) | (~m[k] & (U)q[k]) | ((U)x[k] & 0x80000000));",
)
# 1 less the half of a square, or the half itself: the sign of x says whether 1 and which factor.
_NORMAL = (
    "a[k] = (V)((U)x[k] & 0x7fffffff);",
    *polynomial("p[k]", "a[k]", NORMAL_TERMS),
    "p[k] *= p[k];",
    f"m[k] = (U)(a[k] > zero + {NORMAL_END});",
    "p[k] = (V)((U)p[k] & ~m[k]);",
    "s[k] = (V)((~(U)x[k] & 0x80000000) | 0x3f000000);",
    "t[k] = (V)(~((U)((I)x[k] >> 31)) & 0x3f800000);",
    fused("p[k]", "p[k]", "s[k]", "t[k]"),
    "x[k] = p[k];",
)


# A normal number above 0 has bits from 0x00800000 on and before those of infinity, 0x7f800000.
_UNUSUAL = (operation("vpmaxud", "far", "far", "(U)u[k] - 0x00800000"),)
_LOG_HEAD = (
    f"i[k] = (I)u[k] - {ROOT_BITS};",
    "n[k] = __builtin_convertvector(i[k] >> 23, V);",
)
_LOG_REST = (
    *polynomial("q[k]", "f[k]", LOG_TERMS),
    "s[k] = f[k] * f[k];",
    "p[k] = f[k] * s[k];",
)
_LOG_TAIL = (
    *_LOG_REST,
    fused("q[k]", "q[k]", "p[k]", "r[k]"),
    fused("q[k]", "s[k]", "zero - 0.5f", "q[k]"),
    "f[k] += q[k];",
    fused("f[k]", "n[k]", "zero + 0.693145752f", "f[k]"),
)
_FRACTION = f"f[k] = (V)((i[k] & 0x007fffff) + {ROOT_BITS}) - 1.0f;"
_LOG = (
    *_LOG_HEAD,
    _FRACTION,
    "r[k] = n[k] * 1.42860677e-6f;",
    *_LOG_TAIL,
    "x[k] = f[k];",
)
_LOG1P = (
    *_LOG_HEAD,
    "t[k] = (V)(0x40800000 - (U)(i[k] >> 23 << 23));",
    "a[k] = x[k] * 0.25f;",
    fused("p[k]", "t[k]", "zero + 0.25f", "zero - 1.0f"),
    fused("f[k]", "a[k]", "t[k]", "p[k]"),
    "p[k] -= f[k];",
    fused("r[k]", "a[k]", "t[k]", "p[k]"),
    fused("r[k]", "n[k]", "zero + 1.42860677e-6f", "r[k]"),
    *_LOG_TAIL,
    f"m[k] = (U)((V)((U)x[k] & 0x7fffffff) < zero + {NOTHING});",
    "x[k] = (V)((m[k] & (U)x[k]) | (~m[k] & (U)f[k]));",
)


EXP_LANES = lanes(
    "exp_f32",
    f"""\
        V a[{MOST}], n[{MOST}], r[{MOST}], q[{MOST}];
        {UNSIGNED}
        U b[{MOST}], h[{MOST}], far = {{0}};
{each(_FARTHEST)}\
        const V signs = (V)((U)(zero + {FAR}.0f) - far);
        if (__builtin_expect(__builtin_ia32_movmskps256(signs) == 0, 1)) {{
{each(_NEAR)}\
        }} else {{
{each(_BY_HALVES)}\
        }}
""",
)
ERF_LANES = lanes(
    "erf_f32",
    f"""\
        V a[{MOST}], s[{MOST}], q[{MOST}], t[{MOST}], p[{MOST}];
        {UNSIGNED}
        U m[{MOST}];
{each(_ERF)}""",
)
NORMAL_LANES = lanes(
    "normal_cdf_f32",
    f"""\
        typedef int I __attribute__((vector_size(4 * wide)));
        V a[{MOST}], p[{MOST}], s[{MOST}], t[{MOST}];
        {UNSIGNED}
        U m[{MOST}];
{each(_NORMAL)}""",
)


def _to_base(base: str) -> tuple[str, ...]:
    """Return the steps of a logarithm to another base: what each product and sum rounds is kept."""
    scale, rest, whole, under = BASES[base]
    return (
        *_LOG_HEAD,
        _FRACTION,
        *_LOG_REST,
        "q[k] *= p[k];",
        fused("q[k]", "s[k]", "zero - 0.5f", "q[k]"),
        f"h[k] = f[k] * {scale};",
        fused("s[k]", "f[k]", f"zero + {scale}", "zero - h[k]"),
        fused("s[k]", "q[k]", f"zero + {scale}", "s[k]"),
        fused("s[k]", "f[k]", f"zero + {rest}", "s[k]"),
        f"e[k] = n[k] * {whole};",
        "a[k] = e[k] + h[k];",
        "h[k] -= a[k] - e[k];",
        fused("h[k]", "n[k]", f"zero + {under}", "h[k]") if under else "",
        "x[k] = a[k] + (h[k] + s[k]);",
    )


def _logarithm(name: str, of: str, steps: tuple[str, ...]) -> Snippet:
    """Return the lanes of a logarithm of u, which `of` makes of x."""
    masks = f"U m[{MOST}];" if "m[k]" in "".join(steps) else ""
    declared = f"""\
typedef int I __attribute__((vector_size(4 * wide)));
        V {floats("aefhnpqrstu", of, *steps)};
        I i[{MOST}];
        {masks}"""
    unusual = "far | (far + 0x01000000)"
    return lanes(name, guarded(name, (of, *_UNUSUAL), unusual, declared, steps))


LOG_LANES = _logarithm("log_f32", "u[k] = x[k];", _LOG)
LOG1P_LANES = _logarithm("log1p_f32", "u[k] = zero + 1.0f + x[k];", _LOG1P)
LOG2_LANES = _logarithm("log2_f32", "u[k] = x[k];", _to_base("2"))
LOG10_LANES = _logarithm("log10_f32", "u[k] = x[k];", _to_base("10"))
