"""An ATen call without an operator of ours, as a node that holds the very call.

The idea: the safety net under every architecture.  What follows from the operands' values alone can
be called again, by anyone, at any time; whatever else is refused.
This module does not know which calls have an operator.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError
from tilewright.capture.keep import QUIET
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.template import encode
from tilewright.capture.walk import Importer, is_number
from tilewright.graph.ir import LIBRARY, Attr, Value


def library_attrs(walk: Importer, node: fx.Node) -> tuple[list[Value], dict[str, Attr]]:
    """Return the operands and attributes of the library node that is this very call."""
    target = _SAME_AS.get(str(node.target), node.target)
    assert isinstance(target, torch._ops.OpOverload), f"{node} does not call an overload"
    _refuse_impure(node, target)
    operands: list[Value] = []

    def number(argument: Any) -> int | None:
        if not isinstance(argument, fx.Node):
            return None
        operands.append(walk.operand(argument))
        return len(operands) - 1

    def known(argument: fx.Node) -> Any:
        return walk.number(argument) if is_number(argument) else argument

    attrs: dict[str, Attr] = {"target": str(target)}
    try:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known)
        attrs["args"] = tuple(encode(argument, number) for argument in args)
        attrs["kwargs"] = tuple((key, encode(argument, number)) for key, argument in kwargs.items())
    except CaptureError as reason:
        raise _at(node, reason) from reason
    if torch.Tag.nondeterministic_seeded in target.tags and str(target) not in QUIET:
        attrs["random"] = True
    return operands, attrs


def import_library_call(walk: Importer, node: fx.Node) -> Value | tuple[Value | None, ...]:
    """Append the library node that is this very call."""
    operands, attrs = library_attrs(walk, node)
    origin = origin_of_meta(node.meta)
    result = node.meta["val"]
    if isinstance(result, torch.Tensor):
        type_ = walk.type_of(result, origin)
        name = walk.claim(node.name)
        return walk.builder.node(LIBRARY, operands, type_, attrs=attrs, origin=origin, name=name)
    picked = _picked(node)
    positions = tuple(at for at, item in enumerate(result) if isinstance(item, torch.Tensor))
    positions = tuple(at for at in positions if at in picked) or positions[:1]
    attrs["outputs"] = positions
    outputs = walk.builder.multi(
        LIBRARY,
        operands,
        tuple(walk.type_of(result[at], origin) for at in positions),
        attrs=attrs,
        origin=origin,
        names=_names(walk, node, positions),
    )
    made = dict(zip(positions, outputs, strict=True))
    return tuple(made.get(at) for at in range(len(result)))


def _names(walk: Importer, node: fx.Node, positions: Sequence[int]) -> list[str]:
    """Name each result of a call as the FX node that picks it, if there is one."""
    picked = _picked(node)
    return [walk.claim(picked[at]) if at in picked else f"{node.name}_{at}" for at in positions]


def _picked(node: fx.Node) -> dict[Any, str]:
    """Return the results that are used, and the nodes that pick them.

    Of the others nothing is asked: some have not even the shape that the trace saw.
    """
    return {user.args[1]: user.name for user in node.users if user.target is operator.getitem}


def _refuse_impure(node: fx.Node, target: torch._ops.OpOverload) -> None:
    if target.namespace != "aten":
        raise CaptureError(
            f"{target!s} cannot be captured",
            expected="operators of torch's own (aten)",
            found=f"one that the package {target.namespace!r} has added to torch",
            where=origin_of_meta(node.meta),
            mend="choose an implementation of plain torch operators, where the model offers one",
        )
    found = ""
    if target._schema.is_mutable:
        found = "it changes an operand in place"
    elif str(target) in _LAYOUT_READERS and not _plain(node.args[0]):
        found = "it reads memory by strides, of an operand whose strides are not kept"
    elif not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        found = "it gives no tensor"
    if found:
        raise CaptureError(
            f"{target!s} cannot be captured",
            expected="operators whose results follow from their operands' values",
            found=found,
            where=origin_of_meta(node.meta),
            mend="write it with view, reshape, slicing and functional operators",
        )


# What has been added to torch that one of torch's own operators is, operand by operand: the
# experts of transformers where elements are not bfloat16, and what torch cannot trace.
_SAME_AS = {
    "transformers.grouped_mm_fallback.default": torch.ops.aten._grouped_mm.default,
    "tilewright.ctc_loss.default": torch.ops.aten.ctc_loss.Tensor,
}

# What they give depends on the operand's strides; replay and runtime make the operand contiguous.
_LAYOUT_READERS = frozenset(
    {"aten.as_strided.default", "aten.as_strided_scatter.default", "aten.view.dtype"}
)


def _plain(argument: object) -> bool:
    assert isinstance(argument, fx.Node), "the first argument is the tensor"
    fake = argument.meta["val"]
    return bool(fake.is_contiguous()) and fake.storage_offset() == 0


def _at(node: fx.Node, reason: CaptureError) -> CaptureError:
    return CaptureError(
        reason.summary,
        expected=reason.expected,
        found=f"{reason.found}, in {node.target}",
        where=origin_of_meta(node.meta),
    )
