"""Functions by tables of sixteen numbers as C text, for processors that look up all lanes at once.

The idea: where vectors have 64 bytes, one instruction (`vpermps`) finds for each lane one of
sixteen numbers by the low four bits of another.  So an octave falls into sixteen pieces, of which
half the terms are enough (of e^r: Tang, Table-driven implementation of the exponential function,
ACM TOMS 15, 1989); or the range of a function that is odd and ends at 1 into sixteen intervals,
each with a polynomial of its own around a place where the function is very nearly a float.

The function of one lane has no such instruction (a compiler would look up lane by lane), and stays
as it is: both are within the bounds of `cmath`, but their last bits differ.

This module does not know who calls it, nor what is done where no such instruction is.
"""

from tilewright.kernels.cmath_snippet import Snippet
from tilewright.kernels.cmath_vectors import (
    MOST,
    UNSIGNED,
    each,
    floats,
    fused,
    operation,
    polynomial,
    stepping,
)

LOOKED_UP = 16
"""Numbers of a table: what lanes look up by has as many values."""
# 2^(j/16), and by which part of itself it is short of that.
_POWERS = """
    1.0 1.0442737 1.0905077 1.1387886 1.1892071 1.2418578 1.2968396 1.3542556 1.4142135 1.4768262
    1.5422108 1.6104903 1.6817929 1.7562522 1.8340081 1.9152066
    0.0 4.628547e-8 -1.19921575e-8 4.7297824e-8 3.193418e-8 3.6210572e-8 -3.099072e-8 -7.475213e-9
    1.7114271e-8 -3.0476834e-8 5.233334e-9 6.1075918e-9 -1.4719605e-8 -5.258795e-9 -6.1282597e-9
    5.1406093e-9
"""
# Of e^r = 1 + r q for |r| <= ln 2 / 32: the terms of q, that of the highest power first.
_TERMS = ("0.166670099f", "0.500016332f", "1.0f")
# Around places c, in rows: c, the terms of q, that of the highest power first, and tanh(c), where
# tanh(x) = tanh(c) + t q, t = x - c.  From 1/16 to 16 two columns have an octave, by the lowest bit
# of the exponent and the highest behind it; what lies below is in the first of these, where c is 0
# and tanh(x) = t + t q.
_TANH = """
    2.5203283 3.51985 5.0400667 7.0549 8.6675 8.6675 0.0 0.10938385 0.15622199 0.21874551
    0.31247854 0.43747562 0.62510586 0.8750283 1.2500209 1.749765
    -6.9768465e-4 -1.5628367e-4 -9.118164e-6 -1.6718458e-7 1.1307299e-8 1.1307299e-8 0.0 2.397954
    0.24701034 -0.09031938 -0.089343175 -0.04295132 -0.024052858 0.013265813 0.015118237
    0.0020892676
    0.002802367 4.717171e-4 2.6276612e-5 4.6736145e-7 1.3118738e-8 1.3118738e-8 0.13265242
    0.32569587 0.13948989 0.08110869 0.04267981 -0.0016174051 -0.054228988 -0.058391623
    -0.019680716 0.0034802605
    -0.00776222 -0.0011501585 -5.447979e-5 -9.639784e-7 -5.6135775e-8 -5.6135775e-8 0.0 0.06977883
    0.09681459 0.12740701 0.15820444 0.16989139 0.1378674 0.060779646 -0.012589114 -0.023527842
    0.016374564 0.0023185357 1.0967558e-4 1.9510505e-6 8.0917935e-8 8.0917935e-8 -0.3333313
    -0.3177177 -0.30193588 -0.27365953 -0.21955048 -0.13621365 -0.017782107 0.081808455 0.10832436
    0.06295026
    -0.025217988 -0.003493408 -1.6787407e-4 -2.9866717e-6 -1.1354012e-7 -1.1354012e-7 0.0
    -0.10765641 -0.15124206 -0.20533897 -0.27495745 -0.34184414 -0.38402113 -0.35512528
    -0.23786454 -0.10718424
    0.025546495 0.0034994893 1.6786047e-4 2.9848138e-6 1.18232684e-7 1.18232684e-7 0.0 0.98813
    0.97598636 0.9536364 0.9083786 0.8306268 0.6923379 0.5044968 0.28040484 0.1138624
    0.9871442 0.99824876 0.9999162 0.9999985 0.99999994 0.99999994 0.0 0.108949676 0.15496339
    0.21532206 0.30269024 0.4115498 0.554673 0.7039199 0.8482895 0.9413488
"""
_TANH_LOW, _TANH_END = "0.0625f", "9.5f"
# Likewise of erf, in steps of 1 / 3.859375 from 0 on.
_ERF = """
    0.0 0.2100027 0.51817197 0.7773356 1.0365293 1.2956359 1.5547162 1.8137945 2.0728931 2.3320625
    2.5911827 2.8501348 3.109267 3.3679497 3.6237054 3.863542
    0.0 -0.04233746 -0.04873154 -0.023350721 0.008169343 0.021918127 0.017351164 0.0064555844
    -8.888594e-4 -0.0035043457 -0.0022965462 -0.0012467426 -5.1206845e-4 -1.6871547e-4
    -3.827032e-5 0.029488206
    0.11220609 0.089801475 0.0021833696 -0.056987364 -0.067301415 -0.041195408 -0.008973677
    0.0093850875 0.01287193 0.009157636 0.0047091763 0.00190661 6.2931835e-4 1.7320512e-4
    4.080825e-5 -0.001234356
    0.0 0.11008723 0.18348987 0.14312188 0.056666337 -0.01624642 -0.047828052 -0.045498222
    -0.029683739 -0.015001961 -0.0061701173 -0.0021053413 -6.038784e-4 -1.4729962e-4 -3.1476888e-5
    -7.954048e-4
    -0.37612298 -0.3281631 -0.13314135 0.042856403 0.14755568 0.16546996 0.12860826 0.078196734
    0.038876303 0.016145227 0.005672662 0.001700511 4.365039e-4 9.66403e-5 1.8828407e-5
    2.2433831e-5
    0.0 -0.2267395 -0.44701275 -0.47933692 -0.39942357 -0.27283487 -0.1564424 -0.0762569
    -0.031835947 -0.011436202 -0.0035481155 -9.5374155e-4 -2.2210891e-4 -4.5042114e-5 -8.105146e-6
    4.857288e-6
    0.12837917 1.0796977 0.8626727 0.6166409 0.38534713 0.21057987 0.10062442 0.04204275
    0.015358229 0.004903857 0.001369314 3.3462985e-4 7.143254e-5 1.3372651e-5 2.236828e-6
    3.1676336e-7
    0.0 0.23352484 0.53632313 0.72837085 0.8573173 0.93309414 0.9721008 0.9896852 0.99662685
    0.99902636 0.99975216 0.9999444 0.99998903 0.9999981 0.9999997 0.99999994
"""
_ERF_SCALE, _ERF_END = "3.859375f", "4.0f"


def _table(name: str, numbers: str) -> Snippet:
    """Return the function that gives the rows of a table."""
    words = [f"{word}f" for word in numbers.split()]
    rows = [words[at : at + LOOKED_UP] for at in range(0, len(words), LOOKED_UP)]
    lines = ",\n".join(f"        {', '.join(row[k : k + 8])}" for row in rows for k in (0, 8))
    return Snippet(
        name,
        f"""\
static inline const float *{name}(void) {{
    static const float rows[{len(words)}] __attribute__((aligned(64))) = {{
{lines}
    }};
    return rows;
}}""",
    )


def _look_up(to: str, by: str, row: int) -> str:
    return operation("vpermps", to, by, f"rows[{row}]")


# n is k and sixteenths, of which the bits of z before have the number; powers round once, to
# infinity and to subnormal numbers too.
def _power(of: str, *, exact: bool) -> tuple[str, ...]:
    """Return the steps to q = e^of.  exact: with what the table's number is short of."""
    return (
        fused("z[k]", of, "zero + 1.44269504f", "zero + 786432.0f"),
        "n[k] = z[k] - 786432.0f;",
        fused("r[k]", "n[k]", "zero - 0.693145752f", of),
        fused("r[k]", "n[k]", "zero - 1.42860677e-6f", "r[k]"),
        *polynomial("q[k]", "r[k]", _TERMS),
        *(
            (_look_up("t[k]", "z[k]", 1), fused("q[k]", "q[k]", "r[k]", "t[k]"))
            if exact
            else ("q[k] *= r[k];",)
        ),
        _look_up("t[k]", "z[k]", 0),
        # What is below all subnormal numbers is 0 before it is scaled: Intel's processors take
        # hundreds of clocks for a result that rounds there.  A NaN is not less.
        f'__asm__("vcmpps $21, %2, %1, %0" : "=Yk"(b[k]) : "v"({of}), "v"(zero - 104.0f));',
        '__asm__("vfmadd213ps %2, %2, %0%{%3%}%{z%}"'
        ' : "=v"(q[k]) : "0"(q[k]), "v"(t[k]), "Yk"(b[k]));',
        operation("vscalefps", "q[k]", "q[k]", "n[k]"),
    )


_EXP = (
    operation("vminps", "a[k]", "zero + 89.0f", "x[k]"),  # of a number and a NaN, the second
    *_power("a[k]", exact=False),
    "x[k] = q[k];",
)
_SIGMOID = (
    "a[k] = (V)((U)x[k] | 0x80000000);",
    *_power("a[k]", exact=True),
    "t[k] = q[k] + 1.0f;",
    "n[k] = q[k] - (t[k] - 1.0f);",
    "m[k] = (U)(x[k] < zero);",
    "q[k] = (V)((m[k] & (U)q[k]) | (~m[k] & (U)(zero + 1.0f)));",
    "r[k] = (zero + 1.0f) / t[k];",
    "z[k] = q[k] * r[k];",
    fused("t[k]", "t[k]", "z[k]", "q[k]", "vfnmadd213ps"),
    fused("n[k]", "n[k]", "z[k]", "t[k]", "vfnmadd213ps"),
    fused("n[k]", "n[k]", "r[k]", "z[k]"),
    "x[k] = n[k];",
)


def _intervals(numbers: str, end: str, find: tuple[str, ...]) -> tuple[str, ...]:
    """Return the steps of an odd function by a table of its intervals.

    end: from where on it is 1.  find: the steps from a = |x| to i, whose low bits say which.
    """
    last = len(numbers.split()) // LOOKED_UP - 1
    return (
        "a[k] = (V)((U)x[k] & 0x7fffffff);",
        operation("vminps", "a[k]", f"zero + {end}", "a[k]"),
        *find,
        _look_up("t[k]", "i[k]", 0),
        "t[k] = a[k] - t[k];",
        _look_up("q[k]", "i[k]", 1),
        *(
            step
            for row in range(2, last)
            for step in (_look_up("c[k]", "i[k]", row), fused("q[k]", "q[k]", "t[k]", "c[k]"))
        ),
        _look_up("c[k]", "i[k]", last),
        # t is less than what the function is at c, but where that is 0.
        operation("vmaxps", "c[k]", "c[k]", "t[k]"),
        fused("q[k]", "q[k]", "t[k]", "c[k]"),
        "x[k] = (V)((U)q[k] | ((U)x[k] & 0x80000000));",
    )


_FIND_TANH = (
    operation("vmaxps", "i[k]", f"zero + {_TANH_LOW}", "a[k]"),
    "i[k] = (V)((U)i[k] >> 22);",
)
_FIND_ERF = (fused("i[k]", "a[k]", f"zero + {_ERF_SCALE}", "zero + 12582912.0f"),)
_ERF_STEPS = _intervals(_ERF, _ERF_END, _FIND_ERF)


BY_TABLE = {
    "exp_f32_lanes": ("powers_f32", _EXP),
    "sigmoid_f32_lanes": ("powers_f32", _SIGMOID),
    "tanh_f32_lanes": ("tanh_table", _intervals(_TANH, _TANH_END, _FIND_TANH)),
    "erf_f32_lanes": ("erf_table", _ERF_STEPS),
    "normal_cdf_f32_lanes": (
        "erf_table",
        (
            "x[k] *= 0.707106781f;",
            *_ERF_STEPS,
            fused("q[k]", "x[k]", "zero + 0.5f", "zero + 0.5f"),
            "x[k] = q[k];",
        ),
    ),
}
"""Functions of lanes that go by a table: which, and their steps."""
TABLES = (
    _table("powers_f32", _POWERS),
    _table("tanh_table", _TANH),
    _table("erf_table", _ERF),
)


def by_table(usual: Snippet) -> Snippet:
    """Return a function of lanes that goes by a table where vectors have 64 bytes and else its
    usual way; what has no table is returned as it is."""
    if usual.name not in BY_TABLE:
        return usual
    table, steps = BY_TABLE[usual.name]
    text = "".join(steps)
    unsigned = f"        {UNSIGNED}\n" if "(U)" in text else ""
    masks = f"        U m[{MOST}];\n" if "m[k]" in text else ""
    masks += f"        unsigned short b[{MOST}];\n" if "b[k]" in text else ""
    lines = stepping(f"""\
{unsigned}\
        const V *const rows = (const V *){table}();
        V {floats("acinqrtz", text)};
{masks}{each(steps)}""")
    head, body = usual.text.split("{\n", 1)
    assert body.endswith("}"), f"{usual.name} is one function"
    chosen = f"{head}{{\n#ifdef __AVX512F__\n{lines}#else\n{body[:-1]}#endif\n}}"
    return Snippet(usual.name, chosen, (*usual.needs, table))
