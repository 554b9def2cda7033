"""What may refuse its operands is asked before anything is written into an input.

The idea: a kernel that meets an index out of range ends the run, and what was written into inputs
by then stays written.  So what may refuse stands before the first node that writes in place; where
that would keep values alive, its indices are looked at before, by themselves.

This module does not know how kernels look at indices, nor who runs beside whom.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.base.dtypes import BOOL
from tilewright.base.expr import Call, Expr, Read, Sym, reads
from tilewright.compiler.inplace import leads, ordered, updates_in_place, users_of
from tilewright.graph.build import Builder, as_body
from tilewright.graph.compose import rename_operands
from tilewright.graph.ir import CONTROL, FUSED, LIBRARY, Formula, Graph, Loop, Node, TensorType
from tilewright.kernels import Demand, Demands, demands

# Library calls that take what they are given, whatever its values are; others may refuse some.
_TAKE_ALL = (
    *("convolution", "convolution_backward", "native_dropout", "rand", "randn"),
    *("sort", "topk", "kthvalue", "median", "nanmedian", "mode"),
    *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"),
    *("lgamma", "digamma", "polygamma", "igamma", "igammac", "special_zeta", "erfinv"),
    *("i0", "special_i0e", "special_i1", "special_i1e", "special_ndtri", "nextafter", "hypot"),
    *("_cdist_forward", "_cdist_backward", "randperm", "gcd", "lcm"),
    *("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"),
)


@dataclass(frozen=True, slots=True)
class RefuseFirst:
    """Let what may refuse its operands stand before what writes updates in place.

    ::

        %n = {y[i] = w[i] - g[i]}(%w, %g)       -->   %all = {y[i<9] = no[]}(%no)
        %r = {y[i] = x[t[i]]}(%x, %t)                 %ok = {y[] any= all[t[i]]}(%all, %t)
        return %r  update %w = %n                     %n = ...
                                                      %r = ...

    The first of the two new ones is a view of one element.  Where indices are made too late for
    that, what writes in place waits for them.
    """

    name: str = "refuse_first"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        writers = _writers(graph)
        if not writers or unrefused(graph) <= min(writers):
            return graph
        graph = _look_first(graph, min(writers))
        refusing, writers = list(_refusing(graph)), _writers(graph)
        after = users_of(graph)
        moved = False
        for at in refusing:
            for writer in writers:
                if writer < at and not leads(after, writer, at):
                    after[at].add(writer)
                    moved = True
        return replace(graph, nodes=ordered(graph.nodes, after)) if moved else graph


def unrefused(graph: Graph) -> int:
    """Return from which node on nothing refuses its operands; 0 where no input is updated."""
    return max((at + 1 for at in _refusing(graph)), default=0) if graph.updates else 0


def _writers(graph: Graph) -> list[int]:
    written = updates_in_place(graph)
    return [
        at for at, node in enumerate(graph.nodes) if any(v.name in written for v in node.outputs)
    ]


def _refusing(graph: Graph) -> Iterator[int]:
    """Yield the positions of nodes that may refuse what no node before them has."""
    kept: dict[str, list[frozenset[str]]] = {}
    for at, node in enumerate(graph.nodes):
        asked = _asked(node)
        if asked.unknown or any(_new(asked, kept)):
            yield at
        for one in asked.sure:
            wrong, where = one.said
            kept.setdefault(wrong, []).append(where)


def _new(asked: Demands, kept: dict[str, list[frozenset[str]]]) -> Iterator[Demand]:
    """Yield the demands that do not follow from those that are kept."""
    for one in (*asked.sure, *asked.others):
        wrong, where = one.said
        if not any(less <= where for less in kept.get(wrong, ())):
            yield one


def _asked(node: Node) -> Demands:
    names = [value.name for value in node.inputs]
    if node.op == FUSED:
        return demands(node.graphs[0], names)
    if node.op in CONTROL:
        inner = (_asked(each) for graph in node.graphs for each in graph.nodes)
        return Demands(unknown=any(asked != Demands() for asked in inner))
    if node.op == LIBRARY:
        name = str(node.attr("target")).removeprefix("aten.").split(".", 1)[0]
        return Demands(unknown=name not in _TAKE_ALL)
    return Demands() if node.formula is None else demands(as_body(node), names)


def _look_first(graph: Graph, first: int) -> Graph:
    """Add nodes that look at indices as soon as these are there, for nodes from `first` on."""
    builder = Builder.extending(graph)
    made_at = {value.name: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    added: dict[int, list[Node]] = {}
    kept: dict[str, list[frozenset[str]]] = {}
    for at, node in enumerate(graph.nodes):
        asked = _asked(node)
        new = [] if asked.unknown or at < first else list(_new(asked, kept))
        for one in new if all(demand.entry is not None for demand in new) else ():
            place = max((made_at.get(name, -1) for name in _tensors(one)), default=-1)
            if place + 1 < at:
                added.setdefault(place + 1, []).extend(_look(builder, one, node))
        for one in (*asked.sure, *new):
            wrong, where = one.said
            kept.setdefault(wrong, []).append(where)
    nodes: list[Node] = []
    for at, node in enumerate(graph.nodes):
        nodes += [*added.get(at, ()), node]
    return replace(graph, nodes=tuple(nodes))


def _tensors(demand: Demand) -> list[str]:
    parts = (demand.wrong, *demand.where)
    return list(dict.fromkeys(read.tensor for part in parts for read in reads(part)))


def _look(builder: Builder, demand: Demand, node: Node) -> Sequence[Node]:
    """Return nodes that read one element, as if it were as many as there may be, at the indices."""
    assert demand.entry is not None, "an index is looked at"
    entry, extent = demand.entry
    known = {value.name: value for value in node.inputs}
    before = len(builder.nodes)
    one = builder.constant(False, BOOL, origin=node.origin, name="allowed")
    loop = Loop("n", extent)
    type_ = TensorType((extent,), BOOL)
    spread = Formula(("x",), (loop,), (Sym("n"),), "=", Read("x", ()), type_)
    wide = builder.formula(spread, one, origin=node.origin, name="allowed_indices")
    tensors = _tensors(demand)
    where: Expr | None = None
    for part in demand.where:
        where = part if where is None else Call("and", (where, part))
    loops = tuple(Loop(name, extent) for name, extent in demand.loops)
    value = Read("x", (entry,))
    look = Formula(("x", *tensors), loops, (), "any=", value, TensorType((), BOOL), where)
    look = rename_operands(look, {name: f"a{at}" for at, name in enumerate(tensors)})
    operands = (wide, *(known[name] for name in tensors))
    builder.formula(look, *operands, origin=node.origin, name="in_range")
    made = builder.nodes[before:]
    del builder.nodes[before:]
    return made
