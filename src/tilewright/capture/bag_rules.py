"""Rules for bags of embeddings: sums and means of rows that indices choose, from offset to offset.

The idea: bags of equal length, as of a matrix of indices, are a dim; of others, the bag of an index
is how many offsets are not behind it, which a running sum counts.
This module does not know the overloads' names.
"""

from typing import Any

import torch
from torch import fx

from tilewright.capture.call import Call, Made, reads
from tilewright.graph.ir import Value

_SUM, _MEAN = 0, 1


@reads(
    "embedding", "ne", "where", "mul", "sum", "cast", "clamp", "div",
    "unsqueeze", "reshape", "full", "pad", "index_add", "cumsum", "slice",
)  # fmt: skip
def embedding_bag(call: Call) -> Made:
    """embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
    per_sample_weights, include_last_offset, padding_idx): but largest elements."""
    table, ids, offsets, mode = (call[name] for name in ("weight", "indices", "offsets", "mode"))
    if mode not in (_SUM, _MEAN) or call["sparse"] or call["scale_grad_by_freq"]:
        return None
    if any(user.args[1:] != (0,) for user in call.node.users):  # how long bags are is asked for
        return None
    sizes = (*table.type.shape, *ids.type.shape, *offsets.type.shape)
    if ids.type.rank != 1 or any(type(size) is not int for size in sizes):
        return None
    padding = -1 if call["padding_idx"] is None else call["padding_idx"] % table.type.shape[0]
    column: Any = (*ids.type.shape, 1)
    rows = call.emit("embedding", table, ids, wish="rows", padding_idx=padding)
    counted: Value | None = None
    if padding >= 0:
        held = call.emit("ne", ids, padding, wish="held")
        counted = call.cast(held, table.type.dtype, "counted")
        whole = call.emit("reshape", held, wish="whole", shape=column)
        rows = call.emit("where", whole, rows, 0, wish="kept")
    weights = call["per_sample_weights"]
    if weights is not None:
        each = call.emit("reshape", weights, wish="each", shape=column)
        rows = call.emit("mul", rows, each, wish="weighted")
    sums = _Bags(call)
    if mode == _SUM:
        return sums.of(rows, ""), None, None, None
    if counted is None:
        dtype = table.type.dtype.name
        counted = call.emit("full", wish="ones", shape=column[:1], value=1, dtype=dtype)
    total = sums.of(rows, "total")
    many = call.emit("clamp", sums.of(counted, "count"), wish="many", min=1)
    many = call.emit("unsqueeze", many, wish="sizes", dim=1)
    return call.emit("div", total, many), None, None, None


class _Bags:
    """Sums over bags, of values of which each index has one; final."""

    def __init__(self, call: Call) -> None:
        self.call = call
        (self.length,) = call["indices"].type.shape
        (offsets,) = call["offsets"].type.shape
        self.bags = offsets - bool(call["include_last_offset"])
        self.each = _equal(call.node, self.length, self.bags)
        self.places = None if self.each else self._placed(offsets)

    def of(self, values: Value, wish: str) -> Value:
        call, rest = self.call, values.type.shape[1:]
        if self.places is None:
            shape: Any = (self.bags, self.each, *rest)
            parted = call.emit("reshape", values, wish=f"{wish}_parted", shape=shape)
            return call.emit("sum", parted, wish=wish, dims=(1,))
        # One more than there are: where the last offset is an end, indices may be behind it.
        extra = self.bags + bool(call["include_last_offset"])
        attrs: dict[str, Any] = {"shape": (extra, *rest), "dtype": values.type.dtype.name}
        nothing = call.emit("full", wish=f"{wish}_nothing", value=0, **attrs)
        made = call.emit("index_add", nothing, self.places, values, wish=f"{wish}_all", dim=0)
        return call.emit("slice", made, wish=wish, dim=0, stop=self.bags)

    def _placed(self, offsets: int) -> Value:
        """Return the bag of each index: how many offsets are not behind it, counted from -1."""
        call, begins = self.call, self.call["offsets"]
        first = call.emit("full", wish="first", shape=(1,), value=-1, dtype="i32")
        unmarked = call.emit("pad", first, wish="unmarked", pad=(0, self.length))
        one = call.emit("full", wish="one", shape=(offsets,), value=1, dtype="i32")
        marked = call.emit("index_add", unmarked, begins, one, wish="marked", dim=0)
        begun = call.emit("cumsum", marked, wish="begun", dim=0)
        return call.emit("slice", begun, wish="bags", dim=0, stop=self.length)


def _equal(node: fx.Node, length: int, bags: int) -> int:
    """Return how many indices each bag has if offsets are a range that says so; else 0.

    It is how torch calls for a matrix of indices.
    """
    offsets = node.args[2] if len(node.args) > 2 else node.kwargs.get("offsets")
    if not isinstance(offsets, fx.Node) or bags == 0:
        return 0
    if offsets.target is not torch.ops.aten.arange.start_step:
        return 0
    each = length // bags
    return each if tuple(offsets.args[:3]) == (0, length, each) and each * bags == length else 0
