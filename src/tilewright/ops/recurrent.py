"""Recurrent nets: one layer in one direction as a scan over its cell, and the cells.

The idea: what a step needs of its input alone is one matrix product over all steps, before the
loop; what is left is a product with the last state and a pointwise cell::

    p = x w_ih'                                     all steps at once
    h, c = scan over p of cell(p[t] + h w_hh' + b, c)

A cell gives its activations beside its results, so that its gradient takes nothing that is dear;
the gradients of its gates are one tensor, for the product that follows.

Operands: x[time, batch, ...], states[batch, width], weights and biases as torch holds them, the
gates one after another.  This module does not know layers upon layers, nor packed sequences.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.control import Parts, add_scan
from tilewright.graph.ir import Graph, Node, TensorType, Value
from tilewright.ops import shape
from tilewright.ops.nest import sizes
from tilewright.ops.operator import Attrs, Operator, Tangents, apply, sample, write

_CAT = next(operator for operator in shape.PAGE if operator.name == "cat")


# ------------------------------------------------------------------------------------------- cells


def _activation(function: str, gates: Value, at: int, name: str, builder: Builder) -> Value:
    """function(gate number `at`)"""
    width = sizes(gates.type.shape)[-1] // (4 if name in "ifgo" else 3)
    place = f"j + {at * width}" if at else "j"
    body = f"y[..., j] = {function}(g[..., {place}]) for j<{width}"
    return write(builder, body, g=gates, dtype=gates.type.dtype.compute, name=name)


def _rounded(builder: Builder, value: Value, like: Value, name: str) -> Value:
    """Bring a value that was computed in a wider type to the type it is kept in."""
    if value.type.dtype == like.type.dtype:
        return value
    dtype = like.type.dtype
    return write(builder, f"y[...] = {dtype.name}(x[...])", x=value, dtype=dtype, name=name)


def _lstm_cell(builder: Builder, inputs: tuple[Value, ...], _: Attrs) -> tuple[Value, ...]:
    gates, c = inputs
    i, f, g, o = (
        _activation("tanh" if name == "g" else "sigmoid", gates, at, name, builder)
        for at, name in enumerate("ifgo")
    )
    body = "y[...] = f[...] * c[...] + i[...] * g[...]"
    new = write(builder, body, f=f, c=c, i=i, g=g, name="new_c")
    t = write(builder, "y[...] = tanh(c[...])", c=new, name="t")
    h = write(builder, "y[...] = o[...] * t[...]", o=o, t=t, dtype=c.type.dtype, name="new_h")
    return h, _rounded(builder, new, c, "rounded_c"), i, f, g, o, t


def _lstm_cell_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    dh, dc, di, df, dg, do, dt = tangents
    _, _, i, f, g, o, t = node.outputs
    at = _Terms(builder, node.origin)
    given = {"i": i, "f": f, "g": g, "o": o, "t": t, "c": node.inputs[1]}
    through = at.sum("dt", given, ("dh[...] * o[...]", dh), ("u[...]", dt))
    total = at.sum("d_new_c", given, ("dc[...]", dc), ("u[...] * (1 - t[...] * t[...])", through))
    parts = (
        at.sum("di", given, ("u[...] * g[...]", total), ("v[...]", di)),
        at.sum("df", given, ("u[...] * c[...]", total), ("v[...]", df)),
        at.sum("dg", given, ("u[...] * i[...]", total), ("v[...]", dg)),
        at.sum("do", given, ("u[...] * t[...]", dh), ("v[...]", do)),
    )
    slopes = ("i[...] * (1 - i[...])", "f[...] * (1 - f[...])", "1 - g[...] * g[...]",
              "o[...] * (1 - o[...])")  # fmt: skip
    return (
        at.joined(given, parts, slopes, node.inputs[0].type),
        at.sum("d_c", given, ("u[...] * f[...]", total), dtype=node.inputs[1].type.dtype),
    )


def _gru_cell(builder: Builder, inputs: tuple[Value, ...], _: Attrs) -> tuple[Value, ...]:
    x, s, h = inputs
    width = sizes(h.type.shape)[-1]
    gates = []
    for at, name in enumerate("rz"):
        place = f"j + {at * width}" if at else "j"
        body = f"y[..., j] = sigmoid(x[..., {place}] + s[..., {place}]) for j<{width}"
        gates.append(write(builder, body, x=x, s=s, dtype=x.type.dtype.compute, name=name))
    r, z = gates
    m = write(builder, f"y[..., j] = s[..., j + {2 * width}] for j<{width}", s=s, name="m")
    body = f"y[..., j] = tanh(x[..., j + {2 * width}] + r[..., j] * m[..., j])"
    n = write(builder, body, x=x, r=r, m=m, dtype=x.type.dtype.compute, name="n")
    body = "y[...] = n[...] + z[...] * (h[...] - n[...])"
    new = write(builder, body, n=n, z=z, h=h, dtype=h.type.dtype, name="new_h")
    return new, r, z, n, m


def _gru_cell_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    dh, dr, dz, dn, dm = tangents
    x, s, h = node.inputs
    _, r, z, n, m = node.outputs
    at = _Terms(builder, node.origin)
    given = {"r": r, "z": z, "n": n, "m": m, "h": h}
    through = at.sum("dn", given, ("u[...] * (1 - z[...])", dh), ("v[...]", dn))
    inner = at.sum("d_n", given, ("u[...] * (1 - n[...] * n[...])", through))
    opened = at.sum("dr", given, ("u[...] * m[...]", inner), ("v[...]", dr))
    blend = at.sum("dz", given, ("u[...] * (h[...] - n[...])", dh), ("v[...]", dz))
    state = at.sum("dm", given, ("u[...] * r[...]", inner), ("v[...]", dm))
    slopes = ("r[...] * (1 - r[...])", "z[...] * (1 - z[...])", "1")
    return (
        at.joined(given, (opened, blend, inner), slopes, x.type),
        at.joined(given, (opened, blend, state), slopes, s.type),
        at.sum("d_h", given, ("u[...] * z[...]", dh), dtype=h.type.dtype),
    )


class _Terms(NamedTuple):
    """Sums of those terms that are there, with a builder to add them to."""

    builder: Builder
    origin: Origin

    def sum(
        self,
        name: str,
        given: Mapping[str, Value],
        *terms: tuple[str, Value | None],
        dtype: DType | None = None,
    ) -> Value | None:
        """Add texts, each for one tangent, the first name in it; None if no tangent is there."""
        present = [(text, tangent) for text, tangent in terms if tangent is not None]
        if not present:
            return None
        operands = {text.split("[")[0]: tangent for text, tangent in present}
        body = f"y[...] = {' + '.join(text for text, _ in present)}"
        read = {key: value for key, value in given.items() if f"{key}[" in body[2:]}
        given = {**operands, **read}
        return write(self.builder, body, given, dtype=dtype, name=name, origin=self.origin)

    def joined(
        self,
        given: Mapping[str, Value],
        parts: tuple[Value | None, ...],
        slopes: tuple[str, ...],
        type_: TensorType,
    ) -> Value | None:
        """Multiply each gate's tangent by its slope, and put all gates one after another."""
        if all(part is None for part in parts):
            return None
        made = []
        *rest, width = sizes(type_.shape)
        blank = ", ".join(f"k{at}<{n}" for at, n in enumerate((*rest, width // len(parts))))
        for part, slope in zip(parts, slopes, strict=True):
            if part is None:
                body, read = f"y[{blank}] = 0.0", {}
            else:
                body = f"y[...] = u[...] * ({slope})"
                read = {key: value for key, value in given.items() if f"{key}[" in slope}
                read["u"] = part
            gate = write(
                self.builder, body, read, dtype=type_.dtype, name="d_gate", origin=self.origin
            )
            made.append(gate)
        return apply(self.builder, _CAT, *made, origin=self.origin, dim=-1)[0]


# ------------------------------------------------------------------------------------------ layers


class _Layer(NamedTuple):
    """Operands of a layer, with or without biases, and the product of its input's."""

    x: Value
    states: tuple[Value, ...]
    weight: Value
    biases: tuple[Value, ...]
    product: Value


def _layer(builder: Builder, inputs: tuple[Value, ...], states: int) -> _Layer:
    x, rest = inputs[0], inputs[1 + states :]
    body = "y[t, b, j] += x[t, b, k] * w[j, k]"
    product = write(builder, body, x=x, w=rest[0], name="from_input")
    return _Layer(x, inputs[1 : 1 + states], rest[1], tuple(rest[2:]), product)


def _from_state(body: Builder, h: Value, weight: Value, biases: tuple[Value, ...]) -> Value:
    made = write(body, "y[b, j] += h[b, k] * w[j, k]", h=h, w=weight, name="from_state")
    for bias in biases:
        made = write(body, "y[b, j] = p[b, j] + c[j]", p=made, c=bias, name="with_bias")
    return made


def _lstm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    layer = _layer(builder, inputs, 2)
    body = Builder("lstm_step")
    h, c = (body.input(name, s.type) for name, s in zip("hc", layer.states, strict=True))
    p, weight, biases = _body_inputs(body, layer)
    state = _from_state(body, h, weight, biases)
    gates = write(body, "y[...] = p[...] + s[...]", p=p, s=state, name="gates")
    new, cell, *_ = apply(body, LSTM_CELL, gates, c)
    return _scanned(builder, body.finish((new, cell, new)), layer, attrs)


def _gru(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    layer = _layer(builder, inputs, 1)
    body = Builder("gru_step")
    h = body.input("h", layer.states[0].type)
    p, weight, biases = _body_inputs(body, layer)
    for bias in biases[:1]:
        p = write(body, "y[b, j] = p[b, j] + c[j]", p=p, c=bias, name="with_bias")
    state = _from_state(body, h, weight, biases[1:])
    new, *_ = apply(body, GRU_CELL, p, state, h)
    return _scanned(builder, body.finish((new, new)), layer, attrs)


def _rnn(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    layer = _layer(builder, inputs, 1)
    body = Builder("rnn_step")
    h = body.input("h", layer.states[0].type)
    p, weight, biases = _body_inputs(body, layer)
    state = _from_state(body, h, weight, biases)
    total = write(body, "y[...] = p[...] + s[...]", p=p, s=state, name="total")
    curve = "tanh(x[...])" if attrs["activation"] == "tanh" else "x[...] if x[...] > 0 else 0"
    if attrs["activation"] == "relu":
        curve = "x[...] if not x[...] <= 0 else 0"  # NaN stays NaN
    new = write(body, f"y[...] = {curve}", x=total, name="new_h")
    return _scanned(builder, body.finish((new, new)), layer, attrs)


def _body_inputs(body: Builder, layer: _Layer) -> tuple[Value, Value, tuple[Value, ...]]:
    """Add the inputs of a step after its carries: the input's part, the weight, the biases."""
    product = layer.product.type
    p = body.input("p", TensorType(product.shape[1:], product.dtype))
    weight = body.input("w", layer.weight.type)
    return p, weight, tuple(body.input("b", bias.type) for bias in layer.biases)


def _scanned(builder: Builder, body: Graph, layer: _Layer, attrs: Attrs) -> tuple[Value, ...]:
    closed = (layer.weight, *layer.biases)
    made = add_scan(
        builder,
        body,
        Parts(layer.states, (layer.product,), closed),
        length=sizes(layer.x.type.shape)[0],
        reverse=bool(attrs["reverse"]),
        origin=UNKNOWN,
        names=(*(f"last_{name}" for name in "hc"[: len(layer.states)]), "out"),
    )
    return (made[-1], *made[:-1])


_EAGER = (
    "(lambda x, h, ws: (lambda r: (r[0].flip(0) if {{reverse}} else r[0], {results}))({call}))"
    "({{x}}.flip(0) if {{reverse}} else {{x}}, {states}, "
    "[w for w in ({{w_ih}}, {{w_hh}}, {{b_ih}}, {{b_hh}}) if w is not None])"
)
_FLAGS = "len(ws) == 4, 1, 0.0, False, False, False"
_ONE_STATE = {"results": "r[1][0]", "states": "{h}[None]"}

LSTM_CELL = Operator(
    "lstm_cell(gates, c)",
    "h = o tanh(c'), c' = f c + i g, and i, f, g, o, tanh(c'); the gates are i, f, g, o.",
    expand=_lstm_cell,
    vjp=_lstm_cell_vjp,
    vjp_reason="it takes the activations as they are, and the gates' gradients are one tensor",
    eager="(lambda i, f, g, o: (lambda c: (o.sigmoid() * c.tanh(), c))"
    "(f.sigmoid() * {c} + i.sigmoid() * g.tanh()))(*{gates}.chunk(4, -1))",
    samples=(sample("f[3, 8]", "f[3, 2]"), sample("f[4]", "f[1]")),
)
GRU_CELL = Operator(
    "gru_cell(x, s, h)",
    "h' = n + z (h - n), and r, z, n and the state's part of n; the gates of x and s are r, z, n.",
    expand=_gru_cell,
    vjp=_gru_cell_vjp,
    vjp_reason="it takes the activations as they are, and the gates' gradients are one tensor",
    eager="(lambda a, b: (lambda z, n: n + z * ({h} - n))((a[1] + b[1]).sigmoid(), "
    "(a[2] + (a[0] + b[0]).sigmoid() * b[2]).tanh()))({x}.chunk(3, -1), {s}.chunk(3, -1))",
    samples=(sample("f[3, 6]", "f[3, 6]", "f[3, 2]"), sample("f[3]", "f[3]", "f[1]")),
)

PAGE = (
    LSTM_CELL,
    GRU_CELL,
    Operator(
        "lstm(x, h, c, w_ih, w_hh, b_ih?, b_hh?; reverse=False)",
        "One layer of LSTM: all h, the last h and the last c.",
        expand=_lstm,
        eager=_EAGER.format(
            call=f"torch.lstm(x, h, ws, {_FLAGS})",
            results="r[1][0], r[2][0]",
            states="({h}[None], {c}[None])",
        ),
        samples=(
            sample("f[4, 2, 3]", "f[2, 2]", "f[2, 2]", "f[8, 3]", "f[8, 2]", "f[8]", "f[8]"),
            sample("f[3, 2, 3]", "f[2, 1]", "f[2, 1]", "f[4, 3]", "f[4, 1]", reverse=True),
        ),
    ),
    Operator(
        "gru(x, h, w_ih, w_hh, b_ih?, b_hh?; reverse=False)",
        "One layer of GRU: all h and the last.",
        expand=_gru,
        eager=_EAGER.format(call=f"torch.gru(x, h, ws, {_FLAGS})", **_ONE_STATE),
        samples=(
            sample("f[4, 2, 3]", "f[2, 2]", "f[6, 3]", "f[6, 2]", "f[6]", "f[6]"),
            sample("f[3, 2, 3]", "f[2, 1]", "f[3, 3]", "f[3, 1]", reverse=True),
        ),
    ),
    Operator(
        "rnn(x, h, w_ih, w_hh, b_ih?, b_hh?; activation='tanh', reverse=False)",
        "One layer of an Elman net (tanh or relu): all h and the last.",
        expand=_rnn,
        eager=_EAGER.format(
            call=f"getattr(torch, 'rnn_' + {{activation}})(x, h, ws, {_FLAGS})", **_ONE_STATE
        ),
        samples=(
            sample("f[4, 2, 3]", "f[2, 2]", "f[2, 3]", "f[2, 2]", "f[2]", "f[2]"),
            sample("f[3, 2, 3]", "f[2, 2]", "f[2, 3]", "f[2, 2]", activation="relu", reverse=True),
        ),
    ),
)
