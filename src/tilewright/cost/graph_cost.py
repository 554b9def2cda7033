"""What a graph costs, counted from the loops of its nodes: parameters, operations, bytes.

The idea: a formula says all of it: the volume of its loops times the operations of its body, the
elements that it reads and writes.  Products of matrices and windows are counted for themselves, two
operations a term, as models' operations are counted; so a captured model has the very number that
its specification has.

This module does not know machines, nor what a compiler makes of the graph: views are free, every
other node reads its operands once and writes its results once.
"""

import math
from dataclasses import dataclass

from tilewright.base.expr import Read, walk
from tilewright.graph.classify import multiplies
from tilewright.graph.control import scan_of
from tilewright.graph.ir import COND, FUSED, LIBRARY, SCAN, Formula, Graph, Node, Value
from tilewright.graph.total import extents_of, fixed, flops
from tilewright.graph.views import view_of
from tilewright.ops import composites, expand_where

# Library calls that multiply, by the positions of the operands that do: tokens sorted by expert, of
# shape [m, k], by a matrix for each expert, [e, k, n]; each token meets one of them.
_GROUPED = ("aten._grouped_mm.default",)
# Library calls that only move, draw or order elements.
_NO_ARITHMETIC = (
    "aten.argsort", "aten.bernoulli", "aten.copy", "aten.histc", "aten.multinomial", "aten.rand",
    "aten.randn", "aten.randperm", "aten.sort", "aten.topk", "aten.unique",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GraphCost:
    """Counts of a graph.

    parameters, parameter_bytes: of its inputs of that role.  products: operations of products of
    matrices and windows, two a term.  operations: all scalar operations.  bytes: read and written
    by nodes, each alone.  unknown: library calls whose operations cannot be counted, by name.
    """

    parameters: int
    parameter_bytes: int
    products: int
    operations: int
    bytes: int
    unknown: tuple[str, ...]


def graph_cost(graph: Graph) -> GraphCost:
    """Count a graph whose sizes are numbers.

    A loop counts as often as it runs, of a branch the dearer side; a loop of unknown length is
    counted among what is unknown.
    """
    roles = dict(graph.roles)
    owned = [v for v in graph.inputs if v.name in roles and roles[v.name].kind == "parameter"]
    work = _work(graph)
    return GraphCost(
        parameters=sum(_count(value) for value in owned),
        parameter_bytes=sum(_bytes(value) for value in owned),
        products=work.products,
        operations=work.operations,
        bytes=_traffic(graph),
        unknown=tuple(sorted(work.unknown)),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    products: int = 0
    operations: int = 0
    unknown: frozenset[str] = frozenset()

    def __add__(self, other: "_Work") -> "_Work":
        return _Work(
            self.products + other.products,
            self.operations + other.operations,
            self.unknown | other.unknown,
        )

    def times(self, count: int) -> "_Work":
        return _Work(self.products * count, self.operations * count, self.unknown)


def _work(graph: Graph) -> _Work:
    while chosen := composites(graph):  # an expansion may hold composites again
        graph = expand_where(graph, chosen)
    return sum((_work_of(node) for node in graph.nodes), _Work())


def _work_of(node: Node) -> _Work:
    if node.formula is not None:
        return _work_of_formula(node.formula)
    if node.op == FUSED:
        return _work(node.graphs[0])
    if node.op == SCAN:
        return _work(node.graphs[0]).times(scan_of(node).length)
    if node.op == COND:
        return max((_work(branch) for branch in node.graphs), key=lambda work: work.operations)
    if node.op == LIBRARY:
        return _work_of_call(node)
    return _Work() if not node.graphs else _Work(unknown=frozenset((node.op,)))


def _work_of_formula(formula: Formula) -> _Work:
    volume = math.prod(extents_of(formula).values())
    each = flops(formula.value) + (0 if formula.where is None else flops(formula.where))
    each += formula.op != "="
    return _Work(2 * volume if multiplies(formula) else 0, each * volume)


def _work_of_call(node: Node) -> _Work:
    target = str(node.attr("target"))
    if target in _GROUPED:
        tokens, weights = node.inputs[:2]
        terms = 2 * _count(tokens) * fixed(weights.type.shape[-1])
        return _Work(terms, terms).times(_gradients(node))
    plain = target.rpartition(".")[0]
    if plain == "aten.cumsum":
        return _Work(operations=_count(node.outputs[0]))
    return _Work() if plain in _NO_ARITHMETIC else _Work(unknown=frozenset((target,)))


def _gradients(node: Node) -> int:
    """How many products a call or its derivative is: one for each operand asked for."""
    through = dict(node.attrs).get("through", ())
    assert isinstance(through, tuple), "derivatives taken so far are a tuple"
    count = 1
    for step in through:
        match step:
            case ("gradient", tuple() as asked, _):
                count *= sum(at in (0, 1) for at in asked)
    return count


# ------------------------------------------------------------------------------------------- bytes


def _traffic(graph: Graph) -> int:
    return sum(_node_bytes(node) for node in graph.nodes)


def _node_bytes(node: Node) -> int:
    if node.op == SCAN:
        return _traffic(node.graphs[0]) * scan_of(node).length
    if node.op == COND:
        return max(_traffic(branch) for branch in node.graphs)
    if _is_view(node):
        return 0
    operands = {value.name: value for value in node.inputs}.values()
    return sum(map(_bytes, node.outputs)) + sum(_touched(node, value) for value in operands)


def _touched(node: Node, value: Value) -> int:
    """The bytes of an operand that are read: of a table, at most as many rows as are asked for."""
    if node.formula is None:
        return _bytes(value)
    formula = node.formula
    read = {operand for operand, item in zip(formula.operands, node.inputs, strict=True)
            if item.name == value.name}  # fmt: skip
    volume = math.prod(extents_of(formula).values())
    parts = (formula.value, formula.where, formula.at, formula.fill, *formula.index)
    used = any(
        isinstance(part, Read) and part.tensor in read
        for tree in parts
        if tree is not None
        for part in walk(tree)
    )
    return min(_count(value), volume) * value.type.dtype.bytes if used else 0


def _is_view(node: Node) -> bool:
    if node.formula is None or len(node.inputs) != 1:
        return False
    return view_of(node.formula, {node.formula.operands[0]: node.inputs[0].type}) is not None


def _count(value: Value) -> int:
    return math.prod(fixed(dim) for dim in value.type.shape)


def _bytes(value: Value) -> int:
    return _count(value) * value.type.dtype.bytes
