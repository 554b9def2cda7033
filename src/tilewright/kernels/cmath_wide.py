"""The exponential of many lanes as C text, where vectors have 64 bytes.

The idea: such processors have an operation that makes x 2^k and rounds once, to infinity and to
subnormal numbers too.  A compiler does not find it in `exp_f32`, so that it is named here; what
comes out has the bits of `exp_f32`.

This module does not know who calls it.
"""

from tilewright.kernels.cmath_snippet import LANES, Snippet, lanes_head

WIDE = 16  # floats of 64 bytes
MOST = LANES // WIDE
# Of e^r = 1 + r + r^2 q for |r| <= ln 2 / 2: the terms of q, that of the highest power first.
TERMS = (
    "1.98581e-4f",
    "1.39344967e-3f",
    "8.33336183e-3f",
    "4.16664574e-2f",
    "1.66666665e-1f",
    "0.5f",
)


def _operation(name: str, to: str, a: str, b: str) -> str:
    return f'__asm__("{name} %2, %1, %0" : "=v"({to}) : "v"({a}), "v"({b}));'


def _fused(to: str, a: str, b: str, c: str) -> str:
    return f'__asm__("vfmadd213ps %3, %2, %0" : "=v"({to}) : "0"({a}), "v"({b}), "v"({c}));'


# Of a number and a NaN, the least and the greatest are the second operand.
_STEPS = (
    _operation("vminps", "a[k]", "zero + 89.0f", "x[k]"),
    _operation("vmaxps", "a[k]", "zero - 104.0f", "a[k]"),
    _fused("n[k]", "a[k]", "zero + 1.44269504f", "zero + 12583166.0f"),
    "n[k] -= 12583166.0f;",
    _fused("r[k]", "n[k]", "zero - 0.693145752f", "a[k]"),
    _fused("r[k]", "n[k]", "zero - 1.42860677e-6f", "r[k]"),
    f"q[k] = zero + {TERMS[0]};",
    *(_fused("q[k]", "q[k]", "r[k]", f"zero + {term}") for term in (*TERMS[1:], "1.0f", "1.0f")),
    _operation("vscalefps", "x[k]", "q[k]", "n[k]"),
)
_EACH = f"""\
#pragma GCC unroll {MOST}
    for (long k = 0; k < count / {WIDE}; k++)
        """

EXP_LANES = Snippet(
    "exp_f32_lanes",
    f"""\
/* Step by step for all vectors, so that their chains stand beside each other. */
{lanes_head("exp_f32")}\
#ifdef __AVX512F__
    typedef float V __attribute__((vector_size({4 * WIDE}), aligned(4), may_alias));
    const V zero = {{0}};
    V *const x = (V *)x_, a[{MOST}], n[{MOST}], r[{MOST}], q[{MOST}];
{"".join(f"{_EACH}{step}{chr(10)}" for step in _STEPS)}\
#else
    for (long l = 0; l < count; l++) x_[l] = exp_f32(x_[l]);
#endif
}}""",
    ("exp_f32",),
)
