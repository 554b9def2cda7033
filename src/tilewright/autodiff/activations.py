"""What a backward pass keeps of the forward, as memory is counted: products keep their operands.

The idea: what multiplies matrices reads its operands from memory as they are; what is pointwise is
computed again from what is kept beside it.  So the operands of the backward's products are kept,
through views of them, and of all else what is cheapest (`split`)::

    y = gelu(x) @ w   -->   keeps gelu(x), for the gradient of w, and x, for that of gelu

A mask that was drawn counts one byte an element, whatever holds it.

This module does not know how bytes add up over layers, nor what a compiler makes of a graph.
"""

from collections.abc import Sequence

from tilewright.autodiff.reverse import Joint, reverse
from tilewright.autodiff.split import cheapest, late_nodes, size
from tilewright.graph.classify import multiplies
from tilewright.graph.ir import LIBRARY, Graph, Node, Value
from tilewright.graph.views import view_of


def activations(graph: Graph, wrt: Sequence[str]) -> tuple[tuple[Value, int], ...]:
    """Return what is kept for the gradients of the inputs `wrt`, inputs left out: values, bytes.

    Raises CaptureError for an operator without a derivative.
    """
    joint = reverse(graph, wrt)
    masks = frozenset(node.output.name for node in joint.graph.nodes if _draws_a_mask(node))

    def price(value: Value) -> int:
        return size(value) // (value.type.dtype.bytes if value.name in masks else 1)

    values = {value.name: value for node in joint.graph.nodes for value in node.outputs}
    kept = cheapest(joint, keep=_operands(joint), price=price)
    return tuple((value, price(value)) for name, value in values.items() if name in kept)


def _draws_a_mask(node: Node) -> bool:
    return node.op == LIBRARY and str(node.attr("target")).startswith("aten.bernoulli.")


def _operands(joint: Joint) -> frozenset[str]:
    """The values of the forward that the backward's products read, those that views look at."""
    graph = joint.graph
    late = late_nodes(graph, joint)
    makers = {value.name: node for node in graph.nodes for value in node.outputs}
    views: dict[str, dict[str, Value]] = {}
    for node in graph.nodes:
        if node.outputs[0].name in late and _reads_as_they_are(node):
            for value in node.inputs:
                maker = makers.get(value.name)
                if maker is not None and maker.outputs[0].name not in late:
                    views.setdefault(_looked_at(value, makers).name, {})[value.name] = value
    chosen: set[str] = set()
    for base, looking in views.items():
        if base not in makers:
            continue
        # A part of something large is cheaper to keep than all of it.
        whole = size(next(v for v in makers[base].outputs if v.name == base))
        parts = sum(size(value) for value in looking.values())
        chosen |= {base} if whole <= parts else set(looking)
    return frozenset(chosen)


def _reads_as_they_are(node: Node) -> bool:
    """Say whether a node multiplies, or is served whole: attention's gradient, a library call."""
    if node.formula is None:
        return True
    return multiplies(node.formula)


def _looked_at(value: Value, makers: dict[str, Node]) -> Value:
    """Follow views to the value that they look at."""
    maker = makers.get(value.name)
    if maker is None or maker.formula is None or len(maker.inputs) != 1:
        return value
    types = {maker.formula.operands[0]: maker.inputs[0].type}
    return value if view_of(maker.formula, types) is None else _looked_at(maker.inputs[0], makers)
