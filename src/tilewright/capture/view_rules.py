"""Rules for views, and for gathers and scatters.

The idea: sizes are known when a graph is captured, so that a view says its whole result shape.
This module does not know the overloads' names.
"""

from typing import Any

import torch

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.elementwise_rules import unchanged
from tilewright.capture.reduction_rules import dims_of
from tilewright.capture.walk import add_constant
from tilewright.graph.ir import Value

# ---------------------------------------------------------------------------- views


@reads("reshape")
def reshape(call: Call) -> Made:
    """view(self, size)."""
    if unchanged(call) is not None:
        return unchanged(call)
    return call.emit("reshape", call["self"], shape=call.result.shape)  # type: ignore[arg-type]


@reads("expand")
def expand(call: Call) -> Made:
    """expand(self, size)."""
    if unchanged(call) is not None:
        return unchanged(call)
    return call.emit("expand", call["self"], shape=call.result.shape)  # type: ignore[arg-type]


@reads("permute")
def permute(call: Call) -> Made:
    """permute(self, dims)."""
    return call.emit("permute", call["self"], dims=tuple(call["dims"]))


@reads("permute")
def transpose(call: Call) -> Made:
    """transpose(self, dim0, dim1)."""
    return _swapped(call, call["dim0"], call["dim1"])


@reads("permute")
def t(call: Call) -> Made:
    """t(self)."""
    value: Value = call["self"]
    return value if value.type.rank < 2 else _swapped(call, 0, 1)


def _swapped(call: Call, first: int, second: int) -> Made:
    value: Value = call["self"]
    rank = value.type.rank
    if rank == 0:
        return value
    dims = list(range(rank))
    dims[first], dims[second] = dims[second], dims[first]
    return call.emit("permute", value, dims=tuple(dims))


@reads("slice")
def slice_(call: Call) -> Made:
    """slice(self, dim, start, end, step)."""
    if unchanged(call) is not None:
        return unchanged(call)
    attrs: dict[str, Any] = {
        "dim": call["dim"],
        "start": call["start"],
        "stop": call["end"],
        "step": call["step"],
    }
    return call.emit("slice", call["self"], **attrs)


@reads("select")
def select(call: Call) -> Made:
    """select(self, dim, index)."""
    return call.emit("select", call["self"], dim=call["dim"], index=call["index"])


@reads("squeeze")
def squeeze(call: Call) -> Made:
    """squeeze(self), squeeze(self, dim), squeeze(self, dims)."""
    if unchanged(call) is not None:
        return unchanged(call)
    dims = dims_of(call.arguments.get("dim"))
    if dims is None:
        dims = tuple(at for at, size in enumerate(call["self"].type.shape) if size == 1)
    return call.emit("squeeze", call["self"], dims=dims)


@reads("unsqueeze")
def unsqueeze(call: Call) -> Made:
    """unsqueeze(self, dim)."""
    return call.emit("unsqueeze", call["self"], dim=call["dim"])


@reads("slice")
def split(call: Call) -> Made:
    """split(self, sizes, dim), unsafe or not: one slice for each part."""
    value, dim = call["self"], call["dim"]
    extent = value.type.shape[dim]
    if "split_sizes" in call.arguments:
        lengths = list(call["split_sizes"])
    else:
        size = call["split_size"]
        if size == 0:
            return None
        lengths = [min(size, extent - start) for start in range(0, extent, size)] or [0]
    made, start = [], 0
    for at, length in enumerate(lengths):
        attrs = {"dim": dim, "start": start, "stop": start + length}
        made.append(call.emit("slice", value, wish=f"{at}", **attrs))
        start += length
    return tuple(made)


@reads("select")
def unbind(call: Call) -> Made:
    """unbind(self, dim): one element for each."""
    value, dim = call["self"], call["dim"]
    return tuple(
        call.emit("select", value, wish=f"{at}", dim=dim, index=at)
        for at in range(value.type.shape[dim])
    )


def along(operator: str, **names: str) -> Rule:
    """op(self, lists...): attributes of ours by ATen's names, lists as tuples."""

    @reads(operator)
    def rule(call: Call) -> Made:
        attrs: dict[str, Any] = {
            ours: tuple(call[theirs]) if isinstance(call[theirs], list) else call[theirs]
            for ours, theirs in names.items()
        }
        return call.emit(operator, call["self"], **attrs)

    return rule


@reads("roll")
def roll(call: Call) -> Made:
    """roll(self, shifts, dims)."""
    if not call["dims"]:
        return None
    return call.emit("roll", call["self"], shifts=tuple(call["shifts"]), dims=tuple(call["dims"]))


def join(operator: str) -> Rule:
    """cat(tensors, dim) and stack(tensors, dim), operands brought to the result's type."""

    @reads(operator)
    def rule(call: Call) -> Made:
        values = [call.cast(value, call.result.dtype) for value in call["tensors"]]
        return call.emit(operator, *values, dim=call["dim"])

    return rule


@reads("pad")
def pad(call: Call) -> Made:
    """constant_pad_nd(self, pad, value)."""
    return call.emit("pad", call["self"], pad=tuple(call["pad"]), value=call["value"])


# ---------------------------------------------------------------------------- gathers, scatters


@reads("embedding")
def embedding(call: Call) -> Made:
    """embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)."""
    if call["scale_grad_by_freq"] or call["sparse"]:
        return None
    return call.emit("embedding", call["weight"], call["indices"], padding_idx=call["padding_idx"])


@reads("gather")
def gather(call: Call) -> Made:
    """gather(self, dim, index, sparse_grad)."""
    if call["sparse_grad"]:
        return None
    return call.emit("gather", call["self"], call["index"], dim=call["dim"])


@reads("index_select")
def index_select(call: Call) -> Made:
    """index_select(self, dim, index)."""
    return call.emit("index_select", call["self"], call["index"], dim=call["dim"])


@reads("index")
def index(call: Call) -> Made:
    """index(self, indices): some dims by tensors of integers, the others whole."""
    dims, ids = _by_tensors(call["indices"])
    if ids is None:
        return None
    return call.emit("index", call["self"], *ids, dims=dims)


@reads("index_put")
def index_put(call: Call) -> Made:
    """index_put(self, indices, values, accumulate), by tensors from the first dim on."""
    dims, ids = _by_tensors(call["indices"])
    if ids is None or None in call["indices"]:
        return None
    attrs: dict[str, Any] = {"dims": dims, "accumulate": bool(call["accumulate"])}
    return call.emit("index_put", call["self"], call["values"], *ids, **attrs)


def _by_tensors(indices: list[Value | None]) -> tuple[tuple[int, ...], list[Value] | None]:
    """Return the dims that are indexed and by what; None where a mask is among the indices."""
    ids = [value for value in indices if value is not None]
    dims = tuple(dim for dim, value in enumerate(indices) if value is not None)
    return dims, None if any(value.type.dtype.kind != "int" for value in ids) else ids


def scatter(operator: str) -> Rule:
    """scatter(self, dim, index, src), src of the index's shape at least."""

    @reads(operator)
    def rule(call: Call) -> Made:
        return call.emit(operator, call["self"], call["index"], call["src"], dim=call["dim"])

    return rule


@reads("full", "scatter")
def scatter_value(call: Call) -> Made:
    """scatter(self, dim, index, value) with a number."""
    shape, dtype = call["index"].type.shape, call.result.dtype.name
    value = call.emit("full", wish="value", shape=shape, value=call["value"], dtype=dtype)
    return call.emit("scatter", call["self"], call["index"], value, dim=call["dim"])


@reads("reshape", "index_put")
def as_strided_scatter(call: Call) -> Made:
    """as_strided_scatter(self, src, size, stride, storage_offset) --> index_put into self, flat.

    Torch's own derivative of it lets through just what has been written over.
    """
    memory = call.fake("self")
    if not memory.is_contiguous() or memory.storage_offset() != 0:
        return None
    places = torch.tensor(call["storage_offset"] or 0)
    for size, stride in zip(call["size"], call["stride"], strict=True):
        places = places[..., None] + torch.arange(size) * stride
    places = places.reshape(-1)
    if places.unique().numel() != places.numel():
        return None
    values, shape = call["src"], call["self"].type.shape
    flat = call.emit("reshape", call["self"], wish="flat", shape=(memory.numel(),))
    source = call.emit("reshape", values, wish="source", shape=(places.numel(),))
    index = add_constant(call.walk, places, f"{call.node.name}_places", call.origin)
    put = call.emit("index_put", flat, source, index, wish="put", dims=(0,), accumulate=False)
    return call.emit("reshape", put, shape=shape)


@reads("index_add")
def index_add(call: Call) -> Made:
    """index_add(self, dim, index, source, alpha)."""
    attrs = {"dim": call["dim"], "alpha": call["alpha"]}
    return call.emit("index_add", call["self"], call["index"], call["source"], **attrs)


@reads("slice_scatter")
def slice_scatter(call: Call) -> Made:
    """slice_scatter(self, src, dim, start, end, step)."""
    attrs: dict[str, Any] = {
        "dim": call["dim"],
        "start": call["start"],
        "stop": call["end"],
        "step": call["step"],
    }
    return call.emit("slice_scatter", call["self"], call["src"], **attrs)


@reads("select_scatter")
def select_scatter(call: Call) -> Made:
    """select_scatter(self, src, dim, index)."""
    attrs = {"dim": call["dim"], "index": call["index"]}
    return call.emit("select_scatter", call["self"], call["src"], **attrs)
