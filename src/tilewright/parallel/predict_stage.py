"""Seconds of one micro-batch on each stage of a pipeline, and of what ranks send each other for it.

The idea: a block's parts by roofline, and the collectives that its splits ask for, summed over the
layers of a stage; the first stage has the embedding too, the last the head and the loss.  Where
the host starts operators more slowly than the device runs them, the host decides.

This module does not know when a stage runs (`timetables`), nor what is shared across micro-batches.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.cost import (
    OPTIMIZERS,
    Machine,
    ModelSpec,
    expert_parameters,
    head_parameters,
    stage_parameters,
)
from tilewright.parallel.plan import ParallelPlan
from tilewright.parallel.predict_block import (
    Load,
    Part,
    Rates,
    Shape,
    block_parts,
    embedding_parts,
    head_parts,
    rates,
)
from tilewright.parallel.predict_links import Span, along_seconds, groups_of, strides

WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of a micro-batch, by pass.  recompute: part of input_grad.  tensor: collectives, part
    of all three, in sum.  resent: collectives of what is computed again, part of both of these."""

    forward: float = 0.0
    input_grad: float = 0.0
    weight_grad: float = 0.0
    recompute: float = 0.0
    tensor: float = 0.0
    resent: float = 0.0

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.input_grad + self.weight_grad

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(*(getattr(self, n) + getattr(other, n) for n in Seconds.__slots__))

    def times(self, factor: float) -> "Seconds":
        """Return all of it so many times."""
        return Seconds(*(getattr(self, name) * factor for name in Seconds.__slots__))


@dataclass(frozen=True, slots=True)
class Axes:
    """Where the ranks of each axis sit.  data: dp and cp together, who share gradients."""

    tensor: Span
    context: Span
    expert: Span
    data: Span
    expert_data: Span


def axes(plan: ParallelPlan, machine: Machine) -> Axes:
    """Return where the groups of a plan sit on a machine."""
    stride = strides(plan.degrees, plan.order)
    both = min(stride["cp"] if plan.cp > 1 else stride["dp"], stride["dp"])
    groups = groups_of(machine)
    return Axes(
        groups.span(stride["tp"], plan.tp),
        groups.span(stride["cp"], plan.cp),
        groups.span(both, plan.ep),
        groups.span(both, plan.dp * plan.cp),
        groups.span(both * plan.ep, max(1, plan.dp * plan.cp // plan.ep)),
    )


def shape_of(plan: ParallelPlan) -> Shape:
    """Return what one rank computes of a micro-batch."""
    return Shape(
        plan.micro_batch,
        plan.seq,
        plan.tp,
        plan.cp,
        plan.ep,
        plan.sequence_parallel,
        plan.attention == "fused",
        WIDTHS[plan.precision],
    )


def block_seconds(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    where: Axes,
    layer_seconds: float | None = None,
) -> Seconds:
    """Return the seconds of one block and micro-batch.

    layer_seconds: those of forward and backward together as measured, for what roofline says.
    """
    reached = rates(machine, plan.precision)
    shape = shape_of(plan)
    parts = block_parts(spec, shape)
    sent, rounds = _collectives(spec, shape, where)
    full, again = plan.recompute == "full", _again(parts, plan.recompute)
    forward = _sum(reached, (part.forward for part in parts))
    resent = sent if full else 0.0
    repeated = _sum(reached, again) + resent
    device = Seconds(
        forward + sent,
        _sum(reached, (part.input_grad for part in parts)) + _backward(sent) + repeated,
        _sum(reached, (part.weight_grad for part in parts)),
        repeated,
        sent + _backward(sent) + resent,
        resent,
    )
    operators = sum(load.operators for part in parts for load in _loads(part))
    operators += sum(load.operators for load in again)
    late = rounds * (3 if full else 2)
    host = operators * reached.host + late
    wanted = layer_seconds if layer_seconds is not None else max(device.total, host)
    return _stretched(device, wanted)


def stage_seconds(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    where: Axes,
    layer_seconds: float | None = None,
) -> tuple[Seconds, ...]:
    """Return the seconds of one micro-batch on each stage of a plan."""
    block = block_seconds(plan, spec, machine, where, layer_seconds)
    constants = machine.constants
    begun = constants.micro_batch_seconds / 2
    each = [block.times(layers) + Seconds(begun, begun) for layers in plan.stages]
    reached, shape = rates(machine, plan.precision), shape_of(plan)
    summed = where.tensor.all_reduce(shape.tokens * spec.hidden * shape.width)
    each[0] += _ends(reached, embedding_parts(spec, shape), summed)
    each[-1] += _ends(reached, head_parts(spec, shape), summed)
    each[-1] += Seconds(constants.loss_seconds)
    return tuple(each)


def transfer_seconds(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    where: Axes,
    placement: tuple[int, ...],
) -> tuple[float, ...]:
    """Return the seconds to send a micro-batch over each boundary between stages.

    Each of the tensor-parallel ranks sends its share; without sequence parallelism the receivers
    gather the shares again (scatter/gather of Narayanan et al. 2021).
    """
    shape = shape_of(plan)
    stride = strides(plan.degrees, plan.order)["pp"]
    whole = shape.tokens * spec.hidden * shape.width
    gathered = 0.0 if plan.sequence_parallel else where.tensor.all_gather(whole)
    return tuple(
        along_seconds(machine, stride, plan.pp, one, two, whole / plan.tp) + gathered
        if one != two
        else 0.0
        for one, two in itertools.pairwise(placement)
    )


def held_parameters(
    plan: ParallelPlan, spec: ModelSpec, stages: tuple[int, ...]
) -> tuple[int, int]:
    """Return the parameters of a rank with these stages: all but the experts', and the experts'.

    A tied head is a copy of the embedding, but not where one rank has both.
    """
    counts = stage_parameters(spec, plan.stages, tensor=plan.tp, expert=plan.ep)
    layers = sum(plan.stages[stage] for stage in stages)
    experts = layers * expert_parameters(spec, tensor=plan.tp, expert=plan.ep)
    count = sum(counts[stage] for stage in stages) - experts
    last = len(plan.stages) - 1
    if spec.tied and last > 0 and {0, last} <= set(stages):
        count -= head_parameters(spec, tensor=plan.tp)
    return count, experts


def update_seconds(plan: ParallelPlan, machine: Machine, count: int, experts: int = 0) -> float:
    """Return the seconds of the optimizer on one rank's parameters.

    count: those that all ranks of dp and cp hold.  experts: those that only dp cp / ep of them do.

    It reads and writes its state and the weights, and reads gradients for the norm and the update,
    and clears them: 32 bytes a parameter for Adam in half precision.
    """
    weight = WIDTHS[plan.precision]
    gradient = 4 if plan.precision == "bfloat16" else weight
    state = 8 * (dict(OPTIMIZERS)[plan.optimizer] + (1 if weight < 4 else 0))
    sharers = plan.dp * plan.cp if plan.zero else 1
    mine = count / sharers + experts / (sharers // plan.ep if plan.zero else 1)
    return mine * (state + 3 * gradient + weight) / rates(machine, plan.precision).bandwidth


def _collectives(spec: ModelSpec, shape: Shape, where: Axes) -> tuple[float, float]:
    """Return the seconds of the collectives of one block's forward, and of starting them.

    Tensor parallelism sums twice (or gathers and scatters twice); context parallelism gathers keys
    and values; expert parallelism sends tokens there and back.
    """
    size = shape.tokens * spec.hidden * shape.width
    kv = spec.kv_heads * spec.head / min(shape.tensor, spec.kv_heads)
    keys = 2 * shape.batch * shape.seq * kv * shape.width
    routed = size * (spec.top_k or 0) / (shape.tensor if shape.shared_norms else 1)
    twice = where.tensor.all_gather if shape.shared_norms else where.tensor.all_reduce
    times = 4 if shape.shared_norms else 2
    seconds = times * twice(size) + where.context.all_gather(keys)
    started = times * where.tensor.host_seconds + where.context.host_seconds
    if spec.experts:
        seconds += 2 * where.expert.all_to_all(routed)
        started += 2 * where.expert.host_seconds
    return seconds, started


def _backward(sent: float) -> float:
    """Return the seconds of the collectives of a backward: the mirror of the forward's."""
    return sent


def _again(parts: tuple[Part, ...], recompute: str) -> tuple[Load, ...]:
    """Return the loads that the backward runs again."""
    if recompute == "full":
        return tuple(part.forward for part in parts)
    return tuple(part.forward for part in parts if recompute == "selective" and part.scores)


def _ends(reached: Rates, parts: tuple[Part, ...], summed: float) -> Seconds:
    """Return the seconds of the embedding, or the head; each sums over the tensor ranks once."""
    return Seconds(
        _sum(reached, (part.forward for part in parts)) + summed,
        _sum(reached, (part.input_grad for part in parts)),
        _sum(reached, (part.weight_grad for part in parts)),
        tensor=summed,
    )


def _loads(part: Part) -> tuple[Load, Load, Load]:
    return part.forward, part.input_grad, part.weight_grad


def _sum(reached: Rates, loads: Iterable[Load]) -> float:
    return sum(reached.seconds(load) for load in loads)


def _stretched(device: Seconds, total: float) -> Seconds:
    """Return the same passes in `total` seconds.  The collectives take what they take: what is
    waited for is computing."""
    made = device.times(total / device.total)
    return replace(
        made,
        tensor=min(device.tensor, made.tensor),
        resent=min(device.resent, made.resent),
    )
