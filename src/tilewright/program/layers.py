"""Derivatives and batches of a library call: layers around it, innermost first.

The idea: a call is a function from tensors to a tuple of tensors, and so is each layer around it::

    gradient   operands, a tangent for each of `results`  -->  a gradient for each of `inputs`
    tangent    operands, a change for each of `inputs`    -->  a change for each of `results`
    batch      operands, those of `inputs` with a leading dim of `size`  -->  results with one

Who runs it brings the transforms (torch.func), so that any nesting is theirs to get right.
This module does not know torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.graph.ir import Attr

GRADIENT, TANGENT, BATCH = "gradient", "tangent", "batch"
KINDS = (GRADIENT, TANGENT, BATCH)

Function = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Transforms:
    """What takes derivatives and batches: torch.func's `vjp`, `jvp` and `vmap`, and `lead`, which
    gives a tensor of so many elements to batch over."""

    vjp: Callable[..., Any]
    jvp: Callable[..., Any]
    vmap: Callable[..., Any]
    lead: Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.  inputs: positions among the operands of what lies within; results: among its
    results.  size, randomness: of a batch (torch's words: "error", "same", "different")."""

    kind: str
    inputs: tuple[int, ...]
    results: tuple[int, ...] = ()
    size: int = 0
    randomness: str = "error"

    @property
    def extra(self) -> int:
        """How many operands the layer takes beside those of what lies within."""
        return {GRADIENT: len(self.results), TANGENT: len(self.inputs)}.get(self.kind, 0)


def layer_of(item: Attr) -> Layer:
    """Return what an entry of a library node's attribute `through` says::

    ("gradient", wrt, results) | ("tangent", moved, results) | ("batch", moved, size, randomness)
    """
    match item:
        case (("gradient" | "tangent") as kind, moved, results):
            return Layer(kind, _positions(moved), _positions(results))
        case ("batch", moved, int(size), str(randomness)):
            return Layer(BATCH, _positions(moved), (), size, randomness)
    raise AssertionError(f"{item!r} is no derivative and no batch")


def fault(layers: Sequence[Layer], inputs: int, outputs: int) -> tuple[str, str, str] | None:
    """Return what is wrong with a call's layers (summary, expected, found); None where nothing is.

    inputs, outputs: how many the whole call takes and gives.
    """
    for layer in layers:
        words = layer.kind in KINDS and layer.randomness in ("error", "same", "different")
        if not words or layer.size < 0:
            return "is none", f"one of {', '.join(KINDS)}, of a size from 0", str(layer)
        if not all(0 <= at < inputs for at in layer.inputs) or min(layer.results, default=0) < 0:
            return "names what is not there", f"positions below {inputs}", str(layer)
    if layers:
        last = layers[-1]
        made = {GRADIENT: len(last.inputs), TANGENT: len(last.results)}.get(last.kind, outputs)
        if made != outputs or sum(layer.extra for layer in layers) > inputs:
            return "does not fit its call", f"{made} outputs", f"{outputs}"
    return None


def _positions(attr: Attr) -> tuple[int, ...]:
    assert isinstance(attr, tuple), "positions are a tuple"
    return tuple(item for item in attr if isinstance(item, int))


def wrap(function: Function, layers: Sequence[Layer], transforms: Transforms) -> Function:
    """Put layers around a function."""
    for layer in layers:
        function = {GRADIENT: _gradient, TANGENT: _tangent, BATCH: _batch}[layer.kind](
            function, layer, transforms
        )
    return function


def _restricted(
    function: Function, layer: Layer, operands: Sequence[Any]
) -> tuple[Callable[..., tuple[Any, ...]], list[Any]]:
    """The function of the operands in `inputs` alone, giving the results alone; and these."""

    def restricted(*moved: Any) -> tuple[Any, ...]:
        full = list(operands)
        for at, value in zip(layer.inputs, moved, strict=True):
            full[at] = value
        made = function(full)
        return tuple(made[at] for at in layer.results)

    return restricted, [operands[at] for at in layer.inputs]


def _gradient(function: Function, layer: Layer, transforms: Transforms) -> Function:
    def run(operands: Sequence[Any]) -> tuple[Any, ...]:
        count = len(operands) - layer.extra
        restricted, primals = _restricted(function, layer, operands[:count])
        _, pull = transforms.vjp(restricted, *primals)
        return tuple(pull(tuple(operands[count:])))

    return run


def _tangent(function: Function, layer: Layer, transforms: Transforms) -> Function:
    def run(operands: Sequence[Any]) -> tuple[Any, ...]:
        count = len(operands) - layer.extra
        restricted, primals = _restricted(function, layer, operands[:count])
        changes = tuple(operands[count:])
        try:
            _, found = transforms.jvp(restricted, tuple(primals), changes)
        except NotImplementedError:  # no forward derivative: the gradient, turned around
            made, pull = transforms.vjp(restricted, *primals)
            seeds = tuple(result * 0 for result in made)
            _, turned = transforms.vjp(lambda *tangents: pull(tangents), *seeds)
            found = turned(changes)
        return tuple(found)

    return run


def _batch(function: Function, layer: Layer, transforms: Transforms) -> Function:
    def run(operands: Sequence[Any]) -> tuple[Any, ...]:
        def one(_: Any, *given: Any) -> tuple[Any, ...]:
            return function(given)

        lead = transforms.lead(layer.size)
        dims = (0, *(0 if at in layer.inputs else None for at in range(len(operands))))
        mapped = transforms.vmap(one, in_dims=dims, randomness=layer.randomness)
        return tuple(mapped(lead, *operands))

    return run
