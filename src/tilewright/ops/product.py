"""The gradient of a product, and the gradient of that.

The idea: a quotient gives the product of the others at once, and is exact where the zeros are
counted; what a zero among the others would change, it does not see, so that its own gradient takes
the products of all others term by term.

This module does not know the other reductions.
"""

from collections.abc import Sequence

from tilewright.base.errors import Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import chosen_dims, index, loops, reduced
from tilewright.ops.operator import Attrs, Operator, apply, write


def prod_vjp(
    builder: Builder, node: Node, tangents: tuple[Value | None, ...]
) -> tuple[Value | None, ...]:
    """The gradient of the operator `prod`."""
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), dims, keepdim = node.inputs, node.attr("dims"), node.attr("keepdim")
    return apply(builder, PROD_GRAD, dy, x, origin=node.origin, dims=dims, keepdim=keepdim)


def _prod_grad(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    """Divide where no element is 0; a single 0 gets the product of the others, two leave 0."""
    dy, x = inputs
    rank, dtype = x.type.rank, x.type.dtype
    dims = chosen_dims(attrs["dims"], rank)
    kept, everything = reduced(rank, dims), index(loops(rank))
    element = f"x[{everything}]"
    zeros = write(builder, f"y[{kept}] += i64({element} == 0)", x=x, name="zeros")
    others = write(
        builder, f"y[{kept}] *= 1 if {element} == 0 else {element} else 1",
        x=x, dtype=dtype.compute, name="others",
    )  # fmt: skip
    rest = f"p[{kept}] / {element} if z[{kept}] == 0 else p[{kept}] if z[{kept}] == 1 and "
    rest += f"{element} == 0 else 0"
    entry = reduced(rank, dims, keepdim=bool(attrs["keepdim"]))
    body = f"y[{everything}] = dy[{entry}] * ({rest})"
    return (write(builder, body, dy=dy, x=x, p=others, z=zeros, dtype=dtype, name="prod_grad"),)


def _prod_grad_vjp(
    builder: Builder, node: Node, tangents: tuple[Value | None, ...]
) -> tuple[Value | None, ...]:
    """With u the tangent: sum over i of u[i] prod(x but x[i]) for dy, and for x[j] the sum over
    the other i of dy u[i] prod(x but x[i] and x[j])."""
    (u,) = tangents
    if u is None:
        return None, None
    dy, x = node.inputs
    rank, origin = x.type.rank, node.origin
    dims = chosen_dims(node.attr("dims"), rank)
    entry = reduced(rank, dims, keepdim=bool(node.attr("keepdim")))
    one = index(loops(rank))
    pair = index([*loops(rank), *(f"{loops(rank)[dim]}_" for dim in dims)])
    but_one = _product_of_others(builder, x, dims, 1, origin)
    body = f"y[{entry}] += u[{one}] * p[{one}]"
    ddy = write(builder, body, u=u, p=but_one, dtype=dy.type.dtype, origin=origin)
    if not dims:  # a product of one: its gradient does not depend on it
        return ddy, None
    but_two = _product_of_others(builder, x, dims, 2, origin)
    target = _marked(rank, dims, "_")
    body = f"y[{target}] += dy[{entry}] * u[{one}] * p[{pair}] where not ({_same(rank, dims, '_')})"
    limits = ", ".join(f"{loops(rank)[dim]}_<{x.type.shape[dim]}" for dim in dims)
    body += f" for {limits}"
    dx = write(builder, body, dy=dy, u=u, p=but_two, dtype=x.type.dtype, origin=origin)
    return ddy, dx


def _product_of_others(
    builder: Builder, x: Value, dims: Sequence[int], count: int, origin: Origin
) -> Value:
    """Return, for each element (or pair along dims), the product along dims of all the others."""
    rank = x.type.rank
    marks = ("", "_")[:count]
    names = loops(rank)
    target = [
        f"{name}<{x.type.shape[dim]}" if dim in dims else name for dim, name in enumerate(names)
    ]
    for mark in marks[1:]:
        target += [f"{names[dim]}{mark}<{x.type.shape[dim]}" for dim in dims]
    left_out = " or ".join(f"({_same(rank, dims, '__', mark)})" for mark in marks)
    value = f"x[{_marked(rank, dims, '__')}]"
    body = f"y[{index(target)}] *= 1 if {left_out} else {value} else 1"
    if not dims:
        body = f"y[{index(names)}] = 1.0 + 0.0 * {value}"
    compute = x.type.dtype.compute
    return write(builder, body, x=x, dtype=compute, name="others", origin=origin)


def _marked(rank: int, dims: Sequence[int], mark: str) -> str:
    return index([f"{n}{mark}" if dim in dims else n for dim, n in enumerate(loops(rank))])


def _same(rank: int, dims: Sequence[int], mark: str, other: str = "") -> str:
    names = loops(rank)
    return " and ".join(f"{names[dim]}{other} == {names[dim]}{mark}" for dim in dims)


PROD_GRAD = Operator(
    "prod_grad(dy, x; dims=None, keepdim=False)",
    "The gradient of prod.",
    expand=_prod_grad,
    vjp=_prod_grad_vjp,
    vjp_reason="a quotient does not see what a 0 among the others would change",
)
