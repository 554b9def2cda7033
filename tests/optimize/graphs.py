"""Graphs that are like real ones, small: what the optimizing passes are tried on."""

from collections.abc import Sequence

import numpy as np

from tilewright.autodiff import reverse
from tilewright.base.dtypes import F32, F64, I64, DType
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph, Node, Role, TensorType, Value
from tilewright.ops import emit
from tilewright.ops.operator import expansion, write
from tilewright.ops.table import TABLE

Array = np.ndarray


def tensor(*shape: int, dtype: DType = F32) -> TensorType:
    return TensorType(shape, dtype)


def one(result: Value | tuple[Value, ...]) -> Value:
    return result[0] if isinstance(result, tuple) else result


def expand(node: Node) -> Graph:
    return expansion(TABLE[node.op], tuple(value.type for value in node.inputs), node.attrs)


def inputs_for(graph: Graph, seed: int = 0) -> list[Array]:
    """Return random inputs; integers are small enough to be indices."""
    generator = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = tuple(dim for dim in value.type.shape if isinstance(dim, int))
        dtype = value.type.dtype
        if dtype.kind == "float":
            array: Array = generator.standard_normal(shape)
            if value.name.startswith("positive"):
                array = np.abs(array) + 0.1
        else:
            array = generator.integers(0, 2 if dtype.kind == "bool" else 4, shape)
        arrays.append(array.astype(dtype.numpy))
    return arrays


def assert_equal(before: Graph, after: Graph, *, bits: bool, seed: int = 0) -> None:
    """Both graphs give the same results: bit by bit, or up to the order of sums."""
    arrays = inputs_for(before, seed)
    expected = evaluate(before, arrays, expand=expand)
    found = evaluate(after, arrays, expand=expand)
    for value, a, b in zip(before.outputs, expected, found, strict=True):
        assert a.dtype == b.dtype
        if bits or a.dtype.kind in "iub":
            np.testing.assert_array_equal(b, a, err_msg=value.name)
            continue
        scale = float(np.max(np.abs(a.astype(np.float64)), initial=1.0))
        limit = {4: 1e-5, 8: 1e-12, 2: 1e-2}[a.dtype.itemsize] * scale
        np.testing.assert_allclose(
            b.astype(np.float64), a.astype(np.float64), rtol=0, atol=limit, err_msg=value.name
        )


def joint(graph: Graph) -> Graph:
    """Return the graph with the gradients of its first output in all its floating inputs."""
    names = [value.name for value in graph.inputs if value.type.dtype.kind == "float"]
    return reverse(graph, names, of=[0]).graph


def transformer_block() -> Graph:
    """Layer norm, qkv with split and permutes, attention, residual, and a gelu net."""
    builder = Builder("block")
    x = builder.input("x", tensor(2, 8, 16))
    weights = {
        name: builder.input(name, tensor(*shape))
        for name, shape in {
            "g": (16,),
            "b": (16,),
            "qkv": (48, 16),
            "qkv_bias": (48,),
            "out": (16, 16),
            "up": (32, 16),
            "up_bias": (32,),
            "down": (16, 32),
        }.items()
    }
    normed = one(emit(builder, "layer_norm", x, weights["g"], weights["b"]))
    projected = one(emit(builder, "linear", normed, weights["qkv"], weights["qkv_bias"]))
    heads = []
    for at in range(3):
        body = f"y[b, h, t, d] = p[b, t, {16 * at} + h*8 + d] for h<2, d<8"
        heads.append(write(builder, body, p=projected, name=f"head_{at}"))
    q, k, v = heads
    scores = write(builder, "y[b, h, s, t] += q[b, h, s, d] * k[b, h, t, d]", q=q, k=k)
    masked = write(builder, "y[b, h, s, t] = s[b, h, s, t] * 0.3 if t <= s else -inf", s=scores)
    weights_ = one(emit(builder, "softmax", masked, dim=-1))
    mixed = write(builder, "y[b, h, s, d] += w[b, h, s, t] * v[b, h, t, d]", w=weights_, v=v)
    joined = write(builder, "y[b, s, n<16] = m[b, n//8, s, n%8]", m=mixed)
    added = one(emit(builder, "add", x, one(emit(builder, "linear", joined, weights["out"]))))
    hidden = one(emit(builder, "linear", added, weights["up"], weights["up_bias"]))
    active = one(emit(builder, "gelu", hidden))
    result = one(emit(builder, "add", added, one(emit(builder, "linear", active, weights["down"]))))
    return builder.finish([result])


def normed_net() -> Graph:
    """Layer norm of a residual, gelu, another residual: no matrix product between."""
    builder = Builder("normed")
    x, r = builder.input("x", tensor(4, 6, 32)), builder.input("r", tensor(4, 6, 32))
    g, b = builder.input("g", tensor(32)), builder.input("b", tensor(32))
    summed = one(emit(builder, "add", x, r))
    normed = one(emit(builder, "layer_norm", summed, g, b))
    flat = write(builder, "y[n<24, d] = x[n//6, n%6, d]", x=normed)
    active = one(emit(builder, "gelu", flat, approximate="tanh"))
    back = write(builder, "y[i<4, j<6, d] = x[i*6+j, d]", x=active)
    return builder.finish([one(emit(builder, "add", back, summed)), summed])


def cross_entropy() -> Graph:
    builder = Builder("loss")
    logits = builder.input("logits", tensor(4, 6, 10))
    target = builder.input("target", tensor(4, 6, dtype=I64))
    flat = write(builder, "y[n<24, c] = x[n//6, n%6, c]", x=logits)
    wanted = write(builder, "y[n<24] = t[n//6, n%6]", t=target)
    return builder.finish([one(emit(builder, "cross_entropy", flat, wanted))])


def batch_norm() -> Graph:
    """Training statistics over images, an activation and a residual; running mean as an update."""
    builder = Builder("batch_norm")
    x, r = builder.input("x", tensor(3, 8, 5, 5)), builder.input("r", tensor(3, 8, 5, 5))
    g, b = builder.input("g", tensor(8)), builder.input("b", tensor(8))
    running = builder.input("running", tensor(8), Role("buffer", "running_mean"))
    total = write(builder, "y[c] += x[n, c, h, w]", x=x)
    mean = write(builder, "y[c] = t[c] / 75", t=total)
    away = "(x[n, c, h, w] - m[c])"
    squares = write(builder, f"y[c] += {away} * {away}", x=x, m=mean)
    body = f"y[n, c, h, w] = {away} * rsqrt(s[c] / 75 + 1e-05) * g[c] + b[c]"
    normed = write(builder, body, x=x, m=mean, s=squares, g=g, b=b)
    active = one(emit(builder, "relu", one(emit(builder, "add", normed, r))))
    moved = write(builder, "y[c] = 0.9 * r[c] + 0.1 * m[c]", r=running, m=mean)
    return builder.finish([active, moved], [("running", 1)])


def optimizer_step() -> Graph:
    """AdamW over parameters of several shapes, gradients clipped by their common norm."""
    builder = Builder("update")
    rate = builder.input("positive_rate", tensor(dtype=F64))
    step = builder.input("positive_step", tensor(dtype=F64))
    shapes = {"w": (40, 24), "bias": (40,), "scale": (24,)}
    gradients = {name: builder.input(f"d_{name}", tensor(*shape)) for name, shape in shapes.items()}
    squares = []
    for name, gradient in gradients.items():
        loops = ", ".join("ij"[: len(shapes[name])])
        squares.append(write(builder, f"y[] += g[{loops}] * g[{loops}]", g=gradient))
    norm = write(builder, "y[] = sqrt(a[] + b[] + c[])", a=squares[0], b=squares[1], c=squares[2])
    factor = write(builder, "y[] = min(1 / (n[] + 1e-06), 1)", n=norm)
    outputs: list[Value] = []
    updates: list[tuple[str, int]] = []
    for name, shape in shapes.items():
        slots = [builder.input(name, tensor(*shape), Role("parameter", name))]
        for slot in ("mean", "positive_square"):
            slots.append(builder.input(f"{slot}_{name}", tensor(*shape), Role("state", slot)))
        clipped = write(builder, "y[...] = g[...] * f[]", g=gradients[name], f=factor)
        parameter, mean, square = slots
        made = emit(builder, "adam", parameter, clipped, rate, step, mean, square)
        assert isinstance(made, tuple), "a step moves the parameter and its state"
        for slot_value, result in zip(slots, made, strict=True):
            updates.append((slot_value.name, len(outputs)))
            outputs.append(result)
    return builder.finish(outputs, updates)


def embedding_net() -> Graph:
    builder = Builder("embedding")
    ids = builder.input("ids", tensor(3, 5, dtype=I64))
    table, places = builder.input("table", tensor(4, 8)), builder.input("places", tensor(5, 8))
    found = one(emit(builder, "embedding", table, ids))
    body = "y[b, t, d] = f[b, t, d] + p[t, d]"
    summed = write(builder, body, f=found, p=places)
    return builder.finish([one(emit(builder, "softmax", summed, dim=-1))])


GRAPHS: Sequence[Graph] = (
    transformer_block(),
    joint(transformer_block()),
    normed_net(),
    joint(normed_net()),
    cross_entropy(),
    joint(cross_entropy()),
    batch_norm(),
    joint(batch_norm()),
    optimizer_step(),
    embedding_net(),
    joint(embedding_net()),
)
NAMES = tuple(
    f"{graph.name}{'_gradients' if any(r.kind == 'tangent' for _, r in graph.roles) else ''}"
    for graph in GRAPHS
)
