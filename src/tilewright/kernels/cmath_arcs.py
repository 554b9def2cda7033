"""Arcs of sines and cosines as C text, of either type.

The idea: an arc is that of a small sine and what a part of a turn adds to it, that in two numbers;
what the root of a small number and the sum have rounded is kept.

This module does not know who calls them; the errors stand in `cmath`.
"""

from collections.abc import Sequence

from tilewright.kernels.cmath_snippet import Snippet, horner, where_fused

Parts = tuple[str, str]


def arcs(
    c: str,
    terms: Sequence[str],
    quarter: Parts,
    half: Parts,
    otherwise: Parts = ("", ""),
    needs: tuple[str, ...] = (),
) -> tuple[Snippet, ...]:
    """Return asin and acos of a type.

    c: the type.  terms: of q in asin(t) = t + t s q for s = t^2 up to 1/4, as `horner` takes them.
    quarter, half: these turns, in two parts.  otherwise: the lines of asin and of acos in their
    place, where no processor's operation multiplies and adds; needs: the snippets these use.
    """
    n, f, _ = _spelled(c)
    head = f"""\
    const {c} a = __builtin_fabs{f}(x);
    const int far = a > 0.5{f};
    const {c} s = far ? 0.5{f} - 0.5{f} * a : a * a;
    {c} low;
    const {c} root = root_{n}(s, &low);
"""
    sine = f"""\
{head}\
    const {c} u = far ? -2.0{f} * root : a, under = far ? {quarter[1]} - 2.0{f} * low : 0.0{f};
    return __builtin_copysign{f}(sine_arc_{n}(far ? {quarter[0]} : 0.0{f}, under, u, s), x);
"""
    cosine = f"""\
{head}\
    const int behind = x < 0.0{f};
    const {c} end = behind ? {half[0]} : 0.0{f}, end_low = behind ? {half[1]} : 0.0{f};
    const {c} u = far ? (behind ? -2.0{f} * root : 2.0{f} * root) : -x;
    const {c} twice = behind ? -2.0{f} * low : 2.0{f} * low;
    const {c} under = far ? end_low + twice : {quarter[1]};
    return sine_arc_{n}(far ? end : {quarter[0]}, under, u, s);
"""
    functions = (("asin", sine, otherwise[0]), ("acos", cosine, otherwise[1]))
    return _sine_arc(c, terms), *(
        Snippet(
            f"{name}_{n}",
            "/* Beyond 1/2 by twice the arc whose sine is the root of (1 - |x|) / 2. */\n"
            f"static inline {c} {name}_{n}({c} x) {{\n{where_fused(lines, other)}}}",
            (f"sine_arc_{n}", *needs),
        )
        for name, lines, other in functions
    )


def _sine_arc(c: str, terms: Sequence[str]) -> Snippet:
    n, f, fused = _spelled(c)
    return Snippet(
        f"sine_arc_{n}",
        f"""\
/* The root of s, and what it has rounded. */
static inline {c} root_{n}({c} s, {c} *low) {{
    const {c} y = __builtin_sqrt{f}(s);
    *low = {fused}(-y, y, s) * (s == 0.0{f} ? 0.0{f} : 0.5{f} / y);
    return y;
}}
/* base + (u + u s q), of which what is added last is small, and `under` what base and u are short
   of; s is the square of u, or where that is twice a sine, of the sine. */
static inline {c} sine_arc_{n}({c} base, {c} under, {c} u, {c} s) {{
{horner("q", "s", terms, c)}\
    const {c} y = base + u, lost = u - (y - base);
    return y + (lost + {fused}(u * s, q, under));
}}""",
        (fused,),
    )


def _spelled(c: str) -> tuple[str, str, str]:
    """Return a type's name, what ends its numbers and functions, and its multiply-add."""
    return ("f32", "f", "fma_f32") if c == "float" else ("f64", "", "fused")
