"""In which order the dims of a dense tensor lie in memory.

The idea: strides that leave nothing out and share nothing say an order of the dims, the outermost
first, and nothing else: (0, 2, 3, 1) for images whose channels lie innermost.

This module does not know who asks for an order.
"""

from collections.abc import Sequence

from tilewright.graph.views import contiguous

Order = tuple[int, ...]


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return the order of the dims of a tensor that is dense; None where memory is left out or
    shared, where nothing is in it, and where a size varies."""
    if any(type(number) is not int for number in (*shape, *strides)):
        return None  # asked first: what is compared with a size that varies is assumed of it
    if 0 in shape or len(strides) != len(shape):
        return None
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim] > 1, -strides[dim], dim))
    steps = contiguous([shape[dim] for dim in order])
    if any(shape[dim] > 1 and strides[dim] != step for dim, step in zip(order, steps, strict=True)):
        return None
    return canonical(order, shape)


def canonical(order: Sequence[int], shape: Sequence[object]) -> Order:
    """Return the one spelling of an order: dims of one element, which may stand anywhere in it,
    first, or all dims as they are counted where the others lie so."""
    many = [dim for dim in order if shape[dim] != 1]
    if many == sorted(many):
        return tuple(range(len(shape)))
    return (*(dim for dim in range(len(shape)) if shape[dim] == 1), *many)


def is_row_major(order: Order) -> bool:
    """Say whether dims lie as they are counted."""
    return order == tuple(range(len(order)))
