"""Give a node another formula: operands that are values become inputs again; and write plain ones.

The idea: passes work on formulas whose operands are named by values; a node's formula has names of
its own, words that the notation can print and read back.

This module does not know any pass.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.base.expr import Expr, Read, Sym
from tilewright.graph.build import Builder, names
from tilewright.graph.compose import rename_operands, types_of
from tilewright.graph.ir import FORMULA, Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.notation import OPS, TARGET, normal, operand_order
from tilewright.graph.total import Types, used_loops

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words of the notation, and the target's name.
_OPERATIONS = tuple(op.rstrip("=") for op in OPS)
_KEYWORDS = ("if", "else", "or", "and", "not", "where", "from", "at", "for", "inf", "nan")
_TAKEN = frozenset((*_KEYWORDS, *_OPERATIONS, "true", "false", TARGET))


def with_nodes(graph: Graph, made: Callable[[Node, Types, Builder], tuple[Node, ...]]) -> Graph:
    """Return the graph with others in the place of each node; the builder knows free names."""
    types, chooser = types_of(graph), Builder()
    chooser.reserve(names(graph))
    nodes = [each for node in graph.nodes for each in made(node, types, chooser)]
    return replace(graph, nodes=tuple(nodes))


def with_formula(node: Node, formula: Formula, types: Mapping[str, TensorType]) -> Node:
    """Return the node with a formula whose operands are named by values; it loses its op's name."""
    formula = replace(formula, operands=operand_order(formula))
    words = readable(formula.operands, used_loops(formula))
    inputs = tuple(Value(name, types[name]) for name in formula.operands)
    made = normal(rename_operands(formula, words))
    return replace(node, op=FORMULA, inputs=inputs, attrs=(), formula=made)


def readable(values: tuple[str, ...], avoid: frozenset[str]) -> dict[str, str]:
    """Return a word of the notation for each value: its own name where that is one."""
    found: dict[str, str] = {}
    taken = set(avoid) | _TAKEN
    for value in values:
        wish = value if _WORD.fullmatch(value) else "v"
        name, count = wish, 0
        while name in taken:
            count += 1
            name = f"{wish}_{count}"
        taken.add(name)
        found[value] = name
    return found


def moved(type_: TensorType, index: tuple[Expr, ...]) -> Formula:
    """y[i0, i1, ...] = x[index], over the elements of a result of this type."""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    target = tuple(Sym(loop.name) for loop in loops)
    return normal(Formula(("x",), loops, target, "=", Read("x", index), type_))
