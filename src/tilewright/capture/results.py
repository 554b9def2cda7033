"""Say what each result of a surveyed graph is: fresh, the caller's own tensor, or a view.

The idea: two tensors that live in one piece of memory must still do so after compilation, so all
but one of them are made again from sizes, strides and offsets around the run.
This module does not know how the values are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.record import (
    Computed,
    Literal,
    Result,
    SameInput,
    SameResult,
    ViewOfInput,
    ViewOfOutput,
)
from tilewright.capture.survey import Survey, memory


@dataclass(slots=True)
class _Sharing:
    """Which memory is whose: of an input (its position), or of a hidden result (its number)."""

    inputs: dict[int, int] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)
    bases: list[tuple[fx.Node, torch.Tensor]] = field(default_factory=list)


def describe_results(found: Survey) -> tuple[list[fx.Node], tuple[Result, ...]]:
    """Return the nodes to be returned in addition, and what each result of the survey is.

    An output number in a result counts the graph's results first, then the additional ones.
    """
    sharing = _Sharing()
    for position, fake in enumerate(found.inputs):
        if isinstance(fake, torch.Tensor):
            sharing.inputs.setdefault(memory(fake), position)
    _refuse_carried_views(found, sharing)
    _find_bases(found, sharing)
    results: list[Result] = []
    for position in range(len(found.results)):
        results.append(_describe(found, sharing, position))
    return [node for node, _ in sharing.bases], tuple(results)


def _refuse_carried_views(found: Survey, sharing: _Sharing) -> None:
    """A view with a gradient of its own would have to be memory of its own here."""
    tensors = [value for value in found.results if isinstance(value, torch.Tensor)]
    for value in tensors:
        place = found.carried.get(memory(value), memory(value))
        if place == memory(value):
            continue
        if place in sharing.inputs or any(memory(other) == place for other in tensors):
            node, _ = found.creators[memory(value)]
            raise CaptureError(
                "a result of a custom autograd.Function shares memory with an argument or result",
                expected="results with memory of their own",
                found=f"a view of shape {tuple(value.shape)} with a gradient written by hand",
                where=origin_of_meta(node.meta),
                mend="return a copy: x.clone()",
            )


def _find_bases(found: Survey, sharing: _Sharing) -> None:
    """Find memory that several different results live in, and the node that made it.

    A single result with gaps or repetitions in its memory is such a part of something, too.
    """
    users: dict[int, list[torch.Tensor]] = {}
    for value in found.results:
        if isinstance(value, torch.Tensor) and memory(value) not in sharing.inputs:
            group = users.setdefault(memory(value), [])
            if not any(value is other for other in group):
                group.append(value)
    for place, group in users.items():
        if len(group) == 1 and _is_dense(group[0]):
            continue
        node, whole = found.creators[place]
        if whole is None or not all(_covers(whole, view) for view in group):
            if len(group) == 1:  # the values are what counts: it gets memory of its own
                continue
            raise CaptureError(
                "several results share memory that no single tensor of the graph covers",
                expected="results with memory of their own, or views of one tensor",
                found=", ".join(f"{tuple(view.shape)}" for view in group),
                where=origin_of_meta(node.meta),
                mend="return copies: x.clone()",
            )
        sharing.hidden[place] = len(found.results) + len(sharing.bases)
        sharing.bases.append((node, whole))


def _covers(whole: torch.Tensor, view: torch.Tensor) -> bool:
    """Tell whether `whole` is dense and every element of `view` is one of its elements."""
    first, last = _span(whole)
    low, high = _span(view)
    return view.dtype == whole.dtype and _is_dense(whole) and first <= low and high <= last


def _is_dense(tensor: torch.Tensor) -> bool:
    first, last = _span(tensor)
    return tensor.numel() == 0 or last - first + 1 == tensor.numel()


def _span(tensor: torch.Tensor) -> tuple[Any, Any]:
    first = tensor.storage_offset()
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + reach


def _describe(found: Survey, sharing: _Sharing, position: int) -> Result:
    value = found.results[position]
    if not isinstance(value, torch.Tensor):
        return Literal(value)
    for earlier in range(position):
        if found.results[earlier] is value:
            return SameResult(earlier)
    for which, fake in enumerate(found.inputs):
        if fake is value:
            return SameInput(which)
    shape, strides = tuple(value.shape), tuple(value.stride())
    place = memory(value)
    if place in sharing.inputs:
        which = sharing.inputs[place]
        return _view_of_input(found.inputs, which, value)
    if place in sharing.hidden:
        output = sharing.hidden[place]
        _, base = sharing.bases[output - len(found.results)]
        offset: Any = value.storage_offset() - base.storage_offset()
        return ViewOfOutput(
            output, tuple(base.stride()), shape, strides, offset, value.requires_grad
        )
    return Computed(position, shape, strides, value.requires_grad)


def _view_of_input(inputs: Sequence[Any], which: int, value: torch.Tensor) -> Result:
    base = inputs[which]
    if value.dtype != base.dtype:
        raise CaptureError(
            "a result reads the memory of an argument as another element type",
            expected="views that keep the element type",
            found=f"{value.dtype} over {base.dtype}",
            mend="return a copy: x.view(dtype).clone()",
        )
    if value.requires_grad and _overlaps(base):
        raise CaptureError(
            "a result is a view of an argument whose elements share memory, and asks for gradients",
            expected="views of arguments with memory for each element",
            found=f"an argument of shape {tuple(base.shape)} with strides {tuple(base.stride())}",
            mend="pass a copy: x.contiguous()",
        )
    offset = value.storage_offset() - base.storage_offset()
    return ViewOfInput(
        which, tuple(value.shape), tuple(value.stride()), offset, value.requires_grad
    )


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tell whether elements may share memory: torch differentiates strided views of such a tensor
    as if all that share it were one."""
    reach = 0
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    for step, size in sorted((step, size) for step, size in sizes if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False
