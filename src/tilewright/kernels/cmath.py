"""Vector mathematics as C text: branch-free functions that a C compiler turns into SIMD code.

The idea: a kernel is one self-contained text without headers, so the functions it needs are printed
into it.  They have no branches, tables of a few words at most and no errno; gcc and clang vectorise
a loop over them at -O3.  Of float32 the hot functions work in float32, the others in double,
rounded once.

Largest errors measured over dense samples of the whole float32 range (`tests/kernels/test_cmath`
measures them again), in units of the last place of the float32 result:

==========  =====   ==========  =====   ==========  =====   ==========  =====
exp         0.9     log         0.9     sin         1.0     tanh        1.7
exp2        0.9     log2        1.1     cos         1.0     sigmoid     1.5
expm1       1.5     log10       1.0     tan         1.2     erf         0.9
sinh        0.6     log1p       0.9     asin        0.7     erfc        1.4
cosh        0.6     pow         0.6     acos        0.7     rsqrt       1.5
                                        atan        1.3     atan2       0.6
asinh       0.6     acosh       0.6     atanh       0.6     hypot       0.6
xlogy       1.9     xlog1py     1.9     normal_cdf  1.4
==========  =====   ==========  =====   ==========  =====   ==========  =====

normal_cdf is as exact as 0.5 (1 + erf) can be: its errors are in units of a half's last place.
Where vectors have 64 bytes, exp of many lanes at once has 1.0 (`cmath_tables`).
Without fused multiply-adds exp, all logarithms, sigmoid, tanh, tan, asin, acos and erfc are in
double: 0.6.

Of doubles, in units of the last place of the double (without fused multiply-adds up to 3.6 for
erfc, 2.5 for tanh, 2.3 for sigmoid, 0.5 more for the others):

==========  =====   ==========  =====   ==========  =====   ==========  =====
exp         1.0     log         0.9     sin         0.9     tanh        1.7
exp2        0.9     log2        0.9     cos         0.9     sigmoid     1.5
expm1       1.5     log10       0.9     tan         1.3     erf         1.9
sinh        1.7     log1p       0.9     asin        0.7     erfc        2.6
cosh        1.4     pow         1.0     acos        0.7     hypot       0.8
asinh       1.3     acosh       1.1     atan        1.4     atan2       1.6
atanh       0.9     normal_cdf  1.5
==========  =====   ==========  =====   ==========  =====   ==========  =====

NaN gives NaN, infinities, zeros (with their sign) and subnormal numbers follow IEEE 754 and C99
Annex F.

This module does not know expressions or kernels; `support` prints what is used.
"""

from tilewright.kernels.cmath_circular import ERROR_FUNCTIONS, TRIGONOMETRIC
from tilewright.kernels.cmath_double import DOUBLES
from tilewright.kernels.cmath_double_circular import CIRCULAR_DOUBLES
from tilewright.kernels.cmath_double_error import ERROR_DOUBLES
from tilewright.kernels.cmath_exponential import EXPONENTIALS, LOGARITHMS
from tilewright.kernels.cmath_inverse import INVERSES, PAIRS
from tilewright.kernels.cmath_snippet import BITS, Snippet
from tilewright.kernels.cmath_tables import TABLES, by_table

_LIBRARY = tuple(Snippet(name, f"extern double {name}(double);") for name in ("sin", "cos", "tan"))

_ALL = (
    *BITS,
    *TABLES,
    *_LIBRARY,
    *DOUBLES,
    *CIRCULAR_DOUBLES,
    *ERROR_DOUBLES,
    *EXPONENTIALS,
    *LOGARITHMS,
    *TRIGONOMETRIC,
    *ERROR_FUNCTIONS,
    *INVERSES,
    *PAIRS,
)
SNIPPETS = tuple(map(by_table, _ALL))
ULP = {
    "exp": 0.9,
    "exp2": 0.9,
    "expm1": 1.5,
    "sinh": 0.6,
    "cosh": 0.6,
    "log": 0.9,
    "log2": 1.1,
    "log10": 1.0,
    "log1p": 0.9,
    "pow": 0.6,
    "sin": 1.0,
    "cos": 1.0,
    "tan": 1.2,
    "asin": 0.7,
    "acos": 0.7,
    "atan": 1.3,
    "atan2": 0.6,
    "tanh": 1.7,
    "sigmoid": 1.5,
    "erf": 0.9,
    "erfc": 1.4,
    "rsqrt": 1.5,
    "asinh": 0.6,
    "acosh": 0.6,
    "atanh": 0.6,
    "hypot": 0.6,
    "xlogy": 1.9,
    "xlog1py": 1.9,
    "normal_cdf": 1.4,
}
OF_A_HALF = frozenset(("normal_cdf",))
"""Functions whose errors are in units of the last place of a half, also where they are less."""
LANES_ULP = {"exp": 1.0}
"""Where vectors have 64 bytes and all lanes are looked up at once, if more."""
DOUBLE_ULP = {
    "exp": 1.0,
    "exp2": 0.9,
    "expm1": 1.5,
    "sinh": 1.7,
    "cosh": 1.4,
    "log": 0.9,
    "log2": 0.9,
    "log10": 0.9,
    "log1p": 0.9,
    "pow": 1.0,
    "sin": 0.9,
    "cos": 0.9,
    "tan": 1.3,
    "asin": 0.7,
    "acos": 0.7,
    "atan": 1.4,
    "atan2": 1.6,
    "tanh": 1.7,
    "sigmoid": 1.5,
    "erf": 1.9,
    "erfc": 2.6,
    "asinh": 1.3,
    "acosh": 1.1,
    "atanh": 0.9,
    "hypot": 0.8,
    "normal_cdf": 1.5,
}
