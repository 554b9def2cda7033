"""What depends on inputs that stay alone: values that one computation serves for many runs.

The idea: loop-invariant code, where the loop is the calls.  A value is worth keeping if it comes
from parameters or buffers and is no larger than they are, or little larger and dear, as sums are;
what only fills memory, as an expansion does, is computed where it is read.

This module does not know how values are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any

from tilewright.base.sizes import Size
from tilewright.graph.build import draws
from tilewright.graph.ir import Graph, Node, TensorType
from tilewright.graph.passes import Pass
from tilewright.graph.total import fixed
from tilewright.graph.views import is_reduction

SUMS = 4
"""How many times as large as its sources a value may be that holds sums, and is kept."""


def staying(graph: Graph) -> frozenset[str]:
    """Return the inputs that stay: parameters and buffers that a run does not update."""
    updated = {name for name, _ in graph.updates}
    stay = (value.name for value in graph.inputs if graph.role(value.name).stays)
    return frozenset(name for name in stay if name not in updated)


def prepared(graph: Graph) -> frozenset[str]:
    """Return the values of nodes worth keeping from run to run, and what these are made of."""
    stay = staying(graph)
    # Of each value that could be kept, the inputs that it comes from.
    sources: dict[str, frozenset[str]] = {
        value.name: frozenset((value.name,))
        for value in graph.inputs
        if value.name in stay and not _varies(value)
    }
    kept = {value.name: value.type for value in graph.inputs if value.name in sources}
    made_by: dict[str, Node] = {}
    worth: list[str] = []
    for node in graph.nodes:
        if draws(node) or not all(value.name in sources for value in node.inputs):
            continue
        if _varies(node):
            continue
        found = frozenset[str]().union(*(sources[value.name] for value in node.inputs))
        types = [type_ for name, type_ in kept.items() if name in found]
        for value in node.outputs:
            sources[value.name], made_by[value.name] = found, node
        sums = any(_sums(each) for each in (node, *(n for body in node.graphs for n in body.nodes)))
        if found and all(is_worth_keeping(v.type, types, sums=sums) for v in node.outputs):
            worth += [value.name for value in node.outputs]
    return _with_makers(worth, made_by)


def is_worth_keeping(type_: TensorType, sources: Sequence[TensorType], *, sums: bool) -> bool:
    """Say whether a value that is made of inputs that stay is small enough to keep.

    sums: whether it holds sums, which are dear: then it may be SUMS times as large as they are.
    """
    return _elements(type_) <= (SUMS if sums else 1) * sum(map(_elements, sources))


def _sums(node: Node) -> bool:
    return node.formula is not None and is_reduction(node.formula)


def _with_makers(names: list[str], made_by: dict[str, Node]) -> frozenset[str]:
    """Return values and all that they are computed from."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in found or name not in made_by:
            continue
        node = made_by[name]
        found.update(value.name for value in node.outputs)
        stack += [value.name for value in node.inputs]
    return frozenset(found)


def _elements(type_: TensorType) -> int:
    return prod(fixed(dim) for dim in type_.shape)


def _varies(part: Any) -> bool:
    """Say whether a size varies anywhere in a node or value."""
    if isinstance(part, tuple):
        return any(map(_varies, part))
    if is_dataclass(part):
        return any(_varies(getattr(part, field.name)) for field in fields(part))
    return isinstance(part, Size)


@dataclass(frozen=True, slots=True)
class Apart:
    """Apply a pass to what is prepared and to the rest, each by itself.

    ::

        %s = {y[i<4] = exp(w[i])}(%w)         -->   the same two nodes, not one: %s is computed once
        %y = {y[i<4] = s[i] * x[i]}(%s, %x)
    """

    step: Pass

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.step.needs

    @property
    def ensures(self) -> tuple[str, ...]:
        return self.step.ensures

    def __call__(self, graph: Graph) -> Graph:
        names = prepared(graph)
        if not names:
            return self.step(graph)
        early = [node for node in graph.nodes if node.outputs[0].name in names]
        late = [node for node in graph.nodes if node.outputs[0].name not in names]
        read = {value.name for node in late for value in node.inputs}
        read |= {value.name for value in graph.outputs}
        crossing = [v for node in early for v in node.outputs if v.name in read]
        first = self.step(replace(graph, nodes=tuple(early), outputs=tuple(crossing), updates=()))
        inputs = (*graph.inputs, *first.outputs)
        second = self.step(replace(graph, inputs=inputs, nodes=tuple(late)))
        return replace(graph, nodes=(*first.nodes, *second.nodes), outputs=second.outputs)
