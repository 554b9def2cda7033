"""The page of chance: what a seed decides.

The idea: `uniform(seed, i)` is a function of the seed and of an element's own number, so that a
mask is the same under any tiling, recomputation or partition.  `stream` tells the places of a model
apart: the counter is `stream * 2**32 + the element's row-major position`.

This module does not know where a seed comes from.
"""

from tilewright.base.dtypes import DType
from tilewright.ops.nest import index, limited, linear_position, loops, number, numbers, sizes
from tilewright.ops.operator import Attrs, Operator, Types, dtype_attribute, sample


def _draw(shape: tuple[int, ...], attrs: Attrs) -> str:
    start, place = number(attrs["stream"]) << 32, linear_position(shape, loops(len(shape)))
    return f"uniform(seed[], {f'{start} + {place}' if start else place})"


def _dropout(types: Types, attrs: Attrs) -> str:
    p = attrs["p"]
    assert isinstance(p, int | float) and 0 <= p <= 1, f"{p!r} is not a probability"
    shape = sizes(types[0].shape)
    element = index(loops(len(shape)))
    scale = 0.0 if p == 1 else 1 / (1 - p)
    drawn = _draw(shape, attrs)
    return f"y[{element}] = x[{element}] * ({scale!r} if {drawn} >= {float(p)!r} else 0.0)"


def _first(types: Types, _: Attrs) -> DType:
    return types[0].dtype


def _rand(_: Types, attrs: Attrs) -> str:
    shape = numbers(attrs["shape"])
    return f"y[{limited(shape)}] = {attrs['dtype']}({_draw(shape, attrs)})"


PAGE = (
    Operator(
        "dropout(x, seed; p=0.5, stream=0)  "
        "y[...] = x[...] * (1 / (1 - p) if uniform(seed[], stream * 2**32 + position) >= p else 0)",
        "x with elements set to 0 with probability p, the others scaled to keep the mean.",
        declare=_dropout,
        dtype=_first,
        eager="{x} * (uniform({seed}, {x}.shape, {stream}) >= {p}) "
        "* (0.0 if {p} == 1 else 1 / (1 - {p}))",
        samples=(
            sample("f[4, 5]", "i[] = 7", p=0.25),
            sample("f[4, 5]", "i[] = 7", p=0.25, stream=3),
            sample("f[6]", "i[] = 123456789012", p=1.0),
            sample("f[6]", "i[] = 1", p=0.0),
        ),
    ),
    Operator(
        "rand(seed; shape, stream=0, dtype='f32')  "
        "y[...] = uniform(seed[], stream * 2**32 + position)",
        "Numbers drawn evenly from [0, 1).",
        declare=_rand,
        dtype=dtype_attribute,
        eager="uniform({seed}, {shape}, {stream}).to({dtype})",
        samples=(sample("i[] = 7", shape=(4, 5)), sample("i[] = 7", shape=(3,), stream=1)),
    ),
)
