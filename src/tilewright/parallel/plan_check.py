"""Whether a plan fits its model and its machine: every rule that a plan can break, with the mend.

The idea: a plan is checked whoever made it, before anything is priced; a setting without effect is
refused like one that is wrong.  Whether a plan has the memory is a prediction, not a rule.

This module does not know seconds or bytes.
"""

import math
from functools import lru_cache

from tilewright.base.errors import PlanError
from tilewright.cost import Machine, ModelSpec
from tilewright.parallel.plan import ParallelPlan
from tilewright.parallel.timetables import make_timetable


def check_plan(plan: ParallelPlan, spec: ModelSpec, machine: Machine) -> None:
    """Raise PlanError where a plan was made for another model or machine, or cannot be run."""
    if plan.model != str(spec):
        raise PlanError(
            "the plan was made for another model",
            expected=str(spec),
            found=plan.model,
            mend="plan this model anew, or say the plan's model",
        )
    check_devices(plan, machine)
    check_batch(plan)
    _check_splits(plan, spec)
    _check_effects(plan, spec)
    _check_stages(plan, spec)


def check_devices(plan: ParallelPlan, machine: Machine) -> None:
    """Refuse a plan for another machine, or whose degrees do not multiply to its devices."""
    named = machine_words(machine)
    if plan.machine != named:
        raise PlanError(
            "the plan was made for another machine",
            expected=named,
            found=plan.machine,
            mend="plan this machine anew, or say the plan's machine",
        )
    if plan.devices != machine.devices:
        degrees = " x ".join(f"{axis} {n}" for axis, n in plan.degrees.items())
        raise PlanError(
            "the degrees do not multiply to the number of devices",
            expected=f"{machine.devices}, the devices of {machine.name}",
            found=f"{degrees} = {plan.devices}",
            mend=_nearest_dp(plan, machine),
        )


def machine_words(machine: Machine) -> str:
    """Return how a plan names a machine."""
    return f"{machine.name} x {machine.devices}"


def check_batch(plan: ParallelPlan) -> None:
    """Refuse a batch that is not made of whole micro-batches on every data-parallel rank."""
    unit = plan.dp * plan.micro_batch
    if plan.batch % unit:
        below, above = plan.batch // unit * unit, -(-plan.batch // unit) * unit
        sizes = f"{below} or {above}" if below else str(above)
        raise PlanError(
            "the batch cannot be shared evenly",
            expected=f"a multiple of dp {plan.dp} x micro_batch {plan.micro_batch} = {unit}",
            found=str(plan.batch),
            mend=f"take a batch of {sizes}, or another dp or micro_batch",
        )


def _nearest_dp(plan: ParallelPlan, machine: Machine) -> str:
    rest = plan.tp * plan.cp * plan.pp
    if machine.devices % rest == 0:
        return f"take dp={machine.devices // rest}"
    return f"take degrees whose product divides {machine.devices}"


def _check_splits(plan: ParallelPlan, spec: ModelSpec) -> None:
    """Refuse degrees that do not divide what they share."""
    kv = max(plan.tp, spec.kv_heads)
    sequence = math.lcm(plan.cp, plan.tp * plan.cp if plan.sequence_parallel else 1)
    for what, count, axis, degree in (
        ("heads", spec.heads, "tp", plan.tp),
        ("the feed-forward's width", spec.ffn, "tp", plan.tp),
        ("heads of keys and values, or tp by them", kv, "tp", min(plan.tp, spec.kv_heads)),
        ("tokens of a sequence", plan.seq, "cp, and tp", sequence),
        ("experts", spec.experts or plan.ep, "ep", plan.ep),
        ("ranks of dp and cp", plan.dp * plan.cp, "ep", plan.ep),
    ):
        if count % degree:
            raise PlanError(
                f"{what} cannot be shared evenly by {axis}",
                expected=f"a divisor of {count}",
                found=str(degree),
                mend=f"take one of {_divisors(count)}",
            )


def _divisors(count: int) -> str:
    found = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
    return ", ".join(map(str, found))


def _check_effects(plan: ParallelPlan, spec: ModelSpec) -> None:
    """Refuse settings that would do nothing."""
    for broken, setting, why in (
        (plan.ep > 1 and not spec.experts, f"ep {plan.ep}", "the model has no experts"),
        (plan.sequence_parallel and plan.tp == 1, "sequence_parallel yes", "tp is 1"),
        (plan.zero > 0 and plan.dp * plan.cp == 1, f"zero {plan.zero}", "dp and cp are 1"),
        (bool(plan.placement), "place", "a specification has layers, cut by `stages`"),
        (
            plan.recompute == "selective" and plan.attention == "fused",
            "recompute selective",
            "fused attention keeps no scores that could be computed again",
        ),
    ):
        if broken:
            raise PlanError(
                "a setting of the plan has no effect",
                expected="settings that change something",
                found=setting,
                known=why,
                mend="leave it out",
            )


def _check_stages(plan: ParallelPlan, spec: ModelSpec) -> None:
    """Refuse stages that are not those of the timetable, or do not hold all layers."""
    stages = len(stage_ranks(plan.timetable, plan.pp, plan.chunks))
    if len(plan.stages) != stages or sum(plan.stages) != spec.layers:
        raise PlanError(
            "the stages do not hold the model",
            expected=f"{stages} stages ({plan.timetable}, pp {plan.pp}, chunks {plan.chunks}) "
            f"of {spec.layers} layers in sum",
            found=f"{len(plan.stages)} stages of {sum(plan.stages)} layers",
            mend=f"take stages {' '.join(map(str, even_stages(spec.layers, stages)))}",
        )


@lru_cache(maxsize=256)
def stage_ranks(timetable: str, ranks: int, chunks: int) -> tuple[int, ...]:
    """Return the rank of each stage into which a timetable cuts a model, for even micro-batches
    where stages have replicas."""
    return make_timetable(timetable, ranks, 1, chunks).placement


def even_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Return as even a cut as there is, where stages in the middle get what is left over: the first
    has the embedding and the last the head."""
    least, left = divmod(layers, stages)
    order = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))
    more = set(order[:left])
    return tuple(least + (stage in more) for stage in range(stages))
