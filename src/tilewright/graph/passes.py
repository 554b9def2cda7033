"""Run passes over a graph, one after another, and hold each to what it promises.

The idea: a pass is a frozen value with a name that maps a graph to a graph.  `needs` names what
must hold before it, `ensures` what holds after it.  A pass sees one graph; the runner applies it to
the sub-graphs of control flow too, so that no pass needs to know of them.  The runner checks that
needs are met, that a value which keeps its name keeps its type, and, where asked to, that the graph
still verifies; an error says which pass it came from.

This module does not know any pass.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.base.errors import GraphError, Origin
from tilewright.graph.ir import CONTROL, Graph, Node, TensorType
from tilewright.graph.verify import verify as verify_graph


class Pass(Protocol):
    """A frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """A verb: what the pass does to a graph."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Properties that must hold before it."""
        ...

    @property
    def ensures(self) -> tuple[str, ...]:
        """Properties that hold after it."""
        ...

    def __call__(self, graph: Graph) -> Graph:
        """Return the rewritten graph; the one given stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One pass as it ran: what went in, what came out, and how long it took."""

    name: str
    before: Graph
    after: Graph
    seconds: float


Watch = Callable[[Step], None]


def run(
    graph: Graph,
    passes: Iterable[Pass],
    *,
    verify: bool = False,
    watch: Watch | None = None,
    holds: Iterable[str] = (),
) -> Graph:
    """Return what the passes make of the graph.

    verify: check the graph before the first pass and after each.  watch: sees each pass as it ran.
    holds: properties the graph has to begin with.  An exception raised by a pass leaves with a
    note that names the pass.
    """
    if verify:
        verify_graph(graph)
    known = set(holds)
    for step in passes:
        missing = [name for name in step.needs if name not in known]
        assert not missing, f"pass {step.name!r} needs {missing}, and only {sorted(known)} hold"
        start = time.perf_counter()
        after = _applied(step, graph, verify=verify)
        seconds = time.perf_counter() - start
        if watch is not None:
            watch(Step(step.name, graph, after, seconds))
        known.update(step.ensures)
        graph = after
    return graph


def _applied(step: Pass, graph: Graph, *, verify: bool) -> Graph:
    try:
        after = _everywhere(step, graph)
        if verify:
            verify_graph(after)
    except Exception as error:
        error.add_note(f"in pass {step.name!r} on graph {graph.name!r}")
        raise
    return after


def _everywhere(step: Pass, graph: Graph) -> Graph:
    """Apply a pass to a graph, then to the bodies of the control flow that it left or made."""
    after = step(graph)
    _keep_types(graph, after)
    if any(node.op in CONTROL for node in after.nodes):
        after = replace(after, nodes=tuple(_with_bodies(step, node) for node in after.nodes))
    return after


def _with_bodies(step: Pass, node: Node) -> Node:
    if node.op not in CONTROL:
        return node
    return replace(node, graphs=tuple(_everywhere(step, body) for body in node.graphs))


def _keep_types(before: Graph, after: Graph) -> None:
    """Raise GraphError if a value kept by name has another type: debugging goes by names."""
    types = {name: type_ for name, type_, _ in _values(before)}
    for name, type_, origin in _values(after):
        if types.get(name, type_) != type_:
            raise GraphError(
                f"value {name!r} kept its name and not its type",
                expected=str(types[name]),
                found=str(type_),
                where=origin,
            )


def _values(graph: Graph) -> Iterator[tuple[str, TensorType, Origin | str]]:
    for value in graph.inputs:
        yield value.name, value.type, ""
    for node in graph.nodes:
        for value in node.outputs:
            yield value.name, value.type, node.origin
