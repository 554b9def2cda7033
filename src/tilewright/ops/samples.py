"""Arrays for an operator's samples.

The idea: a sample's operand is written as text, `f[2, 3]` (normal), `f[4] > 0` (positive),
`i[2] < 5` (integers from 0), `b[3]`, or with its elements, `f[3] = 0, 1, inf`; `c` is an `f` that
nobody asks for the gradient of.  A generator with a fixed seed does the rest, so that a failure can
be repeated.

This module does not know what the arrays are for.
"""

import re
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import BOOL, F64, I64, DType
from tilewright.ops.operator import Sample

_TEXT = re.compile(r"(?P<kind>[ficb])\[(?P<shape>[\d, ]*)\]\s*(?P<how>[<>=]?)\s*(?P<rest>.*)")
_KINDS = {"f": F64, "c": F64, "i": I64, "b": BOOL}
Argument = np.ndarray | bool | int | float


def arrays(sample: Sample, seed: int = 0) -> tuple[Argument, ...]:
    """Return the sample's operands: float64, int64 and bool arrays, and numbers as they are."""
    generator = np.random.default_rng(seed)
    return tuple(
        _array(item, generator) if isinstance(item, str) else item for item in sample.inputs
    )


def _array(text: str, generator: np.random.Generator) -> np.ndarray:
    match = _TEXT.fullmatch(text)
    assert match is not None, f"{text!r} is not an operand's text"
    shape = tuple(int(part) for part in match["shape"].split(",") if part.strip())
    dtype = _KINDS[match["kind"]]
    if match["how"] == "=":
        items = [float(part) for part in match["rest"].split(",")]
        return np.array(items).reshape(shape).astype(dtype.numpy)
    return _drawn(shape, dtype, match["how"], match["rest"], generator)


def _drawn(
    shape: Sequence[int], dtype: DType, how: str, rest: str, generator: np.random.Generator
) -> np.ndarray:
    if dtype == I64:
        return generator.integers(0, int(rest) if how == "<" else 10, size=shape)
    if dtype == BOOL:
        return generator.random(shape) < 0.5
    drawn = generator.standard_normal(shape)
    if how == ">":
        return np.abs(drawn) + 0.25 + float(rest)
    return np.asarray(drawn)
