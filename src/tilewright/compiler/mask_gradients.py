"""Do without the library's kernel for attention's gradient where the mask has a gradient too.

The idea: the matrix that the kernel spares is made for the mask anyway, and the kernel's rounding
grows with the scores; eager leaves its kernel here as well::

    dq, dk, dv = attention_grad(dy, y, l, q, k, v, m)   -->   the loops of both, which share
    dm = attention_mask_grad(dy, q, k, v, m)                  what they have in common

This module does not know how attention is computed.
"""

from dataclasses import dataclass

from tilewright.graph.ir import Graph
from tilewright.ops import expand_where


@dataclass(frozen=True, slots=True)
class ExpandBesideMasks:
    """Expand the gradients of attention whose mask has a gradient."""

    name: str = "expand_beside_masks"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        """attention_grad(..., m), attention_mask_grad(..., m) --> their loops"""
        masked = {node.inputs for node in graph.nodes if node.op == "attention_mask_grad"}
        chosen = {
            node.outputs[0].name
            for node in graph.nodes
            if node.op == "attention_grad" and (node.inputs[0], *node.inputs[3:]) in masked
        }
        return expand_where(graph, chosen)
