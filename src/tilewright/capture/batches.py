"""Batches of calls: how long they are, longer ones, and results cut to length.

The idea: the batch is the first dim of every tensor among the arguments; what is padded repeats the
last row, so that no index is out of range and no divisor is zero that was not so before.

This module does not know when padding is right.
"""

from typing import Any

import torch
import torch.utils._pytree as pytree

from tilewright.base.errors import ShapeError


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the extent that the first dims of all tensors have; raises ShapeError."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _has_rows(leaf)]
    found = sorted({len(tensor) for tensor in tensors})
    if len(found) != 1:
        shown = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ShapeError(
            "the arguments have no batch in common",
            expected="tensors whose first dims are equal: the batch",
            found=shown or "no tensor with a dim",
            mend="compile without buckets, or let the function reach what has no batch by itself",
        )
    return found[0]


def with_batch(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with a longer batch, its last row repeated; one that is passed twice is
    one tensor again."""
    known: dict[int, torch.Tensor] = {}

    def longer(leaf: Any) -> Any:
        if not _has_rows(leaf) or len(leaf) == batch:
            return leaf
        if id(leaf) not in known:
            rest = leaf[-1:].expand(batch - len(leaf), *leaf.shape[1:])
            known[id(leaf)] = torch.cat([leaf, rest])
        return known[id(leaf)]

    made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(longer, (args, kwargs))
    return made


def cut(tensor: torch.Tensor, dim: int, count: int, *, packed: bool) -> torch.Tensor:
    """Return the first `count` elements of a dim; packed: without what was cut off between."""
    short = tensor.narrow(dim, 0, count)
    return short.contiguous() if packed else short


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0
