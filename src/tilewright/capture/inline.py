"""Rewrite a Dynamo graph into one that a functional trace understands, before any size is known.

The idea: markers and wrappers that only mean something to torch's autograd are taken out: grad-mode
switches, checkpoint regions, plain Python floats that arrive as tensors.  What cannot be taken out
and be right is refused.  This module does not know fake tensors.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError
from tilewright.capture.inner import rewrite_derivatives
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.refusal import derivative_inside

# A derivative taken inside the function, by names: some of these are built-ins of torch.
_DERIVATIVES = frozenset(
    {
        "_autograd_grad",
        "_enter_dual_level",
        "_grad_increment_nesting",
        "_jvp_increment_nesting",
        "backward",
        "grad",
    }
)
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a graph of its own, sharing attributes: the caller's stays as it is."""
    graph = fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result)
    return fx.GraphModule(module, graph)


def prepare(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy with checkpoint regions inlined and numbers that came as tensors folded."""
    copy = copy_module(module)
    rewrite_derivatives(copy)
    _refuse_derivatives(copy)
    _fold_numbers(copy)
    _inline_checkpoints(copy)
    copy.graph.lint()
    copy.recompile()
    return copy


def specialize(
    module: fx.GraphModule, examples: Sequence[Any], varying: Sequence[tuple[str | None, ...]]
) -> fx.GraphModule:
    """Return a copy in which every placeholder of a plain number is that number.

    varying: names of the dims that vary, and of the numbers; such a number is the size of a dim.
    """
    copy = copy_module(module)
    placeholders = [node for node in copy.graph.nodes if node.op == "placeholder"]
    described = list(zip(placeholders, examples, varying, strict=True))
    for node, example, names in described:
        if isinstance(example, torch.Tensor):
            continue
        if any(names):
            carrier, dim = next(
                (other, own.index(names[0]))
                for other, value, own in described
                if isinstance(value, torch.Tensor) and names[0] in own
            )
            with copy.graph.inserting_after(placeholders[-1]):
                size = copy.graph.call_function(torch.ops.aten.sym_size.int, (carrier, dim))
            node.replace_all_uses_with(size)
        else:
            replace_by_value(node, example)
        copy.graph.erase_node(node)
    copy.recompile()
    return copy


def _refuse_derivatives(module: fx.GraphModule) -> None:
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            name = str(getattr(node.target, "__name__", node.target))
            if node.op in ("call_function", "call_method") and name in _DERIVATIVES:
                raise derivative_inside(name, origin_of_meta(node.meta))


def replace_by_value(node: fx.Node, value: Any) -> None:
    for user in list(node.users):

        def put(argument: fx.Node) -> Any:
            return value if argument is node else argument

        user.args = fx.node.map_arg(user.args, put)
        user.kwargs = fx.node.map_arg(user.kwargs, put)


def _fold_numbers(module: fx.GraphModule) -> None:
    """item(placeholder of a Python float) --> the float.  Reading it adds Dynamo's guard."""
    for node in list(module.graph.nodes):
        if node.op == "call_method" and node.target == "item" and _is_number(node.args[0]):
            value = node.meta["example_value"]
            replace_by_value(node, float(value) if isinstance(value, torch.SymFloat) else value)
            module.graph.erase_node(node)


def _is_number(node: object) -> bool:
    if not isinstance(node, fx.Node) or node.op != "placeholder":
        return False
    argument = node.meta.get("grapharg")
    return argument is not None and bool(argument.pass_arg_as_tensor)


def _inline_checkpoints(module: fx.GraphModule) -> None:
    """checkpoint(body, args) --> the nodes of body.  Recomputing is the memory plan's choice."""
    while True:
        found = [node for node in module.graph.nodes if node.target is _CHECKPOINT]
        if not found:
            return
        for node in found:
            body = attribute(module, node.args[0])
            inline(module, node, body, list(node.args[1:]))


def inline(
    module: fx.GraphModule, node: fx.Node, body: fx.GraphModule, arguments: Sequence[Any]
) -> None:
    """Replace a call of `body`, which returns a tuple, by the nodes of `body`."""
    results = copy_body(module, node, body, arguments)
    single = not isinstance(results, list | tuple)
    for user in list(node.users):
        if single:
            break
        assert user.target is operator.getitem, f"{user} reads a region's results as a whole"
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    if single:
        node.replace_all_uses_with(results)
    module.graph.erase_node(node)


def copy_body(
    module: fx.GraphModule, node: fx.Node, body: fx.GraphModule, arguments: Sequence[Any]
) -> Any:
    """Copy the nodes of `body` in front of `node`; return what `body` returns, as these nodes."""
    placeholders = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
    if len(placeholders) != len(arguments):
        raise CaptureError(
            "a region takes arguments that cannot be matched to its body",
            expected=f"{len(placeholders)} arguments",
            found=f"{len(arguments)}",
            where=origin_of_meta(node.meta),
            mend="pass tensors only, and by position",
        )
    values: dict[fx.Node, Any] = dict(zip(placeholders, arguments, strict=True))
    with module.graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                continue
            if inner.op == "output":
                return fx.node.map_arg(inner.args[0], lambda a: values[a])
            if inner.op == "get_attr":
                values[inner] = _adopt(module, body, inner)
                continue
            values[inner] = module.graph.node_copy(inner, lambda a: values[a])
    raise AssertionError("a region returns something")


def _adopt(module: fx.GraphModule, body: fx.GraphModule, inner: fx.Node) -> fx.Node:
    """Bring an attribute of the body (a constant, an inner region) over to the module."""
    value = attribute(body, inner)
    name, number = f"{inner.target}".replace(".", "_"), 0
    while hasattr(module, name) and getattr(module, name) is not value:
        number += 1
        name = f"{inner.target}".replace(".", "_") + f"_{number}"
    if not hasattr(module, name):
        setattr(module, name, value)
    made = module.graph.get_attr(name)
    made.meta = dict(inner.meta)
    return made


def attribute(module: fx.GraphModule, node: Any) -> Any:
    assert isinstance(node, fx.Node) and node.op == "get_attr", f"{node} is not an attribute"
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value
