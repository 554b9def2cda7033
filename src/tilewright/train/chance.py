"""Masks from a seed: what torch would draw from its generator becomes a function of a graph input.

The idea: a mask element is `uniform(seed, its own number)`, so it is the same under any order of
computation, costs no memory traffic, and a run resumed at the same seed draws the same masks::

    noise = aten.bernoulli.p(x, q)   -->   noise = {y[...] = 1 if uniform(seed[], n) < q else 0}

This module does not know where a seed comes from; what it does not rewrite still draws from torch.
"""

from dataclasses import replace

from tilewright.base.dtypes import I64
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import LIBRARY, Graph, Node, Role, TensorType, Value
from tilewright.ops.operator import write

SEED = "seed"
_BERNOULLI = "aten.bernoulli.p"


def seed_masks(graph: Graph) -> Graph:
    """Draw every Bernoulli mask from one more input, `seed`, an integer of rank 0.

    Masks differ by their stream, numbered in the order of the nodes.  A graph without masks stays
    as it is.
    """
    drawn = [node for node in graph.nodes if _is_mask(node)]
    if not drawn:
        return graph
    builder = Builder.signature_of(graph)
    builder.reserve(value.name for node in graph.nodes for value in node.outputs)
    seed = builder.input(SEED, TensorType((), I64), Role("seed", SEED))
    for node in graph.nodes:
        if _is_mask(node):
            _draw(builder, node, seed, drawn.index(node))
        else:
            builder.nodes.append(node)
    return prune(builder.finish(graph.outputs, graph.updates))


def seeded_by(graph: Graph) -> str | None:
    """Return the name of the input that is the seed, or None."""
    return next((name for name, role in graph.roles if role.kind == "seed"), None)


def draws_from_torch(graph: Graph) -> bool:
    """Say whether something in the graph still draws from torch's own generator."""
    return any(
        dict(node.attrs).get("random") or any(map(draws_from_torch, node.graphs))
        for node in graph.nodes
    )


def _is_mask(node: Node) -> bool:
    if node.op != LIBRARY or node.attr("target") != _BERNOULLI or "through" in dict(node.attrs):
        return False
    args = node.attr("args")
    return isinstance(args, tuple) and isinstance(args[-1], float | int)


def _draw(builder: Builder, node: Node, seed: Value, stream: int) -> None:
    """Add the mask, under the name that the node's result had."""
    args = node.attr("args")
    assert isinstance(args, tuple) and isinstance(args[-1], float | int), "a mask was recognised"
    type_ = node.output.type
    names = [f"i{k}" for k in range(type_.rank)]
    number = str(stream << 32)
    stride = 1
    for name, size in zip(reversed(names), reversed(type_.shape), strict=True):
        assert isinstance(size, int), "a training step has static sizes"
        number += f" + {name} * {stride}"
        stride *= size
    limits = ", ".join(f"{name}<{size}" for name, size in zip(names, type_.shape, strict=True))
    body = f"y[{limits}] = 1 if uniform(seed[], {number}) < {float(args[-1])!r} else 0"
    made = write(builder, body, seed=seed, dtype=type_.dtype, origin=node.origin, name="mask")
    (last,) = builder.nodes[-1].outputs
    assert last == made, "write adds one node"
    builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
