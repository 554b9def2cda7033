"""Orders of few elements as loops: an element's place is how many come before it.

The idea: where no library may be called, sorting a short row needs none: the places are sums of
comparisons, and what stands at a place is the one element that has it.  Ties come in the order of
their indices, as a stable sort has them (torch's `topk` promises no order of them).

This module does not sort long rows: the comparisons grow with the square.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.base.dtypes import I64
from tilewright.compiler.library import Call, serve
from tilewright.graph.build import Builder, sort
from tilewright.graph.ir import LIBRARY, Attr, Graph, Node
from tilewright.graph.total import fixed
from tilewright.ops.operator import write

LONGEST = 256
"""Elements of a row that are compared with each other; the library's sorts take longer ones."""

_SORT: Mapping[str, Attr] = {"dim": -1, "descending": False}
_TOP: Mapping[str, Attr] = {"k": 1, "dim": -1, "descending": True, "sorted": True}
_PARAMETERS = {
    "aten.sort.default": ("dim", "descending"),
    "aten.sort.stable": ("stable", "dim", "descending"),
    "aten.topk.default": ("k", "dim", "descending", "sorted"),
}


@dataclass(frozen=True, slots=True)
class CountPlaces:
    """Turn the indices of `sort` and `topk` along a short dim into loops.

    ::

        %i = aten.topk(x, 2)[1]   -->   %places = {y[i, e] += before(x[i, f], x[i, e]) for f<8}(%x)
                                        %i = {y[i, r<2] argmax= p[i, e] == r at e}(%places)

    NaN is larger than any number, as torch has it.
    """

    name: str = "count_places"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if not any(map(_is_short, graph.nodes)):
            return graph
        builder = Builder.extending(replace(graph, nodes=()))
        builder.reserve(value.name for node in graph.nodes for value in node.outputs)
        for node in graph.nodes:
            if _is_short(node):
                _count(builder, node)
            else:
                builder.nodes.append(node)
        return sort(builder.finish(graph.outputs, graph.updates))


def _is_short(node: Node) -> bool:
    call = _call(node)
    if call is None:
        return False
    shape, dim = node.inputs[0].type.shape, _settings(call)["dim"]
    if not shape or 0 in shape or not isinstance(dim, int):
        return False
    extent = fixed(shape[dim])
    return type(extent) is int and extent <= LONGEST


def _call(node: Node) -> Call | None:
    """Return the call for the indices, and nothing else, of a sort."""
    call = serve(node) if node.op == LIBRARY else None
    if call is None or call.target not in _PARAMETERS or call.vjp is not None or call.through:
        return None
    return call if call.results == (1,) and len(node.inputs) == 1 else None


def _settings(call: Call) -> dict[str, Attr]:
    known = dict(_TOP if "topk" in call.target else _SORT)
    known.update(zip(_PARAMETERS[call.target], call.args[1:], strict=False))
    named = {"largest": "descending"}
    known.update((named.get(key, key), value) for key, value in call.kwargs)
    return known


def _count(builder: Builder, node: Node) -> None:
    call, (x,), origin = _call(node), node.inputs, node.origin
    assert call is not None, "it was asked for"
    settings, rank = _settings(call), x.type.rank
    dim = settings["dim"]
    assert isinstance(dim, int), "it was asked for"
    others = [f"i{at}" for at in range(rank)]

    def at(name: str) -> str:
        return ", ".join([*others[: dim % rank], name, *others[dim % rank + 1 :]])

    mine, other = f"x[{at('e')}]", f"x[{at('f')}]"
    larger, smaller = (other, mine) if settings["descending"] else (mine, other)
    # A NaN is beyond all numbers, and a tie with another.
    ahead = f"({larger} > {smaller} or ({larger} != {larger} and {smaller} == {smaller}))"
    tie = f"({mine} == {other} or ({mine} != {mine} and {other} != {other}))"
    body = f"y[{at('e')}] += 1 if {ahead} or ({tie} and f < e) else 0 for f<{x.type.shape[dim]}"
    name = f"{node.output.name}_places"
    places = write(builder, body, {"x": x}, dtype=I64, name=name, origin=origin)
    wanted = fixed(node.output.type.shape[dim])
    found = f"y[{at('r')}] argmax= (1 if p[{at('e')}] == r else 0) at e for r<{wanted}"
    write(builder, found, {"p": places}, dtype=I64, name=node.output.name, origin=origin)
    builder.nodes.append(replace(builder.nodes.pop(), outputs=(node.output,)))
