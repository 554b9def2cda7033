"""From functional ATen to a Graph.

The idea: one walk over the nodes.  The table in `aten.py` says which operator an ATen overload is;
what it does not list becomes a `library` node that holds the very call.  Values keep the names of
the FX nodes they come from; every node keeps the user's line.
This module does not know how the ATen graph was made, nor what any operator means.
"""

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError, Origin
from tilewright.capture.aten import RULES
from tilewright.capture.call import apply_rule
from tilewright.capture.custom_functions import CUSTOM_GRADIENT
from tilewright.capture.functionalize import Functional
from tilewright.capture.library_call import import_library_call
from tilewright.capture.origin import identifier, origin_of_meta
from tilewright.capture.probe import refuse_impossible, refuse_mixed_types
from tilewright.capture.record import Computed, Input, Mutation, Result, ViewOfOutput
from tilewright.capture.symbols import Symbols
from tilewright.capture.walk import Importer, add_constant, is_number
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import Graph, Role, Value


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
    walk = Importer(functional.module, Builder(name), functional.backwards, symbols)
    placeholders = [node for node in functional.module.graph.nodes if node.op == "placeholder"]
    kept = (node.name for node in functional.module.graph.nodes if node.op != "placeholder")
    walk.builder.reserve(kept)
    for node, record in zip(placeholders, functional.inputs, strict=True):
        type_ = walk.type_of(node.meta["val"], Origin(code=record.source))
        role = Role(record.kind, record.source)
        walk.values[node] = walk.builder.input(identifier(record.source), type_, role)
    for node in functional.module.graph.nodes:
        _import_node(walk, node)
    return _finish(walk, functional)


def _import_custom_gradient(walk: Importer, node: fx.Node) -> None:
    """custom_gradient(results, arguments, saved) --> the operator, with the backward's graph."""
    call: Any = node.args
    results, arguments, saved, *_ = call
    backward, constants = _import_backward(walk.backwards[node.name])
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


def _import_backward(module: fx.GraphModule) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    """Return the graph of a backward, and what its last inputs are fed with."""
    walk = Importer(module, Builder("backward"), {})
    walk.builder.reserve(node.name for node in module.graph.nodes if node.op != "placeholder")
    for node in module.graph.nodes:
        if node.op == "placeholder":
            walk.values[node] = walk.builder.input(
                node.name, walk.type_of(node.meta["val"], Origin())
            )
        _import_node(walk, node)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    gradients: Any = output.args[0]
    made = walk.builder.finish([walk.operand(gradient) for gradient in gradients])
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
    (output,) = [node for node in functional.module.graph.nodes if node.op == "output"]
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
