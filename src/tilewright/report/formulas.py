"""Formulas as a person writes them: without extents, with the names of the values they read.

The idea: `d_a[m, k] += d_y[m, n] * b[k, n]` says all that a page about an operator needs.

This module does not know any operator.
"""

from collections.abc import Mapping

from tilewright.base.expr import Const, Expr, Read, transform
from tilewright.base.syntax import show
from tilewright.graph.ir import CONSTANT, Formula, Graph, Node
from tilewright.graph.text import show_attr


def formula_text(formula: Formula, target: str, operands: Mapping[str, str]) -> str:
    """Return a formula's text; operands: the names to read them by."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            return Read(operands.get(node.tensor, node.tensor), node.index, node.default)
        return node

    def written(part: Expr) -> str:
        return show(transform(part, visit))

    index = tuple(transform(entry, visit) for entry in formula.index)
    text = f"{show(Read(target, index))} {formula.op} {written(formula.value)}"
    if formula.at is not None:
        text += f" at {written(formula.at)}"
    if formula.where is not None:
        text += f" where {written(formula.where)}"
    if isinstance(formula.fill, Read):
        text += f" from {operands.get(formula.fill.tensor, formula.fill.tensor)}"
    elif formula.fill != Const(0):
        text += f" else {show(formula.fill)}"
    return text


def graph_lines(graph: Graph) -> list[str]:
    """Return a line for each node: its formula, or its operator and what it is applied to."""
    return [node_text(node) for node in graph.nodes if node.op != CONSTANT or _is_small(node)]


def node_text(node: Node) -> str:
    """Return a node as a formula, or as a call."""
    if node.formula is not None:
        names = (value.name for value in node.inputs)
        operands = dict(zip(node.formula.operands, names, strict=True))
        return formula_text(node.formula, node.output.name, operands)
    results = ", ".join(value.name for value in node.outputs)
    words = [value.name for value in node.inputs]
    words += [f"{name}={show_attr(value)}" for name, value in node.attrs]
    return f"{results} = {node.op}({', '.join(words)})"


def _is_small(node: Node) -> bool:
    return node.output.type.rank == 0
