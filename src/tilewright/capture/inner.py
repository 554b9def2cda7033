"""Derivatives that the captured function takes itself: torch.func's levels as three operators.

The idea: Dynamo writes `torch.func.grad` out as entering a level, wrapping what is differentiated
by, computing, and asking autograd.  Of that three acts matter, and each becomes an operator that
goes through the trace unopened, to be taken by our own passes once there is a graph::

    _wrap_for_grad(x), _make_dual(x, t)     -->   mark(x)                   a variable of its own
    _autograd_grad(results, marks, seeds)   -->   pull(results, marks, seeds)
    _unpack_dual(result)[1]                 -->   push(result, marks, changes)

Under a vmap every mark gets the batch, so that each sample has a gradient of its own.
This module does not know how a derivative is taken.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from tilewright.capture.custom_ops import library

Tensor = torch.Tensor


def mark(x: Tensor, batches: Sequence[Tensor]) -> Tensor:
    """Return a variable with the value of `x`, and the batch of `batches`."""
    library()
    marked: Tensor = torch.ops.tilewright.mark.default(x, list(batches))
    if torch.is_grad_enabled() and marked.is_floating_point():
        # What is differentiated by asks for gradients, in a survey: so `no_grad` inside is seen.
        marked = marked + torch.zeros((), dtype=marked.dtype, requires_grad=True)
    return marked


def pull(
    results: Sequence[Tensor], marks: Sequence[Tensor], seeds: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of `marks` for the tangents of `results` (ones where there are none)."""
    library()
    made: list[Tensor] = torch.ops.tilewright.pull.default(list(results), list(marks), list(seeds))
    return [_asking(tensor) for tensor in made]


def push(result: Tensor, marks: Sequence[Tensor], changes: Sequence[Tensor]) -> Tensor:
    """Return the change of `result` along the changes of `marks`."""
    library()
    made: Tensor = torch.ops.tilewright.push.default(result, list(marks), list(changes))
    return _asking(made)


def _asking(tensor: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return tensor
    return tensor + torch.zeros((), dtype=tensor.dtype, requires_grad=True)


# What only opens and closes levels, or what it gives is its operand.
_SWITCHES = frozenset(
    {
        "_enter_dual_level",
        "_exit_dual_level",
        "_grad_decrement_nesting",
        "_grad_increment_nesting",
        "_jvp_decrement_nesting",
        "_jvp_increment_nesting",
        "_maybe_load_decompositions",
        "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable",
        "_set_fwd_grad_enabled",
        "set_inplace_requires_grad_allowed",
    }
)


def rewrite_derivatives(module: fx.GraphModule) -> None:
    """Put the three operators in the place of torch.func's levels, in place."""
    graph = module.graph
    names = {node: _name(node) for node in graph.nodes if node.op == "call_function"}
    if not any(name in ("_autograd_grad", "_enter_dual_level") for name in names.values()):
        return
    walk = _Levels(graph)
    for node in list(graph.nodes):
        act = _ACTS.get(names.get(node, ""))
        if act is not None:
            act(walk, node)
    for node in reversed(list(graph.nodes)):
        if names.get(node) in _SWITCHES and not node.users:
            graph.erase_node(node)


class _Levels:
    """The levels that are open at one place of the graph; owned by `rewrite_derivatives`.

    batches: what has the batch of each open vmap.  duals: for each open dual level, the marks and
    their changes.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.batches: list[tuple[fx.Node, ...]] = []
        self.duals: list[list[tuple[fx.Node, Any]]] = []

    def open_batch(self, _: fx.Node) -> None:
        self.batches.append(())

    def close_batch(self, _: fx.Node) -> None:
        self.batches.pop()

    def add_batch(self, node: fx.Node) -> None:
        self.batches[-1] = (node,)

    def open_dual(self, _: fx.Node) -> None:
        self.duals.append([])

    def close_dual(self, _: fx.Node) -> None:
        self.duals.pop()

    def mark(self, node: fx.Node) -> fx.Node:
        """_wrap_for_grad(x, level) --> mark(x)"""
        lead = [one for level in self.batches for one in level]
        return _replace(self.graph, node, mark, (node.args[0], lead))

    def make_dual(self, node: fx.Node) -> None:
        """_make_dual(x, t) --> mark(x), remembered with t"""
        change = node.args[1]
        self.duals[-1].append((self.mark(node), change))

    def unpack_dual(self, node: fx.Node) -> None:
        """_unpack_dual(result) --> (result, push(result, marks, changes))"""
        _unpack(self.graph, node, self.duals[-1])

    def pull(self, node: fx.Node) -> None:
        """_autograd_grad(results, marks, seeds) --> pull(results, marks, seeds)"""
        results, marks, *seeds = node.args
        given = seeds[0] if seeds and seeds[0] is not None else ()
        _replace(self.graph, node, pull, (_list(results), _list(marks), _list(given)))

    def see_through(self, node: fx.Node) -> None:
        """_unwrap_for_grad(x, level) --> x"""
        (value, *_) = node.args
        assert isinstance(value, fx.Node), f"{node} has no tensor"
        node.replace_all_uses_with(value)
        self.graph.erase_node(node)


_ACTS: dict[str, Callable[[_Levels, fx.Node], object]] = {
    "_vmap_increment_nesting": _Levels.open_batch,
    "_vmap_decrement_nesting": _Levels.close_batch,
    "_add_batch_dim": _Levels.add_batch,
    "_enter_dual_level": _Levels.open_dual,
    "_exit_dual_level": _Levels.close_dual,
    "_wrap_for_grad": _Levels.mark,
    "_make_dual": _Levels.make_dual,
    "_unpack_dual": _Levels.unpack_dual,
    "_autograd_grad": _Levels.pull,
    "_set_tensor_requires_grad": _Levels.see_through,
    "_unwrap_for_grad": _Levels.see_through,
}


def _unpack(graph: fx.Graph, node: fx.Node, pairs: Sequence[tuple[fx.Node, Any]]) -> None:
    """(result, change) of a dual result."""
    result = node.args[0]
    assert isinstance(result, fx.Node), f"{node} unpacks no tensor"
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        else:
            marks, changes = [m for m, _ in pairs], [change for _, change in pairs]
            _replace(graph, user, push, (result, marks, changes))
    graph.erase_node(node)


def _replace(graph: fx.Graph, node: fx.Node, target: Callable[..., Any], args: Any) -> fx.Node:
    with graph.inserting_before(node):
        made = graph.call_function(target, args)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
