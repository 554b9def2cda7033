"""Rules for contractions, norms, losses, windows and attention.

The idea: a composite operator of ours takes the tensors that are there; one that is left out is not
passed, and results that only torch's own backward reads are left out.
This module does not know the overloads' names.
"""

import math
from typing import Any

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.template import dtype_of
from tilewright.graph.ir import Value

# ---------------------------------------------------------------------------- contractions, norms


def contract(operator: str, *operands: str, **attributes: str) -> Rule:
    """op(operands...), all of one element type; attributes of ours by ATen's names."""

    @reads(operator)
    def rule(call: Call) -> Made:
        values = [call[name] for name in operands if call[name] is not None]
        if len({value.type.dtype for value in values}) > 1:
            return None
        return call.emit(
            operator, *values, **{ours: call[theirs] for ours, theirs in attributes.items()}
        )

    return rule


def added_product(operator: str, left: str, right: str) -> Rule:
    """op(self, left, right, beta, alpha) --> beta self + alpha (left right), batches summed."""

    @reads(operator, "sum", "mul", "add")
    def rule(call: Call) -> Made:
        value, a, b = call["self"], call[left], call[right]
        if not _one_type(value, a, b):
            return None
        product = call.emit(operator, a, b, wish="product")
        if operator == "bmm":
            product = call.emit("sum", product, wish="sum", dims=(0,))
        alpha, beta = call["alpha"], call["beta"]
        if beta == 0:  # torch does not read self at all: NaN in it does not spread
            return call.emit("mul", product, alpha)
        if beta != 1:
            value = call.emit("mul", value, beta, wish="scaled")
        return call.emit("add", value, product, alpha=alpha)

    return rule


def softmax(operator: str) -> Rule:
    """softmax(self, dim, dtype)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        wanted = call.dtype("dtype") if "dtype" in call.arguments else None
        if call.arguments.get("half_to_float"):
            return None
        value = call["self"] if wanted is None else call.cast(call["self"], wanted)
        return call.emit(operator, value, dim=call["dim"])

    return rule


@reads("eq", "all", "masked_fill", "softmax")
def safe_softmax(call: Call) -> Made:
    """_safe_softmax(self, dim, dtype): a row of nothing but -inf gives zeros, and no gradient."""
    if call["dtype"] is not None:
        return None
    value, dim = call["self"], call["dim"]
    absent = call.emit("eq", value, float("-inf"), wish="absent")
    empty = call.emit("all", absent, wish="empty", dims=(dim,), keepdim=True)
    # Zeros before and after: a softmax of -inf alone is NaN, and so would its gradient be.
    scores = call.emit("masked_fill", value, empty, 0.0, wish="scores")
    share = call.emit("softmax", scores, wish="share", dim=dim)
    return call.emit("masked_fill", share, empty, 0.0)


@reads("layer_norm")
def layer_norm(call: Call) -> Made:
    """layer_norm(input, normalized_shape, weight, bias, eps)."""
    operands = _affine(call)
    if operands is None:
        return None
    return call.emit("layer_norm", *operands, dims=len(call["normalized_shape"]), eps=call["eps"])


@reads("rms_norm")
def rms_norm(call: Call) -> Made:
    """rms_norm(input, normalized_shape, weight, eps)."""
    operands = _affine(call)
    if operands is None:
        return None
    return call.emit("rms_norm", *operands, dims=len(call["normalized_shape"]), eps=call["eps"])


@reads("group_norm")
def group_norm(call: Call) -> Made:
    """group_norm(input, num_groups, weight, bias, eps)."""
    operands = _affine(call)
    if operands is None:
        return None
    return call.emit("group_norm", *operands, groups=call["num_groups"], eps=call["eps"])


def _affine(call: Call) -> list[Value] | None:
    """Return input, weight and bias; None where there is a bias but no weight, or types differ."""
    values = [call["input"], call["weight"], call.arguments.get("bias")]
    if values[1] is None and values[2] is not None:
        return None
    found = [value for value in values if value is not None]
    return found if len({value.type.dtype for value in found}) == 1 else None


@reads("batch_norm")
def batch_norm_training(call: Call) -> Made:
    """_native_batch_norm_legit_functional(...) -> (y, saved, saved, mean, var); `saved` is not
    for users."""
    operands = [call["input"], call["running_mean"], call["running_var"]]
    if not call["training"] or _reads_saved(call):
        return None
    affine = [call["weight"], call["bias"]]
    if affine[0] is None and affine[1] is not None:
        return None
    operands += [value for value in affine if value is not None]
    attrs = {"momentum": call["momentum"], "eps": call["eps"]}
    y, *statistics = call.emit_all("batch_norm", *operands, wishes=("y", "mean", "var"), **attrs)
    # torch traces the statistics of 16-bit data as float32; what it computes is of their own type.
    for at, traced in enumerate(call.node.meta["val"][3:]):
        dtype = dtype_of(traced.dtype)
        assert dtype is not None, "the operands were read"
        statistics[at] = call.cast(statistics[at], dtype)
    return (y, None, None, *statistics)


@reads("batch_norm_fresh")
def batch_norm_fresh(call: Call) -> Made:
    """_native_batch_norm_legit.no_stats(...) -> (y, saved, saved)."""
    operands = [call[name] for name in ("input", "weight", "bias") if call[name] is not None]
    if not call["training"] or _reads_saved(call):
        return None
    if call["weight"] is None and call["bias"] is not None:
        return None
    made = call.emit("batch_norm_fresh", *operands, wish="y", eps=call["eps"])
    return (made, None, None)


@reads("batch_norm_eval")
def batch_norm_inference(call: Call) -> Made:
    """_native_batch_norm_legit_no_training(...) -> (y, saved, saved)."""
    operands = [call["input"], call["running_mean"], call["running_var"]]
    if _reads_saved(call) or (call["weight"] is None and call["bias"] is not None):
        return None
    operands += [call[name] for name in ("weight", "bias") if call[name] is not None]
    made = call.emit("batch_norm_eval", *operands, wish="y", eps=call["eps"])
    return (made, None, None)


def _reads_saved(call: Call) -> bool:
    """Tell whether anyone reads the statistics saved for backward, results 1 and 2."""
    return any(user.args[1] in (1, 2) for user in call.node.users)


@reads("layer_norm")
def layer_norm_native(call: Call) -> Made:
    """native_layer_norm(...) -> (y, mean, rstd), of which only the first is read."""
    if any(user.args[1] != 0 for user in call.node.users):
        return None
    operands = _affine(call)
    if operands is None:
        return None
    dims = len(call["normalized_shape"])
    made = call.emit("layer_norm", *operands, wish="y", dims=dims, eps=call["eps"])
    return (made, None, None)


@reads("group_norm")
def group_norm_native(call: Call) -> Made:
    """native_group_norm(...) -> (y, mean, rstd), of which only the first is read."""
    if any(user.args[1] != 0 for user in call.node.users):
        return None
    operands = _affine(call)
    if operands is None:
        return None
    made = call.emit("group_norm", *operands, wish="y", groups=call["group"], eps=call["eps"])
    return (made, None, None)


@reads("vector_norm", "div", "mul", "stop_gradient")
def weight_norm(call: Call) -> Made:
    """_weight_norm_interface(v, g, dim) -> (v g / norm, norm), of every slice along a dim; the
    norm is for torch's own backward."""
    v, g = call["v"], call["g"]
    if not _one_type(v, g):
        return None
    rest = tuple(dim for dim in range(v.type.rank) if dim != call["dim"] % v.type.rank)
    length = call.emit("vector_norm", v, wish="norm", dims=rest, keepdim=True)
    scale = call.emit("div", g, length, wish="scale")
    weight = call.emit("mul", v, scale, wish="weight")
    return weight, call.emit("stop_gradient", length, wish="length")


@reads("cdist")
def distances(call: Call) -> Made:
    """_cdist_forward(x1, x2, p, compute_mode): of every row from every other."""
    if math.isinf(call["p"]) or not _one_type(call["x1"], call["x2"]):
        return None  # torch gives every element that is as far the whole gradient
    return call.emit("cdist", call["x1"], call["x2"], p=call["p"])


# ---------------------------------------------------------------------------- losses


_REDUCTIONS = ("none", "mean", "sum")


def loss(operator: str, *attributes: str) -> Rule:
    """op(self, target, reduction, attributes...) of an input and a target of its type and shape;
    a weight multiplies each element's loss."""

    @reads(operator, "mul", "mean", "sum")
    def rule(call: Call) -> Made:
        value, target, weight = call["self"], call["target"], call.arguments.get("weight")
        if value.type != target.type:
            return None
        operands = [value, target]
        if call.arguments.get("pos_weight") is not None:
            operands.append(call["pos_weight"])
        attrs = {name: call[name] for name in attributes}
        how = _REDUCTIONS[call["reduction"]]
        if weight is None:
            return call.emit(operator, *operands, reduction=how, **attrs)
        if not _one_type(value, weight):
            return None
        each = call.emit(operator, *operands, wish="each", reduction="none", **attrs)
        if how == "none":
            return call.emit("mul", each, weight)
        return call.emit(how, call.emit("mul", each, weight, wish="weighted"))

    return rule


@reads("cross_entropy")
def cross_entropy(call: Call) -> Made:
    """cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing)."""
    value, target, weight = call["self"], call["target"], call["weight"]
    if target.type.dtype.kind == "float" and value.type != target.type:
        return None
    if weight is not None and not _one_type(value, weight):
        return None
    return call.emit(
        "cross_entropy",
        value,
        target,
        *([] if weight is None else [weight]),
        reduction=_REDUCTIONS[call["reduction"]],
        ignore_index=call["ignore_index"],
        label_smoothing=float(call["label_smoothing"]),
    )


@reads("multi_margin_loss")
def multi_margin_loss(call: Call) -> Made:
    """multi_margin_loss(self, target, p, margin, weight, reduction) of rows."""
    value, weight = call["self"], call["weight"]
    if value.type.rank != 2 or (weight is not None and not _one_type(value, weight)):
        return None
    operands = [value, call["target"], *([] if weight is None else [weight])]
    attrs = {"p": call["p"], "margin": float(call["margin"])}
    how = _REDUCTIONS[call["reduction"]]
    return call.emit("multi_margin_loss", *operands, reduction=how, **attrs)


@reads("nll_loss")
def nll_loss(call: Call) -> Made:
    """nll_loss_forward(self, target, weight, reduction, ignore_index) -> (loss, total weight)."""
    if any(user.args[1] != 0 for user in call.node.users):
        return None
    operands = [call["self"], call["target"]]
    if call["weight"] is not None:
        operands.append(call["weight"])
    attrs = {"reduction": _REDUCTIONS[call["reduction"]], "ignore_index": call["ignore_index"]}
    return (call.emit("nll_loss", *operands, wish="loss", **attrs), None)


def _one_type(*values: Value) -> bool:
    return len({value.type.dtype for value in values}) == 1


# ---------------------------------------------------------------------------- windows, attention


def convolution(operator: str, rank: int) -> Rule:
    """conv2d(input, weight, bias, stride, padding, dilation, groups), with a batch."""

    @reads(operator)
    def rule(call: Call) -> Made:
        operands = [call[name] for name in ("input", "weight", "bias") if call[name] is not None]
        if not _one_type(*operands) or call["input"].type.rank != rank + 2:
            return None
        attrs: dict[str, Any] = {
            name: _window(call[name], rank) for name in ("stride", "padding", "dilation")
        }
        return call.emit(operator, *operands, groups=call["groups"], **attrs)

    return rule


def _window(value: list[int], rank: int) -> int | tuple[int, ...]:
    numbers = tuple(value) * (rank if len(value) == 1 else 1)
    return numbers[0] if rank == 1 else numbers


@reads("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def any_convolution(call: Call) -> Made:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups), with a batch."""
    operands = [call[name] for name in ("input", "weight", "bias") if call[name] is not None]
    rank = call["input"].type.rank - 2
    if not _one_type(*operands) or rank not in (1, 2, 3):
        return None
    names = ["stride", "padding", "dilation", *(["output_padding"] if call["transposed"] else [])]
    attrs: dict[str, Any] = {name: _window(call[name], rank) for name in names}
    operator = f"conv_transpose{rank}d" if call["transposed"] else f"conv{rank}d"
    return call.emit(operator, *operands, groups=call["groups"], **attrs)


def columns(operator: str, *more: str) -> Rule:
    """im2col(self, kernel_size, dilation, padding, stride), col2im with output_size."""

    @reads(operator)
    def rule(call: Call) -> Made:
        names = (*more, "kernel_size", "dilation", "padding", "stride")
        attrs: dict[str, Any] = {name: _window(call[name], 2) for name in names}
        return call.emit(operator, call["self"], **attrs)

    return rule


def pool(operator: str, rank: int, *attributes: str) -> Rule:
    """max_pool2d(self, kernel_size, stride, ...): lists of one number stand for all dims."""

    @reads(operator)
    def rule(call: Call) -> Made:
        return call.emit(operator, call["self"], **_pool_attrs(call, rank, attributes))

    return rule


def pool_pair(operator: str, rank: int, *attributes: str) -> Rule:
    """max_pool2d_with_indices(...) -> (values, indices); where nobody reads these, values alone."""
    both = f"{operator}_with_indices"

    @reads(operator, both)
    def rule(call: Call) -> Made:
        attrs = _pool_attrs(call, rank, attributes)
        if all(user.args[1] == 0 for user in call.node.users):
            return (call.emit(operator, call["self"], wish="values", **attrs), None)
        return call.emit_all(both, call["self"], wishes=("values", "indices"), **attrs)

    return rule


def adaptive_max(operator: str, rank: int) -> Rule:
    """adaptive_max_pool2d(self, output_size) -> (values, indices)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        size = _window(call["output_size"], rank)
        return call.emit_all(operator, call["self"], wishes=("values", "indices"), output_size=size)

    return rule


def _pool_attrs(call: Call, rank: int, attributes: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: _window(call[name], rank) if isinstance(call[name], list) else call[name]
        for name in attributes
        if call[name] != []
    }


@reads("attention")
def attention(call: Call) -> Made:
    """scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)."""
    operands = [call["query"], call["key"], call["value"]]
    if call["dropout_p"] or not _one_type(*operands):
        return None
    query, key, value = (operand.type.shape for operand in operands)
    if len({len(query), len(key), len(value)}) > 1 or key[:-2] != value[:-2]:
        return None
    grouped = len(query) > 3 and query[-3] != key[-3]
    if query[: -3 if grouped else -2] != key[: -3 if grouped else -2]:
        return None
    if call["attn_mask"] is not None:
        operands.append(call["attn_mask"])
    attrs = {"causal": bool(call["is_causal"]), "scale": call["scale"]}
    return call.emit_all("attention", *operands, wishes=("", "logsumexp"), **attrs)[0]
