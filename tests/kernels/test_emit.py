"""Kernels against the NumPy evaluator: every recipe, with edges of shapes and of values."""

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kernels.harness import (
    Cases,
    assert_close,
    body,
    compile_all,
    random_arrays,
    run,
    runnable,
)
from tests.kernels.scatters import SCATTERS
from tests.kernels.windows import WINDOWS
from tests.sweep import few

from tilewright.kernels import emit
from tilewright.runtime import NATIVE

X = "f32[6, 10]"
# The result is a difference from a row's sum of 100 terms, about 20 in size: its last place is 32.
ULPS = {"softmaxgrad": 128}
CASES = Cases()
BODIES: dict[str, tuple[Any, ...]] = {
    # Pointwise: broadcasts, permuted, strided and sliced reads, views.
    "add": ({"x": X, "w": "f32[10]"}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] + w[j]"}),
    "chain": (
        {"x": X, "w": "f32[10]"},
        {
            "a": "f32[6, 10]: y[i<6, j<10] = x[i, j] * w[j]",
            "b": "f32[6, 10]: y[i<6, j<10] = a[i, j] * a[i, j] + a[i, j]",
            "c": "f32[6, 10]: y[i<6, j<10] = sigmoid(b[i, j]) * b[i, j]",
        },
        ("c", "a"),
    ),
    # A gate behind what takes long, and one that some elements are without.
    "cell": (
        {"x": "f32[5, 120]", "c": "f32[5, 30]"},
        {
            "g": "f32[5, 30]: y[i<5, j<30] = tanh(x[i, j])",
            "n": "f32[5, 30]: y[i<5, j<30] = sigmoid(x[i, j + 30]) * c[i, j] + g[i, j]",
            "t": "f32[5, 30]: y[i<5, j<30] = tanh(n[i, j])",
            "o": "f32[5, 30]: y[i<5, j<30] = sigmoid(x[i, j + 90])",
            "h": "f32[5, 30]: y[i<5, j<30] = o[i, j] * t[i, j]",
        },
        ("n", "h"),
    ),
    "cellpart": (
        {"x": "f32[5, 30]", "c": "f32[5, 30]"},
        {
            "g": "f32[5, 30]: y[i<5, j<30] = exp(x[i, j]) where j < 20 else 2.0",
            "t": "f32[5, 30]: y[i<5, j<30] = tanh(g[i, j] * c[i, j])",
            "o": "f32[5, 30]: y[i<5, j<30] = sigmoid(x[i, j] - 1)",
            "h": "f32[5, 30]: y[i<5, j<30] = (o[i, j - 3] ?? 0.5) * t[i, j]",
        },
    ),
    "gelu": ({"x": "f32[700]"}, {"y": "f32[700]: y[i<700] = x[i] * normal_cdf(x[i])"}),
    "gelu by erf": (
        {"x": "f32[700]"},
        {"y": "f32[700]: y[i<700] = 0.5 * x[i] * (1 + erf(x[i] * 0.7071067811865476))"},
    ),
    "permute": ({"x": X}, {"y": "f32[10, 6]: y[j<10, i<6] = x[i, j] + 1"}),
    "turned": ({"x": "f32[24, 20]"}, {"y": "f32[2, 20, 12]: y[s<2, k<20, l<12] = x[s*12 + l, k]"}),
    "line": ({"x": "f32[16, 21]"}, {"y": "f32[21, 16]: y[k<21, l<16] = exp(x[l, k])"}),
    "reshape": ({"x": X}, {"y": "f32[60]: y[j<60] = x[j // 10, j % 10] * 2"}),
    "reshape2": ({"x": "f32[4, 6]"}, {"y": "f32[8, 3]: y[i<8, j<3] = x[i // 2, (i % 2) * 3 + j]"}),
    "heads": (
        {"x": "f32[2, 5, 12]"},
        {"y": "f32[2, 3, 5, 4]: y[b<2, h<3, s<5, d<4] = x[b, s, h * 4 + d]"},
    ),
    "flip": ({"x": "f32[9]"}, {"y": "f32[9]: y[i<9] = x[8 - i]"}),
    # Sums of few in another order than they lie in, which GCC 12.2 gets wrong (its bug 110381).
    **{
        f"turned{n}": (
            {"x": f"f32[200, {n}]"},
            {"y": f"f32[]: y[] += x[i, {n - 1} - j] for i<200, j<{n}"},
        )
        for n in (2, 3, 8, 16, 17, 32, 33)
    },
    "turnedrows": (
        {"x": "f32[5, 40, 4]"},
        {"y": "f32[5]: y[m<5] += x[m, i, 3 - j] for i<40, j<4"},
    ),
    "turnedwindow": (
        {"x": "f32[100, 3, 3]"},
        {"y": "f32[]: y[] += x[i, 2 - j, 2 - k] for i<100, j<3, k<3"},
    ),
    "turnedround": (
        {"x": "f32[100, 5]"},
        {"y": "f32[]: y[] += x[i, (j + 1) % 5] for i<100, j<5"},
    ),
    "turnedpairs": (
        {"x": "f32[100, 8]"},
        {"y": "f32[]: y[] += x[i, (7 - j) // 2 * 2 + j % 2] for i<100, j<8"},
    ),
    "slice": ({"x": "f32[20]"}, {"y": "f32[6]: y[i<6] = x[3 * i + 2]"}),
    "zerodim": ({"x": "f32[]"}, {"y": "f32[]: y[] = x[] * 2"}),
    "ones": ({"x": "f32[1, 1]"}, {"y": "f32[1]: y[i<1] = exp(x[i, i])"}),
    "empty": ({"x": "f32[0, 4]"}, {"y": "f32[0, 4]: y[i<0, j<4] = x[i, j] + 1"}),
    "emptysum": ({"x": "f32[4, 0]"}, {"y": "f32[4]: y[i<4] += x[i, j<0]"}),
    "emptymax": ({"x": "f32[4, 0]"}, {"y": "f32[4]: y[i<4] max= x[i, j<0] else -inf"}),
    "twice": ({"x": X}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] - 1"}, ("y", "y")),
    "loops": ({"x": X}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] + i * 0.1 - j"}),
    "arange": ({}, {"y": "i64[9]: y[i<9] = 3 * i + 1"}),
    "causal": ({"x": X}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] if j <= i else -inf"}),
    "uniform": (
        {"x": "f32[6, 50]", "s": "i64[]"},
        {"y": "f32[6, 50]: y[i<6, j<50] = x[i, j] * 2 if uniform(s[], i * 50 + j) >= 0.5 else 0"},
    ),
    # Guards.
    "pad": ({"x": X}, {"y": "f32[8, 13]: y[i<8, j<13] = x[i - 1, j - 2]"}),
    "padvalue": ({"x": X}, {"y": "f32[8, 13]: y[i<8, j<13] = x[i - 1, j - 2] else 5"}),
    "paddefault": ({"x": X}, {"y": "f32[8, 13]: y[i<8, j<13] = exp(x[i - 1, j - 2] ?? 2)"}),
    # Long enough to be cut into blocks for threads, beside the cuts where a decision changes.
    "longpad": ({"x": "f32[9990]"}, {"y": "f32[10000]: y[j<10000] = x[j - 7] else 5"}),
    "longconcat": (
        {"x": "f32[5000]", "z": "f32[3000]"},
        {"y": "f32[8000]: y[j<8000] = x[j] if j < 5000 else z[j - 5000]"},
    ),
    "absent": ({"x": "f32[9]"}, {"y": "f32[9]: y[i<9] = exp(x[i - 1]) + x[i + 1]"}),
    "guarded": ({"x": "f32[9]"}, {"y": "f32[9]: y[i<9] = x[i - 1] if i > 3 else x[i + 2]"}),
    "where": ({"x": X}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] where x[i, j] > 0 else 7"}),
    "concat": (
        {"x": "f32[5, 3]", "z": "f32[2, 3]"},
        {"y": "f32[7, 3]: y[i<7, j<3] = x[i, j] if i < 5 else z[i - 5, j]"},
    ),
    "insert": (
        {"x": "f32[5, 3]", "t": "f32[9, 3]"},
        {"y": "f32[9, 3]: y[i + 2, j] = x[i<5, j<3] from t"},
    ),
    "spread": ({"x": "f32[5]"}, {"y": "f32[16]: y[3 * i + 1] = x[i<5] else 9"}),
    "spreadsum": ({"x": "f32[5]"}, {"y": "f32[4]: y[i - 1] += x[i<5]"}),
    "dilate": ({"x": "f32[5]"}, {"y": "f32[12]: y[i<12] = x[i / 2]"}),
    "fold": ({"x": "f32[4, 3]"}, {"y": "f32[6]: y[i + k] += x[i<4, k<3]"}),
    "unflatten": ({"x": "f32[4, 6]"}, {"y": "f32[24]: y[i * 6 + j] = x[i<4, j<6]"}),
    "diagonal": ({"x": "f32[4]"}, {"y": "f32[4, 4]: y[i, i] = x[i<4]"}),
    "maxpool": (
        {"x": "f32[2, 9]"},
        {"y": "f32[2, 5]: y[c<2, h<5] max= x[c, h * 2 + i - 1] for i<3"},
    ),
    # Rows.
    "sum": ({"x": "f32[6, 1000]"}, {"y": "f32[6]: y[i<6] += x[i, j<1000]"}),
    "sumall": ({"x": "f32[37, 41]"}, {"y": "f32[]: y[] += x[i<37, j<41]"}),
    "keepdim": ({"x": X}, {"y": "f32[6, 1]: y[i<6, k<1] += x[i, j<10] * x[i, j]"}),
    "small": ({"x": "f32[50, 3]"}, {"y": "f32[50]: y[i<50] += x[i, j<3]"}),
    "prod": ({"x": X}, {"y": "f32[6]: y[i<6] *= x[i, j<10]"}),
    **WINDOWS,
    "amax": ({"x": "f32[6, 77]"}, {"y": "f32[6]: y[i<6] max= x[i, j<77]"}),
    "amin": ({"x": "f32[6, 77]"}, {"y": "f32[6]: y[i<6] min= x[i, j<77] where j % 2 == 0"}),
    "argmax": ({"x": "f32[6, 77]"}, {"y": "i64[6]: y[i<6] argmax= x[i, j<77] at j"}),
    "argmin": ({"x": "f32[6, 77]"}, {"y": "i64[6]: y[i<6] argmin= x[i, j<77] at j where j > 5"}),
    "argmaxcol": ({"x": "f32[40, 17]"}, {"y": "i64[17]: y[j<17] argmax= x[i<40, j] at i"}),
    "any": ({"x": X}, {"y": "bool[6]: y[i<6] any= x[i, j<10] > 1.5"}),
    "all": ({"x": X}, {"y": "bool[6]: y[i<6] all= x[i, j<10] < 1.5"}),
    "allnone": ({"x": X}, {"y": "bool[6]: y[i<6] all= x[i, j<10] < 1.5 where i > j"}),
    "cumsum": ({"x": X}, {"y": "f32[6, 10]: y[i<6, j<10] += x[i, k<10] where k <= j"}),
    "sumfrom": ({"x": X, "t": "f32[6]"}, {"y": "f32[6]: y[i<6] += x[i, j<10] from t"}),
    "maxfrom": (
        {"x": X, "t": "f32[6]"},
        {"y": "f32[6]: y[i<6] max= x[i, j<10] where i > j from t"},
    ),
    "addfrom": ({"x": "f32[6]", "t": "f32[6]"}, {"y": "f32[6]: y[i<6] += x[i] from t"}),
    "matmul": (
        {"a": "f32[7, 33]", "b": "f32[33, 20]"},
        {"y": "f32[7, 20]: y[m<7, n<20] += a[m, k<33] * b[k, n]"},
    ),
    "softmax": (
        {"x": "f32[6, 100]"},
        {
            "m": "f32[6]: y[i<6] max= x[i, j<100]",
            "e": "f32[6, 100]: y[i<6, j<100] = exp(x[i, j] - m[i])",
            "s": "f32[6]: y[i<6] += e[i, j<100]",
            "y": "f32[6, 100]: y[i<6, j<100] = e[i, j] / s[i]",
        },
    ),
    "softmaxkeep": (
        {"x": "f32[2, 3, 40]"},
        {
            "m": "f32[2, 3, 1]: y[b<2, i<3, k<1] max= x[b, i, j<40]",
            "e": "f32[2, 3, 40]: y[b<2, i<3, j<40] = exp(x[b, i, j] - m[b, i, 0])",
            "s": "f32[2, 3, 1]: y[b<2, i<3, k<1] += e[b, i, j<40]",
            "y": "f32[2, 3, 40]: y[b<2, i<3, j<40] = e[b, i, j] / s[b, i, 0]",
        },
        ("y", "s"),
    ),
    "softmaxdim1": (
        {"x": "f32[3, 21, 70]"},
        {
            "m": "f32[3, 70]: y[b<3, i<70] max= x[b, j<21, i]",
            "e": "f32[3, 21, 70]: y[b<3, j<21, i<70] = exp(x[b, j, i] - m[b, i])",
            "s": "f32[3, 70]: y[b<3, i<70] += e[b, j<21, i]",
            "y": "f32[3, 21, 70]: y[b<3, j<21, i<70] = e[b, j, i] / s[b, i]",
        },
    ),
    "logsoftmax": (
        {"x": "f32[5, 90]"},
        {
            "m": "f32[5]: y[i<5] max= x[i, j<90]",
            "s": "f32[5]: y[i<5] += exp(x[i, j<90] - m[i])",
            "l": "f32[5]: y[i<5] = log(s[i]) + m[i]",
            "y": "f32[5, 90]: y[i<5, j<90] = x[i, j] - l[i]",
        },
        ("y", "l"),
    ),
    "softmaxgrad": (
        {"y": "f32[6, 100]", "g": "f32[6, 100]"},
        {
            "d": "f32[6]: y[i<6] += y[i, j<100] * g[i, j]",
            "r": "f32[6, 100]: y[i<6, j<100] = y[i, j] * (g[i, j] - d[i])",
        },
    ),
    "crossentropy": (
        {"x": "f32[5, 90]", "t": "i64[5]"},
        {
            "m": "f32[5]: y[i<5] max= x[i, j<90]",
            "s": "f32[5]: y[i<5] += exp(x[i, j<90] - m[i])",
            "y": "f32[5]: y[i<5] = log(s[i]) + m[i] - x[i, t[i]] where t[i] >= 0",
            "g": "f32[5, 90]: y[i<5, j<90] = exp(x[i, j] - m[i]) / s[i] - (1 if j == t[i] else 0)",
        },
        ("y", "g"),
    ),
    "layernorm": (
        {"x": "f32[6, 96]", "w": "f32[96]", "b": "f32[96]"},
        {
            "s": "f32[6]: y[i<6] += x[i, j<96]",
            "m": "f32[6]: y[i<6] = s[i] / 96",
            "v": "f32[6]: y[i<6] += (x[i, j<96] - m[i]) * (x[i, j] - m[i])",
            "r": "f32[6]: y[i<6] = rsqrt(v[i] / 96 + 1e-5)",
            "y": "f32[6, 96]: y[i<6, j<96] = (x[i, j] - m[i]) * r[i] * w[j] + b[j]",
        },
        ("y", "m", "r"),
    ),
    "layernormgrad": (
        {"x": "f32[6, 96]", "w": "f32[96]", "g": "f32[6, 96]", "m": "f32[6]", "r": "f32[6]"},
        {
            "h": "f32[6, 96]: y[i<6, j<96] = (x[i, j] - m[i]) * r[i]",
            "q": "f32[6, 96]: y[i<6, j<96] = g[i, j] * w[j]",
            "a": "f32[6]: y[i<6] += q[i, j<96]",
            "b": "f32[6]: y[i<6] += q[i, j<96] * h[i, j]",
            "y": "f32[6, 96]: y[i<6, j<96] = r[i] * (q[i, j] - a[i] / 96 - h[i, j] * (b[i] / 96))",
        },
    ),
    "weightgrad": (
        {"x": "f32[60, 96]", "g": "f32[60, 96]", "m": "f32[60]", "r": "f32[60]"},
        {
            "w": "f32[96]: y[j<96] += g[i<60, j] * (x[i, j] - m[i]) * r[i]",
            "b": "f32[96]: y[j<96] += g[i<60, j]",
        },
        ("w", "b"),
    ),
    "batchnorm": (
        {"x": "f32[4, 5, 6, 7]", "w": "f32[5]"},
        {
            "s": "f32[5]: y[c<5] += x[n<4, c, h<6, w<7]",
            "m": "f32[5]: y[c<5] = s[c] / 168",
            "v": "f32[5]: y[c<5] += (x[n<4, c, h<6, w<7] - m[c]) * (x[n, c, h, w] - m[c])",
            "r": "f32[5]: y[c<5] = rsqrt(v[c] / 168)",
            "y": "f32[4, 5, 6, 7]: y[n<4, c<5, h<6, w<7] = (x[n, c, h, w] - m[c]) * r[c]",
        },
        ("y", "m", "v"),
    ),
    "groupnorm": (
        {"x": "f32[2, 12, 5, 5]"},
        {
            "s": "f32[2, 3]: y[n<2, g<3] += x[n, g * 4 + k, h<5, w<5] for k<4",
            "y": "f32[2, 12, 5, 5]: y[n<2, c<12, h<5, w<5] = x[n, c, h, w] - s[n, c // 4] / 100",
        },
        ("y", "s"),
    ),
    "siblings": (
        {"x": "f32[6, 50]"},
        {
            "a": "f32[6]: y[i<6] += x[i, j<50]",
            "b": "f32[6]: y[k<6] max= x[k, l<50]",
            "c": "f32[6, 50]: y[p<6, q<50] = exp(x[p, q])",
        },
        ("a", "b", "c"),
    ),
    "crossed": (
        {"x": "f32[20, 50]"},
        {"a": "f32[20]: y[i<20] += x[i, j<50]", "b": "f32[50]: y[j<50] += x[i<20, j]"},
        ("a", "b"),
    ),
    "otherrow": (
        {"x": "f32[8, 8]"},
        {
            "s": "f32[8]: y[i<8] += x[i, j<8]",
            "y": "f32[8, 8]: y[i<8, j<8] = x[i, j] / s[j]",
        },
    ),
    "tworows": (
        {"x": "f32[8, 9, 10]"},
        {
            "a": "f32[8, 9]: y[i<8, j<9] += x[i, j, k<10]",
            "b": "f32[8]: y[i<8] += a[i, j<9]",
            "y": "f32[8, 9]: y[i<8, j<9] = a[i, j] / b[i]",
        },
    ),
    # Rows so long that sums are formed in double and values are computed again, not kept.
    "longsum": ({"x": "f32[3, 100003]"}, {"y": "f32[3]: y[i<3] += x[i, j<100003]"}),
    "longsoftmax": (
        {"x": "f32[2, 70001]"},
        {
            "m": "f32[2]: y[i<2] max= x[i, j<70001]",
            "e": "f32[2, 70001]: y[i<2, j<70001] = exp(x[i, j] - m[i])",
            "s": "f32[2]: y[i<2] += e[i, j<70001]",
            "y": "f32[2, 70001]: y[i<2, j<70001] = e[i, j] / s[i]",
        },
    ),
    "longcolumns": (
        {"x": "f32[3000, 1100]"},
        {
            "y": "f32[1100]: y[j<1100] += x[i<3000, j]",
            "z": "f32[1100]: y[j<1100] = y[j] * 2",
        },
        ("y", "z"),
    ),
    "bigtranspose": (
        {"x": "f32[5, 67, 130]"},
        {"y": "f32[130, 5, 67]: y[k<130, i<5, j<67] = x[i, j, k] * 2"},
    ),
    # Columns.
    "colsum": ({"x": "f32[300, 70]"}, {"y": "f32[70]: y[j<70] += x[i<300, j]"}),
    "colmax": ({"x": "f32[30, 9, 270]"}, {"y": "f32[30, 270]: y[b<30, j<270] max= x[b, i<9, j]"}),
    # Gather and scatter.
    "embedding": (
        {"w": "f32[7, 40]", "t": "i64[3, 4]"},
        {"y": "f32[3, 4, 40]: y[a<3, b<4, d<40] = w[t[a, b] % 7, d] * 2"},
    ),
    "gather": (
        {"x": "f32[4, 9]", "t": "i64[4, 6]"},
        {"y": "f32[4, 6]: y[i<4, j<6] = x[i, abs(t[i, j]) + 2]"},
    ),
    **SCATTERS,
    # Element types.
    "bf16": (
        {"x": "bf16[6, 50]", "w": "bf16[50]"},
        {
            "a": "bf16[6, 50]: y[i<6, j<50] = x[i, j] * w[j]",
            "y": "bf16[6, 50]: y[i<6, j<50] = a[i, j] + x[i, j]",
        },
        ("y", "a"),
    ),
    "bf16sum": ({"x": "bf16[6, 500]"}, {"y": "bf16[6]: y[i<6] += x[i, j<500]"}),
    "f16": ({"x": "f16[6, 50]"}, {"y": "f16[6, 50]: y[i<6, j<50] = x[i, j] * x[i, j] + 0.1"}),
    "f64": ({"x": "f64[6, 50]"}, {"y": "f64[6]: y[i<6] += exp(x[i, j<50]) * 0.1"}),
    "casts": (
        {"x": "f32[60]"},
        {
            "a": "i32[60]: y[i<60] = i32(x[i] * 3)",
            "b": "u8[60]: y[i<60] = u8(a[i] + 10)",
            "c": "bf16[60]: y[i<60] = x[i] * 0.1",
            "d": "bool[60]: y[i<60] = bool(a[i])",
            "e": "f32[60]: y[i<60] = bf16(x[i]) + f16(x[i])",
            "f": "f64[60]: y[i<60] = f64(x[i]) * 0.1",
        },
        ("a", "b", "c", "d", "e", "f"),
    ),
    "ints": (
        {"a": "i32[60]", "b": "i32[60]"},
        {
            "p": "i32[60]: y[i<60] = a[i] * b[i] - abs(a[i])",
            "q": "i32[60]: y[i<60] = a[i] // (b[i] if b[i] != 0 else 3)",
            "r": "i32[60]: y[i<60] = a[i] % (b[i] if b[i] != 0 else 3)",
            "s": "i32[60]: y[i<60] = bitxor(a[i], b[i]) + bitnot(a[i])",
            "t": "f32[60]: y[i<60] = a[i] / 4",
            "u": "i32[60]: y[i<60] = max(a[i], b[i]) + min(a[i], 2)",
            "v": "i32[60]: y[i<60] = pow(a[i], 3) + sign(b[i])",
            "w": "i64[60]: y[i<60] = a[i] + i",
            "x": "i32[60]: y[i<60] = fmod(a[i], 4)",
        },
        ("p", "q", "r", "s", "t", "u", "v", "w", "x"),
    ),
    "small ints": (
        {"a": "i8[60]", "b": "u8[60]", "c": "i16[60]"},
        {
            "p": "i8[60]: y[i<60] = a[i] * 100",
            "q": "u8[60]: y[i<60] = b[i] - 7",
            "r": "i16[60]: y[i<60] = a[i] * b[i] + c[i]",
            "s": "i64[]: y[] += c[i<60]",
            "t": "i8[]: y[] max= a[i<60]",
        },
        ("p", "q", "r", "s", "t"),
    ),
    "bools": (
        {"a": "bool[60]", "b": "bool[60]", "x": "f32[60]"},
        {
            "p": "bool[60]: y[i<60] = a[i] and not b[i]",
            "q": "i64[60]: y[i<60] = a[i] + b[i]",
            "r": "f32[60]: y[i<60] = x[i] * a[i]",
            "s": "bool[60]: y[i<60] = bitxor(a[i], b[i]) or x[i] > 0",
            "t": "i64[]: y[] += a[i<60]",
            "u": "bool[60]: y[i<60] = not x[i]",
        },
        ("p", "q", "r", "s", "t", "u"),
    ),
    "floats": (
        {"x": "f32[300]", "y": "f32[300]"},
        {
            "a": "f32[300]: y[i<300] = x[i] // y[i]",
            "b": "f32[300]: y[i<300] = x[i] % y[i]",
            "c": "f32[300]: y[i<300] = fmod(x[i], y[i])",
            "d": "f32[300]: y[i<300] = max(x[i], y[i]) - min(x[i], 1)",
            "e": "f32[300]: y[i<300] = sign(x[i]) + abs(y[i])",
            "f": "f32[300]: y[i<300] = round(x[i] * 4) + floor(y[i]) * ceil(x[i]) - trunc(y[i])",
            "g": "f32[300]: y[i<300] = (1 if isnan(x[i]) else 2) + (1 if isinf(y[i]) else 4)",
            "h": "f32[300]: y[i<300] = pow(x[i], 2) + pow(y[i], 3) + pow(abs(x[i]), 0.5)",
            "j": "bool[300]: y[i<300] = x[i] <= y[i]",
            "k": "f32[300]: y[i<300] = -x[i] if x[i] != y[i] else reciprocal(y[i])",
        },
        ("a", "b", "c", "d", "e", "f", "g", "h", "j", "k"),
    ),
}
for _name, _args in BODIES.items():
    CASES.add(_name, body(*_args))
CASES.add(
    "transposed",
    body({"x": "f32[6, 10]"}, {"y": "f32[6, 10]: y[i<6, j<10] = x[i, j] + 1"}),
    {"x": (1, 6)},
)
CASES.add(
    "expanded", body({"x": "f32[6, 10]"}, {"y": "f32[10]: y[j<10] += x[i<6, j]"}), {"x": (0, 1)}
)
CASES.add(
    "rows apart", body({"x": "f32[6, 10]"}, {"y": "f32[6]: y[i<6] max= x[i, j<10]"}), {"x": (17, 1)}
)


@pytest.fixture(scope="module", params=few([NATIVE, "x86-64-v3", "x86-64"], NATIVE))
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    target = runnable(request.param) or "native"
    return CASES.compile(Path(tmp_path_factory.mktemp("kernels")), f"-march={target}")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", list(CASES.kernels))
def test_kernel_equals_evaluation(name: str, special: bool, library: ctypes.CDLL) -> None:
    graph, fast, naive, strides = CASES.kernels[name]
    arrays = random_arrays(graph, seed=len(name) + 7 * special, special=special)
    if name == "expanded":
        arrays[0] = np.broadcast_to(arrays[0][:1], arrays[0].shape)
    for kernel in (fast, naive):
        code, found = run(library, kernel, graph, arrays, strides)
        assert code == 0
        assert_close(graph, arrays, found, ulps=ULPS.get(name, 16))


@pytest.mark.parametrize("name", list(CASES.kernels))
def test_parts_do_not_change_bits(name: str, library: ctypes.CDLL) -> None:
    graph, fast, _, strides = CASES.kernels[name]
    arrays = random_arrays(graph, seed=3)
    once = run(library, fast, graph, arrays, strides, parts=1)[1]
    for parts, together in ((2, 1), (7, 1), (7, 3), (64, 64)):
        again = run(library, fast, graph, arrays, strides, parts, together)[1]
        for a, b in zip(once, again, strict=True):
            np.testing.assert_array_equal(
                a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
            )


def test_evaluator_judges(library: ctypes.CDLL) -> None:
    graph, fast, _, _ = CASES.kernels["add"]
    arrays = random_arrays(graph, seed=1)
    _, found = run(library, fast, graph, arrays)
    found[0][0, 0] += 1e-3
    with pytest.raises(AssertionError, match="units"):
        assert_close(graph, arrays, found, ulps=16)


CHOICES = {
    "times": "(1.5 if x[i] > 0 else 0.1) * x[i]",
    "twice": "(0.7 if x[i] > 1 else 1.3 if x[i] > 0 else 0.1) + x[i]",
    "compared": "x[i] if x[i] > (0.1 if i > 20 else 0.3) else 0.0",
    "its result": "0.7 if x[i] > 0 else 0.1",
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_between_numbers_take_the_type_of_what_they_meet(name: str, tmp_path: Path) -> None:
    graph = body({"x": "f32[40]"}, {"y": f"f32[40]: y[i<40] = {CHOICES[name]}"})
    kernel = emit(graph)
    printed = kernel.text[kernel.text.index("for (long r0") :]
    assert not re.findall(r"\(float\)|double|\d\.\d+(?!\d|f)", printed)
    arrays = random_arrays(graph, 0, special=True)
    code, found = run(compile_all([kernel], tmp_path), kernel, graph, arrays)
    assert code == 0
    assert_close(graph, arrays, found, ulps=0)
