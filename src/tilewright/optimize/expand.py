"""Put the loops of composite operators in their place, but for those that something serves whole.

This module does not know what is served whole: it is told.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.graph.ir import Graph, Node
from tilewright.ops.expand import expand_where, is_composite


@dataclass(frozen=True, slots=True)
class Expand:
    """Expand composites until only those of `keep` are left.

    ::

        %y = softmax(%x, dim=-1)    -->   %top = {y[i<4] max= x[i, j<8]}(%x)
                                          %powers = {y[i<4, j<8] = exp(x[i, j] - t[i])}(%x, %top)
                                          %total = {y[i<4] += e[i, j<8]}(%powers)
                                          %y = {y[i<4, j<8] = e[i, j] / t[i]}(%powers, %total)

    keep: says of a composite node whether something serves it whole (a library call, say).
    """

    keep: Callable[[Node], bool] = lambda _: False
    name: str = "expand"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("expanded",)

    def __call__(self, graph: Graph) -> Graph:
        while chosen := frozenset(
            node.outputs[0].name
            for node in graph.nodes
            if is_composite(node) and not self.keep(node)
        ):
            graph = expand_where(graph, chosen)
        return graph
