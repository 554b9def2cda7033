"""The page of distances: how long a vector is, and how far rows are from each other.

The idea: a norm is powers of magnitudes, summed, and a root; a select keeps the root's infinite
derivative at 0 out of the gradient.

This module does not know normalisation (`norms`).
"""

import math

from tilewright.graph.build import Builder
from tilewright.graph.ir import Value
from tilewright.ops.nest import chosen_dims, index, loops, reduced
from tilewright.ops.operator import Attrs, Operator, sample, write

_SHAPE = "f[2, 3, 4]"


def _vector_norm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    rank, compute = x.type.rank, x.type.dtype.compute
    dims = chosen_dims(attrs["dims"], rank)
    target = reduced(rank, dims, keepdim=bool(attrs["keepdim"]))
    element = f"x[{index(loops(rank))}]"
    order = attrs["ord"]
    if order == 2:
        squares = write(builder, f"y[{target}] += {element} * {element}", x=x, dtype=compute)
        root = "y[...] = 0 if s[...] == 0 else sqrt(s[...])"
        return (write(builder, root, s=squares, dtype=x.type.dtype, name="norm"),)
    if order == 1:
        return (write(builder, f"y[{target}] += abs({element})", x=x, dtype=x.type.dtype),)
    assert isinstance(order, int | float), "an order is a number"
    if math.isinf(order):
        op = "max=" if order > 0 else "min="
        return (write(builder, f"y[{target}] {op} abs({element})", x=x, dtype=x.type.dtype),)
    if order == 0:
        body = f"y[{target}] += 1 if {element} != 0 else 0"
        return (write(builder, body, x=x, dtype=x.type.dtype),)
    assert order > 0, f"vector_norm of order {order} is not declared"
    body = f"y[{target}] += 0 if {element} == 0 else pow(abs({element}), o)"
    powers = write(builder, body, x=x, o=float(order), dtype=compute)
    root = "y[...] = 0 if s[...] == 0 else pow(s[...], o)"
    return (write(builder, root, s=powers, o=1 / order, dtype=x.type.dtype, name="norm"),)


def _cdist(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    a, b = inputs
    order, dtype = attrs["p"], a.type.dtype
    assert isinstance(order, int | float) and 0 <= order < math.inf, f"no distance of order {order}"
    away = "(a[..., m, k] - b[..., n, k])"
    given: dict[str, Value] = {"a": a, "b": b}
    if order == 0:
        body = f"y[..., m, n] += 1 if {away} != 0 else 0"
        return (write(builder, body, given, dtype=dtype, name="distance"),)
    if order == 1:
        body = f"y[..., m, n] += abs{away}"
        return (write(builder, body, given, dtype=dtype, name="distance"),)
    power = f"{away} * {away}" if order == 2 else f"0 if {away} == 0 else pow(abs{away}, o)"
    attributes: dict[str, float] = {} if order == 2 else {"o": float(order)}
    body = f"y[..., m, n] += {power}"
    total = write(builder, body, {**given, **attributes}, dtype=dtype.compute, name="powers")
    root = "sqrt(s[...])" if order == 2 else "pow(s[...], o)"
    back = {} if order == 2 else {"o": 1 / float(order)}
    body = f"y[...] = 0 if s[...] == 0 else {root}"
    return (write(builder, body, {"s": total, **back}, dtype=dtype, name="distance"),)


_REDUCTION_SAMPLES = (
    sample(_SHAPE, dims=(1,)),
    sample(_SHAPE, dims=(0, 2), keepdim=True),
    sample(_SHAPE),
    sample("f[3]", dims=(-1,)),
)

PAGE = (
    Operator(
        "vector_norm(x; ord=2, dims=None, keepdim=False)",
        "The norm of an order over dims: of order 0 a count, of infinite order an extreme.",
        expand=_vector_norm,
        kink="at 0 the gradient is 0",
        eager="torch.linalg.vector_norm({x}, {ord}, dim={dims}, keepdim={keepdim})",
        samples=(
            *_REDUCTION_SAMPLES,
            sample("f[2, 3] = 0, 0, 0, 0, 1, 2", dims=(1,)),
            sample("f[2, 3] = 0, -1, 3, 0, 1, 2", dims=(1,), ord=1),
            sample("f[2, 3] = 0, -1, 3, 0, 1, 2", dims=(1,), ord=float("inf")),
            sample("f[2, 3] = 2, -1, 3, 5, 1, 2", dims=(1,), ord=float("-inf")),
            sample("f[2, 3] = 0, -1, 3, 0, 0, 0", dims=(1,), ord=3),
            sample("f[2, 3] = 0, -1, 3, 0, 0, 2", dims=(1,), ord=1.5),
            sample("f[2, 3] = 0, -1, 3, 0, 0, 0", dims=(1,), ord=0),
        ),
    ),
    Operator(
        "cdist(a, b; p=2)",
        "The distance, in the norm of an order, of every row from every other.",
        expand=_cdist,
        kink="at 0 the gradient is 0",
        eager="torch.cdist({a}, {b}, {p}, 'donot_use_mm_for_euclid_dist')",
        samples=(
            sample("f[2, 4, 3]", "f[2, 5, 3]"),
            sample("f[2, 2] = 0, 1, 2, 3", "f[3, 2] = 0, 1, 5, 3, 2, 2"),
            sample("f[4, 3]", "f[2, 3]", p=1),
            sample("f[4, 3]", "f[2, 3]", p=3),
        ),
    ),
)
