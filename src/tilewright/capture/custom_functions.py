"""A custom `autograd.Function`: its forward in the graph, its backward as a graph beside it.

The idea: Dynamo hands over both bodies.  The forward is copied into the graph, past gradients as
its author wrote it; what it gives then goes through one operator, the identity, that carries the
gradient: it names the arguments, what was saved, and the body that turns tangents into gradients::

    y, = Function.apply(x)   -->   r, s = forward(x);  y, = custom_gradient([r], [x], [s], backward)

This module does not know how the backward is differentiated through (`ops`, `autodiff`).
"""

import ast
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError, MutationError
from tilewright.capture.custom_ops import library
from tilewright.capture.inline import attribute, copy_body, copy_module
from tilewright.capture.origin import origin_of_meta

CUSTOM_GRADIENT = "tilewright.custom_gradient.default"
_APPLY = torch.ops.higher_order.autograd_function_apply


def open_custom_functions(module: fx.GraphModule) -> None:
    """Put forward and `custom_gradient` in the place of every call of a custom function."""
    for node in [node for node in module.graph.nodes if node.target is _APPLY]:
        if node.kwargs.get("dirty_idx") or _writes(attribute(module, node.args[0])):
            raise MutationError(
                "a custom autograd.Function changes its argument in place",
                expected="a forward that returns fresh tensors",
                found="a result that is an argument, written to",
                where=origin_of_meta(node.meta),
                mend="compute a fresh tensor in its forward, or call it outside of what is"
                " compiled",
            )
        _open(module, node)
    module.recompile()


def _open(module: fx.GraphModule, node: fx.Node) -> None:
    arguments = node.args[2:]
    returned, saved = copy_body(module, node, attribute(module, node.args[0]), arguments)
    assert isinstance(node.args[1], fx.Node), "the backward is an attribute"
    backward = str(node.args[1].target)
    returned = _read_ones(module, node, backward, returned)
    (given,) = [n.args[0] for n in attribute(module, node.args[1]).graph.nodes if n.op == "output"]
    reached = [a for a, g in zip(arguments, given, strict=True) if isinstance(g, fx.Node)]
    without: Any = node.kwargs["non_differentiable_idx"]
    with module.graph.inserting_before(node):
        made = module.graph.call_function(
            carry_gradient,
            (list(returned), list(reached), list(saved), backward, tuple(without)),
            {"asking": [a for a in arguments if isinstance(a, fx.Node)]},
        )
    made.meta = dict(node.meta)
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user} reads a function's results as a whole"
        user.replace_input_with(node, made)
    module.graph.erase_node(node)


def _writes(forward: fx.GraphModule) -> bool:
    """Say whether a forward writes to an argument and returns it: it had to mark that as dirty.

    Torch 2.11 does not tell what is marked.
    """
    (output,) = [n for n in forward.graph.nodes if n.op == "output"]
    for result in output.args[0][0]:
        while isinstance(result, fx.Node) and (result.target == "view_as" or _written(result)):
            result = _written(result) or result.args[0]
        given = isinstance(result, fx.Node) and result.op == "placeholder"
        if given and any(_written(user) is result for user in result.users):
            return True
    return False


def _written(node: fx.Node) -> fx.Node | None:
    """Return the operand that a node writes to, as its name says."""
    name = str(getattr(node.target, "__name__", node.target))
    first = node.args[0] if node.args else None
    in_place = (name.endswith("_") and not name.startswith("_")) or node.kwargs.get("inplace")
    found = first if in_place or name in _WRITERS else node.kwargs.get("out")
    return found if isinstance(found, fx.Node) else None


_WRITERS = frozenset({"setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"})


def _read_ones(module: fx.GraphModule, node: fx.Node, backward: str, returned: Any) -> Any:
    """Return the results without those at the end that nothing reads, the backward neither.

    Torch 2.11 adds sizes and intermediates of the forward to what it returns.
    """
    read = {user.args[1] for user in node.users}
    body = copy_module(getattr(module, backward))
    tangents = [n for n in body.graph.nodes if n.op == "placeholder"][: len(returned)]
    while tangents and len(tangents) - 1 not in read and not tangents[-1].users:
        body.graph.erase_node(tangents.pop())
    if len(tangents) < len(returned):
        body.recompile()
        setattr(module, backward, body)
    return returned[: len(tangents)]


def carry_gradient(
    results: Sequence[Any],
    arguments: Sequence[torch.Tensor],
    saved: Sequence[Any],
    backward: str,
    quiet: Sequence[int],
    *,
    asking: Sequence[Any],
) -> list[Any]:
    """Return `results`; those that a gradient flows to are fresh and carry it.

    arguments: those that `backward` has a gradient for.  quiet: results without gradient, by
    position.  asking: all arguments; a result asks for a gradient as soon as one of them does.
    """
    library()
    numbers = tuple(None if isinstance(item, torch.Tensor) else item for item in saved)
    tensors = [item for item in saved if isinstance(item, torch.Tensor)]
    made = torch.ops.tilewright.custom_gradient.default(
        list(results), list(arguments), tensors, backward, repr(numbers)
    )
    flows = any(isinstance(item, torch.Tensor) and item.requires_grad for item in asking)
    found = []
    for at, (result, carried) in enumerate(zip(results, made, strict=True)):
        if at in quiet or not result.is_floating_point():
            found.append(result)
        else:  # the survey asks torch itself what depends on what
            found.append(carried.requires_grad_().clone() if flows else carried)
    return found


def backward_body(module: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, list[Any]]:
    """Return the backward of a traced `custom_gradient` and fakes to trace it with.

    module: holds the body.  It takes a tangent for each result, then what was saved; it gives a
    gradient for each argument, in the argument's shape and element type.
    """
    results, arguments, saved, name, numbers = _call(node)
    body = copy_module(getattr(module, str(name)))
    body.graph.eliminate_dead_code()
    placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
    kept = ast.literal_eval(str(numbers))
    if len(placeholders) != len(results) + len(kept):
        raise CaptureError(
            "the backward of a custom autograd.Function cannot be matched to its forward",
            expected=f"tangents of {len(results)} results and {len(kept)} saved values",
            found=f"{len(placeholders)} arguments",
            where=origin_of_meta(node.meta),
            mend="return tensors only from its forward",
        )
    for placeholder, number in zip(placeholders[len(results) :], kept, strict=True):
        if number is not None:
            placeholder.replace_all_uses_with(number)
            body.graph.erase_node(placeholder)
    (output,) = [n for n in body.graph.nodes if n.op == "output"]
    gradients = [gradient for gradient in output.args[0] if isinstance(gradient, fx.Node)]
    with body.graph.inserting_before(output):
        fitted = tuple(
            body.graph.call_function(_fit, (gradient, tuple(fake.shape), fake.dtype))
            for gradient, fake in zip(gradients, map(_fake, arguments), strict=True)
        )
    output.args = (fitted,)
    body.recompile()
    return body, [_fake(value) for value in (*results, *saved)]


def _fit(gradient: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Torch's engine sums a gradient that was broadcast and converts it; so do we."""
    fitting = gradient if tuple(gradient.shape) == shape else gradient.sum_to_size(shape)
    return fitting if fitting.dtype == dtype else fitting.to(dtype)


def _call(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _fake(node: Any) -> torch.Tensor:
    assert isinstance(node, fx.Node), f"{node} is a tensor of the trace"
    fake: torch.Tensor = node.meta["val"]
    return fake
