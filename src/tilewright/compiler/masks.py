"""Give attention the kind of mask that the library's kernel takes.

The idea: eager does the same before it calls that kernel::

    attention(q, k, v, keep)   -->   attention(q, k, v, {y[...] = 0 if keep[...] else -inf}(keep))

This module does not know how attention is computed.
"""

from dataclasses import dataclass, replace

from tilewright.base.dtypes import BOOL, DType
from tilewright.base.expr import Const, Read, Sym, call
from tilewright.compiler.attention import streams
from tilewright.compiler.library import attention_types, flash_takes
from tilewright.graph.build import Builder
from tilewright.graph.ir import Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.notation import normal


@dataclass(frozen=True, slots=True)
class AddMasks:
    """Turn boolean masks of attention that the library serves into masks that are added."""

    name: str = "add_masks"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        """attention(q, k, v, keep) --> attention(q, k, v, 0 where keep, else -inf)"""
        if not any(_takes_boolean(node) for node in graph.nodes):
            return graph
        builder = Builder.extending(replace(graph, nodes=()))
        builder.reserve(value.name for node in graph.nodes for value in node.outputs)
        added: dict[tuple[str, DType], Value] = {}
        for node in graph.nodes:
            if _takes_boolean(node):
                node = _with_added_mask(builder, node, added)
            builder.nodes.append(node)
        return builder.finish(graph.outputs, graph.updates)


def _takes_boolean(node: Node) -> bool:
    parts = attention_types(node)
    if parts is None or streams(node) or not flash_takes(*parts):
        return False
    return any(mask.dtype == BOOL for mask in parts[1])


def _with_added_mask(builder: Builder, node: Node, added: dict[tuple[str, DType], Value]) -> Node:
    mask, dtype = node.inputs[-1], node.inputs[-2].type.dtype
    if (mask.name, dtype) not in added:
        type_ = TensorType(mask.type.shape, dtype)
        loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
        index = tuple(Sym(loop.name) for loop in loops)
        value = call("select", Read("keep", index), 0.0, float("-inf"))
        formula = normal(Formula(("keep",), loops, index, "=", value, type_, fill=Const(0)))
        name = f"{mask.name}_added"
        added[mask.name, dtype] = builder.formula(formula, mask, origin=node.origin, name=name)
    return replace(node, inputs=(*node.inputs[:-1], added[mask.name, dtype]))
