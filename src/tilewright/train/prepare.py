"""From a module, a loss, an optimizer and an example batch to a compiled step.

The idea: module and loss are captured as one module, in the user's names; what the optimizer says
of each parameter that the loss reads becomes an `Update`; the graph that follows from the two is
compiled, and derived only where its Program is not found.

This module does not know what happens between two steps (`active`).
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from tilewright.base.errors import CaptureError, ShapeError
from tilewright.base.interpreter import uncollected
from tilewright.capture import Captured, capture_to_run
from tilewright.compiler import Built, Options
from tilewright.compiler.derived import Derived
from tilewright.compiler.lying import ROW_BY_ROW, Strides, lying_as
from tilewright.graph.build import names, rename
from tilewright.graph.ir import Graph, Role
from tilewright.optimize import RollLoops
from tilewright.train import optimizers
from tilewright.train.active import Active
from tilewright.train.chance import seed_masks
from tilewright.train.joint import Training, Update, training_graph

LossFunction = Callable[..., torch.Tensor]
Compiler = Callable[[Graph, str, Callable[[], Derived], Options], tuple[tuple[Built, ...], Any]]


class Objective(torch.nn.Module):
    """The module and the loss as one module of a batch."""

    def __init__(self, module: torch.nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.module = module
        self.loss = loss_fn
        # A parent's own mode is nobody's business, but `train()` set it to True.
        self.training = module.training

    def forward(self, *batch: Any) -> torch.Tensor:
        result: torch.Tensor = self.loss(self.module(batch[0]), *batch[1:])
        return result


@uncollected()
def prepare(
    objective: Objective,
    rule: optimizers.Rule,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Any],
    *,
    clip_norm: float | None,
    scaled: bool,
    accumulate: int,
    options: Options,
    compiler: Compiler,
) -> Active:
    """Compile the step for what module and optimizer are now; nothing is computed or changed."""
    objective.training = objective.module.training
    settings = optimizers.settings_of(rule, optimizer)
    with torch.enable_grad():
        captured = capture_to_run(objective, *_first_part(batch, accumulate))
    _check_loss(captured)
    captured = _in_the_users_words(captured)
    named = _named_inputs(captured)
    updates = _updates(rule, optimizer, captured.graph, named)
    clip = None if clip_norm is None else float(clip_norm)
    seen = zip(captured.graph.inputs, captured.inputs, strict=True)
    strides = tuple((value.name, item.strides) for value, item in seen)
    beside = _Beside(updates, clip, scaled, accumulate, strides)
    derive = functools.partial(_derived, captured.graph, beside, options)
    (built,), (places, *facts) = compiler(captured.graph, repr(beside), derive, options)
    training = Training.of(tuple(updates[place] for place in places), *facts)
    captured = _of_whole_batches(captured, accumulate)
    owners = dict(named.values())
    return Active(
        captured,
        training,
        built,
        settings,
        tuple(owners[update.parameter] for update in training.moved),
        any(update.begins for update in training.moved),
        training.draws,
        torch.zeros((), dtype=torch.int64) if training.seeded else None,
        _scale_of(captured) if training.scaled else None,
        tuple(torch.zeros((), dtype=torch.float64) for _ in training.rates),
        [0.0 for _ in training.rates],
    )


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a step follows from beside the graph that was captured, and the options.

    strides: of that graph's inputs, by name.
    """

    updates: tuple[Update, ...]
    clip_norm: float | None
    scaled: bool
    accumulate: int
    strides: tuple[tuple[str, Strides], ...]


def _derived(forward: Graph, beside: _Beside, options: Options) -> Derived:
    """Derive a step from the graph of its loss.

    All that it reads and moves lies as it did, state as its parameter; where it is compared node by
    node with eager's, row by row.
    """
    rolled = RollLoops()(forward)
    graph, training = training_graph(
        seed_masks(rolled) if options.random == "" else rolled,
        beside.updates,
        clip_norm=beside.clip_norm,
        scaled=beside.scaled,
        accumulate=beside.accumulate,
    )
    strides, owners = dict(beside.strides), training.owners(graph)
    lies = {
        at: strides[owner]
        for at, value in enumerate(graph.inputs)
        if (owner := owners.get(at, value.name)) in strides
    }
    lying = ROW_BY_ROW if options.check else lying_as(graph, lies)
    places = tuple(map(beside.updates.index, training.moved))
    return Derived(((graph, lying),), (places, training.scaled, training.seeded, training.draws))


def _first_part(batch: Sequence[Any], parts: int) -> Sequence[Any]:
    """Return the first of equal parts of every tensor of a batch, along its first dim."""
    if parts == 1:
        return batch

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return leaf
        if len(leaf) % parts or len(leaf) == 0:
            raise ShapeError(
                f"a batch of {len(leaf)} does not part into {parts} equal ones",
                expected=f"a first dim that is a multiple of accumulate={parts}",
                found=f"a tensor of shape {list(leaf.shape)}",
                mend="take another batch size, or another number of parts",
            )
        return leaf[: len(leaf) // parts]

    found: Sequence[Any] = pytree.tree_map(part, tuple(batch))
    return found


def _of_whole_batches(captured: Captured, parts: int) -> Captured:
    """Return what was captured of a part of a batch, to be called with the whole."""
    leaves = tuple(
        replace(leaf, shape=torch.Size((parts * leaf.shape[0], *leaf.shape[1:])))
        if leaf.dtype is not None and leaf.shape
        else leaf
        for leaf in captured.call.leaves
    )
    return replace(captured, call=replace(captured.call, leaves=leaves))


def _scale_of(captured: Captured) -> torch.Tensor:
    """Return where the Program reads the scale of the loss: a number of the loss's type."""
    dtype = captured.graph.outputs[0].type.dtype
    return torch.ones((), dtype=getattr(torch, dtype.torch_name))


def _check_loss(captured: Captured) -> None:
    if len(captured.results) != 1 or captured.graph.outputs[0].type.rank:
        shown = ", ".join(str(value.type) for value in captured.graph.outputs)
        raise ShapeError(
            "the loss is not one number",
            expected="a tensor of rank 0",
            found=shown or "no tensor",
            mend="reduce it in loss_fn: .mean(), or reduction='mean'",
        )
    result = captured.results[0]
    if not getattr(result, "requires_grad", False):
        raise CaptureError(
            "the loss does not depend on any parameter that asks for a gradient",
            expected="a loss computed from at least one parameter with requires_grad=True",
            found=f"{captured.graph.outputs[0].type} without gradient",
            mend="look for a detach(), no_grad() or argmax between the parameters and the loss",
        )


def _in_the_users_words(captured: Captured) -> Captured:
    """Name inputs and places as the user's module does, without the attribute of our own."""
    graph, prefix = captured.graph, "module"
    taken = set(names(graph))
    wishes = {
        v.name: v.name.removeprefix(f"{prefix}_")
        for v in graph.inputs
        if graph.role(v.name).kind in ("parameter", "buffer")
    }
    free = {a: wish for a, wish in wishes.items() if wish not in taken and wish.isidentifier()}
    graph = rename(graph, free)
    roles = tuple(
        (name, Role(role.kind, role.source.removeprefix(f"{prefix}.")))
        for name, role in graph.roles
    )
    nodes = tuple(
        replace(
            node,
            origin=replace(
                node.origin, module=f"{node.origin.module}.".removeprefix(f"{prefix}.")[:-1]
            ),
        )
        for node in graph.nodes
    )
    leaves = tuple(
        replace(leaf, name=re.sub(r"^arg(\d+)", r"batch[\1]", leaf.name))
        for leaf in captured.call.leaves
    )
    return replace(
        captured,
        graph=replace(graph, name="step", nodes=nodes, roles=roles),
        call=replace(captured.call, leaves=leaves),
    )


def _named_inputs(captured: Captured) -> dict[int, tuple[str, torch.Tensor]]:
    """Return, by identity, the tensors the module holds and the inputs they are."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for value, source in zip(captured.graph.inputs, captured.sources, strict=True):
        if source < 0:
            tensor = captured.state[-1 - source]
            assert id(tensor) not in found, f"{value.name} is an input twice"
            found[id(tensor)] = (value.name, tensor)
    return found


def _updates(
    rule: optimizers.Rule,
    optimizer: torch.optim.Optimizer,
    graph: Graph,
    named: dict[int, tuple[str, torch.Tensor]],
) -> tuple[Update, ...]:
    """Say how each parameter is moved that the loss reads and that asks for a gradient."""
    updates: list[Update] = []
    clocks: dict[float, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        attrs, slots = optimizers.attrs_of(rule, group, number), optimizers.slots_of(rule, group)
        moving = optimizers.moving_of(rule, group)
        for parameter in group["params"]:
            if id(parameter) not in named or not parameter.requires_grad:
                continue
            name = named[id(parameter)][0]
            _refuse_gradient_hooks(parameter, graph.role(name).source)
            assert all(update.parameter != name for update in updates), f"{name} is held twice"
            state = optimizer.state.get(parameter, {})
            clock = None
            if rule.clocked:
                clock = clocks.setdefault(float(state.get("step", 0.0)), len(clocks))
            begins = optimizers.begins(rule, group, state)
            updates.append(Update(name, rule.operator, attrs, number, moving, slots, clock, begins))
    return tuple(updates)


def _refuse_gradient_hooks(parameter: torch.Tensor, name: str) -> None:
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise CaptureError(
            f"parameter {name} has gradient hooks, which a compiled step does not call",
            expected="parameters without hooks",
            found="register_hook or register_post_accumulate_grad_hook",
            mend="remove the hook; what it does to the gradient can be done in loss_fn",
        )
