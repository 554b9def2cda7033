"""How a graph's inputs and outputs lie in memory, where that is not row by row.

The idea: inputs are taken and results made in the order of dims that they have in eager, so that a
call copies nothing that its kernels could read as it is.  The graph computes with the dims in
memory's order (`optimize.follow_memory`); the Program's buffers say shapes and strides as the
caller has them, over the same memory.

This module does not know tensors, nor which loops follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff import Split
from tilewright.capture import Computed, Input, Result, ViewOfOutput
from tilewright.compiler.convolutions import as_sums
from tilewright.compiler.depthwise import kernels_of
from tilewright.graph.compose import over_values
from tilewright.graph.convolution import classify_convolution
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.orders import Order, is_row_major, order_of
from tilewright.optimize import channels_last, follow_memory, followed
from tilewright.program import OUTPUT, Program, contiguous, whole

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lying:
    """The strides of inputs and of outputs, by position, of those that do not lie row by row."""

    inputs: tuple[tuple[int, Strides], ...] = ()
    outputs: tuple[tuple[int, Strides], ...] = ()


ROW_BY_ROW = Lying()


def lying_of(graph: Graph, inputs: Sequence[Input], results: Sequence[Result]) -> Lying:
    """Return how what was captured lies; what an input is updated to lies as it does.

    Where sizes vary all lies row by row: to look at them would be to assume something of them.
    """
    made: dict[int, Strides] = {}
    for result in results:
        match result:
            case Computed(output=output, strides=strides):
                made[output] = strides
            case ViewOfOutput(output=output, base_strides=strides):
                made[output] = strides
    return lying_as(graph, {k: item.strides for k, item in enumerate(inputs)}, made)


def lying_as(
    graph: Graph, given: Mapping[int, Strides], made: Mapping[int, Strides] | None = None
) -> Lying:
    """Return how a graph lies whose inputs, and outputs, have these strides, by position; what an
    input is updated to lies as it does."""
    if any(type(dim) is not int for value in graph.inputs for dim in value.type.shape):
        return ROW_BY_ROW
    positions = {value.name: k for k, value in enumerate(graph.inputs)}
    updated = {output: given.get(positions[name], ()) for name, output in graph.updates}
    outputs = _otherwise(graph.outputs, {**(made or {}), **updated})
    return _of_use(graph, Lying(_otherwise(graph.inputs, given), outputs))


def lying_apart(parts: Split, whole_: Lying, wanted: Sequence[int]) -> tuple[Lying, Lying]:
    """Return how inputs and outputs of a forward and a backward graph lie.

    Values kept between them lie as the forward makes them, gradients as what they are of.
    wanted: the inputs that ask for gradients.
    """
    forward, backward = parts.forward, parts.backward
    given, made = dict(whole_.inputs), dict(whole_.outputs)
    orders, _ = orders_of(forward, whole_)
    guessed = followed(as_sums(forward), orders, kernels_of)
    for k, value in enumerate(forward.outputs[parts.outputs :], parts.outputs):
        if value.name in guessed:
            made[k] = _strides(value, guessed[value.name])
    lies = {value.name: made[k] for k, value in enumerate(forward.outputs) if k in made}
    lies |= {value.name: given[k] for k, value in enumerate(forward.inputs) if k in given}
    sources = [lies.get(name, ()) for _, name in parts.kept]
    sources += [made.get(position, ()) for position, _ in parts.tangents]
    gradients = {
        at: given[k]
        for k, at in zip(wanted, parts.gradients, strict=True)
        if at is not None and k in given
    }
    before = Lying(_otherwise(forward.inputs, given), _otherwise(forward.outputs, made))
    after = Lying(
        _otherwise(backward.inputs, dict(enumerate(sources))),
        _otherwise(backward.outputs, gradients),
    )
    return before, _of_use(backward, after)


def laid(graph: Graph, lying: Lying) -> Graph:
    """Return the graph whose inputs and outputs have the dims that they have in memory."""
    return follow_memory(graph, *orders_of(graph, lying), kernels_of)


def orders_of(graph: Graph, lying: Lying) -> tuple[dict[str, Order], dict[int, Order]]:
    """Return the orders of inputs, by name, and of outputs, by position."""
    inputs = {graph.inputs[k].name: _order(graph.inputs[k], s) for k, s in lying.inputs}
    return inputs, {k: _order(graph.outputs[k], s) for k, s in lying.outputs}


def as_called(program: Program, graph: Graph, lying: Lying) -> Program:
    """Return the Program of a graph that was `laid`, with inputs and outputs as a caller has them.

    ::

        %x : input f32[8, 56, 56, 64]   -->   %x : input f32[8, 64, 56, 56] strides (..., 1, ...)
    """
    buffers = {buffer.name: buffer for buffer in program.buffers}
    updated = {position for _, position in graph.updates}
    handed = [k for k in range(len(graph.outputs)) if k not in updated]
    seen = {program.inputs[k].buffer: (graph.inputs[k], s) for k, s in lying.inputs}
    for k, strides in lying.outputs:
        if k not in updated:
            buffer = program.outputs[handed.index(k)].buffer
            if buffers[buffer].kind == OUTPUT:
                seen[buffer] = graph.outputs[k], strides
            else:  # as a library's call makes it; but for strides of dims of one element that is it
                order = _order(graph.outputs[k], strides)
                assert is_row_major(order), f"{buffer} is rearranged into one of ours"
    for name, (value, strides) in seen.items():
        buffers[name] = replace(buffers[name], type=value.type, strides=strides)
    outputs = tuple(
        whole(buffers[view.buffer]) if view.buffer in seen else view for view in program.outputs
    )
    return replace(program, buffers=tuple(buffers.values()), outputs=outputs)


def _of_use(graph: Graph, lying: Lying) -> Lying:
    """Return what is left where images that convolutions read are given row by row.

    Convolutions read and make rows, so an image is turned once on the way to them, and what follows
    from them is turned at the end: by whoever calls, who does both.  Their weights they take apart
    anyhow, as these lie.  Where each channel has a kernel of its own, images may have them last.
    """
    if lying == ROW_BY_ROW:
        return lying
    inputs, outputs = orders_of(graph, lying)
    graph = as_sums(graph)
    found, sources = followed(graph, inputs, kernels_of), {name: {name} for name in inputs}
    turned: set[str] = set()
    for node in graph.nodes:
        reached = [sources[each.name] for each in node.inputs if each.name in sources]
        came = set[str]().union(*reached)
        if _convolves(node) and not _follows(node, found):
            turned |= {name for name in came if not _are_weights(node, name)}
        for value in node.outputs:
            if value.name in found:
                sources[value.name] = came
    left = {name: order for name, order in inputs.items() if name not in turned}
    found = followed(graph, left, kernels_of)
    updates = {position: name for name, position in graph.updates}

    rows = _made_row_by_row(graph, found)

    def stays(k: int) -> bool:
        if k in updates:
            return updates[k] in left
        return is_row_major(outputs[k]) or graph.outputs[k].name not in rows

    return Lying(
        tuple((k, each) for k, each in lying.inputs if graph.inputs[k].name in left),
        tuple((k, each) for k, each in lying.outputs if stays(k)),
    )


def _made_row_by_row(graph: Graph, found: Mapping[str, Order]) -> set[str]:
    """Return the values that convolutions make of rows, and what is made of such in their order."""
    rows: set[str] = set()
    for node in graph.nodes:
        convolved = _convolves(node) and not _follows(node, found)
        if convolved or any(value.name in rows for value in node.inputs):
            rows |= {value.name for value in node.outputs if value.name not in found}
    return rows


def _follows(node: Node, found: Mapping[str, Order]) -> bool:
    """Say whether a convolution is computed as its image lies."""
    kernels = kernels_of(node)
    return kernels is not None and channels_last(node, kernels, found) is not None


def _convolves(node: Node) -> bool:
    if node.formula is None:
        return "conv" in node.op
    return (
        classify_convolution(over_values(node), {v.name: v.type for v in node.inputs}) is not None
    )


def _are_weights(node: Node, name: str) -> bool:
    """Say whether an input is the second operand of a convolution, or of a gradient of an image."""
    return len(node.inputs) > 1 and node.inputs[1].name == name


def _otherwise(
    values: Sequence[Value], strides: Mapping[int, Strides]
) -> tuple[tuple[int, Strides], ...]:
    """Return the strides of values that are dense, but not those of rows after rows."""
    found = []
    for k, each in sorted(strides.items()):
        shape = _extents(values[k])
        if order_of(shape, each) is not None and each != contiguous(shape):
            found.append((k, each))
    return tuple(found)


def _order(value: Value, strides: Strides) -> Order:
    order = order_of(_extents(value), strides)
    assert order is not None, f"{value.name} is dense"
    return order


def _extents(value: Value) -> tuple[int, ...]:
    """Return the extents that are numbers: all, where no size varies."""
    return tuple(dim for dim in value.type.shape if isinstance(dim, int))


def _strides(value: Value, order: Order) -> Strides:
    shape = _extents(value)
    steps = contiguous(tuple(shape[dim] for dim in order))
    return tuple(steps[order.index(dim)] for dim in range(len(shape)))
