"""Exponentials, logarithms, powers and hyperbolic functions as C text.

The idea: reduce the argument to one octave, then a polynomial; what is hot stays in float32,
except where no operation multiplies and adds.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_snippet import Snippet, Step, horner, in_steps, lanes_head
from tilewright.kernels.cmath_wide import (
    BASES,
    EXP_LANES,
    EXP_TERMS,
    LOG1P_LANES,
    LOG2_LANES,
    LOG10_LANES,
    LOG_LANES,
    LOG_TERMS,
    NOTHING,
    ROOT_BITS,
    TERMS,
)

_LESS_ONE, _ITSELF = horner("q", "r", TERMS), horner("q", "r", EXP_TERMS)  # of e^r - 1 and e^r
_LOGARITHM = horner("q", "f", LOG_TERMS)

# In all exponentials, adding and taking away 1.5 * 2^23 rounds to an integer, which then stands in
# the low bits of the sum: no conversion, and nothing undefined for NaN.
EXPONENTIALS = (
    Snippet(
        "exp_wide",
        """\
/* e^x in double to 4e-12, for |x| <= 700 (beyond it the float32 that is made of it is 0 or inf). */
static inline double exp_wide(double x) {
    double a = x > 700.0 ? 700.0 : x;
    a = a < -700.0 ? -700.0 : a;
    const double z = fused(a, 1.4426950408889634, 6755399441055744.0);
    const double n = z - 6755399441055744.0;
    const double r = fused(n, -1.9082149292705877e-10, fused(n, -0.6931471803691238, a));
    double q = 2.4859578222625295e-5;
    q = fused(q, r, 1.989927395864936e-4);
    q = fused(q, r, 1.388885404961482e-3);
    q = fused(q, r, 8.333298483754886e-3);
    q = fused(q, r, 4.1666666718980845e-2);
    q = fused(q, r, 1.6666666718997508e-1);
    q = fused(q, r, 0.5);
    const double p = 1.0 + fused(r * r, q, r);
    const long k = bits_f64(z) - 0x4338000000000000;
    return p * from_bits_f64((long)((unsigned long)(k + 1023) << 52));
}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "exp_f32",
        """\
/* e^x = 2^k e^r, k = round(x / ln 2).  The number added to round leaves k + 254 in the low nine
   bits of z; half of that each makes two factors, so that subnormal results are rounded once. */
static inline float exp_f32(float x) {
#ifdef __FMA__
    const float z = fma_f32(x, 1.44269504f, 12583166.0f);
    const float n = z - 12583166.0f;
    const float r = fma_f32(n, -1.42860677e-6f, fma_f32(n, -0.693145752f, x));
"""
        + _ITSELF
        + """\
    /* 0 before it is scaled where nothing is left: results that round there are slow on Intel's. */
    const float p = x < -104.0f ? 0.0f : fma_f32(fma_f32(q, r, 1.0f), r, 1.0f);
    const float low = z < 12583016.0f ? 12583016.0f : z;
    const unsigned b = (unsigned)bits_f32(low), half = b >> 1;
    const float y = p * from_bits_f32((int)(half << 23)) * from_bits_f32((int)((b - half) << 23));
    return x > 88.75f ? __builtin_inff() : y;
#else  /* doubles throughout: each multiply-add would go there and back */
    return (float)exp_wide(x);
#endif
}""",
        ("bits_f32", "fma_f32", "exp_wide"),
    ),
    EXP_LANES,
    Snippet(
        "exp2_f32",
        """\
static inline float exp2_f32(float x) {
    const float z = x + 12583166.0f;
    const float r = x - (z - 12583166.0f);
    float q = 1.5252717e-5f;
    q = fma_f32(q, r, 1.546133e-4f);
    q = fma_f32(q, r, 1.33336695e-3f);
    q = fma_f32(q, r, 9.61805704e-3f);
    q = fma_f32(q, r, 5.55041073e-2f);
    q = fma_f32(q, r, 2.40226509e-1f);
    q = fma_f32(q, r, 0.693147181f);
    const float p = x < -151.0f ? 0.0f : fma_f32(q, r, 1.0f);
    const float low = z < 12583015.0f ? 12583015.0f : z;
    const unsigned b = (unsigned)bits_f32(low), half = b >> 1;
    const float y = p * from_bits_f32((int)(half << 23)) * from_bits_f32((int)((b - half) << 23));
    return x >= 128.0f ? __builtin_inff() : y;
}""",
        ("bits_f32", "fma_f32"),
    ),
    Snippet(
        "expm1_f32",
        """\
/* e^x - 1 = 2 (2^(k-1) (e^r - 1) + (2^(k-1) - 1/2)): 2^k itself may overflow. */
static inline float expm1_f32(float x) {
    float a = x > 89.0f ? 89.0f : x;
    a = a < -104.0f ? -104.0f : a;
    const float z = fma_f32(a, 1.44269504f, 12582912.0f);
    const float n = z - 12582912.0f;
    const int k = bits_f32(z) - 0x4b400000;
    const float r = fma_f32(n, -1.42860677e-6f, fma_f32(n, -0.693145752f, a));
"""
        + _LESS_ONE
        + """\
    const float m = fma_f32(r * r, q, r);
    const int j = k < -125 ? -125 : k;
    const float t = from_bits_f32((int)((unsigned)(j + 126) << 23));
    const float y = 2.0f * fma_f32(t, m, t - 0.5f);
    const float small = k == 0 ? m : y;
    return x == 0.0f ? x : small;
}""",
        ("bits_f32", "fma_f32"),
    ),
    Snippet(
        "sinh_f32",
        """\
static inline float sinh_f32(float x) {
    const double a = __builtin_fabs((double)x), s = a * a;
    double q = 2.5535000261096695e-8;
    q = fused(q, s, 2.7551914701690484e-6);
    q = fused(q, s, 1.9841297621457288e-4);
    q = fused(q, s, 8.33333326901754e-3);
    q = fused(q, s, 1.6666666667208668e-1);
    q = fused(q, s, 0.9999999999999273);
    const double e = exp_wide(a);
    const double y = a < 1.0 ? a * q : 0.5 * (e - 1.0 / e);
    return __builtin_copysignf((float)y, x);
}""",
        ("exp_wide", "fused"),
    ),
    Snippet(
        "cosh_f32",
        """\
static inline float cosh_f32(float x) {
    const double e = exp_wide(__builtin_fabs((double)x));
    return (float)(0.5 * (e + 1.0 / e));
}""",
        ("exp_wide",),
    ),
    *in_steps(
        "sigmoid_f32",
        "/* 1 / (1 + e^-x), or e^x / (1 + e^x): never an overflow, and right down to subnormal\n"
        "   results (e as in exp_f32).  What 1 + e and the division have rounded is taken back. */",
        (
            Step(
                """\
    const float a = -__builtin_fabsf(x);
    const float z = fma_f32(a, 1.44269504f, 12583166.0f);
    const float n = z - 12583166.0f;
    const float r = fma_f32(n, -1.42860677e-6f, fma_f32(n, -0.693145752f, a));
""",
                ("z", "r"),
            ),
            Step(
                _ITSELF
                + """\
    const float p = __builtin_fabsf(x) > 104.0f ? 0.0f : fma_f32(fma_f32(q, r, 1.0f), r, 1.0f);
    const float low = z < 12583016.0f ? 12583016.0f : z;
    const unsigned b = (unsigned)bits_f32(low), half = b >> 1;
    const float e = p * from_bits_f32((int)(half << 23)) * from_bits_f32((int)((b - half) << 23));
""",
                ("e",),
            ),
            Step(
                """\
    const float top = x < 0.0f ? e : 1.0f, below = 1.0f + e, lost = e - (below - 1.0f);
    const float inverse = 1.0f / below, s = top * inverse;
    const float exact = fma_f32(fma_f32(-s, below, top) - s * lost, inverse, s);
""",
                (),
            ),
        ),
        "exact",
        ("bits_f32", "fma_f32", "exp_wide"),
        otherwise="    return (float)(1.0 / (1.0 + exp_wide(-(double)x)));\n",
    ),
    *in_steps(
        "tanh_f32",
        "/* y / (y + 2), y = e^2|x| - 1; what the sum and the division have rounded"
        " is taken back. */",
        (
            Step(
                """\
    const float w = __builtin_fabsf(x + x);
    const float a = w > 20.0f ? 20.0f : w;
    const float z = fma_f32(a, 1.44269504f, 12582912.0f);
    const float n = z - 12582912.0f;
    const float r = fma_f32(n, -1.42860677e-6f, fma_f32(n, -0.693145752f, a));
""",
                ("z", "r"),
            ),
            Step(
                _LESS_ONE
                + """\
    const float m = fma_f32(r * r, q, r);
    const float t = from_bits_f32((int)((unsigned)(bits_f32(z) + 127) << 23));
    const float y = fma_f32(t, m, t - 1.0f);
""",
                ("y",),
            ),
            Step(
                """\
    const float below = y + 2.0f, lost = y - (below - 2.0f);
    const float inverse = 1.0f / below, s = y * inverse;
    const float exact = fma_f32(fma_f32(-s, below, y) - s * lost, inverse, s);
""",
                (),
            ),
        ),
        "__builtin_copysignf(exact, x)",
        ("bits_f32", "fma_f32", "exp_wide"),
        otherwise="""\
    const double e = exp_wide(2.0 * __builtin_fabs((double)x));
    const float y = __builtin_copysignf((float)((e - 1.0) / (e + 1.0)), x);
    return __builtin_fabsf(x) < 1e-4f ? x : y;
""",
    ),
)


# Of x, scaled up where it is subnormal: k = n and f, x = 2^k (1 + f), and q of ln(1 + f).
_OF_NORMAL = f"""\
    const int tiny = x < 1.17549435e-38f;
    const int i = bits_f32(tiny ? x * 8388608.0f : x) - {ROOT_BITS};
    const int k = i >> 23;
    const float f = from_bits_f32((i & 0x007fffff) + {ROOT_BITS}) - 1.0f;
    const float n = (float)(tiny ? k - 23 : k);
{_LOGARITHM}\
"""
_LOG_EDGES = """\
    y = x == __builtin_inff() ? x : y;
    y = x == 0.0f ? -__builtin_inff() : y;
    return x >= 0.0f ? y : __builtin_nanf("");
"""


def _to_base(base: str, factor: str) -> Snippet:
    """Return a logarithm to a base, of which what each product and sum rounds is kept.

    factor: 1 / ln base.
    """
    scale, rest, whole, under = BASES[base]
    low = f"fma_f32(n, {under}, p - (sum - e))" if under else "p - (sum - e)"
    return Snippet(
        f"log{base}_f32",
        f"""\
static inline float log{base}_f32(float x) {{
#ifdef __FMA__
{_OF_NORMAL}\
    const float s = f * f, g = fma_f32(s, -0.5f, q * (f * s)), p = f * {scale};
    const float lost = fma_f32(f, {rest}, fma_f32(g, {scale}, fma_f32(f, {scale}, -p)));
    const float e = n * {whole};
    const float sum = e + p;
    float y = sum + ({low} + lost);
{_LOG_EDGES}\
#else
    const double u = x;
    return log_edges(u, log_wide(u, u - 1.0) * {factor});
#endif
}}""",
        ("bits_f32", "fma_f32", "log_wide", "log_edges"),
    )


LOGARITHMS = (
    Snippet(
        "log_wide",
        """\
/* k ln 2 + ln(1 + f) in double to 2e-13 relative, for u = 1 + exact, u > 0 and normal.
   Where u rounds to [sqrt(1/2), sqrt 2), `exact` itself is used: ln(1 + x) keeps tiny x. */
static inline double log_wide(double u, double exact) {
    /* k + 1023 stands in the high bits, so that no sign is shifted, for which AVX2 has nothing. */
    const unsigned long i = (unsigned long)bits_f64(u) + 0x00095f619980c433;
    const double k = from_bits_f64((long)(i >> 52) + 0x4330000000000000);
    const double n = k - 4503599627371519.0;
    const double m = from_bits_f64((long)(i & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
    const double f = n == 0.0 ? exact : m;
    const double s = f / (2.0 + f), t = s * s;
    double q = 9.681326857101004e-2;
    q = fused(q, t, 1.1095700415154251e-1);
    q = fused(q, t, 1.4285877267957245e-1);
    q = fused(q, t, 1.9999999398668794e-1);
    q = fused(q, t, 3.333333333368754e-1);
    return fused(n, 0.6931471805599453, 2.0 * fused(s * t, q, s));
}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "log_edges",
        """\
/* The values of a logarithm of u at 0, below it, at infinity and NaN. */
static inline float log_edges(double u, double y) {
    double r = u == __builtin_inf() ? u : y;
    r = u == 0.0 ? -__builtin_inf() : r;
    return (float)(u >= 0.0 ? r : __builtin_nan(""));
}""",
    ),
    Snippet(
        "log_f32",
        f"""\
/* ln x = k ln 2 + ln(1 + f), 1 + f in [sqrt(1/2), sqrt 2); subnormal x is scaled up first. */
static inline float log_f32(float x) {{
#ifdef __FMA__
{_OF_NORMAL}\
    const float s = f * f;
    float y = fma_f32(f * s, q, n * 1.42860677e-6f);
    y = fma_f32(-0.5f, s, y);
    y = fma_f32(n, 0.693145752f, f + y);
{_LOG_EDGES}\
#else
    const double u = x;
    return log_edges(u, log_wide(u, u - 1.0));
#endif
}}""",
        ("bits_f32", "fma_f32", "log_wide", "log_edges"),
    ),
    LOG_LANES,
    *(
        snippet
        for base, wide_scale, lanes in (
            ("2", "1.4426950408889634", LOG2_LANES),
            ("10", "0.4342944819032518", LOG10_LANES),
        )
        for snippet in (_to_base(base, wide_scale), lanes)
    ),
    Snippet(
        "log1p_f32",
        f"""\
/* ln(1 + x) as `log_f32` of u, 1 + x rounded, but with f made of x itself: 1 + f = (1 + x) 2^-k,
   and what rounding takes of that is added.  4 2^-k is a normal number for every k; ln(1 + x) is
   x where x is next to nothing. */
static inline float log1p_f32(float x) {{
#ifdef __FMA__
    const float u = 1.0f + x;
    const int k = (bits_f32(u) - {ROOT_BITS}) >> 23;
    const float t = from_bits_f32((int)(0x40800000u - ((unsigned)k << 23)));
    const float a = 0.25f * x, g = fma_f32(t, 0.25f, -1.0f);
    const float f = fma_f32(a, t, g), lost = fma_f32(a, t, g - f);
    const float n = (float)k;
{_LOGARITHM}\
    const float s = f * f;
    float y = fma_f32(f * s, q, fma_f32(n, 1.42860677e-6f, lost));
    y = fma_f32(-0.5f, s, y);
    y = fma_f32(n, 0.693145752f, f + y);
    y = x == __builtin_inff() ? x : y;
    y = x == -1.0f ? -__builtin_inff() : y;
    y = __builtin_fabsf(x) < {NOTHING} ? x : y;
    return x >= -1.0f ? y : __builtin_nanf("");
#else  /* doubles are vectors there, their exact products beside other types are not */
    const double u = 1.0 + (double)x;
    const float y = log_edges(u, log_wide(u, x));
    return x == 0.0f ? x : y;
#endif
}}""",
        ("bits_f32", "fma_f32", "log_wide", "log_edges"),
    ),
    LOG1P_LANES,
    Snippet(
        "pow_f32",
        """\
/* |x|^y = e^(y ln |x|), then the sign of an odd power and the special values of C99 Annex F. */
static inline float pow_f32(float x, float y) {
    const double a = __builtin_fabs((double)x), b = y;
    double p = exp_wide(b * log_wide(a, a - 1.0));
    const int grows = (a > 1.0) == (b > 0.0);
    const double limit = grows ? __builtin_inf() : 0.0;
    const int whole = __builtin_truncf(y) == y;
    const int odd = whole && __builtin_truncf(0.5f * y) != 0.5f * y;
    p = a == 0.0 || a == __builtin_inf() ? limit : p;
    p = b == __builtin_inf() || b == -__builtin_inf() ? limit : p;
    p = odd && __builtin_copysignf(1.0f, x) < 0.0f ? -p : p;
    const int no_root = x < 0.0f && !whole && a != __builtin_inf();
    p = no_root || x != x || y != y ? __builtin_nan("") : p;
    const int one = x == 1.0f || y == 0.0f
        || (x == -1.0f && __builtin_fabsf(y) == __builtin_inff());
    return one ? 1.0f : (float)p;
}""",
        ("exp_wide", "log_wide"),
    ),
    Snippet(
        "pow_f32_lanes",
        f"""\
/* In a loop of its own: beside other types the compiler finds no vectors in one of doubles. */
{lanes_head("pow_f32", takes=("x", "y"))}\
    for (long l = 0; l < count; l++) x_[l] = pow_f32(x_[l], y_[l]);
}}""",
        ("pow_f32",),
    ),
    Snippet(
        "fma_f64",
        """\
extern double fma(double, double, double);
static inline double fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }""",
    ),
    Snippet(
        "rsqrt_f32",
        "static inline float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }",
    ),
    Snippet(
        "rsqrt_f64",
        "static inline double rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }",
    ),
)
