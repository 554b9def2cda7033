"""Exponentials, logarithms and powers of doubles as C text.

The idea: as for float32, without branches, so that a loop over them is vectors' work; what is taken
away from the argument is taken away in two parts, of which the first leaves no rounding.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_snippet import Snippet, horner

# Of e^r = 1 + r + r^2 q for |r| <= ln 2 / 2, and of 2^r = 1 + r q for |r| <= 1/2.
_EXP = horner(
    "q",
    "r",
    (
        "2.4999704238972228e-8",
        "2.763026448353818e-7",
        "2.7557587720119206e-6",
        "2.4801493079710595e-5",
        "1.9841269504886874e-4",
        "1.3888888943618064e-3",
        "8.33333333349528e-3",
        "4.166666666653036e-2",
        "1.666666666666641e-1",
        "0.5000000000000011",
    ),
    "double",
)
_EXP2 = horner(
    "q",
    "r",
    (
        "4.436169060224399e-10",
        "7.073590123584738e-9",
        "1.0178185716536198e-7",
        "1.3215436561550254e-6",
        "1.5252733544008297e-5",
        "1.540353045412432e-4",
        "1.3333558146689144e-3",
        "9.618129107596974e-3",
        "5.550410866482072e-2",
        "2.4022650695910122e-1",
        "0.6931471805599453",
    ),
    "double",
)
# Of sinh(a) = a + a s q up to 1, as a polynomial of s = a^2.
_SINH = horner(
    "q",
    "s",
    (
        "7.759285587026706e-13",
        "1.6057241357855807e-10",
        "2.505212338344047e-8",
        "2.7557319155446684e-6",
        "1.9841269841437283e-4",
        "8.333333333333139e-3",
        "1.6666666666666669e-1",
    ),
    "double",
)
# Of ln((1 + s) / (1 - s)) = 2 s + s q, as a polynomial of z = s^2 times z.
_LOG = horner(
    "q",
    "z",
    (
        "1.4797027994147036e-1",
        "1.531395570223937e-1",
        "1.8183567479093185e-1",
        "2.222219852441967e-1",
        "2.857142874272999e-1",
        "3.999999999941386e-1",
        "6.666666666666734e-1",
    ),
    "double",
)
# Of ln((1 + s) / (1 - s)) = 2 s + s z (2/3 + z q), z = s^2, to 2^-66.
_LOG_LONG = horner(
    "q",
    "z",
    (
        "0.13189707140705148",
        "0.13257607457943874",
        "0.15386719433709184",
        "0.18181785297923037",
        "0.2222222250768458",
        "0.2857142857018033",
        "0.4000000000000205",
    ),
    "double",
)
# k, and what is left of `a` in two parts: r = high - low, |r| <= ln 2 / 2.
_REDUCED = """\
    const double z = fused(a, 1.4426950408889634, 6755399441055744.0);
    const double n = z - 6755399441055744.0;
    const double high = fused(n, -0.6931471803691238, a), low = n * 1.9082149292705877e-10;
    const double r = high - low;
"""


def _scaled(power: int) -> str:
    """Return the lines that make y = 2^(k + power) p, k as if it were -1077 where it is less: by
    halves, so that subnormal results are rounded once."""
    return f"""\
    const double least = z < 6755399441054667.0 ? 6755399441054667.0 : z;
    const unsigned long b = (unsigned long)bits_f64(least) + {power + 2046}, half = b >> 1;
    const double scale = from_bits_f64((long)(half << 52));
    const double y = p * scale * from_bits_f64((long)((b - half) << 52));
"""


# 2^k e^(high - low); 0 before it is scaled where nothing is left, as what rounds to 0 is slow on
# Intel's.
_RAISED = f"""\
{_EXP}\
    const double p = x < -746.0 ? 0.0 : 1.0 + (high + fused(r * r, q, -low));
{_scaled(0)}\
    return x > 709.79 ? __builtin_inf() : y;
"""
# x = 2^n m, m in [sqrt(1/2), sqrt 2), of u > 0: x, or 2^54 times as much where that is subnormal.
_PARTS = """\
    const unsigned long i = (unsigned long)bits_f64(u) + 0x00095f619980c433;
    const double m = from_bits_f64((long)(i & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
    const double k = from_bits_f64((long)(i >> 52) + 0x4330000000000000) - 4503599627371519.0;
"""
_TINY = """\
    const int tiny = x < 2.2250738585072014e-308;
    const double u = tiny ? x * 18014398509481984.0 : x;
"""
_UNSCALED = """\
    const double n = tiny ? k - 54.0 : k, f = m - 1.0;
"""
# ln(1 + f) = f - (h - rest): h rounds little, as it is small beside f.
_REST = (
    """\
    const double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
"""
    + _LOG
    + """\
    const double rest = s * fused(q, z, h);
"""
)


def _logarithm_in(base: str, inverse: tuple[str, str], two: tuple[str, str]) -> Snippet:
    """Return the logarithm in a base: ln(1 + f) in two parts times 1 / ln(base), and n times the
    base's logarithm of two.

    inverse, two: numbers in two parts, of which the first has few bits.
    """
    text = f"""\
static inline double {base}_f64(double x) {{
{_TINY}{_PARTS}{_UNSCALED}{_REST}\
    const double high = from_bits_f64(bits_f64(f - h) & -0x100000000);
    const double low = ((f - high) - h) + rest;
    const double large = high * {inverse[0]}, whole = n * {two[0]};
    double small = fused(low + high, {inverse[1]}, low * {inverse[0]});
    small = fused(n, {two[1]}, small);
    const double sum = whole + large;
    small += (whole - sum) + large;
    return log_edges_f64(x, sum + small);
}}"""
    return Snippet(f"{base}_f64", text, ("bits_f64", "fused", "log_edges_f64"))


_EXPONENTIALS = (
    Snippet(
        "exp_f64",
        f"""\
/* e^x = 2^k e^r, k = round(x / ln 2). */
static inline double exp_f64(double x) {{
    const double a = x;
{_REDUCED}{_RAISED}}}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "exp_of_two_f64",
        f"""\
/* e^(x + t), t less than a place of x. */
static inline double exp_of_two_f64(double x, double t) {{
    double a = x > 800.0 ? 800.0 : x;
    a = a < -800.0 ? -800.0 : a;
    const double z = fused(a, 1.4426950408889634, 6755399441055744.0);
    const double n = z - 6755399441055744.0;
    const double high = fused(n, -0.6931471803691238, a);
    const double low = fused(n, 1.9082149292705877e-10, -t);
    const double r = high - low;
{_RAISED}}}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "exp2_f64",
        f"""\
static inline double exp2_f64(double x) {{
    const double z = x + 6755399441055744.0;
    const double r = x - (z - 6755399441055744.0);
{_EXP2}\
    const double p = x < -1076.0 ? 0.0 : fused(q, r, 1.0);
{_scaled(0)}\
    return x >= 1024.0 ? __builtin_inf() : y;
}}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "expm1_f64",
        f"""\
/* e^x - 1 = 2 (2^(k-1) (e^r - 1) + (2^(k-1) - 1/2)): 2^k itself may overflow. */
static inline double expm1_f64(double x) {{
    double a = x > 710.0 ? 710.0 : x;
    a = a < -60.0 ? -60.0 : a;
{_REDUCED}{_EXP}\
    const double m = high + fused(r * r, q, -low);
    const double t = from_bits_f64((long)((unsigned long)(bits_f64(z) + 1022) << 52));
    const double y = 2.0 * fused(t, m, t - 0.5);
    const double small = n == 0.0 ? m : y;
    return x == 0.0 ? x : small;
}}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "sigmoid_f64",
        """\
/* 1 / (1 + e^-x), or e^x / (1 + e^x); what 1 + e and the division have rounded is taken back. */
static inline double sigmoid_f64(double x) {
    const double e = exp_f64(-__builtin_fabs(x));
    const double top = x < 0.0 ? e : 1.0, below = 1.0 + e, lost = e - (below - 1.0);
    const double inverse = 1.0 / below, s = top * inverse;
    return fused(fused(-s, below, top) - s * lost, inverse, s);
}""",
        ("exp_f64", "fused"),
    ),
    Snippet(
        "tanh_f64",
        """\
/* y / (y + 2), y = e^2|x| - 1; what the sum and the division have rounded is taken back. */
static inline double tanh_f64(double x) {
    const double a = __builtin_fabs(x);
    const double y = expm1_f64(a > 22.0 ? 44.0 : a + a);
    const double below = y + 2.0, lost = y - (below - 2.0);
    const double inverse = 1.0 / below, s = y * inverse;
    const double exact = fused(fused(-s, below, y) - s * lost, inverse, s);
    return __builtin_copysign(exact, x);
}""",
        ("expm1_f64", "fused"),
    ),
    Snippet(
        "half_exp_f64",
        f"""\
/* e^a / 2, which may be finite where e^a is not, for a >= 0. */
static inline double half_exp_f64(double a) {{
{_REDUCED}{_EXP}\
    const double p = 1.0 + (high + fused(r * r, q, -low));
{_scaled(-1)}\
    return a > 710.48 ? __builtin_inf() : y;
}}""",
        ("bits_f64", "fused"),
    ),
    Snippet(
        "sinh_f64",
        f"""\
static inline double sinh_f64(double x) {{
    const double a = __builtin_fabs(x), s = a * a, e = half_exp_f64(a);
{_SINH}\
    return __builtin_copysign(a < 1.0 ? fused(a * s, q, a) : e - 0.25 / e, x);
}}""",
        ("half_exp_f64", "fused"),
    ),
    Snippet(
        "cosh_f64",
        """\
static inline double cosh_f64(double x) {
    const double e = half_exp_f64(__builtin_fabs(x));
    return e + 0.25 / e;
}""",
        ("half_exp_f64",),
    ),
)

_LOGARITHMS = (
    Snippet(
        "log_edges_f64",
        """\
/* The values of a logarithm of u at 0, below it, at infinity and NaN. */
static inline double log_edges_f64(double u, double y) {
    double r = u == __builtin_inf() ? u : y;
    r = u == 0.0 ? -__builtin_inf() : r;
    return u >= 0.0 ? r : __builtin_nan("");
}""",
    ),
    Snippet(
        "log_f64",
        f"""\
static inline double log_f64(double x) {{
{_TINY}{_PARTS}{_UNSCALED}{_REST}\
    const double below = h - fused(n, 1.9082149292705877e-10, rest);
    return log_edges_f64(x, fused(n, 0.6931471803691238, f - below));
}}""",
        ("bits_f64", "fused", "log_edges_f64"),
    ),
    Snippet(
        "log1p_of_two_f64",
        f"""\
/* ln(1 + x + t), t less than a place of x.  What 1 + x has rounded is lost / u of the logarithm;
   where that is of no exponent, f is x. */
static inline double log1p_of_two_f64(double x, double t) {{
    const double u = 1.0 + x, v = u - 1.0, lost = (1.0 - (u - v)) + (x - v);
{_PARTS}\
    const double n = k, f = n == 0.0 ? x : m - 1.0;
    const double missing = (n == 0.0 ? t : lost + t) / u;
{_REST}\
    const double below = h - (fused(n, 1.9082149292705877e-10, missing) + rest);
    const double y = log_edges_f64(u, fused(n, 0.6931471803691238, f - below));
    return x == 0.0 ? x : y;
}}""",
        ("bits_f64", "fused", "log_edges_f64"),
    ),
    Snippet(
        "log1p_f64",
        "static inline double log1p_f64(double x) { return log1p_of_two_f64(x, 0.0); }",
        ("log1p_of_two_f64",),
    ),
    _logarithm_in("log2", ("1.4426950216293335", "1.9259629911266175e-8"), ("1.0", "0.0")),
    _logarithm_in(
        "log10",
        ("0.4342944622039795", "1.9699272335463627e-8"),
        ("0.30102999566224753", "1.7336659603752853e-12"),
    ),
)

_POWERS = (
    Snippet(
        "product_f64",
        """\
/* a b, and what that has rounded away. */
static inline double product_f64(double a, double b, double *low) {
    const double p = a * b;
#ifdef __FMA__
    *low = __builtin_fma(a, b, -p);
#else
    const double c = a * 134217729.0, d = b * 134217729.0;
    const double ah = c - (c - a), bh = d - (d - b), al = a - ah, bl = b - bh;
    *low = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
    return p;
}""",
    ),
    Snippet(
        "pow_f64",
        f"""\
/* |x|^y = e^(y ln |x|), the logarithm in two doubles; then the sign of an odd power and the special
   values of C99 Annex F. */
static inline double pow_f64(double x, double y) {{
    const double a = __builtin_fabs(x);
    const int tiny = a < 2.2250738585072014e-308;
    const double u = tiny ? a * 18014398509481984.0 : a;
{_PARTS}{_UNSCALED}\
    const double d = m + 1.0, divided = 1.0 / d;
    double left, zl, ul, vl, pl;
    const double sh = f * divided, back = product_f64(sh, d, &left);
    const double sl = (((f - back) - left) - sh * (m - (d - 1.0))) * divided;
    const double z = product_f64(sh, sh, &zl);
{_LOG_LONG}\
    /* 2/3 + z q in two parts, times z s. */
    const double t = fused(z, q, 3.700743415417188e-17), ch = 0.6666666666666666 + t;
    const double cl = t - (ch - 0.6666666666666666);
    const double uh = product_f64(z, ch, &ul), vh = product_f64(sh, uh, &vl);
    vl += sh * (ul + z * cl + (zl + 2.0 * sh * sl) * ch) + sl * uh;
    const double lh = 2.0 * sh + vh, ll = ((2.0 * sh - lh) + vh) + (2.0 * sl + vl);
    const double whole = n * 0.6931471803691238, high = whole + lh;
    const double low = ((whole - high) + lh) + (ll + n * 1.9082149292705877e-10);
    /* Powers of more than this of what is not 1 are 0 or infinite. */
    double b = y > 3.0e19 ? 3.0e19 : y;
    b = b < -3.0e19 ? -3.0e19 : b;
    const double ph = product_f64(b, high, &pl);
    double p = exp_of_two_f64(ph, fused(b, low, pl));
    const int grows = (a > 1.0) == (y > 0.0);
    const double limit = grows ? __builtin_inf() : 0.0;
    const int whole_power = __builtin_trunc(y) == y;
    const int odd = whole_power && __builtin_trunc(0.5 * y) != 0.5 * y;
    p = a == 0.0 || a == __builtin_inf() ? limit : p;
    p = y == __builtin_inf() || y == -__builtin_inf() ? limit : p;
    p = odd && __builtin_copysign(1.0, x) < 0.0 ? -p : p;
    const int no_root = x < 0.0 && !whole_power && a != __builtin_inf();
    p = no_root || x != x || y != y ? __builtin_nan("") : p;
    const int one = x == 1.0 || y == 0.0 || (x == -1.0 && __builtin_fabs(y) == __builtin_inf());
    return one ? 1.0 : p;
}}""",
        ("bits_f64", "fused", "product_f64", "exp_of_two_f64"),
    ),
)

DOUBLES = (*_EXPONENTIALS, *_LOGARITHMS, *_POWERS)
