"""The page of constants that a formula can say.

The idea: a value made of loops and numbers alone is a constant without elements to store.

This module does not know constants that are arrays: those are `constant` nodes.
"""

import math

from tilewright.base.syntax import show_number
from tilewright.ops.nest import limited, number, numbers, steps
from tilewright.ops.operator import Attrs, Operator, Types, dtype_attribute, sample


def _full(_: Types, attrs: Attrs) -> str:
    value = attrs["value"]
    assert isinstance(value, bool | int | float), f"{value!r} does not fill a tensor"
    shape = numbers(attrs["shape"])
    return f"y[{limited(shape)}] = {attrs['dtype']}({show_number(value)})"


def _arange(_: Types, attrs: Attrs) -> str:
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    assert isinstance(start, int | float) and isinstance(stop, int | float), "ends are numbers"
    assert isinstance(step, int | float) and step != 0, "a step is a number but 0"
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and step > 0:
        length = steps(start, stop, step)
    else:
        length = max(math.ceil((stop - start) / step), 0)
    value = "i" if step == 1 else f"i * {show_number(step)}"
    # 0 + 0 * -1 is 0, but 0 * -1 is -0.
    value = value if start == 0 and step > 0 else f"{show_number(start)} + {value}"
    return f"y[i<{length}] = {attrs['dtype']}({value})"


def _eye(_: Types, attrs: Attrs) -> str:
    rows, columns = number(attrs["rows"]), number(attrs["columns"])
    return f"y[i<{rows}, j<{columns}] = {attrs['dtype']}(1 if i == j else 0)"


def _linspace(_: Types, attrs: Attrs) -> str:
    start, stop, steps = attrs["start"], attrs["stop"], number(attrs["steps"])
    assert isinstance(start, int | float) and isinstance(stop, int | float), "ends are numbers"
    step = (stop - start) / max(steps - 1, 1)
    compute = dtype_attribute((), attrs).compute.name

    def held(value: float) -> str:
        return f"{compute}({show_number(float(value))})"

    low = f"{held(start)} + i * {held(step)}"
    high = f"{held(stop)} - ({steps - 1} - i) * {held(step)}"
    if steps == 1:
        return f"y[i<1] = {attrs['dtype']}({show_number(float(start))})"
    return f"y[i<{steps}] = {attrs['dtype']}({low} if i < {steps // 2} else {high})"


PAGE = (
    Operator(
        "full(; shape, value, dtype)  y[...] = value",
        "One number everywhere.",
        declare=_full,
        dtype=dtype_attribute,
        eager="torch.full({shape}, {value}, dtype={dtype})",
        samples=(
            sample(shape=(2, 3), value=1.5, dtype="f32"),
            sample(shape=(), value=2, dtype="i64"),
            sample(shape=(3,), value=True, dtype="bool"),
            sample(shape=(2,), value=float("-inf"), dtype="f64"),
        ),
    ),
    Operator(
        "arange(; start, stop, step, dtype)  y[i] = start + i * step",
        "Numbers in even steps.",
        declare=_arange,
        dtype=dtype_attribute,
        eager="torch.arange({start}, {stop}, {step}, dtype={dtype})",
        samples=(
            sample(start=0, stop=5, step=1, dtype="i64"),
            sample(start=2, stop=9, step=3, dtype="i64"),
            sample(start=0.0, stop=1.0, step=0.25, dtype="f64"),
            sample(start=5, stop=0, step=-2, dtype="i32"),
        ),
    ),
    Operator(
        "eye(; rows, columns, dtype)  y[i, j] = 1 if i == j else 0",
        "1 on the diagonal, 0 elsewhere.",
        declare=_eye,
        dtype=dtype_attribute,
        eager="torch.eye({rows}, {columns}, dtype={dtype})",
        samples=(sample(rows=3, columns=3, dtype="f64"), sample(rows=2, columns=4, dtype="i64")),
    ),
    Operator(
        "linspace(; start, stop, steps, dtype)  "
        "y[i] = start + i * step if i < steps // 2 else stop - (steps-1-i) * step",
        "So many numbers, evenly from one to another, counted from the nearer end.",
        declare=_linspace,
        dtype=dtype_attribute,
        eager="torch.linspace({start}, {stop}, {steps}, dtype={dtype})",
        samples=(
            sample(start=0.0, stop=1.0, steps=5, dtype="f64"),
            sample(start=-2.0, stop=7.0, steps=6, dtype="f32"),
            sample(start=3.0, stop=9.0, steps=1, dtype="f64"),
            sample(start=3.0, stop=9.0, steps=0, dtype="f64"),
        ),
    ),
)
