"""`tilewright.plan`: the plan of a step, priced; what is not pinned is chosen by rules.

The idea: one dial, then formulas.  The dial is how many ranks share one copy of the model: the
fewest for which a step fits, first inside a node (tp), then over stages (pp), with the least
recomputation and the largest micro-batch.  All other settings follow:

    dp          what is left of the devices         zero       1 where gradients are shared
    micro_batch the largest power of two, up to 8, that divides the batch, fits, and leaves each
                stage of a pipeline four micro-batches
    timetable   1f1b, or interleaved where chunks are pinned            cp, chunks    1
    recompute   the least of none, selective, full that fits            overlap       data
    attention   fused          sequence_parallel   where tp > 1         optimizer     adam
    ep          as many of dp's ranks in a node as share the experts evenly
    precision   bfloat16, or what the device has   stages     as even as there is, less at the ends

Of a captured graph, the dial is pp alone; operators are placed in their order, in pieces that take
as equal a time as can be, and the type is that of its parameters.

This module does not know prices.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tilewright.base.errors import PlanError
from tilewright.base.interpreter import uncollected
from tilewright.cost import Machine, ModelSpec
from tilewright.graph.ir import Graph
from tilewright.parallel.plan import NAMES, PRECISIONS, ParallelPlan, check_fix, show_value
from tilewright.parallel.plan_check import check_plan, even_stages, machine_words, stage_ranks
from tilewright.parallel.predict import MOST_PASSES, plan_memory, predict
from tilewright.parallel.predict_graph import (
    GRAPH_PLAIN,
    check_graph_plan,
    even_placement,
    examples_of,
    graph_precision,
    graph_words,
    predict_graph,
)

Fix = Mapping[str, Any] | ParallelPlan | None
MOST_SEQUENCES = 8
FILLED = 4  # micro-batches for each stage that keep a pipeline's bubble small


@uncollected()
def plan(
    model: Any,
    machine: str | Machine,
    *,
    batch: int | None = None,
    seq: int | None = None,
    fix: Fix = None,
    inputs: Sequence[Any] = (),
    layer_seconds: float | None = None,
) -> ParallelPlan:
    """Return how a training step of a model is spread over a machine, with its price.

    model: a specification (`gpt:layers=48,...`), a name (`gpt3-175b`), the path of a Hugging Face
    `config.json`; a Graph, what `tw.capture` gave, or a torch module with `inputs`, one
    micro-batch of them (fake tensors will do).  machine: `dgx-a100-80g x 64` and the like.  batch:
    sequences (for a graph: examples) in a step; seq: tokens of each, the model's positions if
    nothing is said.  fix: settings that are pinned, or a whole plan; a fully pinned plan is a pure
    prediction.  Of a graph, `placement` maps operators or modules to pipeline ranks.
    layer_seconds: forward and backward of one layer and micro-batch, measured.

    A plan that does not fit in memory is priced too: `predicted.fits` says so.  Raises PlanError,
    ModelSpecError or MachineError.
    """
    cluster = machine if isinstance(machine, Machine) else Machine.parse(machine)
    _check_seconds(layer_seconds)
    pinned = {"machine": machine_words(cluster), **_pinned(fix, batch, seq)}
    if "batch" not in pinned:
        raise PlanError(
            "nothing says how many sequences a step has",
            expected="batch",
            mend="say batch=512, or whatever a step has",
        )
    if isinstance(model, str | Path | ModelSpec):
        if inputs:
            raise _idle("inputs", "a model by its numbers is not captured")
        spec = model if isinstance(model, ModelSpec) else ModelSpec.parse(str(model))
        given = {"model": str(spec), "seq": spec.positions, **pinned}
        made = _choose(spec, cluster, given, layer_seconds)
        price = predict(made, spec, cluster, layer_seconds=layer_seconds)
    else:
        if layer_seconds is not None:
            raise _idle("layer_seconds", "a graph has operators, not layers")
        graph = _graph_of(model, inputs)
        made = _choose_for_graph(graph, cluster, {"model": graph_words(graph), **pinned})
        price = predict_graph(made, graph, cluster)
    chosen = [name for name in NAMES[4:] if name not in pinned]
    said = ", ".join(f"{name} {show_value(getattr(made, name))}" for name in chosen)
    notes = (*price.notes, f"by default: {said}") if chosen else price.notes
    return replace(made, priced=replace(price, notes=notes))


def _pinned(fix: Fix, batch: int | None, seq: int | None) -> dict[str, Any]:
    """Return the settings that a user has said; refuse one that is said twice, differently."""
    if isinstance(fix, ParallelPlan):
        found: dict[str, Any] = {item.name: getattr(fix, item.name) for item in fields(fix)}
        del found["priced"]
    else:
        settings = _mapping(fix, "fix", 'fix={"tp": 8, "pp": 2}')
        placement = _mapping(settings.pop("placement", {}), "placement", '{"layers.0": 0}')
        found = dict(check_fix(settings))
        if placement:
            found["placement"] = tuple(placement.items())
    said = {name: value for name, value in (("batch", batch), ("seq", seq)) if value is not None}
    for name, value in check_fix(said).items():
        if found.get(name, value) != value:
            raise PlanError(
                f"{name} is said twice",
                expected=f"{found[name]}, as the plan says",
                found=str(value),
                mend=f"leave {name} out, or change the plan",
            )
        found[name] = value
    return found


def _mapping(value: Any, name: str, example: str) -> dict[Any, Any]:
    """Return what is pinned, a copy; a placement may be pairs, as a plan has it."""
    try:
        return dict(value if value is not None else {})
    except (TypeError, ValueError):
        raise PlanError(
            f"{name} does not say which setting has which value",
            expected="a mapping" + (", or a ParallelPlan" if name == "fix" else ""),
            found=f"{type(value).__name__}: {repr(value)[:60]}",
            mend=f"write {example}",
        ) from None


def _check_seconds(layer_seconds: Any) -> None:
    number = isinstance(layer_seconds, int | float) and not isinstance(layer_seconds, bool)
    if layer_seconds is not None and not (number and 0 < layer_seconds < math.inf):
        raise PlanError(
            "no layer takes the seconds that were measured",
            expected="layer_seconds: a finite number above 0",
            found=repr(layer_seconds)[:60],
        )


def _idle(name: str, why: str) -> PlanError:
    return PlanError(
        f"{name} has no effect", expected="arguments that change something", found=name,
        known=why, mend="leave it out",
    )  # fmt: skip


def _graph_of(model: Any, inputs: Sequence[Any]) -> Graph:
    if isinstance(model, Graph):
        return model
    from tilewright.capture import Captured, capture  # what needs torch comes with torch

    if isinstance(model, Captured):
        return model.graph
    if not callable(model):
        raise PlanError(
            "there is no model to plan",
            expected="a specification, its text, a Graph, what tw.capture gave, or a torch module",
            found=f"{type(model).__name__}: {repr(model)[:60]}",
        )
    return capture(model, *inputs).graph


def _choose_for_graph(graph: Graph, machine: Machine, pinned: dict[str, Any]) -> ParallelPlan:
    """Return the plan with the fewest pipeline ranks that fits; the last if none does."""
    last = None
    ranks = [n for n in range(1, len(graph.nodes) + 1) if machine.devices % n == 0]
    for pp in (pinned["pp"],) if "pp" in pinned else ranks:
        given = {"pp": pp, "dp": max(1, machine.devices // pp), **GRAPH_PLAIN, **pinned}
        given.setdefault("micro_batch", examples_of(graph))
        given.setdefault("overlap", "data")
        given.setdefault("precision", graph_precision(graph))
        made = ParallelPlan(**given)
        check_graph_plan(made, graph, machine)
        if "placement" not in pinned:
            made = replace(made, placement=even_placement(made, graph, machine))
        last = made
        if predict_graph(made, graph, machine).fits:
            return made
    assert last is not None, "one rank is always a candidate"
    return last


def _choose(
    spec: ModelSpec, machine: Machine, pinned: dict[str, Any], layer_seconds: float | None
) -> ParallelPlan:
    """Return the first candidate that fits in memory; the last that is legal if none does."""
    last, refusal = None, None
    for settings in _candidates(spec, machine, pinned):
        try:
            made = _filled(spec, machine, settings)
            check_plan(made, spec, machine)
        except PlanError as error:
            refusal = refusal or error
            continue
        last = made
        memory = plan_memory(made, spec, machine, layer_seconds, MOST_PASSES)
        if max(device.total for device in memory) <= machine.device.memory_bytes:
            return made
    if last is None:
        assert refusal is not None, "there is at least one candidate"
        raise refusal
    return last


def _candidates(
    spec: ModelSpec, machine: Machine, pinned: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield settings in the order in which they are preferred, the pinned ones in each."""
    attention = pinned.get("attention", "fused")
    ways = ("none", "full") if attention == "fused" else ("none", "selective", "full")
    recomputes = (pinned["recompute"],) if "recompute" in pinned else ways
    for tp, pp in _ranks(spec, machine, pinned):
        rest = tp * pp * pinned.get("cp", 1)
        dp = pinned.get("dp", max(1, machine.devices // rest))
        sizes = _micro_batches(pinned, pinned["batch"] // dp, pp)
        for recompute, size in itertools.product(recomputes, sizes):
            chosen = {"tp": tp, "pp": pp, "dp": dp, "recompute": recompute, "micro_batch": size}
            yield {"attention": attention, **chosen, **pinned}


def _ranks(spec: ModelSpec, machine: Machine, pinned: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield (tp, pp): powers of two inside a node that share the heads evenly, then stages."""
    if "tp" in pinned and "pp" in pinned:
        yield pinned["tp"], pinned["pp"]
        return
    inside = math.gcd(machine.node_devices, spec.heads)
    tensors = [1 << k for k in range(inside.bit_length()) if inside % (1 << k) == 0]
    free = machine.devices // pinned.get("dp", 1) // pinned.get("cp", 1)
    stages = [n for n in range(1, min(spec.layers, free) + 1) if free % n == 0]
    pairs = itertools.product(
        (pinned["tp"],) if "tp" in pinned else tensors,
        (pinned["pp"],) if "pp" in pinned else stages,
    )
    legal = [pair for pair in pairs if free % math.prod(pair) == 0]
    if "dp" in pinned:
        legal = [pair for pair in legal if math.prod(pair) == free] or legal
    yield from sorted(legal or [(1, 1)], key=lambda pair: (math.prod(pair), pair[1]))


def _micro_batches(pinned: dict[str, Any], each: int, stages: int) -> tuple[int, ...]:
    """Return sizes from the largest; of a pipeline's, first those that leave it filled."""
    if "micro_batch" in pinned:
        return (pinned["micro_batch"],)
    sizes = [n for n in (8, 4, 2, 1) if n <= MOST_SEQUENCES and each and each % n == 0] or [1]
    filled = [n for n in sizes if stages == 1 or each // n >= FILLED * stages]
    return tuple(filled or sizes[-1:])


def _filled(spec: ModelSpec, machine: Machine, settings: dict[str, Any]) -> ParallelPlan:
    """Return the plan in which all other settings follow from those that are given."""
    given = dict(settings)
    shared = given["dp"] * given.setdefault("cp", 1)
    flying = given.get("timetable") == "ampnet"  # as many micro-batches as keep all ranks busy
    chunks = given.setdefault("chunks", given["pp"] if flying else 1)
    given.setdefault("timetable", "interleaved" if chunks > 1 else "1f1b")
    given.setdefault("zero", 1 if shared > 1 else 0)
    given.setdefault("sequence_parallel", given["tp"] > 1)
    given.setdefault("overlap", "data")
    given.setdefault("tied", spec.tied)
    if "ep" not in given:
        nearby = max(1, machine.node_devices // given["tp"])
        given["ep"] = math.gcd(spec.experts, math.gcd(shared, nearby)) if spec.experts else 1
    if "precision" not in given:
        has = {name for name, _ in machine.device.peaks}
        given["precision"] = next(name for name in PRECISIONS if name in has or name == "float32")
    if not given.get("stages"):
        stages = stage_ranks(given["timetable"], given["pp"], chunks)
        given["stages"] = even_stages(spec.layers, len(stages))
    return ParallelPlan(**given)
