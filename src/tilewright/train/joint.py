"""One training step as one graph: forward, loss, gradient, clipping and the optimizer's update.

The idea: everything a step changes (parameters, optimizer state, buffers) is an update of an input,
so the whole step is a function that any pass may rearrange::

    graph(batch, parameters)   -->   graph(batch, parameters, rates, steps, state) : loss, updates

With loss scaling (for float16) the gradient starts from the scale, is divided by it at the end, and
nothing is moved where an element of it is not finite.

What a schedule moves (learning rates, momenta) and step counts are inputs of rank 0.

This module does not know torch, nor where state lives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.autodiff import resolve, reverse
from tilewright.base.dtypes import BOOL, F32, F64
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import Attr, Graph, Role, TensorType, Value
from tilewright.ops import emit
from tilewright.ops.operator import write
from tilewright.ops.optimizer import PAGE
from tilewright.train.accumulate import accumulated
from tilewright.train.chance import draws_from_torch, seeded_by

RULES = tuple(operator.name for operator in PAGE)
Rate = tuple[int, str]  # the number of a group, and the name of a setting
CLIP_GUARD = 1e-6  # added to the norm before dividing by it, as torch does


@dataclass(frozen=True, slots=True)
class Update:
    """How one parameter is moved.

    parameter: the name of its input.  rule: an operator of the optimizers' page, with its attrs.
    group: the number of the parameter group.  moving: settings of the group that are inputs: the
    learning rate first; the others are attributes of the rule that are None.  slots: names of its
    state tensors, of the parameter's own type.  clock: parameters of one number have made the same
    number of steps; None where the rule does not count.  begins: its momentum begins with this
    step, as torch lets it: with the gradient, whatever the dampening.
    """

    parameter: str
    rule: str
    attrs: tuple[tuple[str, Attr], ...]
    group: int
    moving: tuple[str, ...] = ("lr",)
    slots: tuple[str, ...] = ()
    clock: int | None = None
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """What the inputs of a step's graph are after those of the forward graph.

    moved: the updates of parameters that have a gradient, in order.  rates: settings that are
    inputs, by group and name, in order.  clocks: likewise for step counts.  scaled: the loss has a
    scale, and whether the gradient overflowed (bool, rank 0) is the output after the loss.  seeded:
    there is a seed.  draws: something draws from torch's generator.  Inputs follow as: seed, scale,
    rates, clocks, then for each update its slots.
    """

    moved: tuple[Update, ...]
    rates: tuple[Rate, ...]
    clocks: tuple[int, ...]
    scaled: bool
    seeded: bool
    draws: bool

    @staticmethod
    def of(moved: tuple[Update, ...], scaled: bool, seeded: bool, draws: bool) -> "Training":
        """Say what follows from which updates are made."""
        rates = dict.fromkeys((update.group, name) for update in moved for name in update.moving)
        clocks = {update.clock for update in moved if update.clock is not None}
        return Training(moved, tuple(rates), tuple(sorted(clocks)), scaled, seeded, draws)

    def owners(self, graph: Graph) -> dict[int, str]:
        """For the position of each input that is state of a parameter, that parameter's name."""
        slots = [update.parameter for update in self.moved for _ in update.slots]
        return dict(enumerate(slots, len(graph.inputs) - len(slots)))


def training_graph(
    forward: Graph,
    updates: Sequence[Update],
    *,
    clip_norm: float | None = None,
    scaled: bool = False,
    accumulate: int = 1,
) -> tuple[Graph, Training]:
    """Extend a graph whose first output is the loss by its gradient and the optimizer's updates.

    Parameters that the loss does not depend on are left alone.  accumulate: the step's batch is so
    many batches of the graph's, one after the other.
    """
    wrt = [update.parameter for update in updates]
    joint = reverse(resolve(forward), wrt, of=[0], ones=not scaled)
    if accumulate > 1:
        joint = accumulated(joint, accumulate)
    builder = Builder.extending(joint.graph)
    found = {
        update.parameter: joint.graph.outputs[at]
        for update, at in zip(updates, joint.gradients, strict=True)
        if at is not None
    }
    moved = tuple(update for update in updates if update.parameter in found)
    values = {value.name: value for value in joint.graph.inputs}
    outputs = list(joint.graph.outputs[: len(forward.outputs)])
    overflow = None
    if scaled and found:
        ((_, scale),) = joint.tangents
        overflow = _overflow(builder, list(found.values()))
        found = _unscaled(builder, found, values[scale])
        outputs.append(overflow)
    if clip_norm is not None and found:
        found = _clip(builder, found, clip_norm)
    seeded, draws = seeded_by(joint.graph) is not None, draws_from_torch(joint.graph)
    training = Training.of(moved, overflow is not None, seeded, draws)
    scalars = _Scalars.of(builder, training)
    pairs = list(joint.graph.updates)
    for update in moved:
        targets, results = _move(builder, update, values, found, scalars)
        for target, result in zip(targets, results, strict=True):
            kept = result if overflow is None else _unless(builder, overflow, target, result)
            pairs.append((target.name, len(outputs)))
            outputs.append(kept)
    return prune(builder.finish(outputs, pairs)), training


def without_updates(graph: Graph) -> Graph:
    """Return a step's graph up to the gradients that the optimizer is given.

    What comes after cannot be judged by comparing: AdamW's first step makes the rounding of a small
    gradient as large as the gradient.
    """
    moving = [node for node in graph.nodes if node.op in RULES]
    moved = {value.name for node in moving for value in node.inputs}
    results = {at for name, at in graph.updates if name in moved}
    kept = [value for at, value in enumerate(graph.outputs) if at not in results]
    gradients = [node.inputs[1] for node in moving]
    return prune(replace(graph, outputs=(*kept, *gradients), updates=()))


@dataclass(frozen=True, slots=True)
class _Scalars:
    """Inputs of rank 0: what a schedule moves, by group; the step that each clock comes to."""

    rates: Mapping[Rate, Value]
    clocks: Mapping[int, Value]

    @staticmethod
    def of(builder: Builder, training: Training) -> "_Scalars":
        rates = {
            (group, name): builder.input(
                f"{name}_{group}",
                TensorType((), F64),
                Role("state", f"param_groups[{group}].{name}"),
            )
            for group, name in training.rates
        }
        steps = {
            clock: builder.input(f"step_{clock}", TensorType((), F32), Role("state", "step"))
            for clock in training.clocks
        }
        clocks = {
            clock: write(builder, "y[] = f64(s[]) + 1", s=step, dtype=F64, name="this_step")
            for clock, step in steps.items()
        }
        return _Scalars(rates, clocks)


def _move(
    builder: Builder,
    update: Update,
    values: Mapping[str, Value],
    gradients: Mapping[str, Value],
    scalars: _Scalars,
) -> tuple[list[Value], tuple[Value, ...]]:
    """Add one parameter's update; returns the inputs that it replaces and what by."""
    parameter = values[update.parameter]
    rates = [scalars.rates[update.group, name] for name in update.moving]
    source = _source(builder, parameter)
    slots = [
        builder.input(f"{slot}_{parameter.name}", parameter.type, Role("state", f"{source}.{slot}"))
        for slot in update.slots
    ]
    clock = []
    if update.clock is None:
        # Rounded once: products with them stay in the parameter's own type.
        dtype = parameter.type.dtype.compute
        body = f"y[] = {dtype.name}(r[])"
        rates = [write(builder, body, r=rate, dtype=dtype, name="rate") for rate in rates]
    else:
        clock = [scalars.clocks[update.clock]]
    operands = [parameter, gradients[parameter.name], rates[0], *clock, *slots, *rates[1:]]
    attrs: dict[str, Any] = {**dict(update.attrs), **dict.fromkeys(update.moving[1:])}
    if update.begins:
        attrs["first"] = True
    made = emit(builder, update.rule, *operands, **attrs)
    return [parameter, *slots], made if isinstance(made, tuple) else (made,)


def _source(builder: Builder, value: Value) -> str:
    """Return the name that the user knows an input by."""
    return dict(builder.roles).get(value.name, Role()).source or value.name


# ----------------------------------------------------------------------------------- loss scaling


def _overflow(builder: Builder, gradients: Sequence[Value]) -> Value:
    """Say whether any element of any gradient is infinite or NaN."""
    parts = []
    for gradient in gradients:
        element = f"g[{', '.join(f'i{k}' for k in range(gradient.type.rank))}]"
        body = f"y[] any= isinf({element}) or isnan({element})"
        parts.append(write(builder, body, g=gradient, dtype=BOOL, name="overflow"))
    return _fold(builder, parts, " or ", "overflow")


def _unscaled(builder: Builder, gradients: Mapping[str, Value], scale: Value) -> dict[str, Value]:
    """Divide all gradients by the scale, as torch does: by a reciprocal rounded to float32."""
    inverse = write(builder, "y[] = f32(1 / f64(s[]))", s=scale, dtype=F32, name="inverse_scale")
    return {
        name: write(
            builder, "y[...] = g[...] * s[]", g=gradient, s=inverse, dtype=gradient.type.dtype,
            name=f"unscaled_{gradient.name}",
        )
        for name, gradient in gradients.items()
    }  # fmt: skip


def _unless(builder: Builder, overflow: Value, old: Value, new: Value) -> Value:
    body = "y[...] = old[...] if f[] else new[...]"
    return write(builder, body, old=old, f=overflow, new=new, dtype=old.type.dtype, name=new.name)


# ---------------------------------------------------------------------------------------- clipping


def _clip(builder: Builder, gradients: Mapping[str, Value], largest: float) -> dict[str, Value]:
    """Scale all gradients by one factor, so that their common norm is at most `largest`."""
    squares = [_square_sum(builder, gradient) for gradient in gradients.values()]
    total = _fold(builder, squares, " + ", "square_norm")
    body = "y[] = min(largest / (sqrt(s[]) + guard), 1)"
    factor = write(
        builder, body, s=total, largest=float(largest), guard=CLIP_GUARD, name="clip_factor"
    )
    clipped = {}
    for name, gradient in gradients.items():
        body = "y[...] = g[...] * f[]"
        given = {"g": gradient, "f": factor}
        clipped[name] = write(
            builder, body, given, dtype=gradient.type.dtype, name=f"clipped_{gradient.name}"
        )
    return clipped


def _square_sum(builder: Builder, gradient: Value) -> Value:
    loops = ", ".join(f"i{k}" for k in range(gradient.type.rank))
    return write(
        builder,
        f"y[] += g[{loops}] * g[{loops}]",
        g=gradient,
        dtype=gradient.type.dtype.compute,
        name=f"square_{gradient.name}",
    )


def _fold(builder: Builder, parts: Sequence[Value], operator: str, name: str) -> Value:
    """Combine scalars, few at a time: one formula over hundreds would be deep."""
    while len(parts) > 1:
        parts = [
            _fold_few(builder, parts[at : at + 8], operator, name) for at in range(0, len(parts), 8)
        ]
    return parts[0]


def _fold_few(builder: Builder, parts: Sequence[Value], operator: str, name: str) -> Value:
    body = "y[] = " + operator.join(f"a{k}[]" for k in range(len(parts)))
    operands = {f"a{k}": part for k, part in enumerate(parts)}
    return write(builder, body, operands, dtype=parts[0].type.dtype, name=name)
