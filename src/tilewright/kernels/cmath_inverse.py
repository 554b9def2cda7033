"""Inverse hyperbolic functions, lengths, and products with logarithms as C text.

The idea: a logarithm of 1 + e in double, e found without cancellation, rounded once.

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
)
PAIRS = (
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
