"""The gradient of one node that brings its own, as a graph: what an override becomes as data.

The idea: an override of the table is a function that adds nodes; called on a graph of its own, it
is the linear map from the tangents of the results to those of the operands.  Turned around twice
(`push`) it is forward mode, batched it is the gradient of the batched operator.

This module does not know whole graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.reverse import reverse
from tilewright.base.errors import CaptureError
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import CUSTOM, Attr, Graph, Node, Value
from tilewright.ops import TABLE


@dataclass(frozen=True, slots=True)
class Pullback:
    """A node's gradient.

    graph: takes the operands, the results, then a tangent for each result in `of`; gives a gradient
    for each operand in `wrt`.
    """

    graph: Graph
    of: tuple[int, ...]
    wrt: tuple[int, ...]


def has_pullback(node: Node) -> bool:
    """Say whether a node brings a gradient of its own."""
    operator = TABLE.get(node.op)
    return node.op == CUSTOM or (operator is not None and operator.vjp is not None)


def pullback(node: Node) -> Pullback:
    """Return the gradient that a node brings, for all of its floating operands and results."""
    if node.op == CUSTOM:
        return Pullback(node.graphs[1], _positions(node.attr("of")), _positions(node.attr("wrt")))
    vjp = TABLE[node.op].vjp
    assert vjp is not None, f"{node.op} has no gradient of its own"
    builder = Builder(f"{node.op}_vjp")
    operands = tuple(builder.input(f"x{k}", v.type) for k, v in enumerate(node.inputs))
    results = tuple(builder.input(f"y{k}", v.type) for k, v in enumerate(node.outputs))
    of = tuple(k for k, v in enumerate(results) if v.type.dtype.kind == "float")
    tangents: list[Value | None] = [None] * len(results)
    for k in of:
        tangents[k] = builder.input(f"dy{k}", results[k].type)
    found = vjp(builder, replace(node, inputs=operands, outputs=results), tuple(tangents))
    pairs = [(k, value) for k, value in enumerate(found) if value is not None]
    graph = builder.finish([value for _, value in pairs])
    return Pullback(prune(graph), of, tuple(k for k, _ in pairs))


def push(builder: Builder, node: Node, changes: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """Add the changes of a node's results when its operands change, by the gradient it brings.

    The gradient is linear in the tangents of the results: `dx = J' dy`, and its own gradient along
    the changes of the operands is `J dx`.
    """
    found = pullback(node)
    moved = [k for k, at in enumerate(found.wrt) if changes[at] is not None]
    count = len(node.inputs) + len(node.outputs)
    seeds = [value.name for value in found.graph.inputs[count:]]
    joint = reverse(found.graph, seeds, of=moved)
    graph = joint.graph
    positions = [at for at in joint.gradients if at is not None]
    linear = prune(replace(graph, outputs=tuple(graph.outputs[at] for at in positions)))
    if any(value.name in seeds for n in linear.nodes for value in n.inputs):
        raise CaptureError(f"{node.op} has a gradient that is not linear", where=node.origin)
    kept = tuple(value for value in linear.inputs if value.name not in seeds)
    given = [*node.inputs, *node.outputs]
    for position, _ in joint.tangents:
        change = changes[found.wrt[position]]
        assert change is not None, "only what changes was turned around"
        given.append(change)
    made = iter(builder.inline(replace(linear, inputs=kept), given, origin=node.origin))
    results: list[Value | None] = [None] * len(node.outputs)
    for at, place in zip(found.of, joint.gradients, strict=True):
        results[at] = None if place is None else next(made)
    return tuple(results)


def _positions(attr: Attr) -> tuple[int, ...]:
    assert isinstance(attr, tuple), "positions are a tuple"
    return tuple(item for item in attr if isinstance(item, int))
