"""How tensors whose sizes vary lie in memory: their dims in order, and the gaps between them.

The idea: strides are products of sizes, but for a part of a longer dim; there a gap says how much
longer that is, a number that varies as sizes do::

    tokens[:, :-1]  of strides (n + 1, 1)   -->   dims (1, 0) from within, a gap before dim 0

This module does not know names, or what is traced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """What is the same about tensors of different sizes that lie alike.

    order: the dims from the innermost outwards, without those whose elements repeat (of stride 0).
    gaps: the dims before which memory is left out.  begins: whether the first element is the
    first in memory.  overlaps: whether elements share memory in another way than by repeating.
    """

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    begins: bool
    overlaps: bool

    def strides(self, shape: Sequence[Any], gaps: Mapping[int, Any]) -> tuple[Any, ...]:
        """Return the strides for a shape and what each gap leaves out; sizes may be symbolic."""
        made: list[Any] = [0] * len(shape)
        packed: Any = 1
        for dim in self.order:
            made[dim] = packed + gaps[dim] if dim in self.gaps else packed
            packed = made[dim] * shape[dim]
        return tuple(made)


def layout_of(tensor: torch.Tensor) -> tuple[Layout, dict[int, int]]:
    """Return how a tensor lies, and how many elements each gap leaves out."""
    strides, shape = tensor.stride(), tensor.shape
    order = [dim for dim in range(tensor.ndim) if strides[dim] or shape[dim] == 1]
    order.sort(key=lambda dim: (strides[dim], -dim))
    gaps: dict[int, int] = {}
    packed, overlaps = 1, False
    for dim in order:
        if shape[dim] > 1:  # the stride of a single element means nothing
            overlaps |= strides[dim] < packed
            if strides[dim] > packed:
                gaps[dim] = strides[dim] - packed
            packed = strides[dim] * shape[dim]
    begins = tensor.storage_offset() == 0
    return Layout(tuple(order), tuple(gaps), begins, overlaps), gaps
