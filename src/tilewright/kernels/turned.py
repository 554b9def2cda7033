"""Squares of a tensor that are read across: turned near, by vectors.

The idea: where one loop goes along what is read and another along what is written, lanes of either
touch one element of each line; so a square of eight by eight is read by vectors, turned among them
in three rounds of swaps, and read again as it is written.

This module does not know loops.
"""

from tilewright.kernels.cmath_snippet import Snippet

SIDE = 8  # elements of a square's side
_LANE = {2: "short", 4: "int"}
WIDTHS = tuple(_LANE)  # bytes of elements that are turned
_WHY = """\
/* to[8 l + k] = from[apart k + l] for all l < along and k < across, which are 8 at most. */"""


def _swap(distance: int) -> str:
    """Return a round: of each two vectors so far apart, blocks of so many lanes change places."""
    lanes = [(at, at & distance) for at in range(SIDE)]
    low = ", ".join(str(SIDE + at - distance if odd else at) for at, odd in lanes)
    high = ", ".join(str(SIDE + at if odd else at + distance) for at, odd in lanes)
    return f"""\
        for (int i = 0; i < 8; i++) {{
            if (i & {distance}) continue;
            const V a = r[i], b = r[i + {distance}];
#if defined(__clang__)
            r[i] = __builtin_shufflevector(a, b, {low});
            r[i + {distance}] = __builtin_shufflevector(a, b, {high});
#else
            r[i] = __builtin_shuffle(a, b, (V){{{low}}});
            r[i + {distance}] = __builtin_shuffle(a, b, (V){{{high}}});
#endif
        }}
"""


def _turning(width: int) -> Snippet:
    lane, name = _LANE[width], f"turn_{width}"
    swaps = "".join(map(_swap, (4, 2, 1)))
    text = f"""\
{_WHY}
static inline void {name}(void *to, const void *from, long apart, long along, long across) {{
    typedef {lane} E __attribute__((may_alias));
#if defined(__AVX2__)
    typedef {lane} V __attribute__((vector_size({SIDE * width})));
    typedef {lane} U __attribute__((vector_size({SIDE * width}), aligned({width}), may_alias));
    if (along == 8 && across == 8) {{
        V r[8];
        for (int k = 0; k < 8; k++) r[k] = *(const U *)((const E *)from + apart * k);
{swaps}\
        for (int l = 0; l < 8; l++) *(U *)((E *)to + 8 * l) = r[l];
        return;
    }}
#endif
    for (long k = 0; k < across; k++)
        for (long l = 0; l < along; l++)
            ((E *)to)[8 * l + k] = ((const E *)from)[apart * k + l];
}}"""
    return Snippet(name, text)


TURNED = tuple(map(_turning, WIDTHS))
