"""Trigonometric functions of doubles and their inverses as C text.

The idea: the argument loses its quarter turns in four parts, of which the first leave no rounding;
what is left is two doubles, of which polynomials are made, as FreeBSD's library does it.  Beyond
2^20 the C library's functions are called.  An inverse is an arc of a small tangent or sine and what
a fraction of a turn adds to it, that in two doubles.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_arcs import arcs
from tilewright.kernels.cmath_snippet import Snippet, horner, in_roads

_NAMES = ("sin", "cos", "tan")
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
# Of atan(t) = t + t s q, as a polynomial of s = t^2 up to 1.
_ATAN = horner(
    "q",
    "s",
    (
        "1.429398973001103e-5",
        "-1.6294779612130724e-4",
        "8.817035750169028e-4",
        "-3.029418952757532e-3",
        "7.481235394824208e-3",
        "-1.4309147806419993e-2",
        "2.242647086442509e-2",
        "-3.0270628447679623e-2",
        "3.687858562832796e-2",
        "-4.231100008064491e-2",
        "4.7270051679880784e-2",
        "-5.254944770418325e-2",
        "5.8808607664946375e-2",
        "-6.666462590894529e-2",
        "7.692287389274777e-2",
        "-9.090907690976935e-2",
        "1.1111111048890061e-1",
        "-1.4285714284131382e-1",
        "1.999999999998165e-1",
        "-3.333333333333328e-1",
    ),
    "double",
)
# pi/2 and pi, each in two parts.
_HALF, _HALF_LOW = "1.5707963267948966", "6.123233995736766e-17"
_WHOLE, _WHOLE_LOW = "3.141592653589793", "1.2246467991473532e-16"

CIRCULAR_DOUBLES = (
    Snippet(
        "turns_f64",
        f"""\
/* x = q pi/2 + r + t, |r| <= pi/4 (q modulo 4), for |x| up to 2^20; the sine and the cosine of
   r + t, and in `low` what they have rounded. */
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
static inline double sin_turn_f64(double r, double t, double *low) {{
    const double s = r * r, v = s * r;
{_SIN}\
    const double d = (s * (0.5 * t - v * p) - t) + v * 0.16666666666666632, y = r - d;
    *low = (r - y) - d;
    return y;
}}
static inline double cos_turn_f64(double r, double t, double *low) {{
    const double s = r * r, h = 0.5 * s, w = 1.0 - h;
{_COS}\
    const double d = ((1.0 - w) - h) + (s * s * p - r * t), y = w + d;
    *low = (w - y) + d;
    return y;
}}
/* Of an angle of q quarter turns and r + t. */
static inline double sin_of_f64(double x, double r, double t, long q) {{
    double low;
    const double y = q & 1 ? cos_turn_f64(r, t, &low) : sin_turn_f64(r, t, &low);
    const double z = from_bits_f64(bits_f64(y) ^ (long)((unsigned long)(q & 2) << 62));
    return x == 0.0 ? x : z;
}}
static inline double cos_of_f64(double x, double r, double t, long q) {{
    double low;
    const double y = q & 1 ? sin_turn_f64(r, t, &low) : cos_turn_f64(r, t, &low);
    return from_bits_f64(bits_f64(y) ^ (long)((unsigned long)((q + 1) & 2) << 62));
}}
static inline double tan_of_f64(double x, double r, double t, long q) {{
    double sl, cl;
    const double s = sin_turn_f64(r, t, &sl), c = cos_turn_f64(r, t, &cl);
    const double top = q & 1 ? -c : s, above = q & 1 ? -cl : sl;
    const double inverse = 1.0 / (q & 1 ? s : c), y = top * inverse;
    const double rest = fused(-y, q & 1 ? s : c, top) + (above - y * (q & 1 ? sl : cl));
    return x == 0.0 ? x : fused(rest, inverse, y);
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
    Snippet(
        "tangent_arc_f64",
        f"""\
/* base + (u + u s q), of which what is added last is small, and `under` what base and u are short
   of. */
static inline double tangent_arc_f64(double base, double under, double u) {{
    const double s = u * u;
{_ATAN}\
    const double y = base + u, lost = u - (y - base);
    return y + (lost + fused(u * s, q, under));
}}""",
        ("fused",),
    ),
    Snippet(
        "atan_f64",
        f"""\
/* Beyond 1 pi/2 - atan(1 / x). */
static inline double atan_f64(double x) {{
    const double a = __builtin_fabs(x);
    const int far = a > 1.0;
    const double t = (far ? -1.0 : a) / (far ? a : 1.0);
    const double y = tangent_arc_f64(far ? {_HALF} : 0.0, far ? {_HALF_LOW} : 0.0, t);
    return __builtin_copysign(y, x);
}}""",
        ("tangent_arc_f64",),
    ),
    Snippet(
        "atan2_f64",
        f"""\
/* The arc of the lesser by the greater, from the nearest quarter turn on or back. */
static inline double atan2_f64(double y, double x) {{
    const double a = __builtin_fabs(y), b = __builtin_fabs(x);
    const int steep = a > b, behind = __builtin_copysign(1.0, x) < 0.0;
    const double low = steep ? b : a, high = steep ? a : b;
    double t = high == 0.0 ? 0.0 : low / high;
    t = low == __builtin_inf() ? 1.0 : t;
    const double level = behind ? {_WHOLE} : 0.0, under = behind ? {_WHOLE_LOW} : 0.0;
    const double base = steep ? {_HALF} : level, short_of = steep ? {_HALF_LOW} : under;
    const double r = tangent_arc_f64(base, short_of, steep != behind ? -t : t);
    return x != x || y != y ? __builtin_nan("") : __builtin_copysign(r, y);
}}""",
        ("tangent_arc_f64",),
    ),
    *arcs(
        "double",
        (
            "3.249020154265496e-2",
            "-2.0764304450390157e-2",
            "2.1530619447452964e-2",
            "3.7843283801972083e-3",
            "1.0757985448294802e-2",
            "1.14032350006703e-2",
            "1.3980240147716962e-2",
            "1.7351665830373973e-2",
            "2.2372211607395196e-2",
            "3.038194284584958e-2",
            "4.464285717120663e-2",
            "7.499999999975208e-2",
            "1.6666666666666738e-1",
        ),
        (_HALF, _HALF_LOW),
        (_WHOLE, _WHOLE_LOW),
    ),
)
