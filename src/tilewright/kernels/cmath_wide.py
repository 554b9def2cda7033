"""The exponential of many lanes as C text, where vectors have 64 or 32 bytes.

The idea: a chain of twenty operations makes a processor wait, so that each is named for four
vectors before the next.  Where vectors have 64 bytes there is an operation that makes x 2^k and
rounds once, to infinity and to subnormal numbers too, which a compiler does not find in `exp_f32`.
What comes out has the bits of `exp_f32`.

This module does not know who calls it.
"""

from tilewright.kernels.cmath_snippet import Snippet, lanes_head

MOST = 4  # vectors under way: with what they are made of they fill 16 registers
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
_ROUNDED = (
    _operation("vminps", "a[k]", "zero + 89.0f", "x[k]"),
    _operation("vmaxps", "a[k]", "zero - 104.0f", "a[k]"),
    _fused("n[k]", "a[k]", "zero + 1.44269504f", "zero + 12583166.0f"),
)
_POWERS = (
    "n[k] -= 12583166.0f;",
    _fused("r[k]", "n[k]", "zero - 0.693145752f", "a[k]"),
    _fused("r[k]", "n[k]", "zero - 1.42860677e-6f", "r[k]"),
    f"q[k] = zero + {TERMS[0]};",
    *(_fused("q[k]", "q[k]", "r[k]", f"zero + {term}") for term in (*TERMS[1:], "1.0f", "1.0f")),
)
_AT_ONCE = (_operation("vscalefps", "x[k]", "q[k]", "n[k]"),)
_BY_HALVES = (
    "h[k] = b[k] >> 1;",
    "q[k] *= (V)(h[k] << 23);",
    "x[k] = q[k] * (V)((b[k] - h[k]) << 23);",
)


def _each(steps: tuple[str, ...]) -> str:
    head = f"#pragma GCC unroll {MOST}\n        for (long k = 0; k < vectors; k++)\n            "
    return "".join(f"{head}{step}\n" for step in steps)


EXP_LANES = Snippet(
    "exp_f32_lanes",
    f"""\
/* Step by step for all vectors, so that their chains stand beside each other. */
{lanes_head("exp_f32")}\
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#ifdef __AVX512F__
    enum {{ wide = 16 }};
#else
    enum {{ wide = 8 }};
#endif
    typedef float V __attribute__((vector_size(4 * wide), aligned(4), may_alias));
    const V zero = {{0}};
    const long vectors = count / wide < {MOST} ? count / wide : {MOST};
    for (long at = 0; at < count; at += {MOST} * wide) {{
        V *const x = (V *)(x_ + at), a[{MOST}], n[{MOST}], r[{MOST}], q[{MOST}];
{_each(_ROUNDED)}\
#ifndef __AVX512F__
        typedef unsigned U __attribute__((vector_size(4 * wide)));
        U b[{MOST}], h[{MOST}];
{_each(("b[k] = (U)n[k];",))}\
#endif
{_each(_POWERS)}\
#ifdef __AVX512F__
{_each(_AT_ONCE)}\
#else
{_each(_BY_HALVES)}\
#endif
    }}
#else
    for (long l = 0; l < count; l++) x_[l] = exp_f32(x_[l]);
#endif
}}""",
    ("exp_f32",),
)
