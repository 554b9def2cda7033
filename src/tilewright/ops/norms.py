"""The page of norms: softmax and its kin, layer, root-mean-square, group and batch normalisation.

The idea: each is a few row reductions and one pointwise formula, in an order that keeps its
numbers: the largest element taken out before `exp`, the mean taken out before squaring.  Sums of
half types are kept in float32.  An override recomputes the same statistics by the same formulas, so
that common sub-expressions of forward and backward are one.

This module does not know losses or attention.
"""

from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, TensorType, Value
from tilewright.ops.nest import (
    count,
    decimal,
    index,
    loops,
    more_before_the_first,
    one_dim,
    one_more_in_front,
    reduced,
)
from tilewright.ops.operator import Attrs, Operator, Tangents, sample, write
from tilewright.ops.statistics import Layout, Statistics, statistics

# What `eps=None` means: the distance from 1 to the next number of the type computed in.
_EPSILON = {"f64": 2.220446049250313e-16, "f32": 1.1920928955078125e-07}


# ----------------------------------------------------------------------------------------- softmax


def _row(x: Value, attrs: Attrs) -> tuple[str, str]:
    """Return the index of a row's statistics, and that of its elements."""
    rank = x.type.rank
    if rank == 0:  # torch lets a number be a row of one element
        return "", ""
    return reduced(rank, (one_dim(attrs["dim"], rank),)), index(loops(rank))


def _softmax(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    row, element = _row(x, attrs)
    compute = x.type.dtype.compute
    top = write(builder, f"y[{row}] max= x[{element}]", x=x, dtype=compute, name="top")
    body = f"y[{element}] = exp(x[{element}] - t[{row}])"
    powers = write(builder, body, x=x, t=top, dtype=compute, name="powers")
    total = write(builder, f"y[{row}] += e[{element}]", e=powers, name="total")
    body = f"y[{element}] = e[{element}] * (1 / t[{row}])"  # one division for each row
    return (write(builder, body, e=powers, t=total, dtype=x.type.dtype, name="softmax"),)


def _softmax_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), y = node.inputs, node.output
    row, element = _row(x, dict(node.attrs))
    origin, dtype = node.origin, x.type.dtype
    body = f"y[{row}] += dy[{element}] * p[{element}]"
    inner = write(builder, body, dy=dy, p=y, dtype=dtype.compute, name="inner", origin=origin)
    body = f"y[{element}] = (dy[{element}] - s[{row}]) * p[{element}]"
    return (write(builder, body, dy=dy, s=inner, p=y, dtype=dtype, origin=origin),)


def _log_softmax(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    row, element = _row(x, attrs)
    top, log_total = log_statistics(builder, x, row, element)
    body = f"y[{element}] = x[{element}] - t[{row}] - s[{row}]"
    made = write(builder, body, x=x, t=top, s=log_total, dtype=x.type.dtype, name="log_softmax")
    return (made,)


def log_statistics(
    builder: Builder, x: Value, row: str, element: str, origin: Origin = UNKNOWN
) -> tuple[Value, Value]:
    """Return a row's largest element, and the logarithm of the sum of exponentials without it."""
    compute = x.type.dtype.compute
    body = f"y[{row}] max= x[{element}]"
    top = write(builder, body, x=x, dtype=compute, name="top", origin=origin)
    body = f"y[{row}] += exp(x[{element}] - t[{row}])"
    total = write(builder, body, x=x, t=top, dtype=compute, name="total", origin=origin)
    return top, write(builder, "y[...] = log(s[...])", s=total, name="log_total", origin=origin)


def _log_softmax_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), y = node.inputs, node.output
    row, element = _row(x, dict(node.attrs))
    origin, dtype = node.origin, x.type.dtype
    body = f"y[{row}] += dy[{element}]"
    total = write(builder, body, dy=dy, dtype=dtype.compute, name="total", origin=origin)
    body = f"y[{element}] = dy[{element}] - exp(p[{element}]) * s[{row}]"
    return (write(builder, body, dy=dy, p=y, s=total, dtype=dtype, origin=origin),)


# ----------------------------------------------------------------------- centre, scale, and shift


def _normalised(
    builder: Builder, x: Value, affine: tuple[Value, ...], layout: Layout, found: Statistics
) -> Value:
    operands: dict[str, Value] = {"x": x, "m": found.mean, "r": found.scale}
    text = f"(x[{layout.element}] - m[{layout.at}]) * r[{layout.at}]"
    for name, symbol, value in zip("wb", "*+", affine, strict=False):
        operands[name] = value
        text += f" {symbol} {name}[{layout.weight}]"
    return write(
        builder, f"y[{layout.element}] = {text}", operands, dtype=x.type.dtype, name="norm"
    )


def _scaled(
    builder: Builder, x: Value, affine: tuple[Value, ...], layout: Layout, found: Statistics
) -> Value:
    """`(x - mean) * a + b` with `a = w / deviation` formed once for each row."""
    at, row, dtype = layout.element, layout.at, x.type.dtype
    away = f"(x[{at}] - m[{row}])"
    scale = found.scale
    if affine:
        body = "y[...] = r[...] * w[...]"
        scale = write(builder, body, r=scale, w=affine[0], dtype=dtype.compute, name="slope")
    operands: dict[str, Value] = {"x": x, "m": found.mean, "a": scale}
    body = f"y[{at}] = {away} * a[{row}]"
    if len(affine) > 1:
        operands["b"] = affine[1]
        body = f"y[{at}] = fma({away}, a[{row}], b[{row}])"
    return write(builder, body, operands, dtype=dtype, name="norm")


def _norm_vjp(
    builder: Builder, node: Node, dy: Value, affine: tuple[Value, ...], layout: Layout
) -> tuple[Value, ...]:
    """The gradients of x, scale and shift of `(x - mean) / deviation * w + b`.

    With h the normalised x and g = dy w:  dx = (g - mean(g) - h mean(g h)) / deviation.
    """
    x, origin = node.inputs[0], node.origin
    dtype, compute = x.type.dtype, x.type.dtype.compute
    found = statistics(builder, x, layout, decimal(node.attr("eps")), origin)
    operands: dict[str, Value] = {"dy": dy, "x": x, "m": found.mean, "r": found.scale}
    hat = f"((x[{layout.element}] - m[{layout.at}]) * r[{layout.at}])"
    g = f"dy[{layout.element}]"
    if affine:
        operands["w"] = affine[0]
        g = f"({g} * w[{layout.weight}])"
    inner = _per_row(builder, layout, f"{g}", operands, compute, origin)
    outer = _per_row(builder, layout, f"{g} * {hat}", operands, compute, origin)
    body = f"y[{layout.element}] = r[{layout.at}] * "
    body += f"({g} - s[{layout.at}] / elements - {hat} * u[{layout.at}] / elements)"
    dx = write(
        builder, body, operands, s=inner, u=outer, elements=layout.count, dtype=dtype, origin=origin
    )
    results = [dx]
    if affine:
        del operands["w"]
        body = f"y[{layout.weight}] += dy[{layout.element}] * {hat}"
        results.append(write(builder, body, operands, dtype=affine[0].type.dtype, origin=origin))
    if len(affine) > 1:
        body = f"y[{layout.weight}] += dy[{layout.element}]"
        results.append(write(builder, body, dy=dy, dtype=affine[1].type.dtype, origin=origin))
    return tuple(results)


def _per_row(
    builder: Builder,
    layout: Layout,
    value: str,
    operands: dict[str, Value],
    dtype: DType,
    origin: Origin,
) -> Value:
    """Sum over a row a value that is written for one element."""
    used = {name: value_ for name, value_ in operands.items() if f"{name}[" in value}
    return write(builder, f"y[{layout.at}] += {value}", used, dtype=dtype, origin=origin)


# ------------------------------------------------------------------------------------ layer, group


def _layer_layout(type_: TensorType, attrs: Attrs) -> Layout:
    dims = attrs["dims"]
    assert isinstance(dims, int) and 0 < dims <= type_.rank, f"{dims} dims are normalised"
    names = index(loops(dims))
    n = count(type_.shape, range(type_.rank - dims, type_.rank))
    return Layout(f"..., {names}", "...", "...", names, n, f"..., {names}")


def _layer_norm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, *affine = inputs
    layout = _layer_layout(x.type, attrs)
    found = statistics(builder, x, layout, decimal(attrs["eps"]))
    return (_normalised(builder, x, tuple(affine), layout, found),)


def _layer_norm_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,) * len(node.inputs)
    layout = _layer_layout(node.inputs[0].type, dict(node.attrs))
    return _norm_vjp(builder, node, dy, node.inputs[1:], layout)


def _rms_norm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, *weights = inputs
    layout = _layer_layout(x.type, attrs)
    compute = x.type.dtype.compute
    eps = attrs["eps"]
    eps = _EPSILON[compute.name] if eps is None else decimal(eps)
    element = f"x[{layout.element}]"
    squares = write(builder, f"y[...] += {element} * {element}", x=x, dtype=compute, name="squares")
    body = "y[...] = rsqrt(s[...] / n + eps)"
    scale = write(builder, body, s=squares, n=layout.count, eps=eps, name="scale")
    if not weights:
        body = f"y[{layout.element}] = {element} * r[...]"
        return (write(builder, body, x=x, r=scale, dtype=x.type.dtype, name="rms_norm"),)
    body = f"y[{layout.element}] = {element} * r[...] * w[{layout.weight}]"
    return (write(builder, body, x=x, r=scale, w=weights[0], dtype=x.type.dtype, name="rms_norm"),)


def _group_norm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, *affine = inputs
    groups, channels = attrs["groups"], x.type.shape[1]
    assert isinstance(groups, int) and isinstance(channels, int), "groups are counted"
    assert channels % groups == 0, f"{channels} channels do not split into {groups} groups"
    n = count(x.type.shape, range(1, x.type.rank)) // groups
    at = f"n, c//{channels // groups}"
    layout = Layout("n, c, ...", "n, g", at, "c", n, "n, (g c), ...", f" for g<{groups}")
    found = statistics(builder, x, layout, decimal(attrs["eps"]))
    return (_normalised(builder, x, tuple(affine), layout, found),)


# ------------------------------------------------------------------------------------------- batch


def _batch_layout(type_: TensorType) -> Layout:
    n = count(type_.shape, [dim for dim in range(type_.rank) if dim != 1])
    return Layout("n, c, ...", "c", "c", "c", n, "n, c, ...", wide=True)


def _batch_norm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, running_mean, running_var, *affine = inputs
    layout = _batch_layout(x.type)
    found = statistics(builder, x, layout, decimal(attrs["eps"]))
    y = _scaled(builder, x, tuple(affine), layout, found)
    momentum, n = decimal(attrs["momentum"]), layout.count
    body = "y[...] = (1 - momentum) * old[...] + momentum * f[...]"
    mean = write(
        builder, body, old=running_mean, f=found.mean, momentum=momentum,
        dtype=running_mean.type.dtype, name="running_mean",
    )  # fmt: skip
    body = "y[...] = (1 - momentum) * old[...] + momentum * (f[...] / n)"
    variance = write(
        builder, body, old=running_var, f=found.squares, momentum=momentum, n=max(n - 1, 0),
        dtype=running_var.type.dtype, name="running_var",
    )  # fmt: skip
    return y, mean, variance


def _batch_norm_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    dy = tangents[0]
    if dy is None:
        return (None,) * len(node.inputs)
    dx, *rest = _scaled_vjp(builder, node, dy, node.inputs[3:])
    return dx, None, None, *rest


def _batch_norm_fresh(
    builder: Builder, inputs: tuple[Value, ...], attrs: Attrs
) -> tuple[Value, ...]:
    x, *affine = inputs
    layout = _batch_layout(x.type)
    found = statistics(builder, x, layout, decimal(attrs["eps"]))
    return (_scaled(builder, x, tuple(affine), layout, found),)


def _batch_norm_fresh_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,) * len(node.inputs)
    return _scaled_vjp(builder, node, dy, node.inputs[1:])


def _scaled_vjp(
    builder: Builder, node: Node, dy: Value, affine: tuple[Value, ...]
) -> tuple[Value, ...]:
    """The gradients of x, scale and shift where these are one number for each row.

    With c the centred x, r one over the deviation and n elements in a row:
    dx = (dy - sum(dy) / n - c sum(dy c) r^2 / n) r w,  dw = r sum(dy c),  db = sum(dy).
    """
    x, origin = node.inputs[0], node.origin
    layout, compute = _batch_layout(x.type), x.type.dtype.compute
    found = statistics(builder, x, layout, decimal(node.attr("eps")), origin)
    n, wide = layout.count, found.squares.type.dtype
    at, row = layout.element, layout.row
    body = f"y[{row}] += dy[{at}]"
    total = write(builder, body, dy=dy, dtype=wide, origin=origin)
    body = f"y[{row}] += dy[{at}] * (x[{at}] - m[{row}])"
    along = write(builder, body, dy=dy, x=x, m=found.mean, dtype=wide, origin=origin)
    body = "y[...] = t[...] / n"
    level = write(builder, body, t=total, n=n, dtype=compute, name="level", origin=origin)
    body = "y[...] = u[...] * r[...] * r[...] / n"
    slope = write(
        builder, body, u=along, r=found.scale, n=n, dtype=compute, name="slope", origin=origin
    )
    scale = found.scale
    if affine:
        body = "y[...] = r[...] * w[...]"
        scale = write(builder, body, r=scale, w=affine[0], dtype=compute, origin=origin)
    body = f"y[{at}] = (dy[{at}] - l[{row}] - (x[{at}] - m[{row}]) * k[{row}]) * a[{row}]"
    operands = {"dy": dy, "l": level, "x": x, "m": found.mean, "k": slope, "a": scale}
    results = [write(builder, body, operands, dtype=x.type.dtype, origin=origin)]
    if affine:
        body, dtype = "y[...] = u[...] * r[...]", affine[0].type.dtype
        results.append(write(builder, body, u=along, r=found.scale, dtype=dtype, origin=origin))
    if len(affine) > 1:
        body, dtype = "y[...] = t[...]", affine[1].type.dtype
        results.append(write(builder, body, t=total, dtype=dtype, origin=origin))
    return tuple(results)


def _batch_norm_eval(
    builder: Builder, inputs: tuple[Value, ...], attrs: Attrs
) -> tuple[Value, ...]:
    x, mean, variance, *affine = inputs
    body = "y[...] = rsqrt(v[...] + eps)"
    scale = write(builder, body, v=variance, eps=decimal(attrs["eps"]), name="scale")
    operands: dict[str, Value] = {"x": x, "m": mean, "r": scale}
    text = "(x[n, c, ...] - m[c]) * r[c]"
    for name, symbol, value in zip("wb", "*+", affine, strict=False):
        operands[name] = value
        text += f" {symbol} {name}[c]"
    return (write(builder, f"y[n, c, ...] = {text}", operands, dtype=x.type.dtype, name="norm"),)


_CENTRED = (
    "the closed form needs two sums per row; the derived one goes back through the mean twice"
)

PAGE = (
    Operator(
        "softmax(x; dim)",
        "exp(x) over its sum along a dim, the largest element taken out.",
        expand=_softmax,
        vjp=_softmax_vjp,
        lead=one_more_in_front,
        vjp_reason="y (dy - sum(dy y)) needs the result only, and no gradient of the maximum",
        kink="the maximum taken out has no gradient of its own",
        eager="torch.softmax({x}, {dim})",
        samples=(
            sample("f[2, 3, 4]", dim=-1),
            sample("f[2, 3, 4]", dim=1),
            sample("f[2, 3] = 1000, 1001, 0, -inf, 0, 1", dim=1),
            sample("f[2, 3] = 2, 2, 2, -inf, -inf, -inf", dim=1),
        ),
    ),
    Operator(
        "log_softmax(x; dim)",
        "The logarithm of the softmax.",
        expand=_log_softmax,
        vjp=_log_softmax_vjp,
        lead=one_more_in_front,
        vjp_reason="dy - exp(y) sum(dy) needs the result only, and no gradient of the maximum",
        kink="the maximum taken out has no gradient of its own",
        eager="torch.log_softmax({x}, {dim})",
        samples=(
            sample("f[2, 3, 4]", dim=-1),
            sample("f[2, 3, 4]", dim=1),
            sample("f[2, 3] = 1000, 1001, 0, -inf, 0, 1", dim=1),
        ),
    ),
    Operator(
        "layer_norm(x, weight?, bias?; dims=1, eps=1e-05)",
        "Centre and scale the last dims, then scale and shift by parameters.",
        expand=_layer_norm,
        lead=more_before_the_first,
        vjp=_layer_norm_vjp,
        vjp_reason=_CENTRED,
        eager="torch.nn.functional.layer_norm("
        "{x}, {x}.shape[{x}.dim() - {dims}:], {weight}, {bias}, {eps})",
        samples=(
            sample("f[2, 3, 4]"),
            sample("f[2, 3, 4]", "f[4]"),
            sample("f[5, 4]", "f[4]", "f[4]", eps=0.001),
            sample("f[2, 3, 4]", "f[3, 4]", "f[3, 4]", dims=2),
            sample("f[4]", "f[4]", "f[4]"),
        ),
    ),
    Operator(
        "rms_norm(x, weight?; dims=1, eps=None)",
        "Scale the last dims to a mean square of 1, then by a parameter.",
        expand=_rms_norm,
        lead=more_before_the_first,
        eager="torch.nn.functional.rms_norm({x}, {x}.shape[{x}.dim() - {dims}:], {weight}, {eps})",
        samples=(
            sample("f[2, 3, 4]"),
            sample("f[2, 3, 4]", "f[4]", eps=1e-5),
            sample("f[2, 3, 4]", "f[3, 4]", dims=2),
        ),
    ),
    Operator(
        "group_norm(x, weight?, bias?; groups, eps=1e-05)",
        "Centre and scale each group of channels, then scale and shift each channel.",
        expand=_group_norm,
        eager="torch.nn.functional.group_norm({x}, {groups}, {weight}, {bias}, {eps})",
        samples=(
            sample("f[2, 4, 3]", groups=2),
            sample("f[2, 6, 2, 3]", "f[6]", "f[6]", groups=3),
            sample("f[3, 4]", "f[4]", "f[4]", groups=1),
        ),
    ),
    Operator(
        "batch_norm(x, running_mean, running_var, weight?, bias?; momentum=0.1, eps=1e-05)",
        "Normalise each channel over the batch; also gives the running statistics, moved.",
        expand=_batch_norm,
        vjp=_batch_norm_vjp,
        vjp_reason=_CENTRED + "; the running statistics carry no gradient",
        eager="(lambda m, v: (torch.nn.functional.batch_norm("
        "{x}, m, v, {weight}, {bias}, True, {momentum}, {eps}), m, v))"
        "(*(s.detach().clone() for s in ({running_mean}, {running_var})))",
        samples=(
            sample("f[5, 3]", "c[3]", "c[3] > 0"),
            sample("f[4, 3, 2, 2]", "c[3]", "c[3] > 0", "f[3]", "f[3]", momentum=0.25),
        ),
    ),
    Operator(
        "batch_norm_fresh(x, weight?, bias?; eps=1e-05)",
        "Normalise each channel over the batch; keeps no statistics.",
        expand=_batch_norm_fresh,
        vjp=_batch_norm_fresh_vjp,
        vjp_reason=_CENTRED,
        eager="torch.nn.functional.batch_norm({x}, None, None, {weight}, {bias}, True, 0.0, {eps})",
        samples=(sample("f[5, 3]"), sample("f[4, 3, 2, 2]", "f[3]", "f[3]")),
    ),
    Operator(
        "batch_norm_eval(x, running_mean, running_var, weight?, bias?; eps=1e-05)",
        "Normalise each channel by the running statistics.",
        expand=_batch_norm_eval,
        eager="torch.nn.functional.batch_norm("
        "{x}, {running_mean}, {running_var}, {weight}, {bias}, False, 0.0, {eps})",
        samples=(
            sample("f[5, 3]", "c[3]", "c[3] > 0"),
            sample("f[4, 3, 2, 2]", "c[3]", "c[3] > 0", "f[3]", "f[3]"),
        ),
    ),
)
