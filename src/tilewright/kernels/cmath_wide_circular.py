"""Sines, cosines and arc tangents of many lanes as C text, where vectors have 64 or 32 bytes.

The idea: as in `cmath_wide`, of the functions of one lane in `cmath_circular`.

This module does not know who calls it.
"""

from tilewright.kernels.cmath_snippet import Snippet
from tilewright.kernels.cmath_vectors import (
    MOST,
    UNSIGNED,
    each,
    floats,
    fused,
    guarded,
    lanes,
    operation,
    polynomial,
)

# pi/2 in three parts: the first below it, so that the second, which is taken away from what the
# first leaves, leaves a zero its sign.
QUARTER = ("1.57079625f", "7.54979013e-8f", "-1.71512451e-15f")
# What rounds to quarter turns, and leaves in its low bits how many they are of the sine.
ROUNDING = {"sin": "12582912.0f", "cos": "12582913.0f"}
NEAR_BITS = "0x49800000"  # of 2^20
# Of sin t = t - t^3 q and cos t = 1 - t^2/2 + t^4 q, |t| <= 0.83; the highest power first.
SIN_TERMS = ("1.94800567e-4f", "-8.33189674e-3f", "1.66666508e-1f")
COS_TERMS = ("2.43974337e-5f", "-1.38870056e-3f", "4.16666381e-2f")
# Of atan t = t + t^3 q for t in [0, 1]; pi/2 in two parts.
ATAN_TERMS = (
    "-1.81215559e-3f",
    "1.09787779e-2f",
    "-3.12592611e-2f",
    "5.79989813e-2f",
    "-8.40355009e-2f",
    "1.09515436e-1f",
    "-1.42640427e-1f",
    "1.99985296e-1f",
    "-3.33332986e-1f",
)
HALF_PI = ("1.57079637f", "-4.37113883e-8f")


def _turns(rounding: str) -> tuple[str, ...]:
    first, second, third = QUARTER
    return (
        fused("n[k]", "x[k]", "zero + 0.636619747f", f"zero + {rounding}"),
        "b[k] = (U)n[k];",
        f"n[k] -= {rounding};",
        fused("r[k]", "n[k]", f"zero + {first}", "x[k]", "vfnmadd213ps"),
        f"p[k] = n[k] * {second};",
        "t[k] = r[k] - p[k];",
        "r[k] = t[k] - r[k];",
        fused("p[k]", "n[k]", f"zero + {second}", "r[k]"),
        fused("r[k]", "n[k]", f"zero + {third}", "p[k]"),
        "s[k] = t[k] * t[k];",
        *polynomial("q[k]", "s[k]", SIN_TERMS),
        "p[k] = t[k] * s[k];",
        fused("p[k]", "q[k]", "p[k]", "r[k]"),
        "p[k] = t[k] - p[k];",
        *polynomial("q[k]", "s[k]", COS_TERMS),
        fused("a[k]", "s[k]", "zero - 0.5f", "zero + 1.0f"),
        "e[k] = 1.0f - a[k];",
        fused("e[k]", "s[k]", "zero - 0.5f", "e[k]"),
        "s[k] *= s[k];",
        fused("e[k]", "q[k]", "s[k]", "e[k]"),
        fused("e[k]", "t[k]", "r[k]", "e[k]"),
        "a[k] += e[k];",
        "m[k] = -(b[k] & 1);",
        "x[k] = (V)(((m[k] & (U)a[k]) | (~m[k] & (U)p[k])) ^ ((b[k] & 2) << 30));",
    )


_FARTHEST = (operation("vpmaxud", "far", "far", "(U)x[k] & 0x7fffffff"),)
_ATAN = (
    "a[k] = (V)((U)x[k] & 0x7fffffff);",
    "m[k] = (U)(a[k] > zero + 1.0f);",
    "t[k] = (V)((m[k] & (U)(zero - 1.0f)) | (~m[k] & (U)a[k]));",
    "r[k] = (V)((m[k] & (U)a[k]) | (~m[k] & (U)(zero + 1.0f)));",
    "t[k] /= r[k];",
    "s[k] = t[k] * t[k];",
    *polynomial("q[k]", "s[k]", ATAN_TERMS),
    "s[k] *= t[k];",
    f"r[k] = (V)(m[k] & (U)(zero + {HALF_PI[0]}));",
    "p[k] = r[k] + t[k];",
    "r[k] = p[k] - r[k];",
    "t[k] -= r[k];",
    f"t[k] += (V)(m[k] & (U)(zero + {HALF_PI[1]}));",
    fused("q[k]", "q[k]", "s[k]", "t[k]"),
    "p[k] += q[k];",
    "x[k] = (V)((U)p[k] | ((U)x[k] & 0x80000000));",
)


def circular(name: str, otherwise: str) -> Snippet:
    """Return the lanes of the sine or the cosine; `otherwise` as in `lanes`."""
    steps = _turns(ROUNDING[name])
    declared = f"""\
V {floats("aenpqrst", *steps)};
        U b[{MOST}], m[{MOST}];"""
    body = guarded(f"{name}_f32", _FARTHEST, f"{NEAR_BITS} - 1 - far", declared, steps)
    return lanes(f"{name}_f32", body, otherwise, (f"{name}_near_f32",))


ATAN_LANES = lanes(
    "atan_f32",
    f"""\
        {UNSIGNED}
        V {floats("apqrst", *_ATAN)};
        U m[{MOST}];
{each(_ATAN)}""",
)
