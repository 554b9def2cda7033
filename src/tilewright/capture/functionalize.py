"""From a Dynamo graph to functional ATen, with everything said that functional ATen cannot say.

The idea: survey the graph on fake tensors as eager would run it, cut gradients where eager cuts
them, and let AOTAutograd's inference trace make it functional while the composite operators that
have derivatives of their own stay whole.  No gradient is taken here.
This module does not know our graph: `importer` reads what it returns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tilewright.base.errors import CaptureError, MutationError, SizesError, TilewrightError
from tilewright.capture.control import CONTROL_FLOW, ORIGIN_KEYS, Flow, flow_of, open_control_flow
from tilewright.capture.control_refusal import writes
from tilewright.capture.custom_functions import (
    CUSTOM_GRADIENT,
    backward_body,
    open_custom_functions,
)
from tilewright.capture.custom_ops import stop_gradient
from tilewright.capture.fast_paths import fast_paths
from tilewright.capture.inline import prepare, specialize
from tilewright.capture.keep import DropoutMode, overrides
from tilewright.capture.origin import dotted, origin_of_meta, origin_of_text
from tilewright.capture.questions import place_at
from tilewright.capture.record import Input, Result
from tilewright.capture.refusal import blame
from tilewright.capture.results import describe_results
from tilewright.capture.survey import Survey, survey
from tilewright.capture.symbols import Symbols, refuse_overlaps, refuse_shared_updates
from tilewright.graph.control import sizes_vary

_GRAD_SWITCHES = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.autograd.grad_mode._exit_inference_mode,
    }
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Dynamo graph ready to be traced for any sizes, and the modes it has to be traced in."""

    module: fx.GraphModule
    grad: bool
    autocast: bool
    autocast_dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Traced:
    """A functional ATen graph, and those that its nodes hold, by the nodes' names: the gradient
    that is written by hand, or the bodies of control flow."""

    module: fx.GraphModule
    bodies: Mapping[str, tuple["Traced", ...]]


@dataclass(frozen=True, slots=True)
class Functional:
    """A functional ATen graph and its record.

    traced: takes `inputs` in order (tensors only) and returns `width` tensors: first the new values
    of the inputs in `updates`, in that order, then the values that `results` speak of.
    updates: (input, whether gradients flow into its new value).  results: what the user gets.
    """

    traced: Traced
    inputs: tuple[Input, ...]
    updates: tuple[tuple[int, bool], ...]
    results: tuple[Result, ...]
    width: int


def prepare_dynamo(module: fx.GraphModule) -> Prepared:
    """Take over a graph in the call of a Dynamo backend; `module` itself is left as it is."""
    return Prepared(
        prepare(module),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


def functionalize(
    prepared: Prepared,
    examples: Sequence[Any],
    *,
    names: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    symbols: Symbols | None = None,
    empty: bool = False,
) -> Functional:
    """Trace for the sizes of `examples`: the tensors and numbers of one call, in the graph's order.

    names: what the caller knows a tensor as: its id -> (kind, name); of the others, Dynamo tells.
    symbols: what varies; the graph is then one for all sizes that they admit.
    empty: tensors without memory (device meta) are examples too.
    Nothing is computed and no example is kept.  A symbolic number counts as its first value, and
    no guard is added for it.
    """
    examples = [_first_value(value) for value in examples]
    varying = symbols.varying.dims if symbols is not None else ((),) * len(examples)
    module = specialize(prepared.module, examples, varying)
    open_custom_functions(module)
    open_control_flow(module)
    positions = [at for at, value in enumerate(examples) if isinstance(value, torch.Tensor)]
    tensors = [examples[position] for position in positions]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    described = zip(positions, tensors, placeholders, strict=True)
    inputs = tuple(_describe_input(*item, names) for item in described)
    for record, tensor in zip(inputs, tensors, strict=True):
        _refuse_foreign(record, tensor, empty=empty)
    varying = tuple(varying[position] for position in positions)
    refuse_overlaps(tensors, varying)
    flow = next((part for part in module.children() if isinstance(part, Flow)), None)
    if symbols is not None and flow is not None:
        names_of_sizes = sorted({name for dims in varying for name in dims if name})
        raise sizes_vary(flow.kind, ", ".join(names_of_sizes), flow.origin)
    with _modes(prepared):
        mode, fakes = _fakes(tensors, positions, symbols)
        found = survey(module, fakes, mode)
        refuse_shared_updates(tensors, varying, found.updated)
        hidden, results = describe_results(found)
        _stop_gradients(module, found)
        _append_results(module, hidden)
        made, updated = _trace(module, tensors, positions, symbols)
        if symbols is not None:
            _refuse_custom_gradients(made)
        traced = _trace_bodies(module, made)
    if symbols is not None:
        results = tuple(symbols.result(result) for result in results)
    updates = tuple((position, _differentiable(found, position)) for position in updated)
    return Functional(traced, inputs, updates, results, len(_output_values(made)))


def _first_value(value: Any) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


# ---------------------------------------------------------------------------- the trace


def _fakes(
    tensors: Sequence[torch.Tensor], positions: Sequence[int], symbols: Symbols | None
) -> tuple[FakeTensorMode, list[torch.Tensor]]:
    """Return a mode and a fake tensor of it for each tensor, the argument at that position."""
    if symbols is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        return mode, [mode.from_tensor(tensor) for tensor in tensors]
    mode = symbols.mode()
    pairs = zip(tensors, positions, strict=True)
    return mode, [symbols.fake(mode, tensor, position) for tensor, position in pairs]


def _trace(
    module: fx.GraphModule,
    tensors: Sequence[torch.Tensor],
    positions: Sequence[int] = (),
    symbols: Symbols | None = None,
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """Run the functional trace; return its graph and the inputs it updates, in output order."""
    # A mode of its own: the fakes of the survey carry its in-place changes and its gradients.
    if symbols is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [_fake_again(mode, tensor) for tensor in tensors]
    else:
        mode, fakes = _fakes([tensor.detach() for tensor in tensors], positions, symbols)
    try:
        with (
            tracing(TracingContext(mode)),
            _override_composite_implicit_decomp(overrides()),
            DropoutMode(),
        ):
            traced, signature = aot_export_module(
                module, fakes, trace_joint=False, decompositions=fast_paths()
            )
    except TilewrightError:
        raise
    except Exception as reason:
        raise _untraceable(reason) from reason
    assert isinstance(traced, fx.GraphModule), "the trace gives a module"
    assert not signature.parameters, "a Dynamo graph takes its parameters as arguments"
    names = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    if signature.output_tokens:
        raise _with_effects(traced)
    targets = signature.user_inputs_to_mutate
    expected = len(targets) + len(_output_values(module))
    if len(_output_values(traced)) != expected:
        raise MutationError(
            "two arguments are set to one and the same tensor",
            expected="a value of its own for every argument that is changed in place",
            found=f"{expected} values that are returned or written, {len(targets)} of them written",
            mend="write a copy: buffer.copy_(x.clone())",
        )
    written = [value.name for value in _output_values(traced)[: len(targets)]]
    return traced, tuple(names.index(targets[name]) for name in written)


def _fake_again(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        return mode.from_tensor(tensor.detach())
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _refuse_custom_gradients(traced: fx.GraphModule) -> None:
    """Raise SizesError where a gradient is written by hand: what it has saved may be a size."""
    found = [node for node in traced.graph.nodes if str(node.target) == CUSTOM_GRADIENT]
    if found:
        raise SizesError(
            "sizes vary around a custom autograd.Function",
            expected="gradients that are derived, where one compilation is for all sizes",
            found=f"{len(found)} backward passes that are written by hand",
        )


def _trace_bodies(module: fx.GraphModule, traced: fx.GraphModule) -> Traced:
    """Trace what operators of the trace hold: gradients written by hand, and control flow."""
    bodies: dict[str, tuple[Traced, ...]] = {}
    for node in traced.graph.nodes:
        if str(node.target) == CUSTOM_GRADIENT:
            bodies[node.name] = (_trace_backward(module, node),)
        elif str(node.target) == CONTROL_FLOW:
            flow, given = flow_of(module, node)
            with flow.modes():
                bodies[node.name] = tuple(_trace_body(body, given, flow) for body in flow.bodies)
    return Traced(traced, bodies)


def _trace_backward(module: fx.GraphModule, node: fx.Node) -> Traced:
    """Trace a gradient that is written by hand; autocast does not reach a backward pass."""
    body, fakes = backward_body(module, node)
    _erase_switches(body)
    with torch.autocast("cpu", enabled=False):
        traced, updated = _trace(body, fakes)
    if updated:
        raise MutationError(
            "the backward of a custom autograd.Function changes what it is given in place",
            expected="gradients that are fresh tensors",
            found=f"{len(updated)} of its tangents and saved tensors written",
            where=origin_of_meta(node.meta),
            mend="change a copy: grad.clone()",
        )
    return _trace_bodies(body, traced)


def _trace_body(body: fx.GraphModule, given: Sequence[torch.Tensor], flow: Flow) -> Traced:
    """Trace a body of control flow as a graph of its own, with gradients cut where eager would."""
    found = _survey_body(body, given, flow)
    if found.updated:
        raise writes(flow.kind, flow.origin)
    _stop_gradients(body, found)
    return _trace_bodies(body, _trace(body, given)[0])


def _survey_body(body: fx.GraphModule, given: Sequence[torch.Tensor], flow: Flow) -> Survey:
    """Survey a body with gradients asked for by what asks for them in some step of a loop."""
    asks = list(flow.asks)
    while True:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [_fake_again(mode, tensor) for tensor in given]
        fakes = [_variable(mode, f) if ask else f for f, ask in zip(fakes, asks, strict=True)]
        found = survey(body, fakes, mode)
        # A first carry of zeros asks for nothing; what a step makes of it may.
        carried = [value.requires_grad for value in found.results[: flow.carries]]
        grown = [a or b for a, b in zip(asks, carried, strict=False)] + asks[flow.carries :]
        if body is not flow.bodies[-1] or grown == asks:  # the test of a while gives no carries
            return found
        asks = grown


def _variable(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor that asks for a gradient and is none of the user's leaves."""
    with mode:
        return fake.requires_grad_().clone(memory_format=torch.preserve_format)


def _with_effects(traced: fx.GraphModule) -> CaptureError:
    found = [node for node in traced.graph.nodes if "with_effects" in str(node.target)]
    return CaptureError(
        "an operator does something beside giving a result (it raises an error, or prints)",
        expected="operators whose results are all that they do",
        found=", ".join(sorted({str(node.args[1]) for node in found})),
        where=origin_of_meta(found[0].meta) if found else "",
        mend="call it outside of what is compiled",
    )


def _untraceable(reason: Exception) -> TilewrightError:
    text = str(reason)
    first = text.splitlines()[0] if text else type(reason).__name__
    kind = blame(first) if isinstance(reason, RuntimeError | TypeError) else CaptureError
    return kind(f"the model cannot be made functional: {first}", where=origin_of_text(text))


def _output_values(traced: fx.GraphModule) -> tuple[Any, ...]:
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    return tuple(output.args[0])


@contextmanager
def _modes(prepared: Prepared) -> Iterator[None]:
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(prepared.grad))
        stack.enter_context(
            torch.autocast("cpu", prepared.autocast_dtype, enabled=prepared.autocast)
        )
        # In eval mode attention modules would become one opaque operator of inference only.
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        yield


# ---------------------------------------------------------------------------- rewriting


def _stop_gradients(module: fx.GraphModule, found: Survey) -> None:
    """Put `stop_gradient` behind every node in `found.stops`, and take out grad-mode switches."""
    for node in list(module.graph.nodes):
        if node.name in found.stops:
            with module.graph.inserting_after(node):
                stopped = _stop(module, node, node)
            node.replace_all_uses_with(
                stopped, delete_user_cb=lambda user, s=stopped: user is not s
            )
        for argument in found.stopped_arguments.get(node.name, ()):
            with module.graph.inserting_before(node):
                node.replace_input_with(argument, _stop(module, argument, node))
    _erase_switches(module)


def _erase_switches(module: fx.GraphModule) -> None:
    for node in reversed(list(module.graph.nodes)):
        if node.target in _GRAD_SWITCHES:
            module.graph.erase_node(node)
    module.recompile()


def _stop(module: fx.GraphModule, value: fx.Node, at: fx.Node) -> fx.Node:
    stopped = module.graph.call_function(stop_gradient, (value,))
    stopped.meta = {key: at.meta[key] for key in ORIGIN_KEYS if key in at.meta}
    return stopped


def _append_results(module: fx.GraphModule, hidden: Sequence[fx.Node]) -> None:
    """Return the nodes in `hidden` as well: memory that several results are views of."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    output.args = ((*output.args[0], *hidden),)
    module.recompile()


# ---------------------------------------------------------------------------- inputs


def _describe_input(
    position: int,
    tensor: torch.Tensor,
    node: fx.Node,
    names: Mapping[int, tuple[str, str]],
) -> Input:
    kind, source = names.get(id(tensor)) or _told_by_dynamo(node, tensor)
    return Input(
        position,
        kind,
        source,
        tuple(tensor.shape),
        tuple(tensor.stride()) if tensor.layout == torch.strided else (),
        tensor.dtype,
        tensor.requires_grad,
    )


def _told_by_dynamo(node: fx.Node, tensor: torch.Tensor) -> tuple[str, str]:
    text = place_of(node) or str(node.target)
    if isinstance(tensor, torch.nn.Parameter) or "._parameters[" in text:
        return "parameter", dotted(text)
    return "buffer" if "._buffers[" in text else "argument", dotted(text)


def place_of(node: fx.Node) -> str:
    """Return where Dynamo reads an input from, as a Python expression; "" where it says nothing."""
    return place_at(getattr(node.meta.get("grapharg"), "source", None))


def _refuse_foreign(record: Input, tensor: torch.Tensor, *, empty: bool) -> None:
    found = ""
    if is_traceable_wrapper_subclass(tensor):
        found = f"a tensor subclass, {type(tensor).__name__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        found = f"a tensor of layout {tensor.layout}"
    elif tensor.is_complex():
        found = f"a complex tensor, {tensor.dtype}"
    elif tensor.is_quantized:
        found = f"a quantized tensor, {tensor.dtype}"
    elif tensor.device.type != "cpu" and not (empty and tensor.is_meta):
        found = f"a tensor on device {tensor.device}"
    if found:
        raise CaptureError(
            f"{record.kind} '{record.source}' is of a kind that cannot be captured",
            expected="dense real tensors on the CPU",
            found=found,
            mend="convert it before the call",
        )


def _differentiable(found: Survey, position: int) -> bool:
    fake = found.inputs[position]
    return bool(fake.requires_grad and not fake.is_leaf)
