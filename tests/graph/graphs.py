"""Random legal graphs, for property tests of what reads, prints or rewrites graphs."""

import numpy as np
from tests.graph.formulas import Wanted, draw

from tilewright.base.dtypes import BOOL, F32, I64, DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import FUSED, Attr, Graph, Role, TensorType, Value

NAMES = ("x", "h_1", "odd name", "dash-ed", "é", 'quo"te', "new\nline", "return", "%", "a.b")
KINDS = ("argument", "parameter", "buffer", "state", "seed", "tangent", "saved")
ATTRS: tuple[Attr, ...] = (
    None,
    True,
    1,
    1.0,
    -0.0,
    float("inf"),
    float("-inf"),
    -7,
    1e-30,
    "text",
    'a "quoted"\\ é\n\u2028 line',
    (),
    (1,),
    (1, (2.5, "x"), None, False),
)


def random_graph(seed: int, wanted: Wanted | None = None, nodes: int = 6) -> Graph:
    """Return a legal graph: formulas of all kinds, named operators, constants, fused bodies."""
    rng = np.random.default_rng(seed)
    builder = Builder(str(rng.choice(("main", "odd name"))))
    for number in range(nodes):
        kind = rng.random()
        if kind < 0.5:
            _formula(builder, rng, int(rng.integers(1 << 30)), wanted or Wanted())
        elif kind < 0.7:
            _named(builder, rng)
        elif kind < 0.85:
            _fused(builder, rng, int(rng.integers(1 << 30)), wanted or Wanted())
        else:
            value = rng.normal(size=(2, number % 3)).round(3)
            builder.constant(value, (F32, I64, BOOL)[number % 3], origin=_origin(rng))
    values = [value for node in builder.nodes for value in node.outputs]
    outputs = [values[int(at)] for at in rng.integers(len(values), size=3)]
    updates = []
    for position, output in enumerate(outputs):
        if rng.random() < 0.4:
            role = Role("buffer", "layers.0.weight")
            updates.append((builder.input("state", output.type, role).name, position))
    if rng.random() < 0.3:
        builder.roles.reverse()
        updates.reverse()
    return builder.finish(outputs, updates)


def _pick(rng: np.random.Generator, length: int) -> int:
    return int(rng.integers(length))


def _origin(rng: np.random.Generator) -> Origin:
    known = (
        UNKNOWN,
        Origin("model.py", 12),
        Origin("a b.py", 3, 'x = f("y")  # {no} formula', "layers.0.mlp"),
        Origin("", 0, "", "layers.1"),
        Origin("model.py", 7, "h = up(x)"),
    )
    return known[_pick(rng, len(known))]


def _operand(builder: Builder, rng: np.random.Generator, type_: TensorType) -> Value:
    known = [*builder.inputs, *(value for node in builder.nodes for value in node.outputs)]
    fitting = [value for value in known if value.type == type_]
    if fitting and rng.random() < 0.5:
        return fitting[_pick(rng, len(fitting))]
    role = Role(KINDS[_pick(rng, len(KINDS))], "a.b" if rng.random() < 0.5 else "")
    name = NAMES[_pick(rng, len(NAMES))]
    return builder.input(name, type_, role if rng.random() < 0.6 else None)


def _types(arrays: tuple[np.ndarray, ...], dtypes: dict[np.dtype, DType]) -> list[TensorType]:
    return [TensorType(array.shape, dtypes[array.dtype]) for array in arrays]


def _formula(builder: Builder, rng: np.random.Generator, seed: int, wanted: Wanted) -> None:
    formula, arrays = draw(seed, wanted)
    by_numpy = {dtype.numpy: dtype for dtype in (*Wanted().dtypes, BOOL)}
    types = _types(arrays, by_numpy)
    inputs = [_operand(builder, rng, type_) for type_ in types]
    if rng.random() < 0.5:
        builder.formula(formula, *inputs, origin=_origin(rng), name="v")
    else:
        attrs = {"dim": ATTRS[_pick(rng, len(ATTRS))]}
        builder.node(
            "silu", inputs, formula.type, formula=formula, attrs=attrs, origin=_origin(rng)
        )


def _named(builder: Builder, rng: np.random.Generator) -> None:
    type_ = TensorType((2, 3), F32)
    inputs = [_operand(builder, rng, type_) for _ in range(_pick(rng, 3))]
    attrs = {f"a{at}": ATTRS[_pick(rng, len(ATTRS))] for at in range(_pick(rng, 3))}
    if rng.random() < 0.5:
        types = (type_, TensorType((), I64))
        builder.multi("topk", inputs, types, attrs=attrs, origin=_origin(rng))
    else:
        attrs["target"] = "aten.convolution.default"
        builder.node("library", inputs, type_, attrs=attrs, origin=_origin(rng))


def _fused(builder: Builder, rng: np.random.Generator, seed: int, wanted: Wanted) -> None:
    body = Builder("body")
    for at in range(2):
        formula, arrays = draw(seed + at, wanted)
        by_numpy = {dtype.numpy: dtype for dtype in (*Wanted().dtypes, BOOL)}
        inputs = [body.input("p", type_) for type_ in _types(arrays, by_numpy)]
        body.formula(formula, *inputs, name="t")
    graph = body.finish([node.output for node in body.nodes])
    outer = [_operand(builder, rng, value.type) for value in graph.inputs]
    types = [value.type for value in graph.outputs]
    builder.multi(FUSED, outer, types, graphs=(graph,), origin=_origin(rng))
