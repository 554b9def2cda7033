"""Run a Graph as torch calls, node by node: the reference for tests and for the debug mode.

The idea: library nodes call the very overload they hold, so that a replay of a fresh capture is
eager again, gradients included; other operators run by the torch expression in their table entry or
by their loops.  `watch` sees every value as it is made, and says what is read in its place.
This module does not know Programs: nothing here is meant to be fast.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tilewright.base.dtypes import BF16, I64
from tilewright.base.errors import LibraryCallError
from tilewright.capture.custom_ops import library
from tilewright.capture.template import decode, torch_dtype
from tilewright.graph.control import scan_of, while_of
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.ir import (
    COND,
    CONSTANT,
    CONTROL,
    CUSTOM,
    FORMULA,
    FUSED,
    LIBRARY,
    WHILE,
    Attr,
    Graph,
    Node,
    TensorType,
)
from tilewright.ops import TABLE, eager
from tilewright.ops.operator import expansion, formula_for
from tilewright.program import Layer, Transforms, layer_of, wrap
from tilewright.program.layers import GRADIENT

Results = tuple[torch.Tensor, ...]
Watch = Callable[[Node, Results, Results], Results]  # node, operands, results: what follows reads

# Kept composites may give other strides than the trace saw: a view is then a reshape.
_RESHAPES = frozenset({"aten.view.default", "aten._unsafe_view.default"})
_LAYOUT_READERS = frozenset(
    {"aten.as_strided.default", "aten.as_strided_scatter.default", "aten.view.dtype"}
)


def replay(
    graph: Graph, inputs: Sequence[torch.Tensor], *, watch: Watch | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the graph's outputs for `inputs`; nothing is written back.

    Gradients flow from the outputs to the inputs where the grad mode allows it.
    """
    assert len(inputs) == len(graph.inputs), f"{len(inputs)} inputs for {len(graph.inputs)}"
    values = dict(zip((value.name for value in graph.inputs), inputs, strict=True))
    with torch.autocast("cpu", enabled=False):
        for node in graph.nodes:
            operands = tuple(values[value.name] for value in node.inputs)
            results = run_node(node, operands)
            if watch is not None:
                results = watch(node, operands, results)
            for value, result in zip(node.outputs, results, strict=True):
                values[value.name] = result
    return tuple(values[value.name] for value in graph.outputs)


@contextmanager
def drawing_again() -> Iterator[Callable[[], None]]:
    """Give a function that takes torch's generator back to where it was, as the end does too."""
    state = torch.get_rng_state()

    def rewind() -> None:
        torch.set_rng_state(state)

    try:
        yield rewind
    finally:
        rewind()


def run_node(node: Node, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return a node's results by torch."""
    if node.op == LIBRARY:
        return run_library(node, operands)
    if node.op == CONSTANT:
        type_ = node.output.type
        value = torch.tensor(node.attr("value"), dtype=torch_dtype(type_.dtype))
        return (value.reshape([int(str(dim)) for dim in type_.shape]),)
    if node.op in (FUSED, CUSTOM):
        return replay(node.graphs[0], operands)
    if node.op == "custom_gradient":
        return _run_custom_gradient(node, operands)
    if node.op == FORMULA:
        return (run_loops(node, operands),)
    if node.op in CONTROL:
        return _run_control(node, operands)
    return _run_operator(node, operands)


def _run_custom_gradient(
    node: Node, operands: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The operator's first operands; their gradient is a replay of the node's graph."""
    results, arguments = (_count(node, name) for name in ("results", "arguments"))
    saved = [operand.detach() for operand in operands[results + arguments :]]

    class Carry(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = tuple(value.clone() for value in values[:results])
            ctx.mark_non_differentiable(*[t for t in made if not t.is_floating_point()])
            return made

        @staticmethod
        def backward(_: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return (*(None,) * results, *replay(node.graphs[0], [*tangents, *saved]))

    made: tuple[torch.Tensor, ...] = Carry.apply(*operands[: results + arguments])  # type: ignore[no-untyped-call]
    return made


def _count(node: Node, name: str) -> int:
    count = node.attr(name)
    assert isinstance(count, int), "a count is a number"
    return count


def _run_control(node: Node, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run the sub-graphs of control flow, one step after another."""
    if node.op == COND:
        return replay(node.graphs[0 if bool(operands[0]) else 1], operands[1:])
    if node.op == WHILE:
        loop = while_of(node)
        carries, closed = operands[: loop.carries], operands[loop.carries :]
        while bool(replay(loop.test, (*carries, *closed))[0]):
            carries = replay(loop.body, (*carries, *closed))
        return carries
    scan = scan_of(node)
    parts = scan.part(operands)
    carries = parts.carries
    steps: dict[int, tuple[torch.Tensor, ...]] = {}
    for at in scan.order():
        elements = (sequence[at] for sequence in parts.sequences)
        made = replay(scan.body, (*carries, *elements, *parts.closed))
        carries, steps[at] = made[: scan.carries], made[scan.carries :]
    if not steps:
        types = [value.type for value in node.outputs[scan.carries :]]
        shapes = [[int(str(dim)) for dim in type_.shape] for type_ in types]
        none = zip(shapes, types, strict=True)
        return (*carries, *(torch.empty(s, dtype=torch_dtype(t.dtype)) for s, t in none))
    stacked = zip(*(steps[at] for at in range(scan.length)), strict=True)
    return (*carries, *(torch.stack(values) for values in stacked))


def _run_operator(node: Node, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run the torch expression of a table entry; what it does not give, by the expansion."""
    found: tuple[torch.Tensor, ...] = ()
    if TABLE[node.op].eager:
        names = tuple(f"x{at}" for at in range(len(operands)))
        scope = dict(zip(names, operands, strict=True))
        made = eval(eager(node, names), {"torch": torch, "uniform": uniform, **scope})
        found = made if isinstance(made, tuple) else (made,)
    if len(found) == len(node.outputs):
        return found
    if node.formula is not None:
        return (run_loops(node, operands),)
    types = tuple(value.type for value in node.inputs)
    with torch.no_grad():
        expanded = replay(expansion(TABLE[node.op], types, node.attrs), operands)
    return (*found, *expanded[len(found) :])


def uniform(seed: torch.Tensor, shape: Sequence[int], stream: int) -> torch.Tensor:
    """Return the numbers in [0, 1) that the operators of chance draw."""
    drawn = TABLE["rand"]
    attrs = (("shape", tuple(shape)), ("stream", stream), ("dtype", "f32"))
    formula = formula_for(drawn, (TensorType((), I64),), attrs)
    assert formula is not None, "rand is one loop nest"
    return _tensor(evaluate_formula(formula, [_array(seed)]))


# ---------------------------------------------------------------------------- library calls


def run_library(node: Node, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run a library node, or the derivatives and batches that it says it is `through`."""
    attrs = dict(node.attrs)
    layers = tuple(layer_of(item) for item in _items(attrs.get("through", ())))
    if [layer.kind for layer in layers] == [GRADIENT]:
        return _run_vjp(node, attrs, layers[0], operands)
    layered = wrap(lambda given: _call(node, attrs, given), layers, _TRANSFORMS)
    return layered([operand.detach() for operand in operands] if layers else operands)


_TRANSFORMS = Transforms(torch.func.vjp, torch.func.jvp, torch.func.vmap, torch.empty)


def _call(
    node: Node, attrs: dict[str, Attr], operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    target = attrs["target"]
    assert isinstance(target, str), f"a library call names {target!r}"
    if target in _LAYOUT_READERS:
        operands = (operands[0].contiguous(), *operands[1:])
    args = [decode(template, operands) for template in _items(attrs["args"])]
    kwargs = {
        str(key): decode(template, operands)
        for key, template in (_items(pair) for pair in _items(attrs["kwargs"]))
    }
    if target in _RESHAPES:
        return (operands[0].reshape(args[1]),)
    try:
        result = overload(target)(*args, **kwargs)
    except Exception as reason:
        raise LibraryCallError(
            f"{target} failed: {reason}",
            found=", ".join(f"{value.name}: {value.type}" for value in node.inputs),
            where=node.origin,
        ) from reason
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(result[position] for position in _items(attrs["outputs"]))


def _run_vjp(
    node: Node, attrs: dict[str, Attr], layer: Layer, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Run torch's autograd on one operator alone: operands, then tangents --> gradients."""
    asked, present = layer.inputs, layer.results
    count = len(operands) - len(present)
    with torch.enable_grad():
        leaves = [operand.detach() for operand in operands[:count]]
        for position in asked:
            leaves[position].requires_grad_()
        results = _call(node, attrs, leaves)
        pairs = [
            (results[position], tangent.expand(results[position].shape))
            for position, tangent in zip(present, operands[count:], strict=True)
            if results[position].requires_grad
        ]
        wanted = [leaves[position] for position in asked]
        if not pairs:
            return tuple(torch.zeros_like(leaf) for leaf in wanted)
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            wanted,
            [tangent for _, tangent in pairs],
            allow_unused=True,
        )
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(wanted, found, strict=True)
    )


def overload(target: str) -> Any:
    """Return the overload that "aten.add.Tensor" names."""
    library()
    namespace, packet, name = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), name)


def _items(value: Attr) -> tuple[Any, ...]:
    assert isinstance(value, tuple), f"{value!r} is not a tuple"
    return value


# ---------------------------------------------------------------------------- loops


def run_loops(node: Node, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the result of a node's loops by their meaning; no gradient flows through it."""
    assert node.formula is not None, f"{node.op} carries no loops"
    arrays = [_array(operand) for operand in operands]
    return _tensor(evaluate_formula(node.formula, arrays, origin=node.origin))


def _array(tensor: torch.Tensor) -> Any:
    detached = tensor.detach()
    if detached.dtype == torch.bfloat16:  # NumPy has no such type of its own
        return detached.contiguous().view(torch.int16).numpy().view(BF16.numpy)
    return detached.numpy()


def _tensor(array: Any) -> torch.Tensor:
    array = np.array(array, order="C")  # `ascontiguousarray` would make a number a vector
    if array.dtype == BF16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
