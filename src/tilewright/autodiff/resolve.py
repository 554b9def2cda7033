"""Derivatives that a graph asks for inside of itself: put in their place.

The idea: a `mark` is a variable; up to a `pull` or `push` the graph is a function of the marks, and
that function is differentiated like any other::

    m = mark(x), y = sin(m), g = pull(y, m)   -->   y = sin(x), g = {y[i] = cos(x[i])}(x)

Inner ones come first in the order of nodes; what they become is differentiated by outer ones.
This module does not know where marks come from.
"""

from dataclasses import replace

from tilewright.autodiff.forward import forward
from tilewright.autodiff.reverse import full, reverse
from tilewright.base.errors import CaptureError
from tilewright.graph.build import Builder, prune, replace_values, sort
from tilewright.graph.ir import Graph, Node, Value

MARK, PULL, PUSH = "mark", "pull", "push"


def resolve(graph: Graph) -> Graph:
    """Take the derivatives that a graph asks for inside of itself."""
    while True:
        node = next((node for node in graph.nodes if node.op in (PULL, PUSH)), None)
        if node is None:
            break
        graph = _taken(graph, node)
    marks = {node.output.name: node.inputs[0] for node in graph.nodes if node.op == MARK}
    return prune(replace_values(graph, marks)) if marks else graph


def _taken(graph: Graph, node: Node) -> Graph:
    """Put what a pull or push stands for in its place."""
    at = graph.nodes.index(node)
    results, count = node.inputs[: _number(node, "results")], _number(node, "marks")
    marks = node.inputs[len(results) : len(results) + count]
    given = node.inputs[len(results) + count :]
    chosen = {value.name for value in marks}
    made = {n.outputs[0].name for n in graph.nodes[:at] if n.op == MARK}
    if not chosen <= made:
        raise CaptureError(
            "a derivative is taken by something that is no variable of its own",
            expected="derivatives by arguments of the function that is differentiated",
            found=", ".join(sorted(chosen - made)),
            where=node.origin,
            mend="take the derivative outside of what is compiled",
        )
    before = tuple(n for n in graph.nodes[:at] if n.outputs[0].name not in chosen)
    later = (*graph.nodes[at + 1 :], *(n for n in graph.nodes[:at] if n not in before))
    needed = _read(later, (*graph.outputs, *given)) - chosen
    made_before = [v for n in before for v in n.outputs]
    kept = [value for value in made_before if value.name in needed]
    variables = tuple({value.name: value for value in marks}.values())
    prefix = Graph(
        graph.name, (*graph.inputs, *variables), before, (*results, *kept), (), graph.roles
    )
    if node.op == PULL:
        nodes, stands = _pulled(prefix, node, results, marks, given)
    else:
        nodes, stands = _pushed(prefix, node, results, marks, given)
    marked = tuple(n for n in graph.nodes[:at] if n not in before)
    whole = replace(graph, nodes=(*nodes, *marked, *graph.nodes[at + 1 :]))
    return prune(sort(replace_values(whole, stands)))


def _read(nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> set[str]:
    return {value.name for n in nodes for value in n.inputs} | {value.name for value in outputs}


def _pulled(
    prefix: Graph,
    node: Node,
    results: tuple[Value, ...],
    marks: tuple[Value, ...],
    seeds: tuple[Value, ...],
) -> tuple[tuple[Node, ...], dict[str, Value]]:
    wrt = list(dict.fromkeys(value.name for value in marks))
    joint = reverse(prefix, wrt, of=range(len(results)), ones=not seeds)
    found = dict(zip(wrt, joint.gradients, strict=True))
    builder = Builder.extending(joint.graph)
    stands = {}
    for value, marked in zip(node.outputs, marks, strict=True):
        position = found[marked.name]
        if position is None:
            stands[value.name] = builder.formula(full(value.type, 0.0), name=value.name)
        else:
            stands[value.name] = joint.graph.outputs[position]
    seeded = {name: seeds[position] for position, name in joint.tangents}
    return _with(tuple(builder.nodes), seeded), _through(stands, seeded)


def _pushed(
    prefix: Graph,
    node: Node,
    results: tuple[Value, ...],
    marks: tuple[Value, ...],
    changes: tuple[Value, ...],
) -> tuple[tuple[Node, ...], dict[str, Value]]:
    (result,) = results
    pushed = forward(prefix, [value.name for value in marks])
    along = dict(zip(pushed.tangents, changes, strict=True))
    builder = Builder.extending(pushed.graph)
    position = pushed.changes[0]
    if position is None:
        made = builder.formula(full(result.type, 0.0), name=node.output.name)
    else:
        made = pushed.graph.outputs[position]
    return _with(tuple(builder.nodes), along), _through({node.output.name: made}, along)


def _with(nodes: tuple[Node, ...], values: dict[str, Value]) -> tuple[Node, ...]:
    """Let nodes read the given values in place of the inputs of these names."""
    return tuple(
        replace(n, inputs=tuple(values.get(value.name, value) for value in n.inputs)) for n in nodes
    )


def _through(stands: dict[str, Value], values: dict[str, Value]) -> dict[str, Value]:
    return {name: values.get(value.name, value) for name, value in stands.items()}


def _number(node: Node, name: str) -> int:
    found = node.attr(name)
    assert isinstance(found, int), f"{name} is a number"
    return found
