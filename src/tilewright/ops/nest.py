"""The texts that a nest is written with: loops' names, indices, sizes, and attributes checked.

The idea: an operator whose loops depend on rank or attributes writes its body as text; these are
the words it is made of.  A tensor's dims are the loops `i, j, k, ...`.

This module does not know any operator.
"""

import math
from collections.abc import Mapping, Sequence

from tilewright.base.sizes import larger
from tilewright.graph.ir import Attr, Dim, TensorType

Attrs = Mapping[str, Attr]

_LETTERS = "ijklmnopqrst"


def loops(rank: int) -> list[str]:
    """Return names for the loops over a tensor's dims."""
    assert rank <= len(_LETTERS), f"tensors of rank {rank} have more dims than there are names"
    return list(_LETTERS[:rank])


def chosen_dims(dims: Attr, rank: int) -> tuple[int, ...]:
    """Return the dims meant, each once, in order; None and () mean all of them."""
    if dims is None or dims == ():
        return tuple(range(rank))
    listed = dims if isinstance(dims, tuple) else (dims,)
    found = []
    for dim in listed:
        assert isinstance(dim, int), f"a dim is a number, not {dim!r}"
        assert -rank <= dim < max(rank, 1), f"there is no dim {dim} in a tensor of rank {rank}"
        found.append(dim % rank if rank else 0)
    return tuple(sorted(set(found))) if rank else ()


def one_dim(dim: Attr, rank: int) -> int:
    """Return the dim meant, counted from the front."""
    assert isinstance(dim, int) and -rank <= dim < rank, f"no dim {dim} in a tensor of rank {rank}"
    return dim % rank


def index(names: Sequence[str]) -> str:
    """Return the loops as an index's text."""
    return ", ".join(names)


def reduced(rank: int, dims: Sequence[int], *, keepdim: bool = False) -> str:
    """Return the target's index where `dims` are reduced away."""
    names = loops(rank)
    if keepdim:
        return index(["0" if dim in dims else name for dim, name in enumerate(names)])
    return index([name for dim, name in enumerate(names) if dim not in dims])


def reduction(operand: TensorType, attrs: Attrs) -> tuple[str, str]:
    """Return the target's and the operand's index, for attributes `dims` and `keepdim`."""
    dims = chosen_dims(attrs["dims"], operand.rank)
    target = reduced(operand.rank, dims, keepdim=bool(attrs["keepdim"]))
    return target, index(loops(operand.rank))


def count(shape: Sequence[Dim], dims: Sequence[int]) -> int:
    """Return how many elements are reduced into one."""
    extents = [shape[dim] for dim in dims]
    assert all(isinstance(extent, int) for extent in extents), "sizes are known numbers"
    return math.prod(extent for extent in extents if isinstance(extent, int))


def linear_position(shape: Sequence[Dim], names: Sequence[str]) -> str:
    """Return the position of an element in row-major order."""
    text = "0"
    for name, extent in zip(names, shape, strict=True):
        text = name if text == "0" else f"({text}) * {extent} + {name}"
    return text


def sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Return a shape whose sizes are all known."""
    found = tuple(dim for dim in shape if isinstance(dim, int))
    assert len(found) == len(shape), f"sizes are known numbers, not {shape}"
    return found


def numbers(attr: Attr) -> tuple[int, ...]:
    """Return an attribute that is a tuple of integers."""
    assert isinstance(attr, tuple), f"{attr!r} is not a tuple of integers"
    found = tuple(item for item in attr if isinstance(item, int))
    assert len(found) == len(attr), f"{attr!r} is not a tuple of integers"
    return found


def one_more_in_front(
    types: Sequence[TensorType], attrs: Attrs, flags: Sequence[bool]
) -> Attrs | None:
    """Return the attributes of an operator along `dim` or `dims` of its only operand, for one more
    dim in front of it; None for a number, which has no dim to stay where it was."""
    rank = types[0].rank
    if rank == 0 or not all(flags):
        return None
    if "dim" in attrs:
        return {**attrs, "dim": one_dim(attrs["dim"], rank) + 1}
    return {**attrs, "dims": tuple(dim + 1 for dim in chosen_dims(attrs["dims"], rank))}


def more_before_the_first(
    types: Sequence[TensorType], attrs: Attrs, flags: Sequence[bool]
) -> Attrs | None:
    """Return the attributes of an operator along its first operand's last dims: the same ones, for
    one more dim in front of that operand alone."""
    del types
    return None if any(flags[1:]) else attrs


def number(attr: Attr) -> int:
    """Return an attribute that is an integer."""
    assert isinstance(attr, int), f"{attr!r} is not an integer"
    return attr


def steps(start: int, stop: int, step: int) -> int:
    """Return how many numbers `range(start, stop, step)` gives; the step is positive."""
    count: int = larger(0, -(-(stop - start) // step))
    return count


def decimal(value: object) -> float:
    """Return an attribute that is a number, as a float."""
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return float(value)


def limited(shape: Sequence[int]) -> str:
    """Return a target's index whose loops carry the extents of `shape`."""
    return index([f"{name}<{size}" for name, size in zip(loops(len(shape)), shape, strict=True)])
