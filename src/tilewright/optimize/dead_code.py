"""Drop what no output needs.

This module does not know why a node is not needed.
"""

from dataclasses import dataclass

from tilewright.graph.build import prune
from tilewright.graph.ir import Graph


@dataclass(frozen=True, slots=True)
class DeadCode:
    """Drop the nodes that no output depends on; inputs stay, they are the signature.

    ::

        %a = {y[i<4] = x[i] + 1}(%x)          -->   %b = {y[i<4] = x[i] * 2}(%x)
        %b = {y[i<4] = x[i] * 2}(%x)                return %b
        return %b
    """

    name: str = "dead_code"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("no dead code",)

    def __call__(self, graph: Graph) -> Graph:
        return prune(graph)
