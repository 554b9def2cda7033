"""Capture a function or module with example arguments: the front door of this package.

The idea: Dynamo runs the function once with our back end, which takes the graph and answers with
empty stand-ins; where these end up in the user's result shows how to build it from then on.
Nothing is computed, and no argument or buffer is changed.
This module does not know what is done with the graph.
"""

import logging
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._dynamo
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._subclasses.fake_tensor import FakeTensor

from tilewright.base.errors import CaptureError
from tilewright.base.interpreter import uncollected
from tilewright.base.places import Picker, picker
from tilewright.capture.calls import CallSpec, ResultSpec, describe_call, describe_result
from tilewright.capture.functionalize import functionalize, place_of, prepare_dynamo
from tilewright.capture.importer import Imported, import_functional
from tilewright.capture.questions import Noted, asked_in, questions
from tilewright.capture.record import Input, Mutation, Result, ViewOfInput
from tilewright.capture.refusal import explain
from tilewright.capture.restore import restore, write_back
from tilewright.capture.watch import Guards, Watch, guards_of, wanted_guards
from tilewright.graph.ir import Graph

_LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")

_TOO_LOUD = (
    # An impossible call, with torch's own stack before it raises; ours names the user's line.
    "torch._subclasses.fake_tensor",
    # Torch 2.11 cannot write down, for its own statistics, which methods of loggers it leaves out.
    "torch._dynamo.metrics_context",
)
"""Loggers of torch's that say nothing to a user while it traces."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, the live tensors it is fed with, and how a call is taken apart and answered.

    inputs: one for each input of the graph, in order.  sources: for each of them the number of an
    argument leaf, or, as -1 - k, of `state[k]`: the module's parameters and buffers, other tensors
    that the function reaches, and constants; they are the live tensors, never copies.  watch: what
    has to be as it was for the graph to serve a call.  picks: the inputs out of leaves and state.
    is_read: whether arguments are tensors of their own, all of them inputs of the graph: whoever
    checks those has checked the call.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    sources: tuple[int, ...]
    state: tuple[torch.Tensor, ...]
    results: tuple[Result, ...]
    mutations: tuple[Mutation, ...]
    call: CallSpec
    result: ResultSpec
    watch: Watch
    picks: Picker = field(init=False, repr=False, compare=False)
    is_read: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "picks", picker(self.sources))
        every = set(self.sources).issuperset(range(len(self.call.leaves)))
        object.__setattr__(self, "is_read", every and self.call.distinct)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the graph's inputs for a call; raises a typed error where the call differs."""
        return self.feed(self.call.flatten(args, kwargs))

    def feed(self, leaves: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return the graph's inputs for the leaves of a call."""
        return self.picks([*leaves, *self.state[::-1]])  # a source of -1 - k is that from the end

    def viewed(self) -> tuple[tuple[torch.Tensor | int, tuple[int, ...]], ...]:
        """Return what results are views of, with its strides: a number is an argument leaf's.

        Laid out otherwise it needs a capture of its own.
        """
        found: dict[int, tuple[int, ...]] = {}
        for result in self.results:
            if isinstance(result, ViewOfInput):
                found[self.sources[result.input]] = self.inputs[result.input].strides
        for at in self.result.seen():
            found[at] = self.call.leaves[at].strides
        return tuple(
            (at if at >= 0 else self.state[-1 - at], strides) for at, strides in found.items()
        )

    def answer(
        self,
        leaves: Sequence[Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        written: bool = False,
    ) -> Any:
        """Write mutations back (unless the runtime has) and return what the user's function would.

        leaves: what `call.flatten` gave.  outputs: the graph's outputs.
        """
        if not written:
            write_back(self.mutations, inputs, outputs)
        return self.result.build(restore(self.results, inputs, outputs), leaves)


@dataclass(slots=True)
class _Catch:
    """What the back end has seen: filled in once, while Dynamo compiles.

    names: id of a tensor -> what it is ("argument", "parameter", "buffer") and its name.
    empty: whether tensors may be without memory.  places: where Dynamo reads each example from, as
    a Python expression ("" where it does not say).  noted: see `questions`.
    scope: the locals of what Dynamo compiles.
    """

    names: dict[int, tuple[str, str]]
    empty: bool
    scope: dict[str, Any]
    imported: Imported | None = None
    examples: tuple[Any, ...] = ()
    places: tuple[str, ...] = ()
    stand_ins: tuple[Any, ...] = ()
    guards: Guards | None = None
    noted: Noted = field(default_factory=list)
    error: Exception | None = None


def capture(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Captured:
    """Capture `fn(*args, **kwargs)`: the whole of it, or an error that names the user's line.

    Whatever is not a tensor in the arguments, and all that the function reads beside them, is
    taken as it is now (`Captured.watch` says whether it still is).  Gradient mode, autocast and
    training mode too.  Tensors may be without memory: on the device "meta", or fake.
    """
    return _capture(fn, args, kwargs, empty=True)


def capture_to_run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Captured:
    """Capture a function that will be run: an error too where a tensor is without memory."""
    captured = _capture(fn, args, kwargs, empty=False)
    for record, tensor in zip(captured.inputs, captured.bind(args, kwargs), strict=False):
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"{record.kind} '{record.source}' is a fake tensor and has no values",
                expected="tensors that hold values, in what is compiled",
                found="a tensor that was made under FakeTensorMode",
                mend="make the model outside of it; tw.capture takes it as it is",
            )
    return captured


@uncollected()
def _capture(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, empty: bool
) -> Captured:
    call, leaves = describe_call(fn, args, kwargs)
    scope = {"fn": fn, "args": args, "kwargs": kwargs}
    catch = _Catch(_names(fn, call, leaves), empty, scope)
    result = _run_dynamo(fn, args, kwargs, catch)
    if catch.imported is None:
        catch.imported = _empty_graph()
    spec = describe_result(result, catch.stand_ins, leaves)
    return _assemble(catch, call, leaves, spec)


def _run_dynamo(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], catch: _Catch
) -> Any:
    catches = [catch]  # until the end: Dynamo keeps each back end for ever, and what it holds

    def catcher(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        assert catches, "Dynamo compiles while it captures, and not later"
        (here,) = catches
        try:
            _catch_graph(here, module, examples)
        except Exception as error:
            here.error = error
            raise
        return lambda *_: catches[0].stand_ins

    entry = _fresh_entry(fn)
    compiled = torch._dynamo.optimize(
        backend=catcher, nopython=True, dynamic=False, guard_filter_fn=wanted_guards
    )(entry)
    levels = {log: log.level for log in map(logging.getLogger, _TOO_LOUD)}
    for log in levels:
        log.setLevel(logging.CRITICAL)
    try:
        with (
            torch._dynamo.config.patch(
                allow_rnn=True,
                # All that a compilation makes would be counted as old, and be looked through again.
                run_gc_after_compile=False,
                ignore_logger_methods=_logging(),
                side_effect_replay_policy="error",
                skip_nnmodule_hook_guards=False,  # a hook may be added to a module later
                # Told apart by its dict alone, a module would hide what its functions close over.
                use_recursive_dict_tags_for_guards=False,
            ),
            warnings.catch_warnings(),
        ):
            # Dynamo deprecates things that it does itself.
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.")
            with questions() as catch.noted:
                result = compiled(*args, **kwargs)
            catch.guards = guards_of(entry.__code__)
            return result
    except Exception as reason:
        if catch.error is not None:
            raise catch.error from None
        ours = explain(reason)
        if ours is None:
            raise
        raise ours from reason
    finally:
        for log, level in levels.items():
            log.setLevel(level)
        reset_code(entry.__code__)
        catches.clear()


def _logging() -> set[Callable[..., Any]]:
    """Return the methods that write to a log, those that a package has added to loggers too.

    A message is no result: what is captured leaves it out, as torch.export does.
    """
    names = (name for name in dir(logging.Logger) if name.partition("_")[0] in _LEVELS)
    return {getattr(logging.Logger, name) for name in names}


def _fresh_entry(fn: Callable[..., Any]) -> types.FunctionType:
    """Return a function that calls `fn`, with a code object of its own.

    Dynamo keeps what it compiles by code object and allows eight versions of one.
    """

    def captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    code = captured.__code__.replace()
    return types.FunctionType(code, captured.__globals__, "captured", None, captured.__closure__)


def _catch_graph(catch: _Catch, module: fx.GraphModule, examples: Sequence[Any]) -> None:
    functional = functionalize(
        prepare_dynamo(module), examples, names=catch.names, empty=catch.empty
    )
    inputs = tuple(_owned_by_now(record, examples, catch) for record in functional.inputs)
    catch.imported = import_functional(replace(functional, inputs=inputs))
    catch.examples = tuple(examples)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    catch.places = tuple(place_of(node) for node in placeholders)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    # Each a tensor of its own: the place where it turns up in the result is told by identity.
    catch.stand_ins = tuple(_stand_in(value) for value in output.args[0])


def _stand_in(value: Any) -> Any:
    fake = value.meta["example_value"] if isinstance(value, fx.Node) else value
    if not isinstance(fake, torch.Tensor):
        return fake
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")


def _names(
    fn: Callable[..., Any], call: CallSpec, leaves: Sequence[Any]
) -> dict[int, tuple[str, str]]:
    """Return what the user knows each tensor as; a parameter passed as argument is an argument."""
    found: dict[int, tuple[str, str]] = {}
    for leaf, value in zip(call.leaves, leaves, strict=True):
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), ("argument", leaf.name))
    for name, tensor in _owned(fn).items():
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        found.setdefault(id(tensor), (kind, name))
    return found


def _owned_by_now(record: Input, examples: Sequence[Any], catch: _Catch) -> Input:
    """Something the function reaches by itself: no call passes it, so it belongs to the state."""
    known = id(examples[record.position]) in catch.names
    return record if known or record.kind != "argument" else replace(record, kind="buffer")


def _empty_graph() -> Imported:
    return Imported(Graph("graph", (), (), ()), (), (), (), ())


def _owned(fn: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a module by the names that the user knows them by."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    return {**dict(fn.named_parameters()), **dict(fn.named_buffers())}


# ---------------------------------------------------------------------------- the record


def _assemble(catch: _Catch, call: CallSpec, leaves: Sequence[Any], spec: ResultSpec) -> Captured:
    imported = catch.imported
    assert imported is not None, "capture has put a graph there"
    places = {
        id(leaf): at
        for at, leaf in reversed(list(enumerate(leaves)))
        if isinstance(leaf, torch.Tensor)
    }
    sources: list[int] = []
    reached: dict[str, torch.Tensor] = {}
    state: list[torch.Tensor] = []
    for record in imported.inputs:
        tensor = catch.examples[record.position]
        if id(tensor) in places:
            sources.append(places[id(tensor)])
        else:
            sources.append(-1 - len(state))
            state.append(tensor)
            if place := catch.places[record.position]:
                reached[place] = tensor
    for tensor in imported.constants:
        sources.append(-1 - len(state))
        state.append(tensor)
    return Captured(
        imported.graph,
        imported.inputs,
        tuple(sources),
        tuple(state),
        imported.results,
        imported.mutations,
        call,
        spec,
        Watch.over(catch.scope, catch.guards, reached, globals(), asked_in(catch.noted)),
    )
