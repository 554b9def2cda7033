"""The text of a graph: what is printed, what reads back to an equal graph, and what is hashed.

::

    graph  = "graph" name "(" [input {"," input}] ")" "{" {node} "return" [values]
             ["updates" %input "=" position, ...] ["roles" %input, ...] "}"
    input  = %name ":" type [role ["source"]]
    node   = [values] "=" op "(" [values and name=attr ...] ")" ":" [types] [loops] [origin] [with]
    op     = name | loops                            a formula node is written as its loops
    loops  = "{" formula "}"                         see `notation`
    type   = dtype "[" [dim {"," dim}] "]"           f32[32, 2*s]
    origin = "@" "file" ":" line ["code" ["module"]]
    with   = "with" graph {graph}                    the body of a fused node

    %h = linear(%x, %w) : f32[2, 8] {y[i<2, j<8] += x[i, k<4] * w[j, k]} @ "model.py":12 "up(x)"
    %g = {y[i<2, j<8] = a[i, j] * 2}(%h) : f32[2, 8]

Names that are no identifiers stand in quotes; `#` begins a comment.  `parse(show(graph))` equals
`graph`; whatever else is given to `parse` is a graph that verifies, or a GraphError with its line.

This module does not know the operator table: any name is an operator's.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from tilewright.base import syntax
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.expr import Expr, Read, Sym, transform
from tilewright.base.sizes import Size
from tilewright.graph import notation
from tilewright.graph.build import rename
from tilewright.graph.ir import (
    FORMULA,
    Attr,
    Dim,
    Formula,
    Graph,
    Loop,
    Node,
    Role,
    TensorType,
    Value,
)
from tilewright.graph.parse import parse

__all__ = [
    "digest",
    "parse",
    "quoted",
    "show",
    "show_attr",
    "show_node",
    "show_type",
    "word",
]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
_INDENT = "  "


def show(graph: Graph, *, brief: bool = False) -> str:
    """Return the text of a graph; `brief` leaves out origins and the loops of named operators."""
    return "\n".join(_graph(graph, brief)) + "\n"


def show_node(node: Node, *, brief: bool = False) -> str:
    """Return the text of one node, as it stands in a graph."""
    return "\n".join(_node(node, brief))


def show_type(type_: TensorType) -> str:
    """Return the text of a type: f32[32, 2 * s]."""
    return f"{type_.dtype.name}[{', '.join(_dim(dim) for dim in type_.shape)}]"


def show_attr(value: Attr) -> str:
    """Return the text of an attribute: Python's own, strings in double quotes."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, tuple):
        inner = ", ".join(show_attr(part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value) if isinstance(value, Size) else repr(value)


def quoted(text: str) -> str:
    """Return text in double quotes, as JSON has them."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def word(name: str) -> str:
    """Return a name as it is written: plain, or in quotes where it is no identifier."""
    return name if _WORD.fullmatch(name) else quoted(name)


def digest(graph: Graph) -> str:
    """Return a hash of what the graph computes and how it is called, for cache keys.

    Names (of values, loops, operands, the graph), sources of inputs and origins do not count.
    """
    text = show(_anonymous(graph), brief=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ---------------------------------------------------------------------------------------- printing


def _graph(graph: Graph, brief: bool) -> Iterator[str]:
    roles = dict(graph.roles)
    inputs = [_input(value, roles.get(value.name), brief) for value in graph.inputs]
    if len(inputs) <= 1:
        yield f"graph {word(graph.name)}({''.join(inputs)}) {{"
    else:
        yield f"graph {word(graph.name)}("
        yield from (f"{_INDENT}{text}," for text in inputs)
        yield ") {"
    for node in graph.nodes:
        yield from (_INDENT + line for line in _node(node, brief))
    yield f"{_INDENT}return {', '.join(_values(graph.outputs))}".rstrip()
    if graph.updates:
        pairs = (f"%{word(name)} = {position}" for name, position in graph.updates)
        yield f"{_INDENT}updates {', '.join(pairs)}"
    order = [name for name, _ in graph.roles]
    if order != [value.name for value in graph.inputs if value.name in roles]:
        yield f"{_INDENT}roles {', '.join('%' + word(name) for name in order)}"
    yield "}"


def _input(value: Value, role: Role | None, brief: bool) -> str:
    text = f"%{word(value.name)} : {show_type(value.type)}"
    if role is not None and (role != Role() or not brief):
        text += f" {word(role.kind)}" + (f" {quoted(role.source)}" if role.source else "")
    return text


def _node(node: Node, brief: bool) -> Iterator[str]:
    loops = "" if node.formula is None else f"{{{notation.show(node.formula)}}}"
    written_as_loops = node.op == FORMULA and node.formula is not None
    results = ", ".join(_values(node.outputs))
    arguments = [*_values(node.inputs), *(f"{word(k)}={show_attr(v)}" for k, v in node.attrs)]
    types = ", ".join(show_type(value.type) for value in node.outputs)
    text = f"{results} = {loops if written_as_loops else word(node.op)}"
    text += f"({', '.join(arguments)}) : {types}".rstrip()
    if loops and not written_as_loops and not brief:
        text += f" {loops}"
    if node.origin != UNKNOWN and not brief:
        text += f" {_origin(node.origin)}"
    yield f"{text} with".lstrip() if node.graphs else text.lstrip()
    for inner in node.graphs:
        yield from (_INDENT + line for line in _graph(inner, brief))


def _origin(origin: Origin) -> str:
    text = f"@ {quoted(origin.file)}:{origin.line}"
    if origin.code or origin.module:
        text += f" {quoted(origin.code)}"
    if origin.module:
        text += f" {quoted(origin.module)}"
    return text


def _values(values: tuple[Value, ...]) -> Iterator[str]:
    return (f"%{word(value.name)}" for value in values)


def _dim(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) else syntax.show(dim)


# --------------------------------------------------------------------------------------- anonymity


def _anonymous(graph: Graph) -> Graph:
    """Replace names by numbers and leave out what only a reader needs."""
    defined = [*graph.inputs, *(value for node in graph.nodes for value in node.outputs)]
    numbered = rename(graph, {value.name: f"v{at}" for at, value in enumerate(defined)})
    nodes = tuple(
        replace(
            node,
            formula=None if node.formula is None else _anonymous_formula(node.formula),
            graphs=tuple(_anonymous(inner) for inner in node.graphs),
            origin=UNKNOWN,
        )
        for node in numbered.nodes
    )
    roles = tuple((name, Role(role.kind)) for name, role in sorted(numbered.roles))
    updates = tuple(sorted(numbered.updates))
    return replace(numbered, name="graph", nodes=nodes, roles=roles, updates=updates)


def _anonymous_formula(formula: Formula) -> Formula:
    tensors = {name: f"${at}" for at, name in enumerate(formula.operands)}
    loops = {loop.name: f"@{at}" for at, loop in enumerate(formula.loops)}

    def visit(node: Expr) -> Expr:
        match node:
            case Read(tensor, index, default):
                return Read(tensors[tensor], index, default)
            case Sym(name):
                return Sym(loops.get(name, name))
        return node

    def moved(part: Expr | None) -> Expr | None:
        return None if part is None else transform(part, visit)

    return Formula(
        tuple(tensors.values()),
        tuple(Loop(loops[loop.name], loop.extent) for loop in formula.loops),
        tuple(transform(entry, visit) for entry in formula.index),
        formula.op,
        transform(formula.value, visit),
        formula.type,
        moved(formula.where),
        moved(formula.at),
        transform(formula.fill, visit),
    )
