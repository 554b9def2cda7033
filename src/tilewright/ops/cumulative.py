"""The page of running results: every element of a dim put together with all those before it.

The idea: `y[u] += x[i] where i <= u` says what a prefix sum is; that one pass makes it follows
(`graph/running`).

This module does not know reductions over whole dims (`reduce`).
"""

from tilewright.base.dtypes import I64, DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, TensorType, Value
from tilewright.ops.nest import index, loops, one_dim, sizes
from tilewright.ops.operator import Attrs, Expand, Operator, Tangents, Types, sample, write

_SHAPE = "f[2, 3, 4]"
_TIES = "f[2, 5] = 1, 3, 3, 2, 3, 0, -1, nan, 5, nan"


def _entries(type_: TensorType, dim: int) -> tuple[str, str, str]:
    """Return the index of a result `u`, that of the elements that it is made of, and its limits."""
    source, target = loops(type_.rank), loops(type_.rank)
    target[dim] = "u"
    limits = [f"{name}<{size}" for name, size in zip(target, sizes(type_.shape), strict=True)]
    return index(target), index(source), ", ".join(limits)


def _running(op: str, types: Types, attrs: Attrs) -> str:
    if types[0].rank == 0:
        return "y[] = x[]" if types[0].dtype.kind == "float" else "y[] = i64(x[])"
    dim = one_dim(attrs["dim"], types[0].rank)
    target, source, limits = _entries(types[0], dim)
    value = f"x[{source}]"
    if types[0].dtype.kind != "float":
        value = f"i64({value})"
    body = f"y[{target}] {op} {value} where {loops(types[0].rank)[dim]} <= u"
    return f"{body}{' else 1' if op == '*=' else ''} for {limits}"


def _cumsum(types: Types, attrs: Attrs) -> str:
    return _running("+=", types, attrs)


def _cumprod(types: Types, attrs: Attrs) -> str:
    return _running("*=", types, attrs)


def _dtype(types: Types, _: Attrs) -> DType:
    return types[0].dtype if types[0].dtype.kind == "float" else I64


def _cumprod_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    """Divide where no element is 0; a single 0 gets the product of the others, two leave 0."""
    (dy,) = tangents
    if dy is None or node.inputs[0].type.rank == 0:
        return (dy,)
    (x,), origin = node.inputs, node.origin
    dim = one_dim(node.attr("dim"), x.type.rank)
    target, source, limits = _entries(x.type, dim)
    before = f"where {loops(x.type.rank)[dim]} <= u"
    body = f"y[{target}] += i64(x[{source}] == 0) {before} for {limits}"
    zeros = write(builder, body, x=x, origin=origin)
    body = f"y[{target}] *= 1 if x[{source}] == 0 else x[{source}] {before} else 1 for {limits}"
    others = write(builder, body, x=x, dtype=x.type.dtype.compute, origin=origin)
    own = f"{loops(x.type.rank)[dim]}<{sizes(x.type.shape)[dim]}"
    dtype, shares = x.type.dtype, []
    for count in (0, 1):  # of zeros in the products; such of one are those of its gradient alone
        share = f"dy[{target}] * p[{target}] if z[{target}] == {count} else 0"
        body = f"y[{source}] += {share} {before} for {own}"
        shares.append(
            write(builder, body, dy=dy, p=others, z=zeros, dtype=dtype.compute, origin=origin)
        )
    none, one = shares
    body = "y[...] = n[...] / x[...] if z[...] == 0 else o[...] if x[...] == 0 else 0"
    return (write(builder, body, x=x, n=none, o=one, z=zeros, dtype=dtype, origin=origin),)


def _logcumsumexp(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    if x.type.rank == 0:
        return (write(builder, "y[] = x[]", x=x, name="logcumsumexp"),)
    dim, compute = one_dim(attrs["dim"], x.type.rank), x.type.dtype.compute
    target, source, limits = _entries(x.type, dim)
    before = f"where {loops(x.type.rank)[dim]} <= u"
    body = f"y[{target}] max= x[{source}] {before} for {limits}"
    top = write(builder, body, x=x, dtype=compute, name="top")
    body = "y[...] = 0 if isinf(t[...]) else t[...]"
    peak = write(builder, body, t=top, name="peak")
    body = f"y[{target}] += exp(x[{source}] - p[{target}]) {before}"
    total = write(builder, body, x=x, p=peak, dtype=compute, name="total")
    body = "y[...] = p[...] + log(s[...])"
    return (write(builder, body, p=peak, s=total, dtype=x.type.dtype, name="logcumsumexp"),)


def _logcumsumexp_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None or node.inputs[0].type.rank == 0:
        return (dy,)
    (x,) = node.inputs
    dim = one_dim(node.attr("dim"), x.type.rank)
    target, source, _ = _entries(x.type, dim)
    share = f"exp(x[{source}] - r[{target}])"
    body = f"y[{source}] += dy[{target}] * {share} where {loops(x.type.rank)[dim]} <= u"
    dtype, origin = x.type.dtype, node.origin
    return (write(builder, body, dy=dy, x=x, r=node.output, dtype=dtype, origin=origin),)


def _extreme(op: str) -> Expand:
    """Values and indices: of equal elements, and of NaN, the last one is recorded."""

    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        (x,) = inputs
        if x.type.rank == 0:
            place = write(builder, "y[] = 0", dtype=I64, name="indices")
            return write(builder, "y[] = x[]", x=x, name="values"), place
        dim = one_dim(attrs["dim"], x.type.rank)
        target, _, limits = _entries(x.type, dim)
        names, last = loops(x.type.rank), sizes(x.type.shape)[dim] - 1
        loop, backwards = names[dim], list(names)
        backwards[dim] = f"{last}-{loop}"
        # The dim is gone through from its end, as the first of equals is kept.
        body = f"y[{target}] {op} x[{index(backwards)}] at {loop} where {last} - {loop} <= u"
        place = write(builder, f"{body} for {limits}, {loop}<{last + 1}", x=x, name="from_end")
        place = write(builder, f"y[...] = {last} - p[...]", p=place, name="indices")
        at = target.split(", ")
        at[dim] = f"p[{target}]"
        values = write(builder, f"y[{target}] = x[{index(at)}] for {limits}", x=x, p=place,
                       name="values")  # fmt: skip
        return values, place

    return expand


_ALONG = (sample(_SHAPE, dim=1), sample("f[5]", dim=-1), sample("f[]", dim=0))

PAGE = (
    Operator(
        "cumsum(x; dim)  y[..., u] += x[..., i] where i <= u",
        "Sums of all elements up to each.",
        declare=_cumsum,
        dtype=_dtype,
        eager="torch.cumsum({x}, dim={dim})",
        samples=(*_ALONG, sample("i[5] < 5", dim=0)),
    ),
    Operator(
        "cumprod(x; dim)  y[..., u] *= x[..., i] where i <= u",
        "Products of all elements up to each.",
        declare=_cumprod,
        dtype=_dtype,
        kink="zeros are counted, so that the gradient is right beside them",
        vjp=_cumprod_vjp,
        vjp_reason="y / x is not a number where x is 0",
        eager="torch.cumprod({x}, dim={dim})",
        samples=(*_ALONG, sample("i[5] < 5", dim=0),
                 sample("f[3, 4] = 1, 0, 2, 3, 2, 0, 0, 4, 5, 6, 7, 0", dim=1)),
    ),
    Operator(
        "logcumsumexp(x; dim)",
        "The logarithms of sums of exponentials of all elements up to each.",
        expand=_logcumsumexp,
        vjp=_logcumsumexp_vjp,
        vjp_reason="exp(x - y) at once; the chain through the maximum is not needed",
        kink="the maximum taken out has no gradient of its own; where a sum is 0 it is NaN",
        eager="torch.logcumsumexp({x}, dim={dim})",
        samples=(*_ALONG, sample("f[5] = -inf, 1000, 1001, 0, -inf", dim=0)),
    ),
    Operator(
        "cummax(x; dim)",
        "The largest of all elements up to each, and where it is.",
        expand=_extreme("argmax="),
        kink="the last of several takes all of the gradient",
        eager="tuple(torch.cummax({x}, dim={dim}))",
        samples=(*_ALONG, sample(_TIES, dim=1)),
    ),
    Operator(
        "cummin(x; dim)",
        "The smallest of all elements up to each, and where it is.",
        expand=_extreme("argmin="),
        kink="the last of several takes all of the gradient",
        eager="tuple(torch.cummin({x}, dim={dim}))",
        samples=(*_ALONG, sample(_TIES, dim=1)),
    ),
)  # fmt: skip
