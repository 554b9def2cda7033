"""Rules for gathers and scatters.

The idea: an index is a tensor of integers, or a mask with one number to put where it holds; a
reduction that torch names becomes the operator of that name, what `include_self` leaves out is
first overwritten by what the reduction starts from.
This module does not know the overloads' names.
"""

import math
from typing import Any

import torch

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.walk import add_constant
from tilewright.graph.ir import Value

_MOST = 256  # boundaries that are counted one by one; torch halves a longer row


@reads("one_hot")
def one_hot(call: Call) -> Made:
    """one_hot(self, num_classes)."""
    return call.emit("one_hot", call["self"], classes=call["num_classes"])


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


@reads("index_put", "where", "reshape")
def index_put(call: Call) -> Made:
    """index_put(self, indices, values, accumulate), by tensors from the first dim on, or a mask."""
    dims, ids = _by_tensors(call["indices"])
    if ids is None and dims == (0,):
        return _put_where(call, call["indices"][0])
    if ids is None or None in call["indices"]:
        return None
    attrs: dict[str, Any] = {"dims": dims, "accumulate": bool(call["accumulate"])}
    return call.emit("index_put", call["self"], call["values"], *ids, **attrs)


def _put_where(call: Call, mask: Value) -> Made:
    """x[mask] = one number: a choice, as no place depends on how many hold."""
    value, put = call["self"], call["values"]
    if mask.type.dtype.name != "bool" or call["accumulate"]:
        return None
    if math.prod(put.type.shape) != 1:
        return None
    single = call.emit("reshape", put, wish="one", shape=())
    lacking = value.type.rank - mask.type.rank
    if lacking:
        shape = (*mask.type.shape, *(1,) * lacking)
        mask = call.emit("reshape", mask, wish="mask", shape=shape)
    return call.emit("where", mask, call.cast(single, value.type.dtype), value)


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


@reads("full", "reshape", "scatter")
def max_unpool(call: Call) -> Made:
    """max_unpool(self, indices, output_size, ...): each element at its place in the flat plane."""
    value, size = call["self"], tuple(call["output_size"])
    lead = value.type.shape[: value.type.rank - len(size)]
    flat = (*lead, math.prod(value.type.shape[len(lead) :]))
    source = call.emit("reshape", value, wish="source", shape=flat)
    places = call.emit("reshape", call["indices"], wish="places", shape=flat)
    shape, dtype = (*lead, math.prod(size)), value.type.dtype.name
    nothing = call.emit("full", wish="nothing", shape=shape, value=0, dtype=dtype)
    put = call.emit("scatter", nothing, places, source, wish="put", dim=-1)
    return call.emit("reshape", put, shape=(*lead, *size))


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


# ---------------------------------------------------------------------------- reductions by place


@reads("scatter", "scatter_add", "scatter_max", "scatter_min", "full", "div", "clamp")
def scatter_reduce(call: Call) -> Made:
    """scatter_reduce(self, dim, index, src, reduce, include_self): but products."""
    value, ids, src, how = call["self"], call["index"], call["src"], call["reduce"]
    start = {"sum": 0.0, "mean": 0.0, "amax": -math.inf, "amin": math.inf}.get(how)
    floating = value.type.dtype.kind == "float"
    if start is None or not (floating or (how != "mean" and call["include_self"])):
        return None
    dim: dict[str, Any] = {"dim": call["dim"] if value.type.rank else 0}
    if value.type.rank == 0:
        return None
    if not call["include_self"]:
        if how in ("amax", "amin"):  # a tie with the start would share the gradient
            return None
        begin = _filled(call, ids, value, start, "begin")
        value = call.emit("scatter", value, ids, begin, wish="kept", **dim)
    if how in ("amax", "amin"):
        return call.emit(f"scatter_{how[1:]}", value, ids, src, **dim)
    if how == "sum":
        return call.emit("scatter_add", value, ids, src, **dim)
    total = call.emit("scatter_add", value, ids, src, wish="total", **dim)
    held = _filled(call, value, value, 1.0 if call["include_self"] else 0.0, "held")
    each = _filled(call, ids, value, 1.0, "each")
    count = call.emit("scatter_add", held, ids, each, wish="count", **dim)
    some = call.emit("clamp", count, wish="some", min=1.0)
    return call.emit("div", total, some)


def _filled(call: Call, like: Value, typed: Value, number: float, wish: str) -> Value:
    """A tensor of one number, of the shape of one value and the type of another."""
    shape: Any = like.type.shape
    return call.emit("full", wish=wish, shape=shape, value=number, dtype=typed.type.dtype.name)


@reads("index_copy")
def index_copy(call: Call) -> Made:
    """index_copy(self, dim, index, source)."""
    return call.emit("index_copy", call["self"], call["index"], call["source"], dim=call["dim"])


@reads("full", "index_copy", "reshape", "where")
def index_fill(call: Call) -> Made:
    """index_fill(self, dim, index, value): a choice, so that the gradient of a value counts once in
    each place, however often the index names it."""
    value, put = call["self"], call["value"]
    rank = value.type.rank
    if not rank:
        return None
    dim = call["dim"] % rank
    size, (count,) = value.type.shape[dim], call["index"].type.shape
    nothing = call.emit("full", wish="nothing", shape=(size,), value=False, dtype="bool")
    there = call.emit("full", wish="there", shape=(count,), value=True, dtype="bool")
    hit = call.emit("index_copy", nothing, call["index"], there, wish="hit", dim=0)
    shape = tuple(size if at == dim else 1 for at in range(rank))
    chosen = call.emit("reshape", hit, wish="chosen", shape=shape)
    typed = call.cast(put, value.type.dtype) if isinstance(put, Value) else put
    return call.emit("where", chosen, typed, value)


@reads("reshape", "index")
def take(call: Call) -> Made:
    """take(self, index): elements by their position in row-major order."""
    value: Value = call["self"]
    count = math.prod(int(size) for size in value.type.shape if isinstance(size, int))
    flat = call.emit("reshape", value, wish="flat", shape=(count,))
    return call.emit("index", flat, call["index"], dims=(0,))


@reads("diagonal_scatter")
def diagonal_scatter(call: Call) -> Made:
    """diagonal_scatter(self, src, offset, dim1, dim2)."""
    attrs = {name: call[name] for name in ("offset", "dim1", "dim2")}
    return call.emit("diagonal_scatter", call["self"], call["src"], **attrs)


def counted(row: str, values: str) -> Rule:
    """searchsorted(sorted_sequence, self, out_int32, right), bucketize(self, boundaries, ...)."""

    @reads("searchsorted")
    def rule(call: Call) -> Made:
        line, found = call[row], call[values]
        if call.arguments.get("sorter") is not None or not isinstance(found, Value):
            return None
        if line.type.shape[-1] > _MOST or not (line.type.rank == 1 or line.type.rank ==
                                               found.type.rank):  # fmt: skip
            return None
        right = bool(call["right"]) or call.arguments.get("side") == "right"
        attrs: dict[str, Any] = {"right": right, "dtype": call.result.dtype.name}
        return call.emit("searchsorted", line, found, **attrs)

    return rule


@reads("index", "sub", "vector_norm")
def pair_distances(call: Call) -> Made:
    """_pdist_forward(self, p): the distances of all pairs of rows, the first before the second."""
    value, order = call["self"], call["p"]
    if math.isinf(order) or order == 0:
        return None
    rows = int(value.type.shape[0])
    places = torch.triu_indices(rows, rows, 1)
    ids = [
        add_constant(call.walk, places[at].contiguous(), f"{call.node.name}_rows{at}", call.origin)
        for at in range(2)
    ]
    first, second = (
        call.emit("index", value, one, wish=f"row{at}", dims=(0,)) for at, one in enumerate(ids)
    )
    away = call.emit("sub", first, second, wish="away")
    return call.emit("vector_norm", away, ord=order, dims=(1,))


@reads("unsqueeze", "reshape", "eq", "any", "logical_not")
def is_in(call: Call) -> Made:
    """isin(elements, test_elements, assume_unique, invert): equal to one of a few."""
    value, among = call["elements"], call["test_elements"]
    count = math.prod(among.type.shape)
    if count > _MOST or value.type.dtype != among.type.dtype:
        return None
    row = call.emit("reshape", among, wish="row", shape=(count,))
    each = call.emit("unsqueeze", value, wish="each", dim=-1)
    equal = call.emit("eq", each, row, wish="equal")
    if not call["invert"]:
        return call.emit("any", equal, dims=(-1,))
    found = call.emit("any", equal, wish="found", dims=(-1,))
    return call.emit("logical_not", found)


@reads()
def triangle(call: Call) -> Made:
    """tril_indices(row, col, offset), triu_indices: a constant."""
    name = str(call.node.target).split(".")[1]
    of = torch.tril_indices if name == "tril_indices" else torch.triu_indices
    places = of(call["row"], call["col"], call["offset"]).to(call.node.meta["val"].dtype)
    return add_constant(call.walk, places, call.node.name, call.origin)
