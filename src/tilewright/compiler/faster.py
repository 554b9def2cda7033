"""Which way of a matrix product takes less time: ours or the library's, and on which copies.

The idea: what was measured are sizes at which one overtakes the other, by how long the vectors of
both are and for whose processors the library's kernels were written.  How many threads there are
may not be asked: the bits of a result would follow.

This module does not know which ways there are for a product, nor what was measured of this one.
"""

import math
from collections.abc import Sequence

from tilewright.base.dtypes import F32, F64, DType
from tilewright.compiler.strided import arranged
from tilewright.graph.classify import Contraction
from tilewright.graph.ir import Loop
from tilewright.graph.total import fixed
from tilewright.kernels import SLICE, SPREAD, TALL, Tiling, is_rounded, sums_along
from tilewright.program import View
from tilewright.tune import has_squares, is_library_at_home, library_vector, this_processor

SMALL = 40_000_000
"""Operations up to which ours is as fast as the library called for it, anywhere."""
SMALL_AT_HOME = 1 << 30
"""Operations in float32 up to which it is where both have vectors of 64 bytes: alone in .82 to 1.1
of the call's time (measured to a quarter of them), and whole models with products of up to this
many are faster by it, as a call ends a region that threads share."""
TINY, BATCH = 256, 64
"""Terms of one product of so large a batch up to which plain loops take less time than to call for
its tiles does."""
FEW, MUCH = 16, 65536
"""Rows that do not pay for packing this many elements of the right operand."""
MORE = 128
"""Rows that do not in float64 where the library is not at home: it reads the columns as they lie,
in .36 to 1.09 of our time; with as many rows as this it takes .92 to 1.26 of it."""
SOME, LARGE = 8, 1 << 20
"""Rows that pay for packing so many nevertheless, as the library does not share them out."""
SQUARES, TALL_SQUARES, SMALL_SQUARES = 1 << 29, 64, 1 << 23
"""Operations up to which ours is as fast in bfloat16 where both multiply squares at once, with so
many rows or more; with fewer, up to the last number, as packing takes most of their time."""
MANY, SHARED = 256, 1 << 23
"""Rows up to which a right operand of as many elements is worth the memory of a copy as tiles read
it, made once for all steps of a loop: with more rows, packing is a small part of each step."""


def is_faster(
    found: Contraction, dtype: DType, operands: tuple[View, View], target: str, *, once: bool
) -> bool:
    """Say whether our kernel of a product is at least as fast as the library's.

    once: whether the right operand is there before a loop or a run begins, so that nothing of it is
    packed in each.
    """
    if found.in_pairs:
        return True
    if (not once or is_rounded(dtype)) and is_along(found, dtype, *operands, target):
        return True
    right = operands[1]
    if is_rounded(dtype):
        return _is_better_in_pairs(found, right, target)
    wide = this_processor(target).vector == library_vector() == 64
    if wide and dtype == F32:
        return _is_better_at_home(found, right, once=once)
    small = flops(found) <= SMALL
    if leads(target):
        packed = dtype == F64 and not once and _is_packed_for_few(found, right, MORE)
        return not packed and (small or _is_shared_out(found))
    small = small and (once or not _is_packed_for_few(found, right))
    return small or _is_better(found, dtype, right, target)


def leads(target: str) -> bool:
    """Say whether products of ours with vectors of 32 bytes are held against a library that has no
    longer ones here, and was not written for this processor."""
    return this_processor(target).vector == 32 and not is_library_at_home()


def leads_convolutions(target: str) -> bool:
    """Say so of convolutions, in which the library has all vectors that the processor has."""
    return leads(target) and this_processor().vector == 32


def flops(found: Contraction) -> int:
    """Return the operations of a product."""
    return 2 * volume((*found.batch, *found.m, *found.n, *found.k))


def is_tiny(found: Contraction) -> bool:
    """Say whether a product is one of many that are over before tiles of sums are set up."""
    batch, one = volume(found.batch), volume((*found.m, *found.n, *found.k))
    return type(batch) is type(one) is int and batch >= BATCH and one <= TINY


def is_packed(found: Contraction, right: View) -> bool:
    """Say whether columns of the right operand are apart, so that every run packs them."""
    b = _in_lines(found, right)
    return b is not None and b.strides[-1] != 1


def is_spread(found: Contraction, right: View) -> bool:
    """Say whether rows of the right operand lie so far apart that runs of many rows pack it."""
    b = _in_lines(found, right)
    return b is not None and volume(found.m) >= 2 * FEW and abs(b.strides[-2]) >= SPREAD


def is_better_sliced(found: Contraction, *, carried: bool) -> bool:
    """Say whether a copy of the right operand, made once for all steps, is worth its memory.

    carried: whether the left one is made of carries; else the loop may be there to save memory.
    """
    rows, few = volume(found.m), volume((*found.n, *found.k)) <= SHARED
    return rows < 2 * FEW or (carried and few and rows <= MANY)


def volume(loops: Sequence[Loop]) -> int:
    """Return how many times the innermost of some loops is run."""
    return math.prod(fixed(loop.extent) for loop in loops)


def _is_packed_for_few(found: Contraction, right: View, few: int = FEW) -> bool:
    """Say whether most of the time would go into packing the right operand for a few rows."""
    small = volume(found.m) < few and volume((*found.n, *found.k)) >= MUCH
    return small and is_packed(found, right)


def _is_better_in_pairs(found: Contraction, right: View, target: str) -> bool:
    """Say whether ours is as fast in bfloat16 as the library's, which is slow where vectors are
    shorter than 64 bytes; else most of the time may go into turning columns for some rows."""
    if has_squares(target):
        many = volume(found.m) >= TALL_SQUARES
        return flops(found) <= (SQUARES if many else SMALL_SQUARES)
    some = volume(found.m) < 2 * FEW and volume((*found.n, *found.k)) >= LARGE
    turned = some and is_packed(found, right)
    return this_processor(target).vector < 64 or (flops(found) <= SMALL and not turned)


def is_along(found: Contraction, dtype: DType, left: View, right: View, target: str) -> bool:
    """Say whether a few rows read the right operand once, along its terms: the library does not.
    A vector is one row, on whichever side it stands."""
    rows = volume(found.m) if found.n else 1
    if not sums_along(dtype, this_processor(target).vector, rows, volume(found.k)):
        return False
    batch = [(loop,) for loop in found.batch]
    a = arranged(left, found.left.index, (*batch, found.m, found.k))
    b = arranged(right, found.right.index, (*batch, found.n, found.k))
    return all(view is not None and view.strides[-1] == 1 for view in (a, b))


def _is_better(found: Contraction, dtype: DType, right: View, target: str) -> bool:
    """Say whether ours is faster than the library's, as measured where its vectors are shorter, and
    in float32 with 32 bytes."""
    rows, ours = volume(found.m), this_processor(target).vector
    if ours > max(32, library_vector()):
        return not _is_packed_for_few(found, right) or (rows >= SOME and dtype == F32)
    if ours != 32 or dtype != F32:
        return False
    if rows < FEW:
        large = not found.batch and volume((*found.n, *found.k)) >= LARGE
        return rows >= SOME and large and is_packed(found, right)
    return _is_shared_out(found)


def _is_better_at_home(found: Contraction, right: View, *, once: bool) -> bool:
    """Say whether ours is as fast in float32 where both have vectors of 64 bytes: of a few rows it
    reads a large right operand in short runs, in up to twice the library's time."""
    far = volume(found.m) < TALL and volume((*found.n, *found.k)) >= LARGE
    if not once and (_is_packed_for_few(found, right) or (far and not is_packed(found, right))):
        return False
    return flops(found) <= (SMALL_AT_HOME if _is_shared_out(found) else SMALL)


def _is_shared_out(found: Contraction) -> bool:
    """Say whether a product is cut into as many blocks as threads may want."""
    cut = volume(found.batch) * max(1, volume(found.m) // TALL) * max(1, volume(found.n) // SLICE)
    return cut >= Tiling().blocks


def _in_lines(found: Contraction, right: View) -> View | None:
    """Return the right operand as terms and columns, if strides say where they lie."""
    return arranged(right, found.right.index, (*((x,) for x in found.batch), found.k, found.n))
