"""Orders of few elements as loops: an element's place is how many come before it.

The idea: where no library may be called, sorting a short row needs none: the places are sums of
comparisons, and what stands at a place is the one element that has it.  Ties come in the order of
their indices, as a stable sort has them (torch's `topk` promises no order of them).

This module does not sort long rows: the comparisons grow with the square.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.base.dtypes import I64
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
    if node.op != LIBRARY or node.attr("target") not in _PARAMETERS or len(node.inputs) != 1:
        return False
    shape, dim = node.inputs[0].type.shape, _settings(node)["dim"]
    whole = dict(node.attrs).get("outputs") == (1,) and bool(shape) and 0 not in shape
    extent = fixed(shape[dim]) if whole and isinstance(dim, int) else LONGEST + 1
    return type(extent) is int and extent <= LONGEST


def _settings(node: Node) -> dict[str, Attr]:
    target = str(node.attr("target"))
    given = node.attr("args")
    assert isinstance(given, tuple), "arguments of a call are a tuple"
    known = dict(_TOP if "topk" in target else _SORT)
    known.update(zip(_PARAMETERS[target], given[1:], strict=False))
    named = {"largest": "descending"}
    for key, value in node.attr("kwargs") or ():  # type: ignore[union-attr]
        known[named.get(key, key)] = value
    return known


def _count(builder: Builder, node: Node) -> None:
    settings, (x,), origin = _settings(node), node.inputs, node.origin
    dim, rank = settings["dim"], x.type.rank
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
