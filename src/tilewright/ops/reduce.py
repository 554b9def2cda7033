"""The reduction page: dims summed, multiplied, compared or counted away.

The idea: a reduction writes the operand's dims as loops and leaves those reduced out of the target;
`keepdim` writes 0 there instead.  Means and variances are two reductions and a division.

This module does not know what a softmax or a norm makes of these (`norms`, `losses`).
"""

from collections.abc import Sequence

from tilewright.base.dtypes import BOOL, F32, I64, U8, DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import (
    chosen_dims,
    count,
    index,
    loops,
    one_more_in_front,
    reduced,
    reduction,
    sizes,
)
from tilewright.ops.operator import (
    Attrs,
    Operand,
    Operator,
    Tangents,
    Types,
    Vjp,
    apply,
    sample,
    write,
)
from tilewright.ops.pointwise import CONVERSIONS
from tilewright.ops.product import PROD_GRAD, prod_vjp

_SHAPE = "f[2, 3, 4]"
_STOP = next(operator for operator in CONVERSIONS if operator.name == "stop_gradient")


# -------------------------------------------------------------------------------- declared by loops


def _sum(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    value = f"x[{source}]"
    return f"y[{target}] += {value if types[0].dtype.kind == 'float' else f'i64({value})'}"


def _sum_dtype(types: Types, _: Attrs) -> DType:
    return types[0].dtype if types[0].dtype.kind == "float" else I64


def _nansum(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    if types[0].dtype.kind != "float":
        return _sum(types, attrs)
    return f"y[{target}] += 0 if isnan(x[{source}]) else x[{source}]"


def _count_nonzero(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], {**attrs, "keepdim": False})
    return f"y[{target}] += i64(bool(x[{source}]))"


def _trace(types: Types, _: Attrs) -> str:
    length = min(sizes(types[0].shape))
    value = "x[i, i]" if types[0].dtype.kind == "float" else "i64(x[i, i])"
    return f"y[] += {value} for i<{length}"


def _prod(types: Types, attrs: Attrs) -> str:
    return _sum(types, attrs).replace("+=", "*=") + " else 1"


def _any(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    if types[0].dtype == U8:  # torch answers bytes with a byte
        return f"y[{target}] max= u8(bool(x[{source}]))"
    return f"y[{target}] any= bool(x[{source}])"


def _all(types: Types, attrs: Attrs) -> str:
    target, source = reduction(types[0], attrs)
    if types[0].dtype == U8:
        return f"y[{target}] min= u8(bool(x[{source}])) else 1"
    return f"y[{target}] all= bool(x[{source}]) else true"


def _truth_dtype(types: Types, _: Attrs) -> DType:
    return U8 if types[0].dtype == U8 else BOOL


# ------------------------------------------------------------------------------------- composites


def _mean(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    dims = chosen_dims(attrs["dims"], x.type.rank)
    total = _total(builder, x, dims, keepdim=bool(attrs["keepdim"]))
    n = count(x.type.shape, dims)
    return (write(builder, "y[...] = t[...] / n", t=total, n=n, dtype=x.type.dtype, name="mean"),)


def _total(builder: Builder, x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """Sum a float tensor in the type it is computed in."""
    rank = x.type.rank
    body = f"y[{reduced(rank, dims, keepdim=keepdim)}] += x[{index(loops(rank))}]"
    return write(builder, body, x=x, dtype=x.type.dtype.compute, name="total")


def _spread(
    builder: Builder, x: Value, attrs: Attrs, origin: Origin = UNKNOWN
) -> tuple[Value, Value, float]:
    """Return the mean and the sum of squares of what is left without it, both with their dims
    kept, and what this is divided by: two passes, so that nothing cancels.

    The mean is the first element and the mean distance from it, which is nothing where all are
    equal, so that their squares are 0 to the bit; but not where it is far from 0 as the mean is
    not, as its last place is then."""
    rank, compute = x.type.rank, x.type.dtype.compute
    dims, correction = chosen_dims(attrs["dims"], rank), attrs["correction"]
    assert isinstance(correction, int | float), "a correction is a number"
    n = count(x.type.shape, dims)
    element, row = index(loops(rank)), reduced(rank, dims, keepdim=True)
    limits = [f"{loops(rank)[dim]}<{x.type.shape[dim]}" for dim in range(rank) if dim not in dims]
    tail = f" for {', '.join(limits)}" if limits else ""
    # Of no elements the first is as good as any: what is made of them is 0 / 0.
    body = f"y[{row}] = {f'x[{row}]' if n else '0'}{tail}"
    given = {"x": x} if n else {}
    first = write(builder, body, given, dtype=compute, name="first", origin=origin)
    # Whatever the first one is, the mean is the mean.
    (first,) = apply(builder, _STOP, first, origin=origin, names=("first",))
    body = f"y[{row}] += x[{element}] - f[{row}]"
    total = write(builder, body, x=x, f=first, dtype=compute, name="total", origin=origin)
    whole = write(builder, f"y[{row}] += x[{element}]", x=x, dtype=compute, origin=origin)
    body = "y[...] = s[...] / n if abs(f[...]) > 2 * abs(s[...] / n) else f[...] + t[...] / n"
    operands = {"f": first, "t": total, "s": whole}
    mean = write(builder, body, operands, n=n, dtype=compute, name="mean", origin=origin)
    away = f"(x[{element}] - m[{row}])"
    body = f"y[{row}] += {away} * {away}"
    squares = write(builder, body, x=x, m=mean, dtype=compute, name="squares", origin=origin)
    return mean, squares, n - correction


def _variance(builder: Builder, x: Value, attrs: Attrs) -> Value:
    rank = x.type.rank
    _, squares, free = _spread(builder, x, attrs)
    n = max(free, 0)
    dims = chosen_dims(attrs["dims"], rank)
    target = reduced(rank, dims, keepdim=bool(attrs["keepdim"]))
    source = reduced(rank, dims, keepdim=True)
    if target == source:
        return write(builder, "y[...] = s[...] / n", s=squares, n=n, name="variance")
    return write(builder, f"y[{target}] = s[{source}] / n", s=squares, n=n, name="variance")


def _var(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    variance = _variance(builder, x, attrs)
    return (write(builder, "y[...] = v[...]", v=variance, dtype=x.type.dtype, name="var"),)


def _std(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    variance = _variance(builder, x, attrs)
    # The branch that is not taken keeps the root's infinite derivative at 0 out of the gradient.
    root = "y[...] = 0 if v[...] == 0 else sqrt(v[...])"
    return (write(builder, root, v=variance, dtype=x.type.dtype, name="std"),)


def _spread_vjp(slope: str) -> Vjp:
    """The gradient of what grows by `slope` where the sum of squares `s`, divided by `n`, grows by
    the distance of an element from the mean.  v: what the value divides by, `n` or 0 where that is
    less; as in torch, the gradient divides by `n` itself."""

    def vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
        (dy,) = tangents
        if dy is None:
            return (None,)
        (x,), attrs, origin = node.inputs, dict(node.attrs), node.origin
        rank, compute = x.type.rank, x.type.dtype.compute
        dims = chosen_dims(attrs["dims"], rank)
        row = reduced(rank, dims, keepdim=True)
        entry = reduced(rank, dims, keepdim=bool(attrs["keepdim"]))
        mean, squares, n = _spread(builder, x, attrs, origin)
        operands = {"dy": dy, "s": squares}
        used: dict[str, Operand] = {k: v for k, v in operands.items() if f"{k}[" in slope}
        if "v" in slope:
            used["v"] = max(n, 0)
        body = f"y[{row}] = {slope.replace('dy[]', f'dy[{entry}]').replace('s[]', f's[{row}]')}"
        share = write(builder, body, used, n=n, dtype=compute, name="share", origin=origin)
        element = index(loops(rank))
        body = f"y[{element}] = d[{row}] * (x[{element}] - m[{row}])"
        operands = {"d": share, "x": x, "m": mean}
        return (write(builder, body, operands, dtype=x.type.dtype, origin=origin),)

    return vjp


def logsumexp_parts(builder: Builder, x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Return the largest element (0 where it is infinite) and the logarithm of the sum of
    exponentials without it; their dims are reduced away."""
    rank, compute = x.type.rank, _floating(x.type.dtype).compute
    target, source = reduced(rank, dims), index(loops(rank))
    top = write(builder, f"y[{target}] max= x[{source}]", x=x, dtype=compute, name="top")
    peak = write(builder, "y[...] = 0 if isinf(t[...]) else t[...]", t=top, name="peak")
    total = write(
        builder, f"y[{target}] += exp(x[{source}] - p[{target}])", x=x, p=peak, dtype=compute
    )
    return peak, write(builder, "y[...] = log(s[...])", s=total, name="log_total")


def _logsumexp(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    rank = x.type.rank
    dims = chosen_dims(attrs["dims"], rank)
    peak, log_total = logsumexp_parts(builder, x, dims)
    source = reduced(rank, dims)
    target = reduced(rank, dims, keepdim=bool(attrs["keepdim"]))
    body = f"y[{target}] = p[{source}] + t[{source}]"
    dtype = _floating(x.type.dtype)
    return (write(builder, body, p=peak, t=log_total, dtype=dtype, name="logsumexp"),)


def _floating(dtype: DType) -> DType:
    return dtype if dtype.kind == "float" else F32


def _logsumexp_vjp(
    builder: Builder, node: Node, tangents: tuple[Value | None, ...]
) -> tuple[Value | None, ...]:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,) = node.inputs
    rank = x.type.rank
    dims = chosen_dims(node.attr("dims"), rank)
    entry = reduced(rank, dims, keepdim=bool(node.attr("keepdim")))
    element = index(loops(rank))
    body = f"y[{element}] = dy[{entry}] * exp(x[{element}] - r[{entry}])"
    return (
        write(builder, body, dy=dy, x=x, r=node.output, dtype=x.type.dtype, origin=node.origin),
    )


_REDUCTION_SAMPLES = (
    sample(_SHAPE, dims=(1,)),
    sample(_SHAPE, dims=(0, 2), keepdim=True),
    sample(_SHAPE),
    sample("f[3]", dims=(-1,)),
)
_AT_ONCE = "distances from the mean add up to 0, so that nothing goes through the mean"

PAGE = (
    Operator(
        "sum(x; dims=None, keepdim=False)  y[...] += x[..., dims]",
        "Sum over dims; integers in int64.",
        declare=_sum,
        dtype=_sum_dtype,
        eager="torch.sum({x}, dim={dims}, keepdim={keepdim})",
        samples=(*_REDUCTION_SAMPLES, sample("i[2, 3] < 9", dims=(0,)), sample("b[5]")),
    ),
    Operator(
        "prod(x; dims=None, keepdim=False)  y[...] *= x[..., dims]",
        "Multiply over dims; integers in int64.",
        declare=_prod,
        dtype=_sum_dtype,
        kink="zeros are counted, so that the gradient is right beside them",
        vjp=prod_vjp,
        vjp_reason="y / x is not a number where x is 0",
        eager="(lambda d: torch.prod({x}, d[0], {keepdim}) if d else torch.prod({x}))"
        "({dims} or ())",
        samples=(
            sample(_SHAPE),
            sample(_SHAPE, dims=(1,)),
            sample(_SHAPE, dims=(-1,), keepdim=True),
            sample("f[3, 3] = 0, 2, 3, 0, 0, 4, 1, 5, 6", dims=(1,)),
        ),
    ),
    PROD_GRAD,
    Operator(
        "any(x; dims=None, keepdim=False)  y[...] any= bool(x[..., dims])",
        "Whether one over dims counts as true.",
        declare=_any,
        dtype=_truth_dtype,
        eager="torch.any({x}, dim={dims}, keepdim={keepdim})",
        samples=(
            sample("b[2, 3]", dims=(1,)),
            sample("b[2, 3]"),
            sample("f[2, 2] = 0, 0, nan, 0", dims=(1,), keepdim=True),
        ),
    ),
    Operator(
        "all(x; dims=None, keepdim=False)  y[...] all= bool(x[..., dims])",
        "Whether all over dims count as true.",
        declare=_all,
        dtype=_truth_dtype,
        eager="torch.all({x}, dim={dims}, keepdim={keepdim})",
        samples=(
            sample("b[2, 3]", dims=(1,)),
            sample("b[2, 3]"),
            sample("f[2, 2] = 1, 2, nan, 0", dims=(1,), keepdim=True),
        ),
    ),
    Operator(
        "mean(x; dims=None, keepdim=False)",
        "The mean over dims.",
        expand=_mean,
        lead=one_more_in_front,
        eager="torch.mean({x}, dim={dims}, keepdim={keepdim})",
        samples=_REDUCTION_SAMPLES,
    ),
    Operator(
        "var(x; dims=None, correction=1, keepdim=False)",
        "The variance over dims, in two passes.",
        expand=_var,
        vjp=_spread_vjp("2 * dy[] / n"),
        vjp_reason=_AT_ONCE,
        lead=one_more_in_front,
        eager="torch.var({x}, dim={dims}, correction={correction}, keepdim={keepdim})",
        samples=(
            *_REDUCTION_SAMPLES,
            sample(_SHAPE, dims=(1,), correction=0),
        ),
    ),
    Operator(
        "std(x; dims=None, correction=1, keepdim=False)",
        "The standard deviation over dims.",
        expand=_std,
        vjp=_spread_vjp("0 if s[] / v == 0 else dy[] / (n * sqrt(s[] / v))"),
        vjp_reason=_AT_ONCE,
        lead=one_more_in_front,
        kink="where it is 0, so is its gradient",
        eager="torch.std({x}, dim={dims}, correction={correction}, keepdim={keepdim})",
        samples=(*_REDUCTION_SAMPLES, sample("f[2, 3] = 1, 1, 1, 0, 1, 2", dims=(1,))),
    ),
    Operator(
        "logsumexp(x; dims, keepdim=False)",
        "The logarithm of the sum of exponentials, without overflow.",
        expand=_logsumexp,
        lead=one_more_in_front,
        vjp=_logsumexp_vjp,
        vjp_reason="exp(x - y) is the softmax at once; the chain through the maximum is not needed",
        kink="the maximum taken out has no gradient of its own",
        eager="torch.logsumexp({x}, dim={dims}, keepdim={keepdim})",
        samples=(
            sample(_SHAPE, dims=(1,)),
            sample(_SHAPE, dims=(0, 2), keepdim=True),
            sample("f[2, 3] = 1000, 1001, 0, -inf, 0, 1", dims=(1,)),
        ),
    ),
    Operator(
        "nansum(x; dims=None, keepdim=False)  y[...] += 0 if isnan(x[..., dims]) else x[..., dims]",
        "Sum what is a number over dims.",
        declare=_nansum,
        dtype=_sum_dtype,
        eager="torch.nansum({x}, dim={dims}, keepdim={keepdim})",
        samples=(*_REDUCTION_SAMPLES, sample("f[2, 3] = 1, nan, 2, nan, nan, nan", dims=(1,))),
    ),
    Operator(
        "count_nonzero(x; dims=None)  y[...] += i64(bool(x[..., dims]))",
        "How many elements over dims are not 0; NaN counts.",
        declare=_count_nonzero,
        dtype="i64",
        eager="torch.count_nonzero({x}, dim={dims})",
        samples=(sample("c[2, 3] = 1, 0, nan, 0, -0.0, 2", dims=(1,)), sample("b[2, 3]")),
    ),
    Operator(
        "trace(x)  y[] += x[i, i]",
        "The sum of a matrix's diagonal.",
        declare=_trace,
        dtype=_sum_dtype,
        eager="torch.trace({x})",
        samples=(sample("f[3, 3]"), sample("f[2, 4]"), sample("i[3, 2] < 9")),
    ),
)
