"""Right operands that many runs share, laid once as the tiles of our products read them.

The idea: a slice is as many columns as a line of cache holds, all their terms one after the other;
a tile then reads whole lines in turn.  Pairs are copied by the function that packs for tiles.

This module does not know which operands are worth it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN
from tilewright.base.expr import Call, Const, Expr, Sym, substitute
from tilewright.compiler.report import Decision
from tilewright.compiler.strided import Place, laid, placed, row_major
from tilewright.graph.classify import Contraction
from tilewright.graph.ir import Loop, TensorType
from tilewright.graph.total import fixed
from tilewright.kernels import LINE, Role, emit_slices, tiles
from tilewright.program import View

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

Lay = Callable[["Assembly", View], View]
"""lay(assembly, view) -> a copy of the view, which the assembly makes."""
Hoist = Callable[[View, Sequence[Expr], Sequence[Loop], Lay | None], View | None]
"""hoist(view, index, loops, lay) -> what `gather` or `lay` gives, made once for many runs."""
Pair = tuple[Loop, Loop]
Parts = tuple[Pair, Pair]
"""The loops over slices and within one, and those over pairs of terms and within one."""


def nowhere(_: View, __: Sequence[Expr], ___: Sequence[Loop], ____: Lay | None) -> None:
    """Hoist nothing: there is no loop around."""


def laid_somewhere(view: View, index: Sequence[Expr], loops: Sequence[Loop], _: Lay | None) -> View:
    """Return the view of a hoisted copy that is not made."""
    return row_major(view, index, loops)


def sliced(
    found: Contraction, right: View, hoist: Hoist, dtype: DType
) -> tuple[Place, Pair, Pair] | None:
    """Let the right operand lie as tiles read it, if that is done once for all steps of a loop.

    Returns where it lies, as [batch.., slices, k, wide], or [batch.., slices, k, wide, 2] where
    tiles read two terms at once; the loops over its columns; and those over the last of k.
    """
    pair = dtype.compute.bytes // dtype.bytes
    if len(found.n) != 1:
        return None
    wide, across, along = LINE // dtype.compute.bytes, found.n[0], found.k[-1]
    if fixed(across.extent) % wide or fixed(along.extent) % pair:
        return None
    if 0 in right.strides:  # it would be copied again for each batch
        return None
    slices = Loop(across.name, fixed(across.extent) // wide), Loop("within", wide)
    terms = Loop(along.name, fixed(along.extent) // pair), Loop("second", pair)
    halves = {one.name: _counted(one, two) for one, two in (slices, terms)}
    index = tuple(substitute(entry, halves) for entry in found.right.index)
    loops = _order(found, (slices, terms))
    source = placed(right, index, loops)
    lay = None  # loops of the notation copy single terms as fast
    if source is not None and pair > 1:
        lay = partial(_lay, source=source, found=found, parts=(slices, terms))
    dense = hoist(right, index, loops, lay)
    return None if dense is None else (laid(dense, loops), slices, terms)


def _lay(
    assembly: "Assembly", view: View, *, source: Place, found: Contraction, parts: Parts
) -> View:
    """Let the function that packs for tiles copy a right operand to slices.

    source: where it lies over the loops of the copy; the view says how it moves with loops around.
    """
    dtype = assembly.buffers[view.buffer].type.dtype

    def role(loops: Sequence[Loop]) -> Role:
        return tuple((fixed(loop.extent), source.strides[loop.name], 0) for loop in loops)

    made = emit_slices(dtype, *map(role, (found.batch, parts[0], (*found.k[:-1], *parts[1]))))
    target = assembly.scratch(f"{view.buffer}_slices", over(_order(found, parts), dtype))
    there = replace(source.view, steps=view.steps)
    assembly.call(made, tiles(dtype), (there,), (target,), UNKNOWN)
    assembly.decisions.append(Decision(target.buffer, "copy", made.recipe, bytes=made.bytes))
    return target


def _order(found: Contraction, parts: Parts) -> tuple[Loop, ...]:
    """Return the loops of slices: [batch.., slices, k, wide, second]."""
    (slices, within), (words, second) = parts
    return (*found.batch, slices, *found.k[:-1], words, within, second)


def _counted(outer: Loop, inner: Loop) -> Expr:
    """Return the iteration of the loop that two were cut from."""
    return Call(
        "add", (Call("mul", (Sym(outer.name), Const(fixed(inner.extent)))), Sym(inner.name))
    )


def cut(where: Place, loop: Loop, made: Pair) -> Place:
    """Return the same place over two loops that one was cut into, the outer of its name."""
    step, (outer, inner) = where.strides[loop.name], made
    cut = {outer.name: step * fixed(inner.extent), inner.name: step}
    return replace(where, strides={**where.strides, **cut})


def over(loops: Sequence[Loop], dtype: DType) -> TensorType:
    """Return the type of a dense tensor over some loops."""
    return TensorType(tuple(loop.extent for loop in loops), dtype)
