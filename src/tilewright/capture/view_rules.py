"""Rules for views.

The idea: sizes are known when a graph is captured, so that a view says its whole result shape.
This module does not know the overloads' names.
"""

from typing import Any

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.elementwise_rules import unchanged
from tilewright.capture.reduction_rules import dims_of
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


@reads("roll", "reshape")
def roll(call: Call) -> Made:
    """roll(self, shifts, dims): without dims, all elements in row-major order."""
    value, shifts = call["self"], tuple(call["shifts"])
    if call["dims"]:
        return call.emit("roll", value, shifts=shifts, dims=tuple(call["dims"]))
    flat = call.emit("reshape", value, wish="flat", shape=(-1,))
    rolled = call.emit("roll", flat, wish="rolled", shifts=shifts, dims=(0,))
    return call.emit("reshape", rolled, shape=value.type.shape)


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


@reads("reshape", "as_strided")
def as_strided(call: Call) -> Made:
    """as_strided(self, size, stride, storage_offset) of memory that lies in order."""
    memory = call.fake("self")
    if not memory.is_contiguous() or memory.storage_offset() != 0:
        return None
    flat = call.emit("reshape", call["self"], wish="flat", shape=(memory.numel(),))
    attrs: dict[str, Any] = {"size": tuple(call["size"]), "stride": tuple(call["stride"])}
    return call.emit("as_strided", flat, offset=call["storage_offset"] or 0, **attrs)


@reads("flip", "permute")
def rot90(call: Call) -> Made:
    """rot90(self, k, dims): quarter turns."""
    value: Value = call["self"]
    rank, turns = value.type.rank, call["k"] % 4
    first, second = (dim % rank for dim in call["dims"])
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    if turns == 0:
        return value
    if turns == 2:
        return call.emit("flip", value, dims=(first, second))
    turned = call.emit("flip", value, wish="flipped", dims=(second if turns == 1 else first,))
    return call.emit("permute", turned, dims=tuple(order))


@reads("reshape", "pad", "cat")
def block_diag(call: Call) -> Made:
    """block_diag(tensors): matrices along the diagonal of one."""
    width, start, rows = call.result.shape[1], 0, []
    assert isinstance(width, int), "sizes are known when a graph is captured"
    for at, value in enumerate(call["tensors"]):
        block = call.cast(value, call.result.dtype)
        if value.type.rank < 2:
            block = call.emit("reshape", block, wish=f"row{at}", shape=(1, -1))
        columns = block.type.shape[1]
        assert isinstance(columns, int), "sizes are known when a graph is captured"
        pad = (start, width - start - columns)
        rows.append(call.emit("pad", block, wish=f"block{at}", pad=pad))
        start += columns
    return call.emit("cat", *rows, dim=0)
