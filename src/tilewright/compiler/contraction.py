"""Contractions as matrix multiplications of strided views: which call, on which views.

The idea: `graph.classify` tells what part each loop plays; walked group by group, a contraction is
`bmm(A[batch, m, k], B[batch, k, n])` whatever the order of the dims was: transposes are strides,
not copies.  A group of loops that memory does not walk with one stride is copied first.

This module does not know kernels: copies are asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.base.expr import Expr
from tilewright.base.sizes import least_of, same
from tilewright.compiler.strided import grouped
from tilewright.graph.classify import Contraction
from tilewright.graph.ir import Loop
from tilewright.graph.total import fixed
from tilewright.graph.views import place
from tilewright.program import View, contiguous

Groups = tuple[tuple[Loop, ...], ...]
Gather = Callable[[View, Sequence[Expr], Sequence[Loop]], View]
"""gather(view, index, loops) -> a dense tensor over the loops that holds view[index]."""


@dataclass(frozen=True, slots=True)
class MatrixCall:
    """`target(*inputs, out=output)`; direct: whether the output is the result's own memory."""

    target: str
    inputs: tuple[View, View]
    output: View
    direct: bool


def as_matrices(
    found: Contraction,
    left: View,
    right: View,
    result: View,
    gather: Gather,
    scratch: Callable[[Sequence[Loop]], View],
) -> MatrixCall:
    """Return the call that computes a contraction.

    left, right, result: where the operands and the result lie.  scratch: gives a dense tensor over
    loops, for a result that the library cannot write in its place.
    """
    batch, m, n, k = found.batch, found.m, found.n, found.k
    a = _operand(left, found.left.index, (batch, m, k), gather)
    b = _operand(right, found.right.index, (batch, k, n), gather)
    out = _arranged(result, found.target, (batch, m, n)) if found.scale == 1.0 else None
    direct = out is not None
    if out is None:
        shape = tuple(_volume(group) for group in (batch, m, n))
        out = View(scratch((*batch, *m, *n)).buffer, shape, contiguous(shape), 0)
    if batch:
        return MatrixCall("aten.bmm.out", (a, b), out, direct)
    return MatrixCall("aten.mm.out", (_drop(a), _drop(b)), _drop(out), direct)


def _operand(view: View, index: Sequence[Expr], groups: Groups, gather: Gather) -> View:
    found = _arranged(view, index, groups)
    if found is not None and _usable(found):
        return found
    dense = gather(view, index, [loop for group in groups for loop in group])
    shape = tuple(_volume(group) for group in groups)
    return View(dense.buffer, shape, contiguous(shape), dense.offset)


def _arranged(view: View, index: Sequence[Expr], groups: Groups) -> View | None:
    loops = [loop for group in groups for loop in group]
    extents = {loop.name: fixed(loop.extent) for loop in loops}
    strided = place(index, view.strides, list(extents), extents, view.offset)
    if strided is None:
        return None
    shape = tuple(extents.values())
    whole = replace(view, shape=shape, strides=strided.strides, offset=strided.offset)
    ends = [sum(len(group) for group in groups[: at + 1]) for at in range(len(groups))]
    return grouped(whole, [range(end - len(g), end) for end, g in zip(ends, groups, strict=True)])


def _usable(view: View) -> bool:
    """BLAS wants one of the two matrix dims dense; otherwise the library would copy by itself."""
    rows, columns = view.shape[-2:]
    row, column = view.strides[-2:]
    dense_rows = (same(column, 1) or same(columns, 1)) and (
        least_of(row - columns) >= 0 or same(rows, 1)
    )
    dense_columns = (same(row, 1) or same(rows, 1)) and (
        least_of(column - rows) >= 0 or same(columns, 1)
    )
    return dense_rows or dense_columns


def _volume(loops: Sequence[Loop]) -> int:
    volume = 1
    for loop in loops:
        volume *= fixed(loop.extent)
    return volume


def _drop(view: View) -> View:
    return replace(view, shape=view.shape[1:], strides=view.strides[1:])
