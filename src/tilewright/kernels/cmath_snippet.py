"""One C function as text, and the views of floats as bits that most of them need.

This module does not know which functions there are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snippet:
    """One C function (or declaration): its name, its text, and the snippets that it uses."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


BITS = (
    Snippet(
        "bits_f32",
        """\
static inline int bits_f32(float x) { union { float f; int i; } u; u.f = x; return u.i; }
static inline float from_bits_f32(int i) { union { int i; float f; } u; u.i = i; return u.f; }""",
    ),
    Snippet(
        "bits_f64",
        """\
static inline long bits_f64(double x) { union { double f; long i; } u; u.f = x; return u.i; }
static inline double from_bits_f64(long i) {
    union { long i; double f; } u;
    u.i = i;
    return u.f;
}""",
    ),
)
