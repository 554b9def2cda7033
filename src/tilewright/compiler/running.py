"""Long running sums as loops: within blocks, and over the blocks before.

The idea: `y[u] += x[i] where i <= u` is quadratic in what it runs along; in blocks of 64 it is 64
for each element and one more for each block before.  That is for where no library may be called.

This module does not know short running sums: those are one formula.
"""

from dataclasses import dataclass, replace

from tilewright.compiler.library import Call, serve
from tilewright.graph.build import Builder, sort
from tilewright.graph.ir import LIBRARY, Graph, Node
from tilewright.graph.total import fixed
from tilewright.ops.operator import write

BLOCK = 64
LONGEST = BLOCK * 4096
"""Elements along which the sum of all blocks before is cheap enough."""


@dataclass(frozen=True, slots=True)
class SplitRunningSums:
    """Turn a long `cumsum`, or its gradient, into loops.

    ::

        %y = aten.cumsum(%x, 0)   -->   %within = {y[t<10, u<64] += x[t*64+i] where i <= u}(%x)
                                        %before = {y[t<10] += w[r<10, 63] where r < t}(%within)
                                        %y = {y[j<600] = w[j//64, j%64] + b[j//64]}(...)
    """

    name: str = "split_running_sums"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if not any(_found(node) for node in graph.nodes):
            return graph
        builder = Builder.extending(replace(graph, nodes=()))
        builder.reserve(value.name for node in graph.nodes for value in node.outputs)
        for node in graph.nodes:
            call = _found(node)
            if call is None:
                builder.nodes.append(node)
            else:
                _split(builder, node, _dim(call), backwards=call.vjp is not None)
        return sort(builder.finish(graph.outputs, graph.updates))


def _found(node: Node) -> Call | None:
    call = serve(node) if node.op == LIBRARY else None
    if call is None or call.target != "aten.cumsum.default" or call.through:
        return None
    shape = node.inputs[-1].type.shape
    if not shape or any(type(fixed(dim)) is not int for dim in shape) or 0 in shape:
        return None
    return call if fixed(shape[_dim(call)]) <= LONGEST else None


def _dim(call: Call) -> int:
    dim = dict(call.kwargs).get("dim", call.args[1] if len(call.args) > 1 else 0)
    assert isinstance(dim, int), "torch has asked for it"
    return dim


def _split(builder: Builder, node: Node, dim: int, *, backwards: bool) -> None:
    """Add the three formulas; backwards: what the gradient runs along, from the end."""
    x, dtype, origin = node.inputs[-1], node.output.type.dtype, node.origin
    rank, extent = x.type.rank, fixed(x.type.shape[dim])
    others, blocks = [f"i{at}" for at in range(rank)], -(-extent // BLOCK)

    def at(*names: str) -> str:
        return ", ".join([*others[: dim % rank], *names, *others[dim % rank + 1 :]])

    from_there = f"{extent - 1}-t*{BLOCK}-i" if backwards else f"t*{BLOCK}+i"
    limits = f"t<{blocks}, u<{BLOCK}, i<{BLOCK}"
    body = f"y[{at('t', 'u')}] += x[{at(from_there)}] where i <= u for {limits}"
    name, compute = node.output.name, dtype.compute
    within = write(builder, body, {"x": x}, dtype=compute, name=f"{name}_within", origin=origin)
    body = f"y[{at('t')}] += w[{at('r', str(BLOCK - 1))}] where r < t for t<{blocks}"
    before = write(
        builder, body, {"w": within}, dtype=compute, name=f"{name}_before", origin=origin
    )
    place = f"({extent - 1}-j)" if backwards else "j"
    inside = at(f"{place}//{BLOCK}", f"{place}%{BLOCK}")
    body = f"y[{at('j')}] = w[{inside}] + b[{at(f'{place}//{BLOCK}')}] for j<{extent}"
    write(builder, body, {"w": within, "b": before}, dtype=dtype, name=name, origin=origin)
    builder.nodes.append(replace(builder.nodes.pop(), outputs=(node.output,)))
