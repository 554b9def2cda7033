"""Who holds what: how a tensor lies on the ranks, and what a rank needs of it.

The idea: a dim that follows the cut is parted into shares that lie side by side without overlap.
Where windows overlap, a rank needs more than its share: the halo, half of it on either side.

This module does not know graphs.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.ir import TensorType
from tilewright.graph.partitions import Split, number

Range = tuple[int, int]
Window = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on the ranks.

    held: the window of each rank.  touched: the window that each rank's part of the loops touches.
    dim: along which they differ where windows overlap; None where what is touched is held.
    """

    held: tuple[Window, ...]
    touched: tuple[Window, ...]
    dim: int | None = None


def lay_out(type_: TensorType, splits: Sequence[Split], bounds: Sequence[Range]) -> Layout:
    """Lay a tensor out; bounds: the iterations that each rank makes of the loop that is cut.

    Where several dims follow the loop and one has a halo, ranks hold shares of that dim alone: of
    two dims, a rank would need corners that nobody holds.
    """
    whole = tuple((0, number(size)) for size in type_.shape)
    halo = next((split for split in splits if split.halo), None)
    held = _windows(whole, (halo,) if halo else splits, bounds)
    if halo is None:
        return Layout(held, held)
    touched = []
    for low, high in bounds:
        window = list(whole)
        for split in splits:
            window[split.dim] = split.region(low, high, whole[split.dim][1])
        touched.append(tuple(window))
    return Layout(held, tuple(touched), halo.dim)


def _windows(whole: Window, splits: Sequence[Split], bounds: Sequence[Range]) -> tuple[Window, ...]:
    windows = [list(whole) for _ in bounds]
    for split in splits:
        shares = part_dim(split, bounds, whole[split.dim][1])
        for window, share in zip(windows, shares, strict=True):
            window[split.dim] = share
    return tuple(tuple(window) for window in windows)


def part_dim(split: Split, bounds: Sequence[Range], size: int) -> list[Range]:
    """Return each rank's share of a dim: each touches its own, and half a halo beyond."""
    order = -1 if split.step < 0 else 1
    regions = [split.region(low, high, size) for low, high in bounds][::order]
    starts = [min(start + split.halo // 2, size) for start, _ in regions[1:]]
    return list(itertools.pairwise((0, *starts, size)))[::order]


def overlap(a: Range, b: Range) -> Range:
    """Return what two ranges share; an empty range where nothing."""
    start = max(a[0], b[0])
    return start, max(min(a[1], b[1]), start)


def length(part: Range) -> int:
    """Return how many elements a range has."""
    return part[1] - part[0]


def shape_of(window: Window) -> tuple[int, ...]:
    """Return a window's extents."""
    return tuple(length(part) for part in window)
