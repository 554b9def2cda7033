"""Library calls: which ATen operator serves a node, and how its operands fill the arguments.

The idea: a node that captured an ATen call is that call; an operator of ours that ATen has a good
kernel for (attention, convolution) is mapped by a rule that says when the call means the same.

This module does not know buffers: it gives a target and templates, the assembler gives the views.
"""

import math
from dataclasses import dataclass

from tilewright.graph.ir import LIBRARY, Attr, Node, TensorType
from tilewright.graph.total import fixed
from tilewright.kernels import is_rounded
from tilewright.program import Layer, Template, Vjp, layer_of

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"


@dataclass(frozen=True, slots=True)
class Call:
    """`target(*args, **kwargs)` over the node's operands; `results` are those the node keeps."""

    target: str
    args: tuple[Template, ...]
    kwargs: tuple[tuple[str, Template], ...] = ()
    results: tuple[int, ...] = ()
    vjp: Vjp | None = None
    through: tuple[Layer, ...] = ()


# What no loop nest says: which element comes first.
_ORDERS = frozenset({"sort", "topk", "kthvalue", "median", "nanmedian", "mode"})


def reason_of(node: Node) -> str:
    """Say why the library computes a node, in the words of `explain`."""
    if node.op != LIBRARY:
        return node.op
    if dict(node.attrs).get("random"):
        return "draws from torch's generator"
    name = str(node.attr("target")).removeprefix("aten.").split(".", 1)[0]
    return "torch finds the order" if name in _ORDERS else "no operator of the table"


# Operations of the two products of an attention up to which its loops, which stay in native code
# with what is around them, take less time than a call to the library, where it is not streamed.
SMALL_ATTENTION = 10_000_000


def served(node: Node) -> bool:
    """Say whether the library is to compute a composite operator as it stands."""
    parts = attention_types(node)
    if parts is not None and not is_large(*parts[0][:2]):
        return False
    return serve(node) is not None


def is_large(q: TensorType, k: TensorType) -> bool:
    """Say whether an attention is worth a library call; where sizes vary, it is, and in half types,
    which our attention does not take."""
    batch, rows = [fixed(dim) for dim in q.shape[:-1]], fixed(k.shape[-2])
    extents = (*batch, rows, fixed(q.shape[-1]))
    if is_rounded(q.dtype) or any(type(extent) is not int for extent in extents):
        return True
    return 4 * math.prod(extents) > SMALL_ATTENTION


def serve(node: Node) -> Call | None:
    """Return the library call that computes a node without loops, or None."""
    if node.op == LIBRARY:
        return _captured(node)
    parts = attention_types(node)
    if parts is None or not flash_takes(*parts):
        return None
    if any(mask.dtype != parts[0][0].dtype for mask in parts[1]):
        return None
    return _attention(node) if node.op == "attention" else _attention_grad(node)


def _captured(node: Node) -> Call:
    attrs = dict(node.attrs)
    args, kwargs = attrs["args"], attrs["kwargs"]
    assert isinstance(args, tuple) and isinstance(kwargs, tuple), "a library node has arguments"
    named: list[tuple[str, Template]] = []
    for item in kwargs:
        assert isinstance(item, tuple) and isinstance(item[0], str), "keyword arguments are pairs"
        named.append((item[0], item[1]))
    # Results are counted as torch gives them, those that are no tensors too.
    kept = _positions(attrs["outputs"]) if "outputs" in attrs else (0,)
    target, through = str(attrs["target"]), attrs.get("through", ())
    assert isinstance(through, tuple), "derivatives taken so far are a tuple"
    match through:
        case ():
            return Call(target, args, tuple(named), kept)
        case (("gradient", wrt, results),):
            tangents = tuple(kept[at] for at in _positions(results))
            return Call(target, args, tuple(named), (), Vjp(_positions(wrt), tangents))
    layers = tuple(layer_of(item) for item in through)
    return Call(target, args, tuple(named), kept, None, layers)


def _positions(attr: Attr) -> tuple[int, ...]:
    assert isinstance(attr, tuple), "positions are a tuple"
    return tuple(item for item in attr if isinstance(item, int))


# ---------------------------------------------------------------------------------- attention


def flash_takes(types: tuple[TensorType, ...], masks: tuple[TensorType, ...]) -> bool:
    """ATen's CPU flash kernel takes q, k, v of rank 4, one floating type and one head count, and a
    mask of rank 2 or 4."""
    q, k, v = types
    if any(mask.rank not in (2, 4) for mask in masks):
        return False
    if any(t.rank != 4 or 0 in t.shape or t.dtype != q.dtype for t in (q, k, v)):
        return False
    same_heads = q.shape[:2] == k.shape[:2] == v.shape[:2]
    return same_heads and q.shape[3] == k.shape[3] == v.shape[3] and q.dtype.kind == "float"


def attention_types(
    node: Node,
) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]] | None:
    """Return the types of (q, k, v) and of the mask, if any; None for other operators."""
    first = {"attention": 0, "attention_grad": 3}.get(node.op)
    if first is None:
        return None
    types = tuple(value.type for value in node.inputs[first:])
    return types[:3], types[3:]


def _attention(node: Node) -> Call:
    masked = len(node.inputs) > 3
    operands: tuple[Template, ...] = (("%", 0), ("%", 1), ("%", 2))
    mask: Template = ("%", 3) if masked else None
    args = (*operands, 0.0, bool(node.attr("causal")))
    return Call(FLASH, args, (("attn_mask", mask), ("scale", node.attr("scale"))), (0, 1))


def _attention_grad(node: Node) -> Call:
    """attention_grad(dy, out, logsumexp, q, k, v[, mask]) --> (dq, dk, dv)"""
    order = (0, 3, 4, 5, 1, 2)  # the call's: dy, q, k, v, out, logsumexp
    operands: tuple[Template, ...] = tuple(("%", at) for at in order)
    mask: Template = ("%", 6) if len(node.inputs) > 6 else None
    args = (*operands, 0.0, bool(node.attr("causal")))
    kwargs = (("attn_mask", mask), ("scale", node.attr("scale")))
    return Call(FLASH_BACKWARD, args, kwargs, (0, 1, 2))
