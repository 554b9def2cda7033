"""Bytes at the peak on a device of each pipeline rank.

The idea: state by ZeRO and parameters of the stages that a rank holds, weights in as many versions
as its order of passes reads; activations by walking that order; and what one layer or the loss
needs beside them.  Never an average: stages differ.

This module does not know seconds.
"""

from dataclasses import replace

from tilewright.cost import (
    ModelSpec,
    Split,
    State,
    embedding_activation_bytes,
    head_activation_bytes,
    layer_activation_bytes,
    layer_parameters,
    state_bytes,
)
from tilewright.parallel.plan import ParallelPlan
from tilewright.parallel.predict_stage import WIDTHS, held_parameters
from tilewright.parallel.prediction import MemoryBytes
from tilewright.parallel.timetables import Timetable, kind_named, peak_activations, versions_held

# Of what a block keeps, its products' operands wait for the gradient of the weights: 32 of 34 s b h
# (zero-bubble pipelines, arXiv 2401.10241).
KEPT = 32 / 34


def memory_bytes(
    plan: ParallelPlan, spec: ModelSpec, timetable: Timetable
) -> tuple[MemoryBytes, ...]:
    """Return the bytes on each pipeline rank.  timetable: of the whole step, or of a beginning of
    `Kind.rounds` or more: it reaches the peak (a searched one of unequal stages nearly, and in its
    cap whatever follows), or holds its share of all micro-batches."""
    activations = _activations(plan, spec, timetable)
    flushed = not kind_named(plan.timetable).asynchronous
    versions = (1,) * plan.pp if flushed else versions_held(timetable)
    return tuple(
        _rank(plan, spec, activations[rank], stages, versions[rank])
        for rank, stages in enumerate(map(timetable.stages_of, range(plan.pp)))
    )


def _rank(
    plan: ParallelPlan,
    spec: ModelSpec,
    activations: float,
    stages: tuple[int, ...],
    versions: int,
) -> MemoryBytes:
    count, experts = held_parameters(plan, spec, stages)
    sharers = plan.dp * plan.cp
    state = _state(plan, count, sharers)
    shared = _state(plan, experts, sharers // plan.ep)  # by those that hold the same experts
    work = _workspace(plan, spec, last=len(plan.stages) - 1 in stages)
    return MemoryBytes(
        (state.weights + shared.weights) * versions,
        state.gradients + shared.gradients,
        state.optimizer + shared.optimizer,
        activations,
        work,
    )


def _state(plan: ParallelPlan, count: int, sharers: int) -> State:
    return state_bytes(
        count,
        optimizer=plan.optimizer,
        zero=plan.zero,
        data=sharers,
        precision=WIDTHS[plan.precision],
        main_gradients=plan.precision == "bfloat16",
    )


def _split(plan: ParallelPlan) -> Split:
    return Split(plan.tp, plan.sequence_parallel, plan.recompute, plan.attention == "fused")


def _layer(plan: ParallelPlan, spec: ModelSpec, split: Split) -> float:
    """Bytes of one block and micro-batch; the accounting counts elements of two bytes."""
    size = layer_activation_bytes(spec, plan.micro_batch, plan.seq, split)
    return size / plan.cp * WIDTHS[plan.precision] / 2


def _activations(plan: ParallelPlan, spec: ModelSpec, timetable: Timetable) -> tuple[float, ...]:
    held, kept = activation_bytes(plan, spec)
    slices = (1 / timetable.slices,) * timetable.slices
    peaks = peak_activations(timetable, held, kept, slices)
    if not kind_named(plan.timetable).fills:
        return peaks
    whole = plan.micro_batches / timetable.micro_batches
    return tuple(peak * whole for peak in peaks)


def activation_bytes(
    plan: ParallelPlan, spec: ModelSpec
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bytes that a micro-batch keeps on each stage: from its forward on, and from the
    gradient of its input on those that wait for the gradient of the weights.

    The latter are more where blocks are computed again: the operands of their products were made
    for the gradient of the input, and wait with it.
    """
    split = _split(plan)
    one = _layer(plan, spec, split)
    waiting = KEPT * _layer(plan, spec, replace(split, recompute="selective"))
    shared = plan.tp if plan.sequence_parallel else 1
    mask = embedding_activation_bytes(spec, plan.micro_batch, plan.seq, tensor=shared) / plan.cp
    masks = (mask, *(0.0 for _ in plan.stages[1:]))
    held, kept = (
        tuple(layers * each + more for layers, more in zip(plan.stages, masks, strict=True))
        for each in (one, waiting)
    )
    return held, kept


def _workspace(plan: ParallelPlan, spec: ModelSpec, *, last: bool) -> float:
    split = _split(plan)
    whole = _layer(plan, spec, replace(split, recompute="none"))
    size = 0.0 if plan.recompute == "none" else whole - _layer(plan, spec, split)
    if last:
        logits = head_activation_bytes(spec, plan.micro_batch, plan.seq, tensor=plan.tp)
        size += logits / plan.cp
    if plan.zero == 3:
        layer = layer_parameters(spec, tensor=plan.tp, expert=plan.ep).total
        size += 2 * layer * WIDTHS[plan.precision]  # one at work, the next one arriving
    return size
