"""A plain function as a graph from the tensors in its arguments to those in its result.

The idea: arguments and result are trees (torch's pytrees) whose tensor leaves are numbered; a
`Function` says which number is which input or output of its graph.  Memory is nobody's business
here: each result is copied as the last thing that is captured, so none is a view of another.

A function is captured with tensors of its own, which ask for gradients: that is how a `no_grad`
region or a `detach` inside of it is seen.  This module does not know what is done with the graph.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from tilewright.base.errors import CaptureError, MutationError
from tilewright.capture.calls import Kept
from tilewright.capture.entry import Captured, capture
from tilewright.capture.record import Computed
from tilewright.capture.template import dtype_of
from tilewright.graph.ir import Graph, TensorType

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Slot:
    """In a tree: the tensor of that number."""

    number: int


@dataclass(frozen=True, slots=True)
class Function:
    """A captured function.

    graph: without updates.  sources: for each input of the graph the number of an argument's
    tensor, or, as -1 - k, of `state[k]`, a tensor that the function reaches by itself.  arguments:
    (args, kwargs) with slots for tensors.  result: with slots that number the graph's outputs.
    unchanged: says whether the function still is what was captured.
    """

    graph: Graph
    sources: tuple[int, ...]
    state: tuple[torch.Tensor, ...]
    arguments: Arguments
    result: Any
    unchanged: Callable[[], bool]

    def feed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the graph's inputs for the tensors of a call."""
        return [tensors[at] if at >= 0 else self.state[-1 - at] for at in self.sources]


def capture_function(fn: Callable[..., Any], arguments: Arguments) -> Function:
    """Capture a function for arguments whose tensors are `SampleTensor`s.

    Raises CaptureError, with the user's line, for what cannot be captured; MutationError where the
    function writes into an argument or into a tensor that it reaches.
    """
    numbered, samples = number_tensors(arguments)
    examples = [_example(sample) for sample in samples]
    args, kwargs = fill(numbered, examples)

    @functools.wraps(fn, updated=())
    def copied(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, torch.clone, fn(*args, **kwargs))

    with torch.enable_grad():
        captured = capture(copied, *args, **kwargs)
    if captured.mutations:
        raise _writes(captured)
    places = {id(example): at for at, example in enumerate(examples)}
    leaves = pytree.tree_leaves((args, kwargs))
    sources = tuple(places[id(leaves[at])] if at >= 0 else at for at in captured.sources)
    unchanged = functools.partial(captured.watch.unchanged, args, kwargs, grad=True)
    result = _result(fn, captured)
    return Function(captured.graph, sources, captured.state, numbered, result, unchanged)


def _result(fn: Callable[..., Any], captured: Captured) -> Any:
    leaves: list[Any] = []
    for leaf in captured.result.leaves:
        made = captured.results[leaf] if isinstance(leaf, int) else leaf
        match made:
            case Computed(output=output):
                leaves.append(Slot(output))
            case Kept(value=value) if not isinstance(value, torch.Tensor):
                leaves.append(value)
            case _:
                raise CaptureError(
                    f"the result of {name_of(fn)} cannot be transformed",
                    expected="tensors, plain values, and lists, tuples or dicts of them",
                    found=type(made).__name__,
                    mend="return its tensors in a tuple or a dict",
                )
    return pytree.tree_unflatten(leaves, captured.result.spec)


def _writes(captured: Captured) -> MutationError:
    which = captured.inputs[captured.mutations[0].input]
    return MutationError(
        f"{which.kind} '{which.source}' is changed in place by a function that is transformed",
        expected="a function that writes into tensors of its own only",
        found=f"a new value for {which.dtype} of shape {list(which.shape)}",
        mend="return the new value in place of writing it; a batch norm has to be in eval mode",
    )


def name_of(fn: object) -> str:
    """Return what a user calls a function."""
    return str(getattr(fn, "__name__", type(fn).__name__))


# ---------------------------------------------------------------------------- trees


@dataclass(frozen=True, slots=True)
class SampleTensor:
    """What is known of an argument's tensor: its extents and element type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def type(self) -> TensorType:
        """The type in a graph; raises CaptureError where there is none."""
        dtype = dtype_of(self.dtype)
        if dtype is None:
            raise CaptureError(
                "an argument is of a kind that cannot be captured",
                expected="real tensors",
                found=str(self.dtype),
                mend="convert it before the call",
            )
        return TensorType(self.shape, dtype)


def _example(sample: SampleTensor) -> torch.Tensor:
    made = torch.empty(sample.shape, dtype=sample.dtype)
    return made.requires_grad_(made.is_floating_point())


def sampled(tree: Any) -> Any:
    """Replace tensors by what is known of them."""
    return pytree.tree_map_only(torch.Tensor, lambda t: SampleTensor(tuple(t.shape), t.dtype), tree)


def number_tensors(tree: Any) -> tuple[Any, list[Any]]:
    """Replace tensors (or samples of them) by slots; return these tensors, too."""
    found: list[Any] = []

    def number(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor | SampleTensor):
            return leaf
        found.append(leaf)
        return Slot(len(found) - 1)

    return pytree.tree_map(number, tree), found


def fill(tree: Any, values: Sequence[Any]) -> Any:
    """Replace slots by the values of their numbers."""
    return pytree.tree_map_only(Slot, lambda slot: values[slot.number], tree)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in order."""
    return pytree.tree_leaves(tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with each leaf replaced."""
    return pytree.tree_map(function, tree)


def alike(one: Any, other: Any) -> bool:
    """Say whether two trees have the same structure."""
    return bool(pytree.tree_structure(one) == pytree.tree_structure(other))


def spread_over(prefix: Any, tree: Any) -> list[Any] | None:
    """Return, for each leaf of a tree, the leaf of `prefix` that stands above it; None where
    `prefix` is not the upper part of the tree."""
    return pytree._broadcast_to_and_flatten(prefix, pytree.tree_structure(tree))


def captured_now() -> bool:
    """Say whether the caller is being captured."""
    return torch.compiler.is_compiling()


def describe_tree(tree: Any) -> tuple[Any, ...]:
    """Return a tree as a key that is equal for equal calls: samples by their kind, the rest by
    type and value."""
    leaves, spec = pytree.tree_flatten(tree)
    return spec, tuple(_key(leaf) for leaf in leaves)


def _key(leaf: Any) -> Any:
    return leaf if isinstance(leaf, SampleTensor) else _held(leaf)


def surroundings(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what a function closes over, as a key: plain values by value, others by identity."""
    cells = getattr(fn, "__closure__", None) or ()
    return tuple(_held(cell.cell_contents) for cell in cells)


def _held(value: Any) -> Any:
    plain = isinstance(value, type(None) | bool | int | float | str)
    return (type(value), repr(value)) if plain else id(value)
