"""Bodies that sum over windows, or where an index lies between two others.

The idea: each is wide enough to run along, and conditions bound its loops; a window may leave the
image on any side, or have no term at all.
"""

from typing import Any

WINDOWS: dict[str, tuple[Any, ...]] = {
    "window": (
        {"x": "f32[3, 17, 40]"},
        {"y": "f32[3, 9, 20]: y[c<3, h<9, w<20] max= x[c, h*2+i-1, w*2+j-1] for i<3, j<3"},
    ),
    "windownone": (
        {"x": "f32[2, 6, 20]"},
        {"y": "f32[2, 9, 24]: y[c<2, h<9, w<24] max= x[c, h+i*2-3, w+j*2-4] else 7 for i<2, j<2"},
    ),
    "windowindex": (
        {"x": "f32[3, 17, 40]"},
        {
            "y": "i64[3, 9, 20]: y[c<3, h<9, w<20] argmax= x[c, h*2+i-1, w*2+j-1] at i*3+j "
            "for i<3, j<3"
        },
    ),
    "windowsum": (
        {"x": "bf16[2, 12, 30]", "w": "f32[5, 3]"},
        {"y": "f32[2, 12, 30]: y[c<2, h<12, w<30] += x[c, h+i-2, w+j-1] * w[i, j] for i<5, j<3"},
    ),
    "windowtiles": (
        {"x": "f32[2, 700]"},
        {"y": "f32[2, 700]: y[c<2, w<700] += x[c, w-2*j+3] for j<4"},
    ),
    "uneven": (
        {"x": "f32[4, 13, 30]"},
        {
            "y": "f32[4, 7, 9]: y[c<4, h<7, w<9] += x[c, i<13, j<30] where i >= h*13//7 "
            "and i < (h*13+19)//7 and j >= w*30//9 and j < (w*30+38)//9"
        },
    ),
    "uneven back": (
        {"x": "f32[4, 7, 9]"},
        {
            "y": "f32[4, 13, 30]: y[c<4, i<13, j<30] += x[c, h<7, w<9] where i >= h*13//7 "
            "and i < (h*13+19)//7 and j >= w*30//9 and j < (w*30+38)//9"
        },
    ),
    "few of many": (
        {"x": "f32[9, 120]"},
        {"y": "f32[9, 40]: y[c<9, w<40] += x[c, j<120] where j >= w*3-2 and j <= w*3+4"},
    ),
    "causal row": (
        {"x": "f32[40, 40]"},
        {
            "m": "f32[40]: y[i<40] max= x[i, j<40] where j <= i",
            "s": "f32[40]: y[i<40] += exp(x[i, j<40] - m[i]) where j <= i",
        },
        ("m", "s"),
    ),
    # What a sum leaves out, a later loop reads: it must not be kept from the sum's.
    "causal kept": (
        {"x": "f32[90, 12]"},
        {
            "e": "f32[90, 12]: y[i<90, j<12] = exp(x[i, j])",
            "s": "f32[90]: y[i<90] += e[i, j<12] where j <= i",
            "y": "f32[90, 12]: y[i<90, j<12] = e[i, j] / s[i]",
        },
        ("s", "y"),
    ),
}
