"""The error functions of doubles as C text.

The idea: a polynomial of each stretch, of something that is flat there.

This module does not know who calls them; the errors stand in `cmath`.
"""

from tilewright.kernels.cmath_snippet import Snippet, horner

# Of erf(a) = a + a q up to 1.125, as a polynomial of a^2; beyond, of the eighth root of erfc(a), as
# one of a - 1.25, where its rounding counts most, up to 6, from where on erf rounds to 1; and of
# e^(a^2) erfc(a) (1 + a), as one of (a - 3) / (a + 3), for a in [0.4, 27.5], to 2^-59.
_ERF_NEAR = horner(
    "q",
    "s",
    (
        "5.2868727936206354e-11",
        "-1.0937494658474861e-9",
        "1.4535747431630284e-8",
        "-1.6329967005390185e-7",
        "1.6458879628055166e-6",
        "-1.4925448997749322e-5",
        "0.0001205532437376006",
        "-0.000854832677636047",
        "0.005223977620883623",
        "-0.026866170644630333",
        "0.11283791670952265",
        "-0.37612638903183687",
        "0.12837916709551256",
    ),
    "double",
)
_ERF_ROOT = horner(
    "p",
    "t",
    (
        "5.535251968104591e-14",
        "-1.4573407611744035e-12",
        "1.802573644318373e-11",
        "-1.4204706433891593e-10",
        "7.81511572302889e-10",
        "-2.6171013421335202e-9",
        "3.097170508045909e-10",
        "3.629059023232359e-8",
        "-4.989294641251063e-8",
        "-2.784085277591182e-7",
        "-4.922985865973999e-6",
        "4.1505729366205056e-5",
        "5.562384094235345e-5",
        "-0.0012688216704583404",
        "0.0009893860031748181",
        "0.020511987730759046",
        "-0.025645159889738846",
        "-0.27836074855078435",
        "0.7259082077621887",
    ),
    "double",
)
_ERFC = horner(
    "q",
    "t",
    (
        "-1.854278610386074e-09",
        "-5.297983327715664e-09",
        "1.3303531051349977e-08",
        "4.8599551734837356e-08",
        "-4.416134875006338e-08",
        "-2.916788917808122e-07",
        "5.913249188669677e-08",
        "1.5879863928520635e-06",
        "2.612575618360043e-07",
        "-8.989863986696682e-06",
        "-1.5145157913462415e-06",
        "5.6119340737264734e-05",
        "-2.0551590853515315e-05",
        "-0.0003672884757960283",
        "0.0006458142020057783",
        "0.0016185691267216777",
        "-0.009750689292676413",
        "0.021957764012677534",
        "-0.02380391310867422",
        "-0.010235388899008421",
        "0.09902075367944022",
        "-0.2309273330838092",
    ),
    "double",
)

ERROR_DOUBLES = (
    Snippet(
        "erf_f64",
        f"""\
static inline double erf_near_f64(double a) {{
    const double s = a * a;
{_ERF_NEAR}\
    return fused(q, a, a);
}}
/* Near 0 a polynomial of x^2 times x; beyond, 1 - p^8, p a polynomial: errors of p count little. */
static inline double erf_f64(double x) {{
    const double a = __builtin_fabs(x), near = erf_near_f64(a), t = (a > 6.0 ? 6.0 : a) - 1.25;
{_ERF_ROOT}\
    const double square = p * p, fourth = square * square;
    return __builtin_copysign(a > 1.125 ? fused(-fourth, fourth, 1.0) : near, x);
}}""",
        ("fused",),
    ),
    Snippet(
        "normal_cdf_f64",
        """\
static inline double normal_cdf_f64(double x) {
    return fused(0.5, erf_f64(x * 0.7071067811865476), 0.5);
}""",
        ("erf_f64", "fused"),
    ),
    Snippet(
        "erfc_f64",
        f"""\
/* Near 0 1 - erf x; beyond, e^(-x^2) of the square in two doubles times what is nearly flat, of
   which all that the last operations round is kept. */
static inline double erfc_f64(double x) {{
    const double b = __builtin_fabs(x), a = b > 27.5 ? 27.5 : b, t = (a - 3.0) / (a + 3.0);
    double low;
    const double square = product_f64(a, a, &low);
{_ERFC}\
    const double p = fused(q, t, 0.7160046047255598), pl = fused(q, t, 0.7160046047255598 - p);
    const double below = 1.0 + a, lost = a < 1.0 ? (1.0 - below) + a : (a - below) + 1.0;
    const double inverse = 1.0 / below, y = p * inverse;
    const double rest = (fused(-y, below, p) + (pl - y * lost)) * inverse;
    const double e = exp_of_two_f64(-square, -low), tail = fused(e, y, e * rest);
    const double near = 1.0 - __builtin_copysign(erf_near_f64(a), x);
    return a < 0.4 ? near : x < 0.0 ? 2.0 - tail : tail;
}}""",
        ("erf_f64", "product_f64", "exp_of_two_f64"),
    ),
)
