"""Let a scan stack each result once, and take and give nothing that nobody reads.

The idea: differentiation asks for what a step gives without knowing who else did; once equal values
of the body are one value, equal results are one result.

This module does not know what a body computes.
"""

from dataclasses import dataclass, replace

from tilewright.graph.build import prune, replace_values
from tilewright.graph.control import scan_attrs, scan_of
from tilewright.graph.ir import SCAN, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class TidyScans:
    """Drop the results of scans that are not read, or twice there, and operands that are not read.

    ::

        %h, %a, %b = scan(%x, %w, %u) ... return %h1, %y, %y   -->   %h, %a = scan(%x, %w) ...
        %c = add(%a, %b)                                             %c = add(%a, %a)
    """

    name: str = "tidy_scans"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if not any(node.op == SCAN for node in graph.nodes):
            return graph
        mapping: dict[str, Value] = {}
        for node in graph.nodes:
            if node.op == SCAN:
                mapping |= _equal_results(node)
        graph = replace_values(graph, mapping)
        read = {value.name for node in graph.nodes for value in node.inputs}
        read |= {value.name for value in graph.outputs}
        nodes = tuple(_tidy(n, read) if n.op == SCAN else n for n in graph.nodes)
        return replace(graph, nodes=nodes)


def _equal_results(node: Node) -> dict[str, Value]:
    """Return for each stacked result that is there twice the first that is equal."""
    scan = scan_of(node)
    first: dict[str, Value] = {}
    mapping: dict[str, Value] = {}
    for inner, outer in zip(
        scan.body.outputs[scan.carries :], node.outputs[scan.carries :], strict=True
    ):
        if inner.name in first:
            mapping[outer.name] = first[inner.name]
        first.setdefault(inner.name, outer)
    return mapping


def _tidy(node: Node, read: set[str]) -> Node:
    scan = scan_of(node)
    kept = [at for at, value in enumerate(node.outputs) if at < scan.carries or value.name in read]
    if not kept:
        return node  # nothing of it is read: dead code is another pass's
    body = prune(replace(scan.body, outputs=tuple(scan.body.outputs[at] for at in kept)))
    used = {value.name for inner in body.nodes for value in inner.inputs}
    used |= {value.name for value in body.outputs}
    taken = [at for at, value in enumerate(body.inputs) if at < scan.carries or value.name in used]
    parts = scan.part([at in taken for at in range(len(node.inputs))])
    return replace(
        node,
        inputs=tuple(node.inputs[at] for at in taken),
        outputs=tuple(node.outputs[at] for at in kept),
        attrs=scan_attrs(scan.length, scan.carries, sum(parts.sequences), reverse=scan.reverse),
        graphs=(replace(body, inputs=tuple(body.inputs[at] for at in taken)),),
    )
