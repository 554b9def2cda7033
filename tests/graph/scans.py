"""Small graphs with control flow, for the tests of evaluator, autodiff and Programs."""

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import BOOL, F64, I64, DType
from tilewright.graph.build import Builder
from tilewright.graph.control import Parts, add_cond, add_scan, add_while
from tilewright.graph.ir import Graph, TensorType, Value
from tilewright.ops.operator import write

STEPS, BATCH, WIDTH = 5, 3, 4


def cell(dtype: DType = F64) -> Graph:
    """h' = tanh(x s + h w), y = h' b"""
    builder = Builder("cell")
    h = builder.input("h", TensorType((BATCH, WIDTH), dtype))
    x = builder.input("x", TensorType((BATCH, WIDTH), dtype))
    w = builder.input("w", TensorType((WIDTH, WIDTH), dtype))
    s = builder.input("s", TensorType((BATCH, WIDTH), dtype))
    p = write(builder, "y[m, n] += h[m, k] * w[k, n]", h=h, w=w, name="p")
    new = write(builder, "y[m, n] = tanh(x[m, n] * s[m, n] + p[m, n])", x=x, p=p, s=s, name="new")
    out = write(builder, "y[m, n] = h[m, n] * s[m, n]", h=new, s=s, name="out")
    return builder.finish((new, out))


def recurrent(dtype: DType = F64, *, reverse: bool = False, steps: int = STEPS) -> Graph:
    """A recurrent net: first state, sequence, weights --> last state, results.

    The gradient of `w` is a product of matrices, that of `s` is not.
    """
    builder = Builder("recurrent")
    h = builder.input("h0", TensorType((BATCH, WIDTH), dtype))
    x = builder.input("xs", TensorType((steps, BATCH, WIDTH), dtype))
    w = builder.input("w", TensorType((WIDTH, WIDTH), dtype))
    s = builder.input("s", TensorType((BATCH, WIDTH), dtype))
    made = add_scan(builder, cell(dtype), Parts((h,), (x,), (w, s)), length=steps, reverse=reverse)
    return builder.finish(made)


def nested(dtype: DType = F64) -> Graph:
    """A recurrent net inside a scan: its last state is the next one's first."""
    outer = Builder("outer")
    h = outer.input("h0", TensorType((BATCH, WIDTH), dtype))
    xs = outer.input("xs", TensorType((2, STEPS, BATCH, WIDTH), dtype))
    w = outer.input("w", TensorType((WIDTH, WIDTH), dtype))
    s = outer.input("s", TensorType((BATCH, WIDTH), dtype))
    made = add_scan(
        outer, recurrent(dtype, reverse=True), Parts((h,), (xs,), (w, s)), length=2, reverse=True
    )
    return outer.finish(made)


def shifting() -> Graph:
    """Carries that hand each other their values, an integer one among them, and a stacked carry."""
    body = Builder("shift")
    a = body.input("a", TensorType((WIDTH,), F64))
    b = body.input("b", TensorType((WIDTH,), F64))
    n = body.input("n", TensorType((), I64))
    x = body.input("x", TensorType((WIDTH,), F64))
    more = write(body, "y[] = n[] + 1", n=n, name="more")
    total = write(body, "y[i] = a[i] * b[i] + x[i] * f64(n[])", a=a, b=b, x=x, n=n, name="total")
    inner = body.finish((b, total, more, a, x, total))
    builder = Builder("shifting")
    first = [builder.input(name, TensorType((WIDTH,), F64)) for name in ("a0", "b0")]
    count = builder.input("n0", TensorType((), I64))
    xs = builder.input("xs", TensorType((STEPS, WIDTH), F64))
    made = add_scan(builder, inner, Parts((*first, count), (xs,), ()), length=STEPS)
    return builder.finish(made)


def branching(dtype: DType = F64) -> Graph:
    """exp(x w) where p, else x x + x w; and x as it came"""
    builder = Builder("branching")
    p = builder.input("p", TensorType((), BOOL))
    x = builder.input("x", TensorType((BATCH, WIDTH), dtype))
    w = builder.input("w", TensorType((WIDTH, WIDTH), dtype))
    then, (xi, wi) = _branch("then", (x, w))
    product = write(then, "y[m, n] += x[m, k] * w[k, n]", x=xi, w=wi, name="p")
    first = then.finish((write(then, "y[...] = exp(p[...])", p=product, name="y"), xi))
    otherwise, (xi, wi) = _branch("otherwise", (x, w))
    product = write(otherwise, "y[m, n] += x[m, k] * w[k, n]", x=xi, w=wi, name="p")
    square = "y[...] = x[...] * x[...] + p[...]"
    y = write(otherwise, square, x=xi, p=product, name="y")
    second = otherwise.finish((y, xi))
    return builder.finish(add_cond(builder, p, first, second, (x, w)))


def _branch(name: str, operands: Sequence[Value]) -> tuple[Builder, list[Value]]:
    inner = Builder(name)
    return inner, [inner.input(value.name, value.type) for value in operands]


def doubling(dtype: DType = F64) -> Graph:
    """Double x until its sum reaches the limit."""
    builder = Builder("doubling")
    x = builder.input("x", TensorType((WIDTH,), dtype))
    limit = builder.input("limit", TensorType((), dtype))
    test, (a, b) = _branch("below", (x, limit))
    total = write(test, "y[] += x[i]", x=a, name="total")
    below = write(test, "y[] = t[] < l[]", t=total, l=b, dtype=BOOL, name="below")
    body, (c, _) = _branch("double", (x, limit))
    doubled = write(body, "y[...] = x[...] * 2", x=c, name="doubled")
    made = add_while(builder, test.finish((below,)), body.finish((doubled,)), (x,), (limit,))
    return builder.finish(made)


def arrays(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Return inputs of moderate size; truth values are true."""
    rng = np.random.default_rng(seed)
    found = []
    for value in graph.inputs:
        shape = tuple(dim for dim in value.type.shape if isinstance(dim, int))
        drawn = rng.uniform(-1, 1, shape) if value.type.dtype.kind == "float" else np.ones(shape)
        found.append(drawn.astype(value.type.dtype.numpy))
    return found
