"""The page of extremes: the largest and the smallest elements over dims, and where they are.

The idea: `max=` lets NaN win and shares the gradient among ties; `argmax=` keeps the first place,
which takes all of the gradient.

This module does not know sums (`reduce`), nor extremes of windows (`pool`).
"""

from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import index, linear_position, loops, one_dim, reduced, reduction
from tilewright.ops.operator import Attrs, Declare, Expand, Operator, Tangents, Types, sample, write

_SHAPE = "f[2, 3, 4]"


def _amax(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    return f"y[{target}] max= x[{source}]"


def _amin(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    return f"y[{target}] min= x[{source}]"


def _argument(op: str, types: Types, attrs: Attrs) -> str:
    rank = types[0].rank
    source = index(loops(rank))
    if attrs["dim"] is None:
        linear = linear_position(types[0].shape, loops(rank))
        return f"y[{reduced(rank, range(rank), keepdim=bool(attrs['keepdim']))}] {op} " + (
            f"x[{source}] at {linear}"
        )
    dim = one_dim(attrs["dim"], rank)
    target = reduced(rank, (dim,), keepdim=bool(attrs["keepdim"]))
    return f"y[{target}] {op} x[{source}] at {loops(rank)[dim]}"


def _first(op: str) -> Expand:
    """Values and indices along one dim: the first index wins, and takes all of the gradient."""

    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        (x,) = inputs
        rank = x.type.rank
        dim = one_dim(attrs["dim"], rank)
        keepdim = bool(attrs["keepdim"])
        names = loops(rank)
        target = reduced(rank, (dim,), keepdim=keepdim)
        where = f"y[{target}] {op} x[{index(names)}] at {names[dim]}"
        place = write(builder, where, x=x, name="indices")
        source = list(names)
        source[dim] = f"p[{target}]"
        body = f"y[{target}] = x[{index(source)}]"
        limits = [f"{names[at]}<{x.type.shape[at]}" for at in range(rank) if at != dim]
        body += f" for {', '.join(limits)}" if limits else ""
        return write(builder, body, x=x, p=place, name="values"), place

    return expand


def _all(op: str) -> Declare:
    def declare(types: Types, _: Attrs) -> str:
        return f"y[] {op} x[{index(loops(types[0].rank))}]"

    return declare


def _all_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), origin = node.inputs, node.origin
    element = index(loops(x.type.rank))
    tied = f"(x[{element}] == m[] or isnan(x[{element}]) and isnan(m[]))"
    operands = {"x": x, "m": node.output}
    body = f"y[] += 1.0 if {tied} else 0.0"
    dtype = x.type.dtype.compute
    count = write(builder, body, operands, dtype=dtype, name="count", origin=origin)
    body = f"y[{element}] = dy[] / n[] if {tied} else 0"
    operands |= {"dy": dy, "n": count}
    return (write(builder, body, operands, dtype=x.type.dtype, origin=origin),)


def _argmax(types: Types, attrs: Attrs) -> str:
    return _argument("argmax=", types, attrs)


def _argmin(types: Types, attrs: Attrs) -> str:
    return _argument("argmin=", types, attrs)


_TIED = (
    sample("f[2, 3] = 1, 2, 2, 0, 0, 0", dims=(1,)),
    sample("f[2, 3] = 1, 2, 2, 2, 0, 0"),
    sample(_SHAPE, dims=(0, 2), keepdim=True),
)
_ALONG = (
    sample(_SHAPE, dim=1),
    sample("f[2, 3] = 1, 2, 2, 0, 0, 0", dim=1),
    sample("f[2, 3] = 1, 2, 2, 0, 0, 0", dim=0, keepdim=True),
    sample("f[4]", dim=0),
)


_EVERY = (
    sample(_SHAPE),
    sample("f[2, 3] = 1, 2, 2, 2, 0, 0"),
    sample("i[4] < 9"),
)
_NAN = "as in torch, NaNs share the gradient here, while that of amax is NaN everywhere"

PAGE = (
    Operator(
        "amax(x; dims=None, keepdim=False)  y[...] max= x[..., dims]",
        "The largest over dims; NaN wins.",
        declare=_amax,
        kink="ties share the gradient evenly",
        eager="torch.amax({x}, dim={dims}, keepdim={keepdim})",
        samples=_TIED,
    ),
    Operator(
        "amin(x; dims=None, keepdim=False)  y[...] min= x[..., dims]",
        "The smallest over dims; NaN wins.",
        declare=_amin,
        kink="ties share the gradient evenly",
        eager="torch.amin({x}, dim={dims}, keepdim={keepdim})",
        samples=_TIED,
    ),
    Operator(
        "max_all(x)  y[] max= x[...]",
        "The largest of all elements; NaN wins.",
        declare=_all("max="),
        vjp=_all_vjp,
        vjp_reason=_NAN,
        kink="ties share the gradient evenly, and so do NaNs",
        eager="torch.max({x})",
        samples=_EVERY,
    ),
    Operator(
        "min_all(x)  y[] min= x[...]",
        "The smallest of all elements; NaN wins.",
        declare=_all("min="),
        vjp=_all_vjp,
        vjp_reason=_NAN,
        kink="ties share the gradient evenly, and so do NaNs",
        eager="torch.min({x})",
        samples=_EVERY,
    ),
    Operator(
        "argmax(x; dim=None, keepdim=False)  y[...] argmax= x[..., dim] at dim",
        "Where the largest is; the first index wins, NaN before that.",
        declare=_argmax,
        dtype="i64",
        eager="torch.argmax({x}, dim={dim}, keepdim={keepdim})",
        samples=(*_ALONG, sample("f[2, 3] = 1, 2, 2, 0, 0, 0"), sample("f[3] = 1, nan, 5", dim=0)),
    ),
    Operator(
        "argmin(x; dim=None, keepdim=False)  y[...] argmin= x[..., dim] at dim",
        "Where the smallest is; the first index wins, NaN before that.",
        declare=_argmin,
        dtype="i64",
        eager="torch.argmin({x}, dim={dim}, keepdim={keepdim})",
        samples=(*_ALONG, sample("f[2, 3] = 1, 2, 2, 0, 0, 0"), sample("f[3] = 1, nan, 5", dim=0)),
    ),
    Operator(
        "max_dim(x; dim, keepdim=False)",
        "The largest along a dim, and where it is.",
        expand=_first("argmax="),
        kink="the first of several takes all of the gradient",
        eager="tuple(torch.max({x}, dim={dim}, keepdim={keepdim}))",
        samples=_ALONG,
    ),
    Operator(
        "min_dim(x; dim, keepdim=False)",
        "The smallest along a dim, and where it is.",
        expand=_first("argmin="),
        kink="the first of several takes all of the gradient",
        eager="tuple(torch.min({x}, dim={dim}, keepdim={keepdim}))",
        samples=_ALONG,
    ),
)
