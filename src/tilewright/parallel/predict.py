"""The price of a pinned plan: seconds of a step and what they go to, bytes, utilization.

The idea: seconds of a micro-batch on each stage, the pipeline's timetable simulated over them, then
what happens once in a step: gradients and weights among data-parallel ranks, and the update.  A
pure function of plan, model and machine; nothing is measured, and what does not fit is priced too.

This module does not choose anything (`planning`), nor check (`plan_check`).
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.base.interpreter import uncollected
from tilewright.cost import (
    Machine,
    ModelSpec,
    hardware_flops,
    model_flops,
)
from tilewright.parallel.plan import ParallelPlan
from tilewright.parallel.plan_check import stage_ranks
from tilewright.parallel.predict_links import along_seconds, exposed, strides
from tilewright.parallel.predict_memory import activation_bytes, memory_bytes
from tilewright.parallel.predict_stage import (
    WIDTHS,
    Axes,
    Seconds,
    axes,
    held_parameters,
    stage_seconds,
    transfer_seconds,
    update_seconds,
)
from tilewright.parallel.prediction import Breakdown, MemoryBytes, Prediction
from tilewright.parallel.timetables import (
    Budget,
    Kind,
    Problem,
    Simulation,
    Times,
    Timetable,
    follow_briefly,
    kind_named,
    make_timetable,
    simulate,
)

# Above so many passes a step is simulated for its first micro-batches: from there on it repeats.
MOST_PASSES = 8_000
# Of a pipeline that never flushes, the least that is simulated; the last half tells its pace.
STEADY_ROUNDS = 4
# Of a step, what sums of its parts may be off by: less is no waiting.
ROUNDING = 1e-12


@uncollected()
def predict(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    *,
    layer_seconds: float | None = None,
    most_passes: int = MOST_PASSES,
) -> Prediction:
    """Return what a step of a plan costs.

    The plan fits the model and the machine (`check_plan`).  layer_seconds: forward and backward of
    one layer and micro-batch as measured, recomputation and collectives in it, for what roofline
    would say.  most_passes: of the pipeline, that are simulated one by one.
    """
    memory = plan_memory(plan, spec, machine, layer_seconds, most_passes)
    spec = replace(spec, tied=plan.tied)
    where = axes(plan, machine)
    stages = stage_seconds(plan, spec, machine, where, layer_seconds)
    line = _line(plan, spec, machine, where, stages)
    timetable = _timetable(line, _beginning(plan, most_passes))
    once = _once(plan, spec, machine, where, timetable, stages)
    steps = _steady if line.kind.asynchronous else _flushed
    step, often, simulation = steps(plan, line, timetable, once)
    return Prediction(
        breakdown=_breakdown(plan, simulation, line.times, stages, often, step),
        memory_bytes=memory,
        memory_limit=machine.device.memory_bytes,
        model_flops=model_flops(spec, plan.batch, plan.seq),
        hardware_flops=hardware_flops(spec, plan.batch, plan.seq, plan.recompute),
        peak=machine.device.peak(plan.precision) * plan.devices,
        tokens=plan.batch * plan.seq,
        simulation=simulation,
        notes=_notes(plan, timetable, layer_seconds),
    )


@lru_cache(maxsize=16)
@uncollected()
def plan_memory(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    layer_seconds: float | None,
    most_passes: int,
) -> tuple[MemoryBytes, ...]:
    """Return the bytes on each pipeline rank.  The arguments are those of `predict`."""
    spec = replace(spec, tied=plan.tied)
    where = axes(plan, machine)
    stages = stage_seconds(plan, spec, machine, where, layer_seconds)
    line = _line(plan, spec, machine, where, stages)
    return memory_bytes(plan, spec, _timetable(line, _beginning(plan, most_passes)))


@dataclass(frozen=True, slots=True)
class _Line:
    """A pipeline, however many micro-batches it takes: all that its timetable depends on.

    kept: the share of a micro-batch's activations that waits for the gradient of the weights, at
    most all of it: a search knows nothing of what is computed again.
    """

    kind: Kind
    ranks: int
    chunks: int
    times: Times
    kept: float


def _line(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    where: Axes,
    stages: tuple[Seconds, ...],
) -> _Line:
    kind = kind_named(plan.timetable)
    slices = plan.chunks if kind.parts == "slices" else 1
    placement = stage_ranks(plan.timetable, plan.pp, plan.chunks)
    times = Times(
        tuple(stage.forward for stage in stages),
        tuple(stage.input_grad for stage in stages),
        tuple(stage.weight_grad for stage in stages),
        transfer_seconds(plan, spec, machine, where, placement),
        (1 / slices,) * slices,
        hidden=1.0 if plan.overlap == "all" else 0.0,
    )
    held, kept = activation_bytes(plan, spec)
    shares = (after / before for after, before in zip(kept, held, strict=True) if before)
    return _Line(kind, plan.pp, plan.chunks, times, min(1.0, max(shares, default=1.0)))


def _beginning(plan: ParallelPlan, most_passes: int) -> int:
    """Return how many micro-batches are simulated: all, or where there are very many passes those
    of the beginning.

    The beginning is `Kind.rounds` of the pipeline or more, and as many micro-batches of the last,
    unfinished round as the whole has: what is left out is whole rounds of the steady state.  Where
    there is no flush, it is what the steady state is told from.
    """
    p, m, turn = plan.pp, plan.micro_batches, _round(plan.pp)
    if kind_named(plan.timetable).asynchronous:
        return steady_micro_batches(plan, most_passes)
    if 2 * p * m * plan.chunks <= most_passes:
        return m
    fewest = max(most_passes // (2 * p * plan.chunks), kind_named(plan.timetable).rounds * turn)
    return min(m, fewest - fewest % turn + m % turn)


def _round(ranks: int) -> int:
    """Return the micro-batches after which a steady pipeline begins anew: one for each rank, and an
    even number, as those of two directions take turns."""
    return ranks if ranks % 2 == 0 else 2 * ranks


@lru_cache(maxsize=4)
def _timetable(line: _Line, micro_batches: int) -> Timetable:
    """Return the timetable of a pipeline; one that is searched for, for its own times and in its
    own activations."""
    name, cap = line.kind.name, line.kind.cap * line.ranks
    if not cap:
        return make_timetable(name, line.ranks, micro_batches, line.chunks)
    budget = Budget(float(cap), 1.0, line.kept)
    return follow_briefly(name, Problem(micro_batches, line.times, budget, barrier=True))


Ends = list[tuple[float, float]]  # for each pipeline rank, seconds of gradients and of the update


def _flushed(
    plan: ParallelPlan, line: _Line, timetable: Timetable, once: Ends
) -> tuple[float, Ends, Simulation]:
    """Return the seconds of a step that ends in one update, what ranks do then, and its run."""
    simulation = simulate(timetable, line.times)
    rest = _rest_seconds(plan, line, simulation)
    first = min(row[0] for row in simulation.starts)
    ends = zip(simulation.ends, once, strict=True)
    return max(row[-1] - first + rest + sum(both) for row, both in ends), once, simulation


def _rest_seconds(plan: ParallelPlan, line: _Line, simulation: Simulation) -> float:
    """Return the seconds of the micro-batches that are not simulated: whole rounds, each as
    long as the last round of those that are.

    Of a searched order it is the mean of the last rounds, as its weight gradients come in bunches.
    """
    simulated = simulation.timetable.micro_batches
    left = plan.micro_batches - simulated
    if not left:
        return 0.0
    last = line.kind.rounds // 2 * _round(plan.pp)
    fewer = simulate(_timetable(line, simulated - last), line.times)
    return (simulation.makespan - fewer.makespan) / last * left


# --------------------------------------------------------------------------------- without a flush


def steady_micro_batches(plan: ParallelPlan, most_passes: int) -> int:
    """Return how many micro-batches of a pipeline that never flushes are simulated, in rounds."""
    turn = _steady_round(plan)
    return max(most_passes // (2 * plan.pp * turn), STEADY_ROUNDS) * turn


def _steady_round(plan: ParallelPlan) -> int:
    """Return the micro-batches after which a pipeline that never flushes begins anew: one for each
    rank, or whole turns of those that may be under way, where they are fewer."""
    return plan.pp - plan.pp % plan.chunks or plan.pp


def _steady(
    plan: ParallelPlan, line: _Line, timetable: Timetable, once: Ends
) -> tuple[float, Ends, Simulation]:
    """Return the seconds in which a pipeline that never flushes takes in the micro-batches of a
    step, what its updates take of them, and the run of its first step.

    The pace is that of the last half of the rounds.  What a rank does at an update is shared out
    over the micro-batches before it, as longer gradients of the weights of its one stage.
    """
    simulated = timetable.micro_batches
    rates = [1 / each for each in updated_after(timetable)]
    later = [rate * sum(update) for rate, update in zip(rates, once, strict=True)]
    both = zip(line.times.weight_grad, timetable.placement, strict=True)
    longer = tuple(seconds + later[rank] for seconds, rank in both)
    times = replace(line.times, weight_grad=longer)
    turn = _steady_round(plan)
    last = simulated // turn // 2 * turn
    fewer = simulate(_timetable(line, simulated - last), times)
    pace = (simulate(timetable, times).makespan - fewer.makespan) / last
    shown = simulate(_timetable(line, min(plan.micro_batches, simulated)), times)
    often = [
        (plan.micro_batches * rate * data, plan.micro_batches * rate * update)
        for rate, (data, update) in zip(rates, once, strict=True)
    ]
    return pace * plan.micro_batches, often, shown


def updated_after(timetable: Timetable) -> list[int]:
    """Return the micro-batches of each rank's first update: of all where a step has one."""
    found = []
    for row in timetable.ranks:
        parts = [part for action in row for part in action]
        first = [at for at, part in enumerate(parts) if part.kind == "U"][:1]
        before = parts[: first[0]] if first else []
        backwards = sum(part.kind in ("B", "BW") for part in before)
        found.append(backwards or timetable.micro_batches)
    return found


# ----------------------------------------------------------------------------------- once in a step


def _once(
    plan: ParallelPlan,
    spec: ModelSpec,
    machine: Machine,
    where: Axes,
    timetable: Timetable,
    stages: tuple[Seconds, ...],
) -> Ends:
    """Return for each pipeline rank the seconds of gradients and weights, and of the update."""
    tie = _tie_seconds(plan, spec, machine)
    holders = Counter(stage for rank in range(plan.pp) for stage in timetable.stages_of(rank))
    between = updated_after(timetable) if kind_named(plan.timetable).asynchronous else []
    rows = []
    for rank in range(plan.pp):
        mine = timetable.stages_of(rank)
        m = between[rank] if between else plan.micro_batches
        layers = sum(plan.stages[stage] for stage in mine)
        count, experts = held_parameters(plan, spec, mine)
        sent = _data_seconds(plan, where, count, experts, max(1, layers), m)
        twice = tuple(stage for stage in mine if holders[stage] > 1)
        sent += _replica_seconds(plan, machine, rank, sum(held_parameters(plan, spec, twice)))
        hidden = _hiding(plan, [stages[stage] for stage in mine], m)
        data = exposed(sent, hidden, machine.constants.overlap_slowdown) if hidden else sent
        ends = (0 in mine) != (len(plan.stages) - 1 in mine)
        rows.append((data + (tie if ends else 0.0), update_seconds(plan, machine, count, experts)))
    return rows


def _data_seconds(
    plan: ParallelPlan, where: Axes, count: int, experts: int, layers: int, m: int
) -> float:
    """Return the seconds of all that data-parallel ranks send for one update, of m micro-batches.

    Gradients are one buffer; ZeRO-3 gathers and scatters layer by layer.  Elements: DDP
    and ZeRO-1 2 N; ZeRO-2 (m + 1) N; ZeRO-3 3 m N (Rajbhandari et al. 2020).
    """
    weight = WIDTHS[plan.precision]
    gradient = 4 if plan.precision == "bfloat16" else weight
    total = 0.0
    for span, n in ((where.data, count), (where.expert_data, experts)):
        if n == 0:
            continue
        parts = layers if plan.zero == 3 else 1
        scatter = parts * span.all_gather(n * gradient / parts)
        gather = parts * span.all_gather(n * weight / parts)
        total += {
            0: span.all_reduce(n * gradient),
            1: scatter + gather,
            2: m * scatter + gather,
            3: m * (2 * gather + scatter),
        }[plan.zero]
    return total


def _replica_seconds(plan: ParallelPlan, machine: Machine, rank: int, count: int) -> float:
    """Where a pipeline runs both ways, a stage is held twice, by ranks that mirror each other: they
    sum its gradients."""
    if not count:
        return 0.0
    stride = strides(plan.degrees, plan.order)["pp"]
    gradient = 4 if plan.precision == "bfloat16" else WIDTHS[plan.precision]
    other = plan.pp - 1 - rank
    return along_seconds(machine, stride, plan.pp, rank, other, count * gradient)


def _tie_seconds(plan: ParallelPlan, spec: ModelSpec, machine: Machine) -> float:
    """Where different ranks have the first and the last stage, they sum the gradients of a tied
    embedding."""
    if not plan.tied:
        return 0.0
    stride = strides(plan.degrees, plan.order)["pp"]
    size = spec.hidden * spec.vocab / plan.tp * WIDTHS[plan.precision]
    return along_seconds(machine, stride, plan.pp, 0, plan.pp - 1, size)


def _hiding(plan: ParallelPlan, mine: list[Seconds], m: int) -> float:
    """Return the seconds of computing behind which data's collectives can hide.

    Gradients are ready as the last backward goes on; ZeRO-2 sends after each, and ZeRO-3 all along.
    """
    if plan.overlap == "none":
        return 0.0
    backward = sum(stage.input_grad + stage.weight_grad for stage in mine)
    if plan.zero == 3:
        return m * sum(stage.total for stage in mine)
    return backward * (m if plan.zero == 2 else 1)


# ---------------------------------------------------------------------------------------- the parts


def _breakdown(
    plan: ParallelPlan,
    simulation: Simulation,
    times: Times,
    stages: tuple[Seconds, ...],
    once: Ends,
    step: float,
) -> Breakdown:
    """Split the step as the busiest rank spends it: what it does not do, it waits.

    Of ranks that are as busy, the one that has most to do once in a step.
    """
    timetable = simulation.timetable
    whole = plan.micro_batches / timetable.micro_batches
    work = [_work(timetable, stages, rank).times(whole) for rank in range(plan.pp)]
    busiest = max(range(plan.pp), key=lambda rank: (work[rank].total, sum(once[rank])))
    parts, (data, optimizer) = work[busiest], once[busiest]
    pipeline = _sent(timetable, times, busiest) * whole
    bubble = step - parts.total - pipeline - data - optimizer
    return Breakdown(
        compute=parts.total - parts.recompute - parts.tensor + parts.resent,
        recompute=parts.recompute - parts.resent,
        tensor=parts.tensor,
        pipeline=pipeline,
        bubble=bubble if bubble > ROUNDING * step else 0.0,
        data=data,
        optimizer=optimizer,
    )


def _work(timetable: Timetable, stages: tuple[Seconds, ...], rank: int) -> Seconds:
    """Return what a rank computes and sends within layers for all micro-batches of a timetable."""
    found = Seconds()
    for stage in timetable.stages_of(rank):
        found += stages[stage].times(_share(timetable, rank, stage))
    return found


def _share(timetable: Timetable, rank: int, stage: int) -> float:
    """Return how many micro-batches of a stage a rank runs (all, or half where it has replicas)."""
    return timetable.forwards_of[rank, stage] / timetable.slices


def _sent(timetable: Timetable, times: Times, rank: int) -> float:
    """Return the seconds for which sending to other ranks keeps a rank."""
    placed, kept = timetable.placement, 0.0
    for stage in timetable.stages_of(rank):
        for boundary, other in ((stage, stage + 1), (stage - 1, stage - 1)):
            if 0 <= other < len(placed) and placed[other] != placed[stage]:
                kept += _share(timetable, rank, stage) * times.transfer[boundary]
    return kept * (1 - times.hidden)


def _notes(
    plan: ParallelPlan, timetable: Timetable, layer_seconds: float | None
) -> tuple[str, ...]:
    notes = []
    if kind_named(plan.timetable).asynchronous:
        updates = plan.micro_batches / updated_after(timetable)[0]
        notes.append(
            f"no flush: a step is {plan.micro_batches} micro-batches of the steady state, in which "
            f"weights are updated {updates:.4g} times; filling the pipeline, as drawn, is left out"
        )
    elif timetable.micro_batches < plan.micro_batches:
        notes.append(
            f"the first {timetable.micro_batches} of {plan.micro_batches} micro-batches are "
            "simulated; the others follow at the pace of the last of these"
        )
    split = any(part.kind == "W" for row in timetable.ranks for act in row for part in act)
    if split and plan.recompute == "full":
        notes.append("what is computed again waits in memory for the gradient of the weights")
    if layer_seconds is not None:
        notes.append("a layer takes the time that was measured")
    return tuple(notes)
