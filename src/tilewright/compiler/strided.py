"""Strided views as matrices: which dims merge into one, for calls that take strides.

The idea: a group of dims counts as one dim of a matrix if walking the last, then the one before, is
walking with one stride.  A view whose groups do not merge needs a copy, which the caller decides.

This module knows shapes and strides only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base.expr import Expr
from tilewright.base.sizes import same
from tilewright.graph.ir import Loop, TensorType
from tilewright.graph.total import fixed
from tilewright.graph.views import place
from tilewright.program import View, contiguous


def merge(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Return (extent, stride) of dims walked as one, or None where they do not merge."""
    extent, stride = 1, 1
    first = True
    for size, step in reversed(list(zip(shape, strides, strict=True))):
        if same(size, 1):
            continue
        if first:
            extent, stride, first = size, step, False
        elif same(step, stride * extent):
            extent *= size
        else:
            return None
    return extent, stride


def grouped(view: View, groups: Sequence[Sequence[int]]) -> View | None:
    """View the dims of each group as one dim, in the order of the groups; None if one won't merge.

    Dims in no group must have extent 1.
    """
    shape: list[int] = []
    strides: list[int] = []
    for group in groups:
        merged = merge([view.shape[dim] for dim in group], [view.strides[dim] for dim in group])
        if merged is None:
            return None
        shape.append(merged[0])
        strides.append(merged[1])
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def is_contiguous(view: View) -> bool:
    """Say whether the view's elements lie in row-major order without gaps."""
    step = 1
    for size, stride in reversed(list(zip(view.shape, view.strides, strict=True))):
        if not same(size, 1) and not same(stride, step):
            return False
        step *= max(size, 1)
    return True


def dense_view(type_: TensorType, name: str = "") -> View:
    """Return a view of all of something that lies row by row."""
    shape = tuple(fixed(dim) for dim in type_.shape)
    return View(name, shape, contiguous(shape))


def row_major(view: View, _: Sequence[Expr], loops: Sequence[Loop]) -> View:
    """Return the view of a copy over loops that is not made."""
    shape = tuple(fixed(loop.extent) for loop in loops)
    return View(view.buffer, shape, contiguous(shape))


@dataclass(frozen=True, slots=True)
class Place:
    """Where some loops go in memory: the view over them, and the stride of each by its name."""

    view: View
    strides: Mapping[str, int]


def placed(view: View, index: Sequence[Expr], loops: Sequence[Loop]) -> Place | None:
    """Return where a read goes; None where no strides say it."""
    extents = {loop.name: fixed(loop.extent) for loop in loops}
    found = place(index, view.strides, list(extents), extents, view.offset)
    if found is None:
        return None
    shape = tuple(extents.values())
    there = replace(view, shape=shape, strides=found.strides, offset=found.offset)
    return Place(there, dict(zip(extents, found.strides, strict=True)))


def laid(dense: View, loops: Sequence[Loop]) -> Place:
    """Return where the elements of a dense tensor over some loops lie."""
    return Place(dense, dict(zip((x.name for x in loops), dense.strides, strict=True)))


def arranged(view: View, index: Sequence[Expr], groups: Sequence[Sequence[Loop]]) -> View | None:
    """Return a read as a view over groups of loops; None where no strides say it."""
    found = placed(view, index, [loop for group in groups for loop in group])
    if found is None:
        return None
    ends = [sum(len(group) for group in groups[: at + 1]) for at in range(len(groups))]
    dims = [range(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
    return grouped(found.view, dims)
