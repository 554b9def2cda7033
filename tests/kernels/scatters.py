"""Bodies whose terms land where an index that is read says.

The idea: elements are kept apart by the last dim, by others or by none, and there are rows
enough for threads to share them, or not.
"""

from typing import Any

PLACED = {"g": "f32[5, 24]", "t": "i64[5, 24]"}
EDGES = {"t": "i64[50]"}

SCATTERS: dict[str, tuple[Any, ...]] = {
    "scatter": (
        {"g": "f32[12, 40]", "t": "i64[12]"},
        {"y": "f32[9, 40]: y[t[r<12] % 9, d<40] += g[r, d]"},
    ),
    "indexadd": (
        {"g": "f32[12, 40]", "t": "i64[12]", "z": "f32[9, 40]"},
        {"y": "f32[9, 40]: y[t[r<12] % 9, d<40] += g[r, d] from z"},
    ),
    # Elements apart in the last dim, in others, and by a loop that is named twice.
    "scatterplanes": (
        {"g": "f32[3, 5, 24]", "t": "i64[3, 5, 24]"},
        {"y": "f32[3, 5, 9]: y[b<3, c<5, t[b, c, r<24] % 9] += g[b, c, r]"},
    ),
    "scatterbetween": (
        {"g": "f32[3, 5, 24]", "t": "i64[5, 24]"},
        {"y": "f32[7, 5, 9, 3]: y[t[c, r] % 7, c<5, t[c, r<24] % 9, b<3] += g[b, c, r]"},
    ),
    "scattermiddle": (
        {"g": "f32[3, 5, 24]", "t": "i64[5, 24]", "z": "f32[7, 5, 9]"},
        {"y": "f32[7, 5, 9]: y[t[c, r] % 7, c<5, t[c, r<24] % 9] += g[b<3, c, r] from z"},
    ),
    "scatterpart": (PLACED, {"y": "f32[8, 5, 9]: y[c<5, c, t[c, r<24] % 9] += g[c, r]"}),
    "scatterends": (PLACED, {"y": "f32[8, 9, 5]: y[c<5, t[c, r<24] % 9, c] += g[c, r]"}),
    "scattertwice": (PLACED, {"y": "f32[5, 5, 9]: y[c<5, c, t[c, r<24] % 9] += g[c, r]"}),
    "scatterpartly": (
        PLACED,
        {"y": "f32[8, 9]: y[c<5, t[c, r<24] % 9] = g[c, r] where g[c, r] > 0 else 2"},
    ),
    "scattermax": (
        {"g": "f32[12]", "t": "i64[12]"},
        {"y": "f32[9]: y[t[r<12] % 9] max= g[r] else 3"},
    ),
    **{
        f"scatter{op}rows{dtype}": (
            {"g": f"{dtype}[50, 21]", "t": "i64[50]", "z": f"{dtype}[20, 21]"},
            {"y": f"{dtype}[20, 21]: y[t[e<50] % 20, d<21] {op}= g[e, d] from z"},
        )
        for op, dtype in (("max", "f32"), ("min", "bf16"), ("max", "i32"), ("min", "f64"))
    },
    "scattermaxcolumns": (
        {"g": "f32[12, 40]", "t": "i64[12]", "z": "f32[5, 40]"},
        {"y": "f32[5, 40]: y[t[r<12] % 5, d<40] max= g[r, d] where g[r, d] < 1 from z"},
    ),
    "scattermaxeach": (
        {"g": "f32[4, 50]", "t": "i64[4, 50]", "z": "f32[4, 9]"},
        {"y": "f32[4, 9]: y[c<4, t[c, r<50] % 9] max= g[c, r] from z"},
    ),
    "scatterset": ({"g": "f32[12]", "t": "i64[12]"}, {"y": "f32[9]: y[t[r<12] % 9] = g[r] else 3"}),
    "scatterhalf": (
        {"g": "bf16[64, 8]", "t": "i64[64]"},
        {"y": "bf16[3, 8]: y[t[r<64] % 3, d<8] += g[r, d]"},
    ),
    # Rows enough for threads to share them, which pass over what lands in others'.
    "scatterrows": (
        {**EDGES, "x": "f32[30, 21]", "s": "i64[50]", "w": "f32[50]", "z": "f32[20, 21]"},
        {
            "v": "f32[50, 21]: y[e<50, d<21] = x[s[e] % 30, d] * w[e]",
            "y": "f32[20, 21]: y[t[e<50] % 20, d<21] += v[e, d] from z",
        },
    ),
    "scatterrowsset": (
        {**EDGES, "g": "f32[50, 8]"},
        {"y": "f32[20, 8]: y[t[e<50] % 20, d<8] = g[e, d] where g[e, d] > 0 else 2"},
    ),
    "scatterrowsofmany": (
        {"g": "f32[3, 50, 16]", "t": "i64[3, 50]"},
        {"y": "f32[3, 20, 16]: y[b<3, t[b, e<50] % 20, d<16] += g[b, e, d]"},
    ),
    "scatterrowsbetween": (
        {**EDGES, "g": "f32[50, 4, 16]"},
        {"y": "f32[5, 20, 4, 16]: y[t[e] % 5, t[e<50] % 20, h<4, d<16] += g[e, h, d]"},
    ),
    "scatterrowspartly": (
        {**EDGES, "g": "f32[60, 17]"},
        {"y": "f32[20, 17]: y[t[e<50] % 20, d<17] += g[e+20, d]"},
    ),
}
