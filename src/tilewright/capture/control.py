"""Control flow in a Dynamo graph: torch's cond, while_loop, scan and map, each as one operator.

The idea: Dynamo hands over the bodies as graphs of their own.  A call becomes a `Flow`, a module
that runs as one operator which the trace cannot look into; bodies are traced one by one afterwards,
for the types that the trace has seen::

    cond(p, then, otherwise, (x,))   -->   flow(p, x)   -->   control_flow([p, x], "flow", ...)

This module does not know what becomes of a flow in a graph (`importer`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError, Origin
from tilewright.capture.custom_functions import open_custom_functions
from tilewright.capture.custom_ops import library
from tilewright.capture.inline import attribute, prepare, replace_by_value
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.survey import asks_gradient
from tilewright.graph.ir import COND, SCAN, WHILE

CONTROL_FLOW = "tilewright.control_flow.default"
# Not all that Dynamo says of a call holds for what stands in its place: sizes are known here.
ORIGIN_KEYS = ("stack_trace", "nn_module_stack")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of control flow, read: what runs, on what.

    bodies: attributes that hold graphs.  operands: the predicate of a cond first; then first
    carries, sequences, closed-over values.
    """

    kind: str
    bodies: tuple[Any, ...]
    operands: tuple[Any, ...]
    carries: int = 0
    sequences: int = 0


def _cond(predicate: Any, then: Any, otherwise: Any, operands: Sequence[Any]) -> Call:
    return Call(COND, (then, otherwise), (predicate, *operands))


def _while(test: Any, body: Any, carries: Sequence[Any], closed: Sequence[Any]) -> Call:
    return Call(WHILE, (test, body), (*carries, *closed), len(carries))


def _scan(body: Any, first: Sequence[Any], xs: Sequence[Any], closed: Sequence[Any]) -> Call:
    return Call(SCAN, (body,), (*first, *xs, *closed), len(first), len(xs))


def _map(body: Any, xs: Sequence[Any], closed: Sequence[Any]) -> Call:
    return Call(SCAN, (body,), (*xs, *closed), 0, len(xs))


# What else it is told (which operands a body writes to) is seen in the trace of the bodies.
_READERS: dict[Any, Callable[..., Call]] = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.map_impl: _map,
}


def open_control_flow(module: fx.GraphModule) -> None:
    """Put a `Flow` in the place of every call of control flow, in bodies too."""
    for number, node in enumerate([n for n in module.graph.nodes if n.target in _READERS]):
        call = _READERS[node.target](*node.args)
        bodies = [_opened(attribute(module, body)) for body in call.bodies]
        name = f"control_flow_{number}"
        module.add_submodule(name, Flow(name, call, bodies, origin_of_meta(node.meta)))
        with module.graph.inserting_before(node):
            made = module.graph.call_module(name, call.operands)
        made.meta = {key: node.meta[key] for key in ORIGIN_KEYS if key in node.meta}
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        for body in dict.fromkeys(call.bodies):
            if not body.users:
                module.graph.erase_node(body)
    module.recompile()


def _opened(body: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a body that gives a list, is as plain as a graph from Dynamo is made."""
    copy = prepare(body)
    (output,) = [node for node in copy.graph.nodes if node.op == "output"]
    given = output.args[0]
    output.args = (tuple(given) if isinstance(given, list | tuple) else (given,),)
    open_custom_functions(copy)
    open_control_flow(copy)
    return copy


class Flow(torch.nn.Module):
    """A call of control flow that runs as one operator.  Final.

    The first run looks at the bodies: plain numbers among the operands are put into them, the types
    of the results are told (None: no tensor), and the modes are noted to trace the bodies in.  Of
    every tensor that a body takes it is noted whether it has asked for a gradient in some run.
    """

    def __init__(
        self, name: str, call: Call, bodies: Sequence[fx.GraphModule], origin: Origin
    ) -> None:
        super().__init__()
        self.name = name
        self.kind, self.carries, self.sequences = call.kind, call.carries, call.sequences
        self.bodies = tuple(bodies)
        self.origin = origin
        self.results: tuple[tuple[tuple[int, ...], str] | None, ...] | None = None
        self.asks: tuple[bool, ...] = ()
        self.grad, self.autocast, self.autocast_dtype = False, False, torch.bfloat16

    def forward(self, *operands: Any) -> list[torch.Tensor | None]:
        library()
        given = list(operands)
        if self.kind == COND:
            given[0] = _truth(given[0])
        if self.results is None:
            self._look(given)
        assert self.results is not None, "the bodies have been looked at"
        tensors = [operand for operand in given if isinstance(operand, torch.Tensor)]
        types = tuple(type_ for type_ in self.results if type_ is not None)
        described = self.name, self.kind, self.carries, self.sequences, repr(types)
        made = iter(torch.ops.tilewright.control_flow.default(tensors, *described))
        asks = torch.is_grad_enabled() and any(map(asks_gradient, tensors))
        taken = [asks_gradient(tensor) for tensor in tensors[self.kind == COND :]]
        before = self.asks or (False,) * len(taken)
        self.asks = tuple(a or b for a, b in zip(before, taken, strict=True))
        return [None if type_ is None else _asking(next(made), asks=asks) for type_ in self.results]

    def inputs(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what a body takes, for the operands that are tensors."""
        if self.kind == COND:
            return list(operands[1:])
        first, last = self.carries, self.carries + self.sequences
        return [*operands[:first], *(s[0] for s in operands[first:last]), *operands[last:]]

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Be in the modes of torch that the call was made in."""
        autocast = torch.autocast("cpu", self.autocast_dtype, enabled=self.autocast)
        with torch.set_grad_enabled(self.grad), autocast:
            yield

    def _look(self, operands: Sequence[Any]) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = torch.is_autocast_enabled("cpu")
        self.autocast_dtype = torch.get_autocast_dtype("cpu")
        self._put_numbers(operands)
        given = [o.detach().clone() for o in operands if isinstance(o, torch.Tensor)]
        with torch.no_grad():
            made = self.bodies[-1 if self.kind == WHILE else 0](*self.inputs(given))
        lead = (int(given[self.carries].shape[0]),) if self.sequences else ()
        results: list[tuple[tuple[int, ...], str] | None] = []
        for at, value in enumerate(made):
            if isinstance(value, torch.Tensor):
                shape = (*(lead if at >= self.carries else ()), *map(int, value.shape))
                results.append((shape, str(value.dtype).removeprefix("torch.")))
            elif value is None:
                results.append(None)
            else:
                raise _number(f"result {at}", self.kind, value, self.origin)
        self.results = tuple(results)
        for body in self.bodies:
            _drop_nothing(body)

    def _put_numbers(self, operands: Sequence[Any]) -> None:
        """Put plain numbers that the bodies take into them."""
        for at, operand in enumerate(operands[: self.carries]):
            if not isinstance(operand, torch.Tensor):
                raise _number(f"carry {at}", self.kind, operand, self.origin)
        for body in self.bodies:
            placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
            taken = operands[1:] if self.kind == COND else operands
            for node, operand in zip(placeholders, taken, strict=True):
                if not isinstance(operand, torch.Tensor):
                    replace_by_value(node, operand)
                    body.graph.erase_node(node)
            body.recompile()


def flow_of(module: fx.GraphModule, node: fx.Node) -> tuple[Flow, list[torch.Tensor]]:
    """Return the flow of a traced `control_flow`, and fakes to trace its bodies with.

    module: holds the flow.
    """
    call: Any = node.args
    operands, name, *_ = call
    flow = getattr(module, name)
    assert isinstance(flow, Flow), f"{name} is control flow"
    return flow, flow.inputs([operand.meta["val"] for operand in operands])


def _truth(predicate: Any) -> torch.Tensor:
    """Return a predicate as a truth value of rank 0."""
    if not isinstance(predicate, torch.Tensor):
        return torch.tensor(bool(predicate))
    flat = predicate.reshape(())
    return flat if flat.dtype == torch.bool else flat != 0


def _asking(result: torch.Tensor, *, asks: bool) -> torch.Tensor:
    """Let a result ask for a gradient, in a survey: so `no_grad` around it is seen."""
    if not asks or not result.is_floating_point():
        return result
    return result + torch.zeros((), dtype=result.dtype, requires_grad=True)


def _drop_nothing(body: fx.GraphModule) -> None:
    """Let a body give tensors only."""
    (output,) = [node for node in body.graph.nodes if node.op == "output"]
    output.args = (tuple(value for value in output.args[0] if value is not None),)
    body.recompile()


def _number(what: str, kind: str, found: Any, origin: Origin) -> CaptureError:
    return CaptureError(
        f"{what} of a {kind} is a plain number",
        expected="tensors, since what is known only when it runs has to be in one",
        found=f"{found}",
        where=origin,
        mend="make it a tensor: torch.tensor(number)",
    )
