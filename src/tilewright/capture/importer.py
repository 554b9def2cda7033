"""From functional ATen to a Graph.

The idea: one walk over the nodes.  The table in `aten.py` says which operator an ATen overload is;
what it does not list becomes a `library` node that holds the very call.  Values keep the names of
the FX nodes they come from; every node keeps the user's line.
This module does not know how the ATen graph was made, nor what any operator means.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError, GraphError, Origin
from tilewright.capture.aten import RULES
from tilewright.capture.call import apply_rule
from tilewright.capture.control import CONTROL_FLOW
from tilewright.capture.custom_functions import CUSTOM_GRADIENT
from tilewright.capture.functionalize import Functional, Traced
from tilewright.capture.library_call import import_library_call
from tilewright.capture.origin import identifier, origin_of_meta
from tilewright.capture.probe import refuse_impossible, refuse_mixed_types
from tilewright.capture.record import Computed, Input, Mutation, Result, ViewOfOutput
from tilewright.capture.symbols import Symbols
from tilewright.capture.walk import Importer, add_constant, is_number
from tilewright.graph.build import Builder, prune
from tilewright.graph.control import Parts, add_cond, add_scan, add_while
from tilewright.graph.ir import COND, SCAN, WHILE, Graph, Role, Value

# What the bodies of control flow are called.
_BODIES = {COND: ("then", "otherwise"), WHILE: ("test", "body"), SCAN: ("step",)}


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph and its record.

    inputs: one for each input of the graph but the last `len(constants)`, which are fed with
    `constants`.  results: what the user gets; an output number counts `graph.outputs`.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    constants: tuple[torch.Tensor, ...]
    results: tuple[Result, ...]
    mutations: tuple[Mutation, ...]


def import_functional(
    functional: Functional, name: str = "graph", symbols: Symbols | None = None
) -> Imported:
    """Turn functional ATen into a graph of library nodes and operators."""
    module = functional.traced.module
    walk = Importer(module, Builder(name), functional.traced.bodies, symbols)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    kept = (node.name for node in module.graph.nodes if node.op != "placeholder")
    walk.builder.reserve(kept)
    for node, record in zip(placeholders, functional.inputs, strict=True):
        type_ = walk.type_of(node.meta["val"], Origin(code=record.source))
        role = Role(record.kind, record.source)
        walk.values[node] = walk.builder.input(identifier(record.source), type_, role)
    for node in module.graph.nodes:
        _import_node(walk, node)
    return _finish(walk, functional)


def _import_custom_gradient(walk: Importer, node: fx.Node) -> None:
    """custom_gradient(results, arguments, saved) --> the operator, with the backward's graph."""
    call: Any = node.args
    results, arguments, saved, *_ = call
    (body,) = walk.bodies[node.name]
    backward, constants = _import_body(body, "backward")
    operands = [walk.operand(n) for n in (*results, *arguments, *saved)]
    operands += [add_constant(walk, c, f"{node.name}_constant", Origin()) for c in constants]
    walk.values[node] = walk.builder.multi(
        "custom_gradient",
        operands,
        [walk.operand(result).type for result in results],
        attrs={"results": len(results), "arguments": len(arguments)},
        graphs=(backward,),
        origin=origin_of_meta(node.meta),
    )


def _import_control_flow(walk: Importer, node: fx.Node) -> None:
    """control_flow(operands, kind, ...) --> cond, while or scan, with the bodies' graphs."""
    call: Any = node.args
    given, _, kind, carries, sequences, _ = call
    origin = origin_of_meta(node.meta)
    pairs = zip(walk.bodies[node.name], _BODIES[kind], strict=True)
    graphs, constants = _taking_alike([_import_body(body, name) for body, name in pairs])
    operands = [walk.operand(n) for n in given]
    operands += [add_constant(walk, c, f"{node.name}_constant", origin) for c in constants]
    parts = Parts(
        tuple(operands[:carries]),
        tuple(operands[carries : carries + sequences]),
        tuple(operands[carries + sequences :]),
    )
    names = [f"{node.name}_{at}" for at in range(len(graphs[-1].outputs))]
    try:
        walk.values[node] = _add_control_flow(walk.builder, graphs, parts, kind, origin, names)
    except GraphError as error:
        raise CaptureError(
            error.summary,
            expected=error.expected,
            found=error.found,
            where=error.where,
            mend="convert or reshape what its functions return: .to(dtype), .reshape(sizes)",
        ) from None


def _add_control_flow(
    builder: Builder,
    graphs: Sequence[Graph],
    parts: Parts[Value],
    kind: str,
    origin: Origin,
    names: Sequence[str],
) -> tuple[Value, ...]:
    closed = parts.closed
    if kind == COND:
        then, otherwise = graphs
        return add_cond(builder, closed[0], then, otherwise, closed[1:], origin=origin, names=names)
    if kind == WHILE:
        test, body = graphs
        return add_while(builder, test, body, parts.carries, closed, origin=origin, names=names)
    length = parts.sequences[0].type.shape[0]
    assert isinstance(length, int), "sizes around control flow are numbers"
    return add_scan(builder, graphs[0], parts, length=length, origin=origin, names=names)


def _taking_alike(
    bodies: Sequence[tuple[Graph, tuple[torch.Tensor, ...]]],
) -> tuple[list[Graph], list[torch.Tensor]]:
    """Let bodies take the long constants of all of them; return these, too."""
    constants = [constant for _, own in bodies for constant in own]
    types = [value.type for graph, own in bodies for value in _last(graph.inputs, len(own))]
    graphs, first = [], 0
    for graph, own in bodies:
        names = Builder.extending(graph)
        inputs = [Value(names.fresh("unread"), type_) for type_ in types]
        inputs[first : first + len(own)] = _last(graph.inputs, len(own))
        taken = graph.inputs[: len(graph.inputs) - len(own)]
        graphs.append(replace(graph, inputs=(*taken, *inputs), roles=()))
        first += len(own)
    return graphs, constants


def _last(values: tuple[Value, ...], count: int) -> tuple[Value, ...]:
    return values[len(values) - count :]


def _import_body(body: Traced, name: str) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    """Return the graph of a body, and what its last inputs are fed with."""
    walk = Importer(body.module, Builder(name), body.bodies)
    nodes = body.module.graph.nodes
    walk.builder.reserve(node.name for node in nodes if node.op != "placeholder")
    for node in nodes:
        if node.op == "placeholder":
            walk.values[node] = walk.builder.input(
                node.name, walk.type_of(node.meta["val"], Origin())
            )
        _import_node(walk, node)
    (output,) = [node for node in nodes if node.op == "output"]
    returned: Any = output.args[0]
    made = walk.builder.finish([walk.operand(value) for value in returned])
    return prune(made), tuple(tensor for _, tensor in walk.constants)


def _import_node(walk: Importer, node: fx.Node) -> None:
    if node.op in ("placeholder", "output") or is_number(node):
        return
    if node.op == "get_attr":
        _import_attribute(walk, node)
    elif node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int), f"{node} takes no element"
        picked = walk.values[source]
        assert isinstance(picked, tuple), f"{node} takes an element of one tensor"
        element = picked[index]
        assert element is not None, f"{node} takes an element that is not a tensor"
        walk.values[node] = element
    elif str(node.target) == CUSTOM_GRADIENT:
        _import_custom_gradient(walk, node)
    elif str(node.target) == CONTROL_FLOW:
        _import_control_flow(walk, node)
    elif isinstance(node.target, torch._ops.OpOverload):
        _import_call(walk, node)
    else:
        raise CaptureError(
            f"{getattr(node.target, '__name__', node.target)} cannot be captured",
            expected="calls of ATen operators",
            found=f"{node.target}",
            where=origin_of_meta(node.meta),
            mend="move it out of the captured function",
        )


def _import_call(walk: Importer, node: fx.Node) -> None:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload), f"{node} does not call an overload"
    if str(target) in _STATIC_CHECKS:
        return
    if str(target) == "aten._assert_scalar.default":
        (asserted,) = node.all_input_nodes
        assert walk.number(asserted), f"{node} holds, or the trace would have failed"
        return
    refuse_mixed_types(node)
    rule = RULES.get(str(target))
    try:
        made = apply_rule(rule, walk, node) if rule is not None else None
    except AssertionError:
        refuse_impossible(node)
        raise
    if made is None and rule is not None:
        refuse_impossible(node)
    walk.values[node] = made if made is not None else import_library_call(walk, node)


# They compare sizes and element types, which the trace has done.
_STATIC_CHECKS = frozenset({"aten._assert_tensor_metadata.default"})


def _import_attribute(walk: Importer, node: fx.Node) -> None:
    tensor = getattr(walk.module, str(node.target))
    if not isinstance(tensor, torch.Tensor):
        return  # A region's body; the node that calls it is refused by name.
    walk.values[node] = add_constant(walk, tensor, node.name, origin_of_meta(node.meta))


# ---------------------------------------------------------------------------- the graph


def _finish(walk: Importer, functional: Functional) -> Imported:
    (output,) = [node for node in walk.module.graph.nodes if node.op == "output"]
    returned = output.args[0]
    first = len(functional.updates)
    outputs: list[Value] = []
    numbers: dict[int, int] = {}

    def number(position: int) -> int:
        if position not in numbers:
            numbers[position] = len(outputs)
            outputs.append(walk.operand(returned[first + position]))
        return numbers[position]

    results = tuple(
        replace(result, output=number(result.output))
        if isinstance(result, Computed | ViewOfOutput)
        else result
        for result in functional.results
    )
    mutations = []
    for position, (target, differentiable) in enumerate(functional.updates):
        mutations.append(Mutation(target, len(outputs), differentiable))
        outputs.append(walk.operand(returned[position]))
    inputs = walk.builder.inputs
    updates = [(inputs[mutation.input].name, mutation.output) for mutation in mutations]
    return Imported(
        prune(walk.builder.finish(outputs, updates)),
        functional.inputs,
        tuple(tensor for _, tensor in walk.constants),
        results,
        tuple(mutations),
    )
