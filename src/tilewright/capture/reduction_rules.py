"""Rules for reductions, running results and orders.

The idea: ATen's `dim` is one dim, several, none or all; `dtype=` is a cast before.  What puts
elements in order stays torch's as to where they go; the values are gathered by it.
This module does not know the overloads' names.
"""

from typing import Any

from tilewright.base.sizes import greatest_of
from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.library_call import library_attrs
from tilewright.capture.walk import tensor_type
from tilewright.graph.ir import LIBRARY

_LONGEST = 64  # of a dim whose running logarithms are loops in loops; longer ones are torch's


def reduce(operator: str, *attributes: str) -> Rule:
    """op(self, dim, keepdim, attributes...), `dtype` first: dim is one, several, none or all."""

    @reads(operator)
    def rule(call: Call) -> Made:
        value = call["self"]
        wanted = call.dtype("dtype") if "dtype" in call.arguments else None
        if wanted is not None:
            value = call.cast(value, wanted)
        dims = dims_of(call.arguments.get("dim"))
        keepdim = bool(call.arguments.get("keepdim", False))
        extra = {name: call[name] for name in attributes if call[name] is not None}
        return call.emit(operator, value, dims=dims, keepdim=keepdim, **extra)

    return rule


def dims_of(dim: Any) -> tuple[int, ...] | None:
    """Return the dims that ATen's `dim` names: None stands for all, and so does an empty list."""
    if dim is None or dim == []:
        return None
    return tuple(dim) if isinstance(dim, list) else (dim,)


def argument(operator: str) -> Rule:
    """argmax(self, dim, keepdim)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        return call.emit(operator, call["self"], dim=call["dim"], keepdim=call["keepdim"])

    return rule


def reduce_pair(operator: str) -> Rule:
    """max(self, dim, keepdim) -> (values, indices)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        attrs = {"dim": call["dim"], "keepdim": call["keepdim"]}
        return call.emit_all(operator, call["self"], wishes=("values", "indices"), **attrs)

    return rule


def extreme(operator: str) -> Rule:
    """max(self) over everything."""

    @reads(operator)
    def rule(call: Call) -> Made:
        return call.emit(operator, call["self"])

    return rule


@reads("logsumexp")
def log_sum_exp(call: Call) -> Made:
    """logsumexp(self, dim, keepdim)."""
    dims = dims_of(call["dim"]) or tuple(range(call["self"].type.rank))
    return call.emit("logsumexp", call["self"], dims=dims, keepdim=call["keepdim"])


@reads("vector_norm")
def vector_norm(call: Call) -> Made:
    """linalg_vector_norm(self, ord, dim, keepdim, dtype)."""
    attrs = {"ord": call["ord"], "dims": dims_of(call["dim"]), "keepdim": call["keepdim"]}
    wanted = call.dtype("dtype")
    value = call["self"] if wanted is None else call.cast(call["self"], wanted)
    return call.emit("vector_norm", value, **attrs)


@reads("vector_norm")
def norm(call: Call) -> Made:
    """norm(self, p, dim, keepdim, dtype): the norm of all elements, or along dims."""
    order = 2 if call["p"] is None else call["p"]
    wanted = call.dtype("dtype") if "dtype" in call.arguments else None
    value = call["self"] if wanted is None else call.cast(call["self"], wanted)
    dims, keepdim = dims_of(call.arguments.get("dim")), bool(call.arguments.get("keepdim"))
    return call.emit("vector_norm", value, ord=order, dims=dims, keepdim=keepdim)


@reads("sub", "vector_norm")
def dist(call: Call) -> Made:
    """dist(self, other, p): the norm of a difference."""
    away = call.emit("sub", call["self"], call["other"], wish="away")
    return call.emit("vector_norm", away, ord=call["p"])


def running(operator: str) -> Rule:
    """op(self, dim, dtype)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        wanted = call.dtype("dtype") if "dtype" in call.arguments else None
        value = call["self"] if wanted is None else call.cast(call["self"], wanted)
        return call.emit(operator, value, dim=call["dim"])

    return rule


def running_pair(operator: str) -> Rule:
    """op(self, dim) -> (values, indices)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        wishes = ("values", "indices")
        return call.emit_all(operator, call["self"], wishes=wishes, dim=call["dim"])

    return rule


@reads("logcumsumexp")
def running_logarithm(call: Call) -> Made:
    """logcumsumexp(self, dim), where it is short: the loops are quadratic."""
    shape, dim = call["self"].type.shape, call["dim"]
    if shape and greatest_of(shape[dim]) > _LONGEST:
        return None
    return call.emit("logcumsumexp", call["self"], dim=dim)


# ---------------------------------------------------------------------------- two results


def moments(operator: str) -> Rule:
    """var_mean(self, dim, correction, keepdim) -> (var, mean)."""

    @reads(operator, "mean")
    def rule(call: Call) -> Made:
        value, keepdim, dims = call["self"], bool(call["keepdim"]), dims_of(call["dim"])
        correction = 1 if call["correction"] is None else call["correction"]
        attrs: dict[str, Any] = {"dims": dims, "keepdim": keepdim}
        spread = call.emit(operator, value, wish="0", correction=correction, **attrs)
        return spread, call.emit("mean", value, wish="1", **attrs)

    return rule


@reads("var")
def unbiased_var(call: Call) -> Made:
    """var(self, dim, unbiased, keepdim)."""
    correction = 1 if call["unbiased"] else 0
    attrs: dict[str, Any] = {"dims": dims_of(call["dim"]), "keepdim": bool(call["keepdim"])}
    return call.emit("var", call["self"], correction=correction, **attrs)


@reads("amin", "amax")
def both_extremes(call: Call) -> Made:
    """aminmax(self, dim, keepdim) -> (min, max)."""
    attrs: dict[str, Any] = {"dims": dims_of(call["dim"]), "keepdim": bool(call["keepdim"])}
    low = call.emit("amin", call["self"], wish="min", **attrs)
    return low, call.emit("amax", call["self"], wish="max", **attrs)


@reads("count_nonzero")
def count_nonzero(call: Call) -> Made:
    """count_nonzero(self, dim)."""
    return call.emit("count_nonzero", call["self"], dims=dims_of(call["dim"]))


# ---------------------------------------------------------------------------- orders

_SORTS = "torch finds the order: no loop nest says a sort; values are gathered by it"


@reads("gather", "unsqueeze", "squeeze", opaque=_SORTS)
def ordered(call: Call) -> Made:
    """sort, topk, kthvalue, median, mode -> (values, indices): the values, gathered anew.

    So the gradient is that of a gather, and no sort is run again for it.
    """
    value, rank = call["self"], call["self"].type.rank
    dim = call["dim"] % max(rank, 1)
    operands, attrs = library_attrs(call.walk, call.node)
    attrs["outputs"] = (1,)
    traced = tensor_type(call.node.meta["val"][1], call.origin)
    (places,) = call.walk.builder.multi(
        LIBRARY, operands, (traced,), attrs=attrs, origin=call.origin,
        names=(f"{call.node.name}_indices",),
    )  # fmt: skip
    if traced.rank == rank:
        return call.emit("gather", value, places, wish="values", dim=dim), places
    kept = call.emit("unsqueeze", places, wish="kept", dim=dim)
    picked = call.emit("gather", value, kept, wish="picked", dim=dim)
    return call.emit("squeeze", picked, wish="values", dims=(dim,)), places
