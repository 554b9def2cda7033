"""Inverse hyperbolic functions, lengths, and products with logarithms as C text.

The idea: a logarithm of 1 + e, e found without cancellation: for float32 in double, rounded once;
for doubles in two of them.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_snippet import Snippet

INVERSES = (
    Snippet(
        "asinh_f32",
        """\
static inline float asinh_f32(float x) {
    const double a = __builtin_fabs((double)x), s = a * a;
    const double e = a + s / (1.0 + __builtin_sqrt(1.0 + s));
    const double y = log_wide(1.0 + e, e);
    return __builtin_copysignf((float)(a == __builtin_inf() || a == 0.0 || x != x ? a : y), x);
}""",
        ("log_wide",),
    ),
    Snippet(
        "acosh_f32",
        """\
static inline float acosh_f32(float x) {
    const double a = x, b = a - 1.0;
    const double e = b + __builtin_sqrt(b * (a + 1.0));
    const float y = log_edges(1.0 + e, log_wide(1.0 + e, e));
    return x < 1.0f ? __builtin_nanf("") : y;
}""",
        ("log_wide", "log_edges"),
    ),
    Snippet(
        "atanh_f32",
        """\
static inline float atanh_f32(float x) {
    const double a = __builtin_fabs((double)x), e = 2.0 * a / (1.0 - a), u = 1.0 + e;
    const float y = log_edges(u, 0.5 * log_wide(u, e));
    return a == 0.0 ? x : __builtin_copysignf(y, x);
}""",
        ("log_wide", "log_edges"),
    ),
    Snippet(
        "asinh_f64",
        """\
/* From 2^60 on ln 2|x|. */
static inline double asinh_f64(double x) {
    const double b = __builtin_fabs(x), s = b * b, rest = s / (1.0 + __builtin_sqrt(1.0 + s));
    const int far = b > 1152921504606846976.0;
    const double e = far ? b : b + rest, t = far ? 0.0 : (b - e) + rest;
    const double y = log1p_of_two_f64(e, t);
    return __builtin_copysign(far ? y + 0.6931471805599453 : y, x);
}""",
        ("log1p_of_two_f64",),
    ),
    Snippet(
        "acosh_f64",
        """\
/* What the product, its root and the sum have rounded is kept. */
static inline double acosh_f64(double x) {
    const int far = x > 1152921504606846976.0;
    const double b = x - 1.0, c = x + 1.0, p = b * c, root = __builtin_sqrt(p), sum = root + b;
    const double left = fused(b, c, -p) + b * (1.0 - (c - x)) + fused(-root, root, p);
    const double low = left * (p == 0.0 ? 0.0 : 0.5 / root);
    const double y = log1p_of_two_f64(far ? x : sum, far ? 0.0 : (root - sum) + b + low);
    return x < 1.0 ? __builtin_nan("") : far ? y + 0.6931471805599453 : y;
}""",
        ("log1p_of_two_f64", "fused"),
    ),
    Snippet(
        "atanh_f64",
        """\
/* Half of ln(1 + 2 a / (1 - a)); what the difference and the quotient have rounded is kept. */
static inline double atanh_f64(double x) {
    const double a = __builtin_fabs(x), below = 1.0 - a, lost = (1.0 - below) - a;
    const double inverse = 1.0 / below, e = 2.0 * a * inverse;
    const double t = (fused(-e, below, 2.0 * a) - e * lost) * inverse;
    return __builtin_copysign(0.5 * log1p_of_two_f64(e, t), x);
}""",
        ("log1p_of_two_f64", "fused"),
    ),
)
PAIRS = (
    Snippet(
        "hypot_f64",
        """\
/* Of numbers of middle size, squared in two doubles each; the root's rounding is taken back. */
static inline double hypot_f64(double x, double y) {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y);
    const double low = a < b ? a : b, high = a < b ? b : a, all = __builtin_inf();
    const double small = high < 0x1p-500 ? 0x1p600 : 1.0, scale = high > 0x1p500 ? 0x1p-600 : small;
    double hl, ll;
    const double h = product_f64(high * scale, high * scale, &hl);
    const double l = product_f64(low * scale, low * scale, &ll);
    const double s = h + l, root = __builtin_sqrt(s);
    const double rest = fused(-root, root, s) + (((h - s) + l) + (hl + ll));
    const double r = s == 0.0 ? 0.0 : root + rest * (0.5 / root);
    return a == all || b == all ? all : r / scale;
}""",
        ("product_f64", "fused"),
    ),
    Snippet(
        "hypot_f32",
        """\
static inline float hypot_f32(float x, float y) {
    const double a = __builtin_fabs((double)x), b = __builtin_fabs((double)y);
    const double r = __builtin_sqrt(a * a + b * b), all = __builtin_inf();
    return (float)(a == all || b == all ? all : r);
}""",
    ),
    *(
        Snippet(
            f"{name}_{dtype}",
            f"""\
static inline {c} {name}_{dtype}({c} a, {c} b) {{
    const {c} y = a * {log}(b);
    return b != b ? b : a == 0 ? 0 : y;
}}""",
            (log,),
        )
        for name, of in (("xlogy", "log"), ("xlog1py", "log1p"))
        for dtype, c, log in (("f32", "float", f"{of}_f32"), ("f64", "double", f"{of}_f64"))
    ),
)
