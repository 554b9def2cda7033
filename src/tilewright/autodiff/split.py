"""Split a joint graph in a forward and a backward graph, deciding what is kept between them.

The idea: a value of the forward that the backward needs is either kept (written once, read once) or
computed again from others.  Pointwise work on values at hand is cheaper than its memory traffic, a
contraction never is; which values to keep is a minimum cut of bytes (Chen et al. 2016 state the
trade; the cut is that of a flow network in which every value is a vertex of the capacity of its
bytes)::

    source (inputs, results of what is never computed twice) --> ... --> sink (backward's operands)

This module does not know kernels: an operation is "cheap" when its formula is pointwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.autodiff.reverse import Joint, add_formula
from tilewright.base.expr import Call, Sym, walk
from tilewright.base.sizes import nominal
from tilewright.graph.build import prune
from tilewright.graph.ir import CONSTANT, FORMULA, Graph, Node, Role, Value
from tilewright.graph.views import view_of

if TYPE_CHECKING:
    import networkx as nx

_HEAVY = ("pow", "erf", "erfc", "normal_cdf", "sin", "cos", "tan", "uniform")
_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Split:
    """A forward and a backward graph.

    forward: the original inputs to (outputs, then kept values that are none of these).  backward:
    (kept values, then tangents) to the gradients that exist, in the order asked for.  kept: for
    each kept value, the backward's name for it and the forward's: an input of the forward, handed
    over as it came, or an output.  outputs: how many outputs the forward had before.  gradients:
    for each value differentiated for, its position in the backward's outputs, or None.  depends:
    for each gradient of the backward, which of the tangents (by their order) reach it.
    """

    forward: Graph
    backward: Graph
    outputs: int
    kept: tuple[tuple[str, str], ...]
    tangents: tuple[tuple[int, str], ...]
    gradients: tuple[int | None, ...]
    depends: tuple[frozenset[int], ...]


def split(
    joint: Joint,
    *,
    dear: frozenset[str] = frozenset(),
    given: frozenset[str] = frozenset(),
) -> Split:
    """Cut a joint graph at the values that are cheapest to keep.

    dear: inputs that cost as much to keep as any value: they are not there later by themselves.
    given: outputs that the backward takes as they are where it needs them; of others it takes a
    copy, which the forward gives after all outputs.
    """
    graph = joint.graph
    count = len(graph.outputs) - sum(position is not None for position in joint.gradients)
    late = late_nodes(graph, joint)
    early = [node for node in graph.nodes if node.outputs[0].name not in late]
    gradients = graph.outputs[count:]
    kept = cheapest(joint, dear=dear)
    values = {v.name: v for v in graph.inputs} | {v.name: v for n in early for v in n.outputs}
    updated = {name for name, _ in graph.updates}
    made = {name for name in values if name in updated or name not in _input_names(graph)}
    tangent_names = {name for _, name in joint.tangents}
    order = [name for name in values if name in kept]
    alone = made - given
    copies = _copies([values[name] for name in order if name in updated])
    forward = Graph(
        f"{graph.name}.forward",
        tuple(value for value in graph.inputs if value.name not in tangent_names),
        (*(node for node in copies.values()), *early),
        (*graph.outputs[:count], *(_saved(values[n], copies) for n in order if n in alone)),
        graph.updates,
        tuple(item for item in graph.roles if item[0] not in tangent_names),
    )
    tangents = tuple(value for value in graph.inputs if value.name in tangent_names)
    kept_values = tuple(values[name] for name in order)
    # What was not kept is computed again, by the same nodes.
    backward = Graph(
        f"{graph.name}.backward",
        (*kept_values, *tangents),
        _recomputed(graph, kept, gradients),
        tuple(gradients),
        (),
        tuple((value.name, Role("saved", value.name)) for value in kept_values)
        + tuple(item for item in graph.roles if item[0] in tangent_names),
    )
    positions = tuple(None if k is None else k - count for k in joint.gradients)
    sources = tuple((name, _saved(values[name], copies).name) for name in order)
    depends = tuple(d for d, k in zip(joint.depends, joint.gradients, strict=True) if k is not None)
    return Split(
        prune(forward), prune(backward), count, sources, joint.tangents, positions, depends
    )


def own_results(joint: Joint) -> frozenset[str]:
    """Return the outputs that only the derivative of what made them can read (softmax, exp).

    Eager keeps these too, and refuses a backward after their owner has changed them.  Of others it
    may have kept something else (relu its result, not what it was given; attention and loops what
    they are made of; a quotient what was divided), so that their owner may change them.
    """
    graph = joint.graph
    count = len(graph.outputs) - sum(position is not None for position in joint.gradients)
    late = late_nodes(graph, joint)
    early = [node for node in graph.nodes if node.outputs[0].name not in late]
    updated = {position for _, position in graph.updates}
    results = {value.name for k, value in enumerate(graph.outputs[:count]) if k not in updated}
    whole = (n for n in early if not n.graphs and n.op not in ("attention", "div"))
    made = {value.name for node in whole for value in node.outputs}
    return frozenset((results & made) - {value.name for node in early for value in node.inputs})


def cheapest(
    joint: Joint,
    *,
    dear: frozenset[str] = frozenset(),
    keep: frozenset[str] = frozenset(),
    price: Callable[[Value], int] | None = None,
) -> frozenset[str]:
    """Return the values that are cheapest to keep for the backward, inputs among them.

    dear: as for `split`.  keep: values that are kept whatever they cost.  price: what keeping a
    value costs, its bytes where nothing is said.
    """
    graph = joint.graph
    count = len(graph.outputs) - sum(position is not None for position in joint.gradients)
    late = late_nodes(graph, joint)
    early = [node for node in graph.nodes if node.outputs[0].name not in late]
    needed = _needed(graph, late, graph.outputs[count:], {name for _, name in joint.tangents})
    return _minimum_cut(graph, early, needed, dear, keep, price or size)


def _input_names(graph: Graph) -> frozenset[str]:
    return frozenset(value.name for value in graph.inputs)


def _copies(values: Sequence[Value]) -> dict[str, Node]:
    """Inputs that the forward overwrites are kept as they were: a copy of each, by its name."""
    found = {}
    for value in values:
        kept = Value(f"{value.name}.before", value.type)
        found[value.name] = Node(FORMULA, (value,), (kept,), formula=add_formula(value.type, 1))
    return found


def _saved(value: Value, copies: Mapping[str, Node]) -> Value:
    return copies[value.name].output if value.name in copies else value


def _recomputed(graph: Graph, kept: frozenset[str], gradients: Sequence[Value]) -> tuple[Node, ...]:
    """The nodes that the gradients need when the kept values are there already."""
    wanted = {value.name for value in gradients} - kept
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value.name in wanted for value in node.outputs):
            assert not any(v.name in kept for v in node.outputs), (
                f"{node.op} is kept and made again"
            )
            nodes.append(node)
            wanted |= {value.name for value in node.inputs} - kept
    return tuple(reversed(nodes))


def late_nodes(graph: Graph, joint: Joint) -> frozenset[str]:
    """Return the first output of every node that belongs to the backward: it depends on a tangent,
    or no output of the forward depends on it."""
    names = {name for _, name in joint.tangents}
    late: set[str] = set()
    for node in graph.nodes:
        if any(value.name in names for value in node.inputs):
            names.update(value.name for value in node.outputs)
            late.add(node.outputs[0].name)
    return frozenset(late)


def _needed(
    graph: Graph, late: frozenset[str], gradients: Sequence[Value], tangents: set[str]
) -> frozenset[str]:
    """Values of the forward that the backward's nodes or results read."""
    made_late = {
        v.name for node in graph.nodes if node.outputs[0].name in late for v in node.outputs
    }
    wanted = {value.name for value in gradients}
    for node in graph.nodes:
        if node.outputs[0].name in late:
            wanted.update(value.name for value in node.inputs)
    return frozenset(wanted - made_late - tangents)


def _minimum_cut(
    graph: Graph,
    early: Sequence[Node],
    needed: frozenset[str],
    dear: frozenset[str],
    keep: frozenset[str],
    price: Callable[[Value], int],
) -> frozenset[str]:
    import networkx as nx  # which takes longer to import than a model by its numbers to plan

    flow = nx.DiGraph()
    flow.add_node("source")
    flow.add_node("sink")
    for value in graph.inputs:
        # An input lives on anyway: mostly, keeping it costs nothing.
        _add_value(flow, value, float(price(value)) if value.name in dear else 0.0)
        flow.add_edge("source", f"{value.name}<", capacity=_INFINITE)
    for node in early:
        cheap = recomputable(node)
        for value in node.outputs:
            _add_value(flow, value, price(value) * (2.0 if _is_view(node) else 1.0))
            if not cheap:
                flow.add_edge("source", f"{value.name}<", capacity=_INFINITE)
                continue
            if not node.inputs:
                continue  # made of nothing: never worth keeping
            for operand in node.inputs:
                flow.add_edge(f"{operand.name}>", f"{value.name}<", capacity=_INFINITE)
    for name in keep:  # it costs the same whatever else is kept: nothing, then
        flow.add_edge(f"{name}<", f"{name}>", capacity=0.0)
        flow.add_edge("source", f"{name}<", capacity=_INFINITE)
    for name in needed | keep:
        flow.add_edge(f"{name}>", "sink", capacity=_INFINITE)
    _, (reached, _) = nx.minimum_cut(flow, "source", "sink")
    return frozenset(
        name[:-1] for name in reached if name.endswith("<") and f"{name[:-1]}>" not in reached
    )


def _is_view(node: Node) -> bool:
    """A view is nothing until it is kept: then it is a copy.  What it looks at is there anyway."""
    if node.formula is None or len(node.inputs) != 1:
        return False
    types = {node.formula.operands[0]: node.inputs[0].type}
    return view_of(node.formula, types) is not None


def _add_value(flow: "nx.DiGraph[str]", value: Value, capacity: float) -> None:
    flow.add_edge(f"{value.name}<", f"{value.name}>", capacity=capacity)


def size(value: Value) -> int:
    """Return the bytes of a value; where sizes vary, their nominal ones."""
    count = value.type.dtype.bytes
    for dim in value.type.shape:
        assert isinstance(dim, int), "sizes are numbers by now"
        count *= dim
    return nominal(count)


def recomputable(node: Node) -> bool:
    """Say whether making a node again costs less than keeping its result: pointwise and light."""
    if node.op == CONSTANT:
        return True
    formula = node.formula
    if formula is None or formula.op != "=":
        return False
    if not all(isinstance(entry, Sym) or not _calls(entry) for entry in formula.index):
        return False
    return not any(isinstance(n, Call) and n.fn in _HEAVY for n in walk(formula.value))


def _calls(entry: object) -> bool:
    return isinstance(entry, Call)
