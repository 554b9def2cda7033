"""The statistics of rows: the mean, and the squares of what is left without it.

The idea: two passes, so that nothing cancels.  The second one sums what is left as well, which is
nothing but for the rounding of the mean, and is added to it: rows of equal elements have that
element for their mean and are zero without it, however large they are.

This module does not know what is made of them (`norms`).
"""

from dataclasses import dataclass

from tilewright.base.dtypes import F64
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Value
from tilewright.ops.operator import apply, write
from tilewright.ops.pointwise import CONVERSIONS

_STOP = next(operator for operator in CONVERSIONS if operator.name == "stop_gradient")
LONG = 2048
"""Elements of a row whose sum is formed in float64: no dearer than a second sum of what is left."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the operands of a norm are read, and over how many elements its statistics go.

    element: the index of x.  row: that of the statistics, as they are computed.  at: that of the
    statistics of the element at `element`.  weight: that of the scale and the shift.
    """

    element: str
    row: str
    at: str
    weight: str
    count: int
    reduction: str  # the index of x in a reduction over a row
    limits: str = ""  # of the loops that no operand tells
    wide: bool = False  # whether the statistics are formed in float64


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of each row: the mean, the sum of squares without it, and one over the deviation."""

    mean: Value
    squares: Value
    scale: Value


def statistics(
    builder: Builder, x: Value, layout: Layout, eps: float, origin: Origin = UNKNOWN
) -> Statistics:
    """Return the statistics of each row."""
    compute, n, row = x.type.dtype.compute, layout.count, layout.row
    wide = F64 if layout.wide else compute
    exact = layout.wide or (n > LONG and compute != F64)
    body = f"y[{row}] += x[{layout.reduction}]{layout.limits}"
    total = write(builder, body, x=x, dtype=F64 if exact else compute, name="total", origin=origin)
    body = "y[...] = t[...] / n"
    mean = write(builder, body, t=total, n=n, dtype=compute, name="mean", origin=origin)
    away = f"(x[{layout.reduction}] - m[{row}])"
    body = f"y[{row}] += {away} * {away}{layout.limits}"
    squares = write(builder, body, x=x, m=mean, dtype=wide, name="squares", origin=origin)
    body = "y[...] = rsqrt(s[...] / n + eps)"
    scale = write(
        builder, body, s=squares, n=n, eps=eps, dtype=compute, name="scale", origin=origin
    )
    if not exact:
        body = f"y[{row}] += {away}{layout.limits}"
        rest = write(builder, body, x=x, m=mean, dtype=compute, name="rest", origin=origin)
        # But for rounding it is 0, whatever x is.
        (rest,) = apply(builder, _STOP, rest, origin=origin, names=("rest",))
        body = "y[...] = m[...] + e[...] / n"
        mean = write(builder, body, m=mean, e=rest, n=n, name="mean", origin=origin)
    return Statistics(mean, squares, scale)
