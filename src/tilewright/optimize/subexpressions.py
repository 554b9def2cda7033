"""Compute equal things once.

The idea: two nodes are equal if they apply equal loops (`canonical`), or the same operator with the
same attributes, to the same values.  Library calls are left alone: what they do is not known here.

This module does not know what a value costs: one that is cheap to compute again is, by fusion.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from tilewright.graph.build import replace_values
from tilewright.graph.compose import over_values
from tilewright.graph.ir import FUSED, LIBRARY, Graph, Node, Value
from tilewright.optimize.canonical import canonical


@dataclass(frozen=True, slots=True)
class CommonSubexpressions:
    """Let the users of a value use an earlier one that is equal, and drop the later.

    ::

        %a = {y[i<4] = x[i] * w[i]}(%x, %w)   -->   %a = {y[i<4] = x[i] * w[i]}(%x, %w)
        %b = {y[k<4] = w[k] * x[k]}(%x, %w)         return %a, %a
        return %a, %b
    """

    name: str = "common_subexpressions"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        known: dict[Hashable, dict[Hashable, Node]] = {}
        mapping: dict[str, Value] = {}
        kept: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(mapping.get(value.name, value) for value in node.inputs)
            node = replace(node, inputs=inputs)
            rough = _rough(node)
            if rough is None:
                kept.append(node)
                continue
            alike = known.setdefault(rough, {})
            if not alike:  # the exact key is dear, and most nodes are like no other
                alike[None] = node
                kept.append(node)
                continue
            if None in alike:
                first = alike.pop(None)
                alike[_exact(first)] = first
            key = _exact(node)
            if key in alike:
                pairs = zip(node.outputs, alike[key].outputs, strict=True)
                mapping.update((old.name, new) for old, new in pairs)
                continue
            alike[key] = node
            kept.append(node)
        return replace_values(replace(graph, nodes=tuple(kept)), mapping)


def _rough(node: Node) -> Hashable | None:
    """Return something that equal nodes have in common, None for nodes that are equal to none."""
    if node.op in (LIBRARY, FUSED) or node.graphs:
        return None
    types = tuple(value.type for value in node.outputs)
    inputs = frozenset(value.name for value in node.inputs)
    if node.formula is not None:
        return ("loops", node.formula.op, inputs, types)
    return (node.op, inputs, types)


def _exact(node: Node) -> Hashable:
    """Return what nodes have in common only if they are equal."""
    if node.formula is not None:
        return canonical(over_values(node))
    # 1, 1.0 and True are equal as attributes and are not the same.
    return (tuple(value.name for value in node.inputs), repr(node.attrs))
