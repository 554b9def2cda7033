"""Trigonometric functions, their inverses and the error functions as C text.

The idea: reduce the argument exactly, however large, then a polynomial in double, rounded once; in
float32, with what roundings take kept beside, where a product and a sum are rounded once and an
argument is not far off.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_arcs import arcs
from tilewright.kernels.cmath_snippet import Snippet, horner, in_roads, roads
from tilewright.kernels.cmath_wide import (
    ERF_LANES,
    ERF_LAST,
    ERF_MIDDLE,
    ERF_NEAR,
    ERF_TERMS,
    NORMAL_END,
    NORMAL_LANES,
    NORMAL_TERMS,
    ROOT_TERMS,
    TERMS,
)
from tilewright.kernels.cmath_wide_circular import (
    ATAN_LANES,
    ATAN_TERMS,
    COS_TERMS,
    HALF_PI,
    QUARTER,
    ROUNDING,
    SIN_TERMS,
    circular,
)

_FAR = "!(__builtin_fabsf(x) < 1048576.0f)"  # as NaN is, which has the same bits by one road only
# Of x = q pi/2 + t - d in float32, |x| < 2^20, q in the low bits of z: sin(t - d) is t less its
# rest, cos(t - d) is a and its rest.  The first part of pi/2 is taken away exactly, and what the
# second rounds is kept.
_TURNED = (
    f"""\
    const float z = fma_f32(x, 0.636619747f, rounding), n = z - rounding;
    const float r = fma_f32(-n, {QUARTER[0]}, x), t = r - n * {QUARTER[1]};
    const float d = fma_f32(n, {QUARTER[2]}, fma_f32(n, {QUARTER[1]}, t - r));
    const float s = t * t;
"""
    + horner("q", "s", SIN_TERMS)
    + horner("c", "s", COS_TERMS)
    + """\
    const float sine_rest = fma_f32(q, t * s, d);
    const float a = fma_f32(s, -0.5f, 1.0f), e = fma_f32(s, -0.5f, 1.0f - a);
    const float cosine_rest = fma_f32(t, d, fma_f32(c, s * s, e));
"""
)
# Of e^(a^2) erfc(a) (1 + a), as a polynomial of (a - 2.5) / (a + 2.5) for a from 0.4 to 10.1.
_ERFC = horner(
    "c",
    "t",
    (
        "-3.064681e-5f",
        "2.08286219e-4f",
        "3.35517048e-4f",
        "-1.7369074e-3f",
        "-8.47681193e-4f",
        "1.43807968e-2f",
        "-3.15232202e-2f",
        "1.62986405e-2f",
        "7.63443708e-2f",
        "-2.47046754e-1f",
    ),
)
_ERF = horner("g", "s", ERF_TERMS)
_POWER = horner("q", "r", TERMS)
_ROOT = """\
    const double a = __builtin_fabs((double)x);
    const double y = asin_wide(a > 0.5 ? __builtin_sqrt(0.5 * (1.0 - a)) : a);
"""

TRIGONOMETRIC = (
    Snippet(
        "near_turns",
        """\
/* x = q pi/2 + r, |r| <= pi/4 (q modulo 4), by Cody and Waite: for |x| up to 2^20. */
static inline double near_turns(float x, long *q) {
    const double z = fused(x, 0.6366197723675814, 6755399441055744.0);
    const double n = z - 6755399441055744.0;
    *q = bits_f64(z) & 3;
    return fused(n, -6.077100506506192e-11, fused(n, -1.5707963267341256, x));
}
static inline double sin_near(double r) {
    const double s = r * r;
    double q = -2.474892849631593e-8;
    q = fused(q, s, 2.7555162797362567e-6);
    q = fused(q, s, -1.9841262757122112e-4);
    q = fused(q, s, 8.333333322794222e-3);
    q = fused(q, s, -1.666666666660928e-1);
    return fused(r * s, q, r);
}
static inline double cos_near(double r) {
    const double s = r * r;
    double q = -2.7159593784308546e-7;
    q = fused(q, s, 2.4798724331195557e-5);
    q = fused(q, s, -1.388887933888318e-3);
    q = fused(q, s, 4.166666652173274e-2);
    q = fused(q, s, -0.49999999999188255);
    return fused(s, q, 1.0);
}
/* Of an angle of q quarter turns and r. */
static inline float sin_of(float x, double r, long q) {
    const double y = q & 1 ? cos_near(r) : sin_near(r);
    const float z = (float)from_bits_f64(bits_f64(y) ^ (long)((unsigned long)(q & 2) << 62));
    return x == 0.0f ? x : z;
}
static inline float cos_of(float x, double r, long q) {
    const double y = q & 1 ? sin_near(r) : cos_near(r);
    return (float)from_bits_f64(bits_f64(y) ^ (long)((unsigned long)((q + 1) & 2) << 62));
}
static inline float tan_of(float x, double r, long q) {
    const double s = sin_near(r), c = cos_near(r);
    const float y = (float)(q & 1 ? -c / s : s / c);
    return x == 0.0f ? x : y;
}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "far_turns",
        """\
/* Bits of 4/pi, each word 8 bits on from the one before. */
static const unsigned int four_over_pi[24] = {
    0xa2, 0xa2f9, 0xa2f983, 0xa2f9836e, 0xf9836e4e, 0x836e4e44, 0x6e4e4415, 0x4e441529,
    0x441529fc, 0x1529fc27, 0x29fc2757, 0xfc2757d1, 0x2757d1f5, 0x57d1f534, 0xd1f534dd, 0xf534ddc0,
    0x34ddc0db, 0xddc0db62, 0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041,
};
/* The same for every x: beyond 2^20 the 24 bits of x are multiplied by the 96 bits of 4/pi that
   matter (Payne and Hanek). */
static inline double far_turns(float x, long *q) {
    const double near = near_turns(x, q);
    const unsigned int b = (unsigned int)bits_f32(x) & 0x7fffffffu;
    const unsigned int at = (b >> 26) & 15u;
    const unsigned long m = (unsigned long)((b & 0x007fffffu) | 0x00800000u) << ((b >> 23) & 7u);
    const unsigned long high = (m * four_over_pi[at]) << 32;
    const unsigned long low = (m * four_over_pi[at + 8]) >> 32;
    const unsigned long turns = high + low + m * four_over_pi[at + 4];
    const unsigned long whole = (turns + (1ul << 61)) >> 62;
    /* By halves: 64 bits become a double in the vectors of AVX-512 alone. */
    const unsigned long rest = turns - (whole << 62);
    const double top = (double)(int)(unsigned int)(rest >> 32) * 4294967296.0;
    const double under = (double)(int)((unsigned int)rest ^ 0x80000000u) + 2147483648.0;
    const double part = (top + under) * 3.4061215800304e-19;
    const int far = __builtin_fabsf(x) >= 1048576.0f;
    *q = far ? (x < 0.0f ? -(long)whole : (long)whole) : *q;
    const double r = far ? (x < 0.0f ? -part : part) : near;
    return __builtin_fabsf(x) < __builtin_inff() ? r : __builtin_nan("");
}""",
        ("bits_f32", "near_turns"),
    ),
    Snippet(
        "turned_f32",
        f"""\
/* sin(x + q pi/2) for |x| < 2^20 in float32, q left in the low bits of what rounds to quarters. */
static inline float turned_f32(float x, float rounding) {{
{_TURNED}\
    const float sine = t - sine_rest, y = bits_f32(z) & 1 ? a + cosine_rest : sine;
    return from_bits_f32(bits_f32(y) ^ (int)((unsigned)(bits_f32(z) & 2) << 30));
}}""",
        ("bits_f32", "fma_f32"),
    ),
    Snippet(
        "tan_near_f32",
        f"""\
/* The sine by the cosine; what these and the quotient round is kept. */
static inline float tan_near_f32(float x) {{
#ifdef __FMA__
    const float rounding = {ROUNDING["sin"]};
{_TURNED}\
    const float sine = t - sine_rest, sine_low = (t - sine) - sine_rest;
    const float cosine = a + cosine_rest, cosine_low = (a - cosine) + cosine_rest;
    const int odd = bits_f32(z) & 1;
    const float top = odd ? -cosine : sine, top_low = odd ? -cosine_low : sine_low;
    const float below = odd ? sine : cosine, below_low = odd ? sine_low : cosine_low;
    const float inverse = 1.0f / below, y = top * inverse;
    const float rest = fma_f32(-y, below, top) + (top_low - y * below_low);
    return x == 0.0f ? x : fma_f32(rest, inverse, y);
#else
    long q;
    const double r = near_turns(x, &q);
    return tan_of(x, r, q);
#endif
}}""",
        ("near_turns", "bits_f32", "fma_f32"),
    ),
    Snippet(
        "tan_f32",
        f"""\
static inline float tan_f32(float x) {{
    long q;
    const double r = far_turns(x, &q);
    return {_FAR} ? tan_of(x, r, q) : tan_near_f32(x);
}}""",
        ("far_turns", "tan_near_f32"),
    ),
    in_roads("tan_f32", "float", _FAR, "tan_near_f32", ("tan_near_f32",)),
    *(
        snippet
        for name in ROUNDING
        for snippet in (
            Snippet(
                f"{name}_near_f32",
                f"""\
static inline float {name}_near_f32(float x) {{
#ifdef __FMA__
    return turned_f32(x, {ROUNDING[name]});
#else
    long q;
    const double r = near_turns(x, &q);
    return {name}_of(x, r, q);
#endif
}}""",
                ("near_turns", "turned_f32"),
            ),
            Snippet(
                f"{name}_f32",
                f"""\
static inline float {name}_f32(float x) {{
    long q;
    const double r = far_turns(x, &q);
    const float far = {name}_of(x, r, q);
#ifdef __FMA__
    return {_FAR} ? far : {name}_near_f32(x);
#else
    return far;
#endif
}}""",
                ("far_turns", f"{name}_near_f32"),
            ),
            circular(name, roads(f"{name}_f32", "float", _FAR, f"{name}_near_f32")),
        )
    ),
    Snippet(
        "atan_wide",
        """\
/* atan(t) for t in [0, 1], to 1e-12. */
static inline double atan_wide(double t) {
    const double s = t * t;
    double q = -2.754485353619769e-4;
    q = fused(q, s, 2.220615114316114e-3);
    q = fused(q, s, -8.409140699311894e-3);
    q = fused(q, s, 2.021925259419834e-2);
    q = fused(q, s, -3.557418419675399e-2);
    q = fused(q, s, 5.068068138647992e-2);
    q = fused(q, s, -6.377450134112428e-2);
    q = fused(q, s, 7.618175683187474e-2);
    q = fused(q, s, -9.077708935862777e-2);
    q = fused(q, s, 1.1109563977942888e-1);
    q = fused(q, s, -1.4285604442995145e-1);
    q = fused(q, s, 1.9999995897908288e-1);
    q = fused(q, s, -3.3333333272648213e-1);
    return fused(t * s, q, t);
}""",
        ("fused",),
    ),
    Snippet(
        "atan_f32",
        """\
/* Beyond 1 pi/2 - atan(1 / x), of which what the sum rounds is kept. */
static inline float atan_f32(float x) {
#ifdef __FMA__
    const float a = __builtin_fabsf(x);
    const int far = a > 1.0f;
    const float t = (far ? -1.0f : a) / (far ? a : 1.0f), s = t * t;
"""
        + horner("q", "s", ATAN_TERMS)
        + f"""\
    const float base = far ? {HALF_PI[0]} : 0.0f, y = base + t;
    const float lost = t - (y - base) + (far ? {HALF_PI[1]} : 0.0f);
    return __builtin_copysignf(y + fma_f32(q, s * t, lost), x);
#else
    const double a = __builtin_fabs((double)x);
    const double y = atan_wide(a > 1.0 ? 1.0 / a : a);
    return __builtin_copysignf((float)(a > 1.0 ? 1.5707963267948966 - y : y), x);
#endif
}}""",
        ("atan_wide", "fma_f32"),
    ),
    ATAN_LANES,
    Snippet(
        "atan2_f32",
        """\
static inline float atan2_f32(float y, float x) {
    const double a = __builtin_fabs((double)y), b = __builtin_fabs((double)x);
    const double low = a < b ? a : b, high = a < b ? b : a;
    double t = high == 0.0 ? 0.0 : low / high;
    t = low == __builtin_inf() ? 1.0 : t;
    double r = atan_wide(t);
    r = a > b ? 1.5707963267948966 - r : r;
    r = __builtin_copysignf(1.0f, x) < 0.0f ? 3.141592653589793 - r : r;
    return x != x || y != y ? __builtin_nanf("") : __builtin_copysignf((float)r, y);
}""",
        ("atan_wide",),
    ),
    Snippet(
        "asin_wide",
        """\
/* asin(t) for t in [0, 1/2], to 1e-13. */
static inline double asin_wide(double t) {
    const double s = t * t;
    double q = 3.214743785283807e-2;
    q = fused(q, s, -3.0846045199060595e-3);
    q = fused(q, s, 1.874517991121314e-2);
    q = fused(q, s, 1.6445865485907367e-2);
    q = fused(q, s, 2.2476572830526276e-2);
    q = fused(q, s, 3.0374707104299584e-2);
    q = fused(q, s, 4.4643143323889856e-2);
    q = fused(q, s, 7.499999427792717e-2);
    q = fused(q, s, 1.666666667109255e-1);
    return fused(t * s, q, t);
}""",
        ("fused",),
    ),
    *arcs(
        "float",
        (
            "3.74816135e-2f",
            "1.44679835e-2f",
            "3.17982771e-2f",
            "4.45183814e-2f",
            "7.50049427e-2f",
            "1.66666597e-1f",
        ),
        HALF_PI,
        ("3.14159274f", "-8.74227766e-8f"),
        (
            f"""\
{_ROOT}\
    return __builtin_copysignf((float)(a > 0.5 ? 1.5707963267948966 - 2.0 * y : y), x);
""",
            f"""\
{_ROOT}\
    const double edge = x > 0.0f ? 2.0 * y : 3.141592653589793 - 2.0 * y;
    const double middle = 1.5707963267948966 - (x > 0.0f ? y : -y);
    return (float)(a > 0.5 ? edge : middle);
""",
        ),
        ("asin_wide",),
    ),
)

ERROR_FUNCTIONS = (
    Snippet(
        "erf_f32",
        """\
/* Near 0 a polynomial of x^2 times x; beyond, 1 - p^2, p a polynomial for the root of erfc: errors
   of p count little there, and p^2 takes half the degree.  From 3.96875 on it rounds to 1. */
static inline float erf_f32(float x) {
    const float a = __builtin_fabsf(x), s = a * a;
"""
        + horner("q", "s", ERF_TERMS)
        + f"""\
    const float near = fma_f32(q, a, a);
    float t = a - {ERF_MIDDLE};
    t = t > {ERF_LAST} ? {ERF_LAST} : t;
"""
        + horner("p", "t", ROOT_TERMS)
        + f"""\
    const float result = a > {ERF_NEAR} ? fma_f32(-p, p, 1.0f) : near;
    return __builtin_copysignf(result, x);
}}""",
        ("fma_f32",),
    ),
    ERF_LANES,
    Snippet(
        "normal_cdf_f32",
        """\
/* Of |x| the half of a square, of a polynomial; above 0 what is left of 1.  Of tails so much is
   right as counts beside 1. */
static inline float normal_cdf_f32(float x) {
    const float a = __builtin_fabsf(x);
"""
        + horner("p", "a", NORMAL_TERMS)
        + f"""\
    const float half = a > {NORMAL_END} ? 0.0f : 0.5f * (p * p);
    return x < 0.0f ? half : 1.0f - half;
}}""",
        ("fma_f32",),
    ),
    NORMAL_LANES,
    Snippet(
        "erfc_f32",
        f"""\
/* Near 0 1 - erf x; beyond, e^(-x^2) times p / (1 + x), p a polynomial, and what these, the square
   and the power have rounded.  In double p is one from 0 on. */
static inline float erfc_f32(float x) {{
#ifdef __FMA__
    const float b = __builtin_fabsf(x), a = b > 10.5f ? 10.5f : b, s = a * a;
    const float t = (a - 2.5f) / (a + 2.5f), below = 1.0f + a, inverse = 1.0f / below;
    const float lost = a < 1.0f ? (1.0f - below) + a : (a - below) + 1.0f;
{_ERFC}\
    const float p = fma_f32(c, t, 0.737822294f);
    const float p_low = fma_f32(c, t, 0.737822294f - p) - 2.0314e-8f, y = p * inverse;
    const float y_low = (fma_f32(-y, below, p) + (p_low - y * lost)) * inverse;
    /* e^-(s + low) = 2^k (e + e_low), and 0 before it is scaled where nothing is left. */
    const float z = fma_f32(s, -1.44269504f, 12583166.0f), n = z - 12583166.0f;
    const float high = fma_f32(n, -0.693145752f, -s);
    const float low = fma_f32(n, -1.42860677e-6f, -fma_f32(a, a, -s));
    const float r = high + low, r_low = (high - r) + low;
{_POWER}\
    const float rest = r + fma_f32(r * r, q, r_low), e = 1.0f + rest, e_low = (1.0f - e) + rest;
    const float product = fma_f32(e, y, fma_f32(e, y_low, e_low * y));
    const unsigned k = (unsigned)bits_f32(z), half = k >> 1;
    const float tail = (b > 10.06f ? 0.0f : product) * from_bits_f32((int)(half << 23))
                       * from_bits_f32((int)((k - half) << 23));
{_ERF}\
    const float near = 1.0f - __builtin_copysignf(fma_f32(g, a, a), x);
    return a < 0.4f ? near : x < 0.0f ? 2.0f - tail : tail;
#else
    const double b = __builtin_fabs((double)x), a = b > 10.5 ? 10.5 : b;
    const double t = (a - 3.0) / (a + 3.0);
    double q = -1.996680634686951e-6;
    q = fused(q, t, -9.064259638426407e-6);
    q = fused(q, t, 5.21082703301797e-7);
    q = fused(q, t, 5.716289317702089e-5);
    q = fused(q, t, -2.1183120697268346e-5);
    q = fused(q, t, -3.678383687760263e-4);
    q = fused(q, t, 6.458830378810719e-4);
    q = fused(q, t, 1.6186913457069120e-3);
    q = fused(q, t, -9.75068775713842e-3);
    q = fused(q, t, 2.19577510219577e-2);
    q = fused(q, t, -2.3803913764820283e-2);
    q = fused(q, t, -1.0235388293610651e-2);
    q = fused(q, t, 9.902075370466228e-2);
    q = fused(q, t, -2.3092733309210384e-1);
    q = fused(q, t, 0.7160046047254482);
    const double tail = q / (1.0 + a) * exp_wide(-a * a);
    const float y = (float)(x < 0.0f ? 2.0 - tail : tail);
    return x != x ? x : y;
#endif
}}""",
        ("bits_f32", "fma_f32", "fused", "exp_wide"),
    ),
)
