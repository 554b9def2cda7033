"""Put the expansions of composite operators in their place.

The idea::

    y = softmax(x; dim=-1)   -->   m = amax(x), e = exp(sub(x, m)), s = sum(e), y = div(e, s)

The results keep the names they had; nodes of an expansion come from where the composite came from.
This module does not know which composites a caller wants to keep: it is told.
"""

from collections.abc import Collection

from tilewright.base.errors import TilewrightError
from tilewright.graph.build import Builder, names, rename
from tilewright.graph.ir import CUSTOM, Graph, Node, Value
from tilewright.ops.operator import expansion, located
from tilewright.ops.table import TABLE


def expand_where(graph: Graph, chosen: Collection[str]) -> Graph:
    """Expand the composite nodes whose first result is named in `chosen` (once, not repeatedly)."""
    if not chosen:
        return graph
    builder = Builder.signature_of(graph)
    builder.reserve(names(graph))
    known: dict[str, Value] = {value.name: value for value in graph.inputs}
    back: dict[str, str] = {}
    for node in graph.nodes:
        inputs = tuple(known[value.name] for value in node.inputs)
        if node.outputs[0].name not in chosen:
            builder.nodes.append(_with_inputs(node, inputs))
            known.update((value.name, value) for value in node.outputs)
            continue
        body = _body(node)
        results = builder.inline(body, inputs, origin=node.origin)
        for old, new in zip(node.outputs, results, strict=True):
            known[old.name] = new
            if new not in inputs and new.name not in back:
                back[new.name] = old.name
    outputs = tuple(known[value.name] for value in graph.outputs)
    return rename(builder.finish(outputs, graph.updates), back)


def composites(graph: Graph) -> frozenset[str]:
    """Return the first result's name of every node that has an expansion instead of loops."""
    return frozenset(node.outputs[0].name for node in graph.nodes if is_composite(node))


def is_composite(node: Node) -> bool:
    """Say whether a node stands for a graph."""
    if node.op == CUSTOM:
        return True
    operator = TABLE.get(node.op)
    return node.formula is None and operator is not None and operator.expand is not None


def _body(node: Node) -> Graph:
    if node.op == CUSTOM:
        return node.graphs[0]
    try:
        return expansion(TABLE[node.op], tuple(value.type for value in node.inputs), node.attrs)
    except TilewrightError as error:
        raise located(error, node.origin) from None


def _with_inputs(node: Node, inputs: tuple[Value, ...]) -> Node:
    return Node(node.op, inputs, node.outputs, node.attrs, node.formula, node.graphs, node.origin)
