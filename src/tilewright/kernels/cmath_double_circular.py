"""Trigonometric functions of doubles as C text.

The idea: the argument loses its quarter turns in four parts, of which the first leave no rounding;
what is left is two doubles, of which polynomials are made, as FreeBSD's library does it.  Beyond
2^20 the C library's functions are called.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_snippet import Snippet, horner, in_roads

_NAMES = ("sin", "cos")
_FAR = "!(__builtin_fabs(x) < 1048576.0)"  # as NaN is

_SIN = horner(
    "p",
    "s",
    (
        "1.5896676515855836e-10",
        "-2.5050756222922163e-8",
        "2.755731368104839e-6",
        "-1.9841269829780535e-4",
        "8.333333333322385e-3",
    ),
    "double",
)
_COS = horner(
    "p",
    "s",
    (
        "-1.1359559363871975e-11",
        "2.087572163387526e-9",
        "-2.755731434083541e-7",
        "2.480158728944461e-5",
        "-1.3888888888874068e-3",
        "4.16666666666666e-2",
    ),
    "double",
)

CIRCULAR_DOUBLES = (
    Snippet(
        "turns_f64",
        f"""\
/* x = q pi/2 + r + t, |r| <= pi/4 (q modulo 4), for |x| up to 2^20. */
static inline double turns_f64(double x, double *t, long *q) {{
    const double z = fused(x, 0.6366197723675814, 6755399441055744.0);
    const double n = z - 6755399441055744.0;
    *q = bits_f64(z) & 3;
    const double first = fused(n, -1.5707963267341256, x), second = n * 6.077100506303966e-11;
    const double high = first - second;
    const double low = fused(n, 2.0222662487959506e-21, -((first - high) - second));
    const double r = high - low;
    *t = (high - r) - low;
    return r;
}}
static inline double sin_turn_f64(double r, double t) {{
    const double s = r * r, v = s * r;
{_SIN}\
    return r - ((s * (0.5 * t - v * p) - t) + v * 0.16666666666666632);
}}
static inline double cos_turn_f64(double r, double t) {{
    const double s = r * r, h = 0.5 * s, w = 1.0 - h;
{_COS}\
    return w + (((1.0 - w) - h) + (s * s * p - r * t));
}}
/* Of an angle of q quarter turns and r + t. */
static inline double sin_of_f64(double x, double r, double t, long q) {{
    const double y = q & 1 ? cos_turn_f64(r, t) : sin_turn_f64(r, t);
    const double z = from_bits_f64(bits_f64(y) ^ (long)((unsigned long)(q & 2) << 62));
    return x == 0.0 ? x : z;
}}
static inline double cos_of_f64(double x, double r, double t, long q) {{
    const double y = q & 1 ? sin_turn_f64(r, t) : cos_turn_f64(r, t);
    return from_bits_f64(bits_f64(y) ^ (long)((unsigned long)((q + 1) & 2) << 62));
}}""",
        ("bits_f64", "fused"),
    ),
    *(
        snippet
        for name in _NAMES
        for snippet in (
            Snippet(
                f"{name}_near_f64",
                f"""\
static inline double {name}_near_f64(double x) {{
    double t;
    long q;
    const double r = turns_f64(x, &t, &q);
    return {name}_of_f64(x, r, t, q);
}}""",
                ("turns_f64",),
            ),
            Snippet(
                f"{name}_f64",
                f"""\
static inline double {name}_f64(double x) {{
    return {_FAR} ? {name}(x) : {name}_near_f64(x);
}}""",
                (name, f"{name}_near_f64"),
            ),
            in_roads(f"{name}_f64", "double", _FAR, f"{name}_near_f64", (f"{name}_near_f64",)),
        )
    ),
)
