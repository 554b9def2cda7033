"""Make graphs, and rewrite them: names, users, substitution, dead code, sub-graphs put inline.

The idea: a graph is a frozen value, so a rewrite is a walk over the old one with a `Builder` that
makes the new one.  A builder keeps every name that is free and never hands one out twice; origins
travel with the nodes.

This module does not judge what it is given: `verify` does.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.ir import (
    CONSTANT,
    FORMULA,
    Attr,
    Formula,
    Graph,
    Node,
    Role,
    TensorType,
    Value,
)

Attrs = Mapping[str, Attr] | Sequence[tuple[str, Attr]]


class Builder:
    """Makes one graph, node by node.  Mutable: it owns the graph until `finish` gives it out."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.roles: list[tuple[str, Role]] = []
        self.taken: set[str] = set()
        self._counts: defaultdict[str, int] = defaultdict(int)

    @staticmethod
    def signature_of(graph: Graph) -> "Builder":
        """Start a graph that has the name, the inputs and the roles of `graph`, and no nodes."""
        builder = Builder(graph.name)
        builder.inputs = list(graph.inputs)
        builder.roles = list(graph.roles)
        builder.taken = {value.name for value in graph.inputs}
        return builder

    @staticmethod
    def extending(graph: Graph) -> "Builder":
        """Start with all that `graph` has; its values keep their names."""
        builder = Builder.signature_of(graph)
        builder.nodes = list(graph.nodes)
        builder.taken.update(names(graph))
        return builder

    def fresh(self, name: str) -> str:
        """Take `name` if it is free, else `name_1`, `name_2`, ...: the first that is."""
        candidate = name or "v"
        while candidate in self.taken:
            self._counts[name] += 1
            candidate = f"{name or 'v'}_{self._counts[name]}"
        self.taken.add(candidate)
        return candidate

    def reserve(self, names: Iterable[str]) -> None:
        """Never hand out these names (they will be used by nodes added as they are)."""
        self.taken.update(names)

    def input(self, name: str, type: TensorType, role: Role | None = None) -> Value:
        """Add an input, the last one so far."""
        value = Value(self.fresh(name), type)
        self.inputs.append(value)
        if role is not None:
            self.roles.append((value.name, role))
        return value

    def node(
        self,
        op: str,
        inputs: Sequence[Value],
        type: TensorType,
        *,
        attrs: Attrs = (),
        formula: Formula | None = None,
        graphs: Sequence[Graph] = (),
        origin: Origin = UNKNOWN,
        name: str = "",
    ) -> Value:
        """Add a node with one result, and return the result."""
        (value,) = self.multi(
            op,
            inputs,
            (type,),
            attrs=attrs,
            formula=formula,
            graphs=graphs,
            origin=origin,
            names=(name or op,),
        )
        return value

    def multi(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[TensorType],
        *,
        attrs: Attrs = (),
        formula: Formula | None = None,
        graphs: Sequence[Graph] = (),
        origin: Origin = UNKNOWN,
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Add a node with any number of results, and return them.  `names` are wishes."""
        wishes = tuple(names) or (op,) * len(types)
        assert len(wishes) == len(types), f"{op}: {len(wishes)} names for {len(types)} results"
        outputs = tuple(
            Value(self.fresh(name), type) for name, type in zip(wishes, types, strict=True)
        )
        pairs = tuple(attrs.items()) if isinstance(attrs, Mapping) else tuple(attrs)
        self.nodes.append(Node(op, tuple(inputs), outputs, pairs, formula, tuple(graphs), origin))
        return outputs

    def formula(
        self, formula: Formula, *inputs: Value, origin: Origin = UNKNOWN, name: str = ""
    ) -> Value:
        """Add a node that carries its own loops; `inputs` in the order of its operands."""
        return self.node(
            FORMULA, inputs, formula.type, formula=formula, origin=origin, name=name or "v"
        )

    def constant(
        self, value: object, dtype: DType, *, origin: Origin = UNKNOWN, name: str = "const"
    ) -> Value:
        """Add a constant: a number, nested sequences of numbers, or an array."""
        array = np.asarray(value)
        nested = nest(array, dtype)
        return self.node(
            CONSTANT,
            (),
            TensorType(array.shape, dtype),
            attrs=(("value", nested),),
            origin=origin,
            name=name,
        )

    def add(self, node: Node) -> tuple[Value, ...]:
        """Add a node as it is, but for results whose name is taken: they get the next free one."""
        return self.multi(
            node.op,
            node.inputs,
            tuple(value.type for value in node.outputs),
            attrs=node.attrs,
            formula=node.formula,
            graphs=node.graphs,
            origin=node.origin,
            names=tuple(value.name for value in node.outputs),
        )

    def inline(
        self, graph: Graph, args: Sequence[Value], *, origin: Origin | None = None
    ) -> tuple[Value, ...]:
        """Add the nodes of `graph` applied to `args`, and return what its outputs have become.

        Names are kept where they are free.  Origins are the nodes' own; `origin` is given to those
        that have none (the expansion of an operator comes from where the operator came from).
        """
        assert len(args) == len(graph.inputs), (
            f"{graph.name} takes {len(graph.inputs)} inputs, not {len(args)}"
        )
        known = dict(zip((value.name for value in graph.inputs), args, strict=True))
        for node in graph.nodes:
            if origin is not None:
                node = _placed(node, origin)
            moved = replace(node, inputs=tuple(known[value.name] for value in node.inputs))
            for old, new in zip(node.outputs, self.add(moved), strict=True):
                known[old.name] = new
        return tuple(known[value.name] for value in graph.outputs)

    def finish(self, outputs: Sequence[Value], updates: Iterable[tuple[str, int]] = ()) -> Graph:
        """Return the graph.  `updates`: (input name, position among the outputs)."""
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(self.nodes),
            tuple(outputs),
            tuple(updates),
            tuple(self.roles),
        )


def _placed(node: Node, origin: Origin) -> Node:
    """Give an origin to a node that has none, and to those of its sub-graphs."""
    graphs = tuple(
        replace(graph, nodes=tuple(_placed(inner, origin) for inner in graph.nodes))
        for graph in node.graphs
    )
    if node.origin != UNKNOWN:
        origin = node.origin
    return replace(node, graphs=graphs, origin=origin)


def nest(array: np.ndarray, dtype: DType) -> Attr:
    """Return an array as nested tuples of Python numbers of the kind of `dtype`."""
    kind = {"bool": bool, "int": int, "float": float}[dtype.kind]
    rounded = array.astype(dtype.numpy)

    def tuples(item: object) -> Attr:
        if isinstance(item, list):
            return tuple(tuples(part) for part in item)
        return kind(item)  # type: ignore[no-any-return]

    # A half-precision array gives Python floats only by way of a type that NumPy itself knows.
    return tuples((rounded.astype(np.float64) if kind is float else rounded).tolist())


def names(graph: Graph) -> frozenset[str]:
    """Return the names of all values of the graph (not of its sub-graphs)."""
    inputs = (value.name for value in graph.inputs)
    results = (value.name for node in graph.nodes for value in node.outputs)
    return frozenset((*inputs, *results))


def producers(graph: Graph) -> dict[str, Node]:
    """Return the node that makes each value, by name; inputs have none."""
    return {value.name: node for node in graph.nodes for value in node.outputs}


def as_body(node: Node) -> Graph:
    """Return the graph of one formula node, whose inputs are named as its formula names them."""
    builder = Builder(node.op)
    assert node.formula is not None, "a node with loops"
    operands = zip(node.formula.operands, node.inputs, strict=True)
    inputs = tuple(builder.input(name, value.type) for name, value in operands)
    return builder.finish((builder.formula(node.formula, *inputs, name="y"),))


def draws(node: Node) -> bool:
    """Say whether a node, or one in its bodies, draws from torch's own generator."""
    inner = (each for body in node.graphs for each in body.nodes)
    return bool(dict(node.attrs).get("random")) or any(map(draws, inner))


def users(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """Return the nodes that read each value, by name, in order, a node once per operand."""
    found: dict[str, list[Node]] = {name: [] for name in names(graph)}
    for node in graph.nodes:
        for value in node.inputs:
            found[value.name].append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


def sort(graph: Graph) -> Graph:
    """Order the nodes topologically, each as early as its operands and the old order allow."""
    made_by = producers(graph)
    done: set[str] = {value.name for value in graph.inputs}
    ordered: list[Node] = []
    for root in graph.nodes:
        stack = [root]
        pending: set[str] = set()
        while stack:
            node = stack[-1]
            if node.outputs and node.outputs[0].name in done:
                stack.pop()
                continue
            missing = [value.name for value in node.inputs if value.name not in done]
            if not missing:
                ordered.append(node)
                done.update(value.name for value in node.outputs)
                stack.pop()
                continue
            assert not pending.intersection(missing), f"{graph.name}: {missing} is in a cycle"
            pending.update(value.name for value in node.outputs)
            stack.extend(made_by[name] for name in reversed(missing))
    return replace(graph, nodes=tuple(ordered))


def replace_values(graph: Graph, mapping: Mapping[str, Value]) -> Graph:
    """Let every use of a value named in `mapping` use what it maps to, chains followed.

    The nodes that made the values replaced stay (see `prune`).
    """

    def resolve(value: Value) -> Value:
        steps = 0
        while value.name in mapping and mapping[value.name] != value:
            value = mapping[value.name]
            steps += 1
            assert steps <= len(mapping), f"replacing {value.name} by itself in a circle"
        return value

    nodes = tuple(
        replace(node, inputs=tuple(resolve(value) for value in node.inputs))
        if any(value.name in mapping for value in node.inputs)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, outputs=tuple(resolve(value) for value in graph.outputs))


def prune(graph: Graph) -> Graph:
    """Drop the nodes that no output depends on.  The signature stays as it is."""
    live = {value.name for value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value.name in live for value in node.outputs):
            kept.append(node)
            live.update(value.name for value in node.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))


def rename(graph: Graph, mapping: Mapping[str, str]) -> Graph:
    """Give values the names they map to, everywhere: definitions, uses, roles and updates."""

    def moved(value: Value) -> Value:
        return Value(mapping.get(value.name, value.name), value.type)

    def all_moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(moved(value) for value in values)

    nodes = tuple(
        replace(node, inputs=all_moved(node.inputs), outputs=all_moved(node.outputs))
        for node in graph.nodes
    )
    return Graph(
        graph.name,
        all_moved(graph.inputs),
        nodes,
        all_moved(graph.outputs),
        tuple((mapping.get(name, name), position) for name, position in graph.updates),
        tuple((mapping.get(name, name), role) for name, role in graph.roles),
    )
