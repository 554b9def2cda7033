"""Reverse mode of a cond: a cond on the same predicate.

The idea: each branch keeps what its own backward half needs, in results of its own that hold
nothing where the other branch runs; each branch of the backward cond is such a half.

This module does not know how a branch is differentiated.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.autodiff.halves import Halves, Pull, Tangents, halves, with_results
from tilewright.autodiff.reverse import full
from tilewright.graph.build import Builder, prune
from tilewright.graph.control import add_cond
from tilewright.graph.ir import Formula, Graph, Node, TensorType, Value


def keep_of_cond(builder: Builder, node: Node, flags: Sequence[bool]) -> tuple[Node, Pull]:
    wrt = [
        at
        for at, (on, value) in enumerate(zip(flags[1:], node.inputs[1:], strict=True))
        if on and value.type.dtype.kind == "float"
    ]
    both = [halves(branch, wrt, ()) for branch in node.graphs]
    # Each branch fills its own slots; those of the other hold nothing.
    slots = [(at, value) for at, half in enumerate(both) for value in half.made]
    bodies = [_filling(half, at, slots) for at, half in enumerate(both)]
    names = [f"{node.outputs[0].name}_{value.name}" for _, value in slots]
    made = with_results(builder, node, bodies, [value.type for _, value in slots], names)
    first = len(node.outputs)

    def pull(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
        return _pull_cond(builder, node, both, tangents[:first])

    return made, pull


def _filling(half: Halves, branch: int, slots: Sequence[tuple[int, Value]]) -> Graph:
    """Give the forward half of a branch a result for each slot."""
    inner = Builder.extending(half.cut.forward)
    outputs = list(half.results)
    for at, value in slots:
        blank = _blank(value.type)
        outputs.append(value if at == branch else inner.formula(blank, name="absent"))
    return inner.finish(outputs)


def _blank(type_: TensorType) -> Formula:
    zero: bool | int | float = {"bool": False, "int": 0, "float": 0.0}[type_.dtype.kind]
    return full(type_, zero)


def _pull_cond(
    builder: Builder, node: Node, halves: Sequence[Halves], tangents: Tangents
) -> Tangents:
    """Add the cond of the backward halves, and return the gradients of the node's operands."""
    predicate, *operands = node.inputs
    kept = node.outputs[len(tangents) :]
    present = [value for value in tangents if value is not None]
    given = (*operands, *kept, *present)
    wrt = [at for at in halves[0].wrt if any(half.depends_on(at) for half in halves)]
    first = 0
    branches: list[Graph] = []
    for graph, half in zip(node.graphs, halves, strict=True):
        inner = Builder(f"{graph.name}_gradient")
        inputs = [inner.input(value.name, value.type) for value in given]
        known = _known_in_branch(inner, graph, half, inputs, tangents, first)
        args = [known[value.name] for value in half.cut.backward.inputs]
        found = inner.inline(half.cut.backward, args, origin=node.origin)
        outputs = []
        for at in wrt:
            gradient = half.gradient(found, at)
            zero = full(operands[at].type, 0.0)
            outputs.append(inner.formula(zero, name="zero") if gradient is None else gradient)
        branches.append(prune(inner.finish(outputs)))
        first += len(half.made)
    read = [at for at in range(len(given)) if any(_reads(branch, at) for branch in branches)]
    then, otherwise = (
        replace(branch, inputs=tuple(branch.inputs[at] for at in read)) for branch in branches
    )
    names = [f"d_{operands[at].name}" for at in wrt]
    made = add_cond(
        builder,
        predicate,
        then,
        otherwise,
        [given[at] for at in read],
        origin=node.origin,
        names=names,
    )
    gradients: list[Value | None] = [None] * len(node.inputs)
    for at, value in zip(wrt, made, strict=True):
        gradients[at + 1] = value
    return tuple(gradients)


def _known_in_branch(
    inner: Builder,
    graph: Graph,
    half: Halves,
    inputs: Sequence[Value],
    tangents: Tangents,
    first: int,
) -> dict[str, Value]:
    """Return what the backward half of a branch reads, by the names that it knows it by.

    inputs: of the backward branch: operands, kept values (the branch's own from `first` on), then
    the tangents that are present.
    """
    operands = {value.name: at for at, value in enumerate(graph.inputs)}
    made = {value.name: at for at, value in enumerate(half.made)}
    known: dict[str, Value] = {}
    for inside, name in half.cut.kept:
        at = operands[name] if name in operands else len(operands) + first + made[name]
        known[inside] = inputs[at]
    present = [at for at, tangent in enumerate(tangents) if tangent is not None]
    rest = inputs[len(inputs) - len(present) :]
    for position, name in half.cut.tangents:
        if position in present:
            known[name] = rest[present.index(position)]
        else:
            zero = full(graph.outputs[position].type, 0.0)
            known[name] = inner.formula(zero, name="zero")
    return known


def _reads(graph: Graph, position: int) -> bool:
    name = graph.inputs[position].name
    read = any(value.name == name for node in graph.nodes for value in node.inputs)
    return read or any(value.name == name for value in graph.outputs)
