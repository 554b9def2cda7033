"""Reverse mode of control flow: which nodes keep what their gradient needs, before anything else.

The idea: a forward node has to keep values that only its gradient asks for, so it is given more
results before the graph is differentiated; how it is differentiated is remembered beside it.

This module does not know how (`scan`, `cond`).
"""

from collections.abc import Mapping, Sequence

from tilewright.autodiff.cond import keep_of_cond
from tilewright.autodiff.halves import Pull, Tangents
from tilewright.autodiff.reverse import active_values
from tilewright.autodiff.scan import keep_of_scan
from tilewright.base.errors import CaptureError
from tilewright.graph.build import Builder
from tilewright.graph.ir import CONTROL, SCAN, WHILE, Graph, Node


def keep_residuals(graph: Graph, wrt: Sequence[str]) -> tuple[Graph, Mapping[str, Pull]]:
    """Let the active control flow of a graph keep what its gradient needs.

    Returns the graph, whose values keep their names, and how each such node is differentiated, by
    its first result.
    """
    active = active_values(graph, wrt)
    builder = Builder.signature_of(graph)
    builder.reserve(value.name for node in graph.nodes for value in node.outputs)
    pulls: dict[str, Pull] = {}
    for node in graph.nodes:
        flags = [value.name in active for value in node.inputs]
        if node.op not in CONTROL or not any(flags):
            builder.nodes.append(node)
            continue
        if node.op == WHILE:
            pulls[node.outputs[0].name] = _refuse
            builder.nodes.append(node)
            continue
        keep = keep_of_scan if node.op == SCAN else keep_of_cond
        made, pulls[node.outputs[0].name] = keep(builder, node, flags)
        builder.nodes.append(made)
    return builder.finish(graph.outputs, graph.updates), pulls


def _refuse(_builder: Builder, node: Node, _tangents: Tangents) -> Tangents:
    raise CaptureError(
        "a while loop has no gradient in reverse mode",
        expected="loops whose number of steps is known before they run",
        found="a while loop that what is differentiated depends on",
        where=node.origin,
        mend="write it as a scan of as many steps as it needs at most, take its derivative forward"
        " (jvp), or compute it under torch.no_grad()",
    )
