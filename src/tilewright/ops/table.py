"""The operator table: every operator by name, page by page, and how a graph gets one.

The idea: the table is a literal tuple of rows; `emit` puts a named operator into a graph under
construction, `expand` puts a composite's graph in its place, `eager` writes the torch expression
that means the same.

This module does not know what any operator means: its row does.
"""

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Node, Value
from tilewright.ops import (
    activations,
    attention,
    chance,
    collective,
    constants,
    contract,
    cumulative,
    custom,
    distance,
    extreme,
    gather,
    losses,
    norms,
    optimizer,
    pointwise,
    pool,
    recurrent,
    reduce,
    resample,
    scatter,
    shape,
    special,
    window,
)
from tilewright.ops.operator import Operand, Operator, apply, expansion, operand_names

PAGES: tuple[tuple[str, tuple[Operator, ...]], ...] = (
    ("pointwise", pointwise.PAGE),
    ("special", special.PAGE),
    ("activations", activations.PAGE),
    ("reduce", reduce.PAGE),
    ("extreme", extreme.PAGE),
    ("cumulative", cumulative.PAGE),
    ("distance", distance.PAGE),
    ("contract", contract.PAGE),
    ("shape", shape.PAGE),
    ("constants", constants.PAGE),
    ("gather", gather.PAGE),
    ("scatter", scatter.PAGE),
    ("window", window.PAGE),
    ("pool", pool.PAGE),
    ("resample", resample.PAGE),
    ("norms", norms.PAGE),
    ("attention", attention.PAGE),
    ("recurrent", recurrent.PAGE),
    ("losses", losses.PAGE),
    ("chance", chance.PAGE),
    ("optimizer", optimizer.PAGE),
    ("collective", collective.PAGE),
    ("custom", custom.PAGE),
)
TABLE = {operator.name: operator for _, page in PAGES for operator in page}
assert len(TABLE) == sum(len(page) for _, page in PAGES), "two operators have the same name"


def emit(
    builder: Builder,
    name: str,
    /,
    *operands: Operand,
    origin: Origin = UNKNOWN,
    names: tuple[str, ...] = (),
    **attrs: Attr,
) -> Value | tuple[Value, ...]:
    """Add a node of the operator `name`; returns its result, or the tuple of its several results.

    Operands are values or, for declared operators, Python numbers; attributes left out take their
    defaults.  Raises ShapeError or DTypeError, naming `origin`, where the operands do not fit.
    """
    results = apply(builder, TABLE[name], *operands, origin=origin, names=names, **attrs)
    return results[0] if len(results) == 1 else results


def expand(node: Node, builder: Builder) -> tuple[Value, ...]:
    """Add the graph that a composite node stands for, and return what its results have become."""
    types = tuple(value.type for value in node.inputs)
    graph = expansion(TABLE[node.op], types, node.attrs)
    return builder.inline(graph, node.inputs, origin=node.origin)


def eager(node: Node, operands: tuple[str, ...]) -> str:
    """Return the torch expression for a node whose tensors are written as `operands`."""
    operator = TABLE[node.op]
    assert operator.eager, f"{node.op} has no eager form"
    attrs = dict(node.attrs)
    numbers = [name for name in operator.signature.operands if name in attrs]
    names = operand_names(operator, len(operands) + len(numbers))
    tensors = iter(operands)
    texts = {name: _literal(name, value) for name, value in attrs.items()}
    texts |= {name: next(tensors) for name in names if name not in numbers}
    if operator.signature.variadic:
        rest = operator.signature.operands[-1]
        count = len(operator.signature.operands) - 1
        texts[rest] = ", ".join(texts[name] for name in names[count:])
    for name in operator.signature.operands:
        texts.setdefault(name, "None")
    return operator.eager.format(**texts)


def _literal(name: str, value: Attr) -> str:
    if name == "dtype" and isinstance(value, str):
        return f"torch.{BY_NAME[value].torch_name}"
    if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
        return f"float('{value!r}')"
    return repr(value)
