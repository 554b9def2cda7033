"""Attention by our own streaming kernels: which nodes they take, and where the operands lie.

The idea: what attention means stays the operator's expansion; a node that the kernels take is kept
whole until it is placed, and they compute the same from strided views of its operands::

    y, l = attention(q, k, v, mask)              -->   a launch over blocks of queries
    dq, dk, dv = attention_grad(dy, y, l, ...)   -->   a launch over blocks of keys; with few heads,
                                                       or in bfloat16, a second one sums their
                                                       parts of dq, and rounds

This module does not know how a block is computed.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL
from tilewright.base.expr import Read, Sym
from tilewright.compiler.choices import OWN, Asked, alone
from tilewright.compiler.library import attention_types, flash_takes, is_large, serve
from tilewright.graph.ir import Formula, Loop, Node, TensorType, Value
from tilewright.graph.notation import normal
from tilewright.graph.total import fixed
from tilewright.kernels import (
    ATTENTION_DTYPES,
    ATTENTION_RECIPE,
    Attention,
    Strides,
    attention_source,
    attention_words,
    cuts,
    emit_attention,
    emit_attention_grad,
    is_narrow,
    is_rounded,
    query_blocks,
)
from tilewright.program import View
from tilewright.tune import LIBRARY

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

_FORWARD = (("q", "k", "v", "mask"), ("y", "l"))
_GRADIENT = (("dy", "y", "l", "q", "k", "v", "mask"), ("dq", "dk", "dv"))


FEW = 8
"""Queries that are too few for a vector: their scores are as few as the elements of k."""


def streams(node: Node) -> bool:
    """Say whether our streaming kernels are to compute a node: an attention or its gradient.

    Where eager holds all probabilities (other ranks than 4), a small one is left to its loops: made
    again from their rounded logarithms, probabilities of large scores would be less exact.  One of
    bfloat16 is wherever eager does not round probabilities.
    """
    found = attention_types(node)
    if found is None or not _is_taken(node, *found):
        return False
    q, k, v = found[0]
    if is_rounded(q.dtype) and not flash_takes((k, k, v), found[1]):
        return False
    return fixed(q.shape[-2]) >= FEW and (q.rank == 4 or is_large(q, k))


def _is_taken(node: Node, types: tuple[TensorType, ...], masks: tuple[TensorType, ...]) -> bool:
    """Say whether the kernels can: a type that they have, fixed sizes, heads not too wide."""
    every = (*types, *masks)
    if any(type(dim) is not int or dim == 0 for one in every for dim in one.shape):
        return False
    if types[0].dtype not in ATTENTION_DTYPES or len({one.dtype for one in types}) > 1:
        return False
    scale = node.attr("scale")
    if isinstance(scale, int | float) and not math.isfinite(scale):
        return False  # C has no literal for it
    return _fit(*types) and all(_broadcasts(mask, types[0], types[1]) for mask in masks)


def _fit(q: TensorType, k: TensorType, v: TensorType) -> bool:
    """Say whether k and v have the same rows, and heads that those of q share evenly."""
    if not q.rank == k.rank == v.rank >= 2 or k.shape[:-1] != v.shape[:-1]:
        return False
    narrow = all(is_narrow(q.dtype, fixed(one.shape[-1])) for one in (q, v))
    if q.rank >= 4:
        return narrow and q.shape[:-3] == k.shape[:-3]
    return narrow and q.shape[:-2] == k.shape[:-2]


def _broadcasts(mask: TensorType, q: TensorType, k: TensorType) -> bool:
    scores = (*q.shape[:-1], k.shape[-2])
    if mask.dtype not in (BOOL, q.dtype) or mask.rank > len(scores):
        return False
    last = scores[len(scores) - mask.rank :]
    return all(dim in (1, whole) for dim, whole in zip(mask.shape, last, strict=True))


def place_attention(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a node if it is an attention that our kernels take."""
    if not streams(node):
        return False
    backward = node.op == "attention_grad"
    reads, writes = _GRADIENT if backward else _FORWARD
    inputs = [assembly.places[value.name] for value in node.inputs]
    way, why = _chosen(assembly, node, dict(zip(reads[: len(inputs)], inputs, strict=True)))
    if way == LIBRARY:
        return False
    outputs = [] if backward else [_place_like(assembly, node.outputs[0], inputs[0])]
    outputs += [assembly.place(value) for value in node.outputs[len(outputs) :]]
    lies = dict(zip((*reads[: len(inputs)], *writes), (*inputs, *outputs), strict=True))
    made = _attention(node, lies)
    pieces = len(cuts(made)) - 1 if backward else 1
    dq = node.outputs[0]
    parted = backward and (pieces > 1 or is_rounded(dq.type.dtype))
    if parted:
        whole, type_ = lies["dq"], TensorType((pieces, *dq.type.shape), dq.type.dtype.compute)
        outputs[0] = assembly.scratch(f"{dq.name}_parts", type_)
        one = replace(whole, strides=outputs[0].strides[1:])
        made = _attention(node, lies | {"dq": one})
    kernel = emit_attention_grad(made) if backward else emit_attention(made, _queries_of(way))
    source = attention_source(made.dtype, backward=backward)
    assembly.call(kernel, source, tuple(inputs), tuple(outputs), node.origin)
    reason = f"{kernel.recipe}: {kernel.name}" + (f"; {why}" if why else "")
    assembly.decide(node, "kernel", reason, kernel.flops, kernel.bytes)
    if parted:
        parts = "1 part" if pieces == 1 else f"{pieces} parts"
        reason = f"{parts} of the gradient of the queries, summed"
        assembly.launch(_sum(type_, dq.type), outputs[0], whole, reason)
    return True


def _place_like(assembly: "Assembly", value: Value, queries: View) -> View:
    """Let the result lie as the queries do, its dims in the order of theirs: where heads are slices
    of rows, what puts them beside each other again is a view.

    It lies as its type says where it is handed out, or has to lie somewhere.
    """
    strides = queries.strides
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    bound = {*assembly.results, *assembly.targets, *assembly.in_place}
    if value.name in bound or order == sorted(order) or order[-1] != len(order) - 1:
        return assembly.place(value)
    shape = tuple(value.type.shape[dim] for dim in order)
    made = assembly.buffer(Value(value.name, TensorType(shape, value.type.dtype)), assembly.kind)
    steps = dict(zip(order, made.strides, strict=True))
    own = tuple(steps[dim] for dim in range(len(order)))
    place = replace(made, shape=tuple(map(fixed, value.type.shape)), strides=own)
    assembly.places[value.name] = place
    return place


def _chosen(assembly: "Assembly", node: Node, lies: Mapping[str, View]) -> tuple[str, str]:
    """Return the way to compute a node, and why, as measured if it was.

    lies: the operands.
    """
    found, backward = _attention(node, lies), node.op == "attention_grad"
    blocks = (OWN,) if backward else tuple(f"queries={n}" for n in query_blocks(found))
    if assembly.depth or assembly.targets:  # a call in a loop would end a region of threads
        return blocks[0], ""
    steps = (
        f"{name} {':'.join(map(str, (*one.lead, one.head, one.row, one.column)))}"
        for name, one in found.tensors
    )
    title = f"attention {attention_words(found, backward=backward)}"
    call = (LIBRARY,) if serve(node) is not None else ()
    lying = tuple({v.name: lies[n] for n, v in zip(lies, node.inputs, strict=True)}.items())
    asked = Asked(
        f"{title}, {', '.join(steps)}",
        title,
        ATTENTION_RECIPE,
        blocks[0],
        (*blocks, *call),
        found.flops(backward=backward),
        alone(node),
        lying,
    )
    allowed = {*blocks, *(call if assembly.options.library else ())}
    verdict = assembly.choices.take(asked, lambda way: way in allowed)
    return verdict.choice, verdict.reason


def _queries_of(way: str) -> int:
    return int(way.removeprefix("queries="))


def _attention(node: Node, lies: Mapping[str, View]) -> Attention:
    """Return what a node computes, on operands and results that lie so."""
    q, k, v = (lies[name] for name in "qkv")
    heads = 1 if q.shape[:-2] == k.shape[:-2] else q.shape[-3] // k.shape[-3]
    types, masks = attention_types(node) or ((), ())
    kind = "" if not masks else "kept" if masks[0].dtype == BOOL else "added"
    scale = node.attr("scale")
    return Attention(
        types[0].dtype,
        k.shape[:-2],
        heads,
        *(q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]),
        bool(node.attr("causal")),
        kind,
        1 / math.sqrt(q.shape[-1]) if scale is None else float(str(scale)),
        tuple((name, _strides(name, view, q, k)) for name, view in lies.items()),
    )


def _strides(name: str, view: View, q: View, k: View) -> Strides:
    """Return how a tensor lies: dims that it does not have, or once for all, have the stride 0."""
    shape, strides = view.shape, view.strides
    if name == "l":
        shape, strides = (*shape, 1), (*strides, 0)
    steps = [0] * (len(q.shape) - len(shape))
    steps += [0 if extent == 1 else step for extent, step in zip(shape, strides, strict=True)]
    *outer, row, column = steps
    if q.shape[:-2] == k.shape[:-2] or name in ("k", "v", "dk", "dv"):
        return Strides(tuple(outer), 0, row, column)
    head = outer.pop()
    return Strides((*outer, head * (q.shape[-3] // k.shape[-3])), head, row, column)


def _sum(parts: TensorType, whole: TensorType) -> Formula:
    """y[i0, ...] += x[part, i0, ...]"""
    loops = tuple(Loop(f"i{at}", dim) for at, dim in enumerate(whole.shape))
    part = Loop("part", parts.shape[0])
    index = tuple(Sym(loop.name) for loop in loops)
    value = Read("x", (Sym(part.name), *index))
    return normal(Formula(("x",), (*loops, part), index, "+=", value, whole))
