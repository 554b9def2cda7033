"""Steps of very many micro-batches, of which only the beginning is simulated: as good, and soon."""

import importlib
import time

import pytest
from tests.sweep import few

from tilewright.cost import Machine, ModelSpec
from tilewright.parallel import ParallelPlan, make_plan, peak_activations, predict
from tilewright.parallel.predict_memory import activation_bytes
from tilewright.parallel.timetables import TIMETABLES, Kind, kind_named

# The modules: functions of these names hide them in their packages.
pricing = importlib.import_module("tilewright.parallel.predict")
searching = importlib.import_module("tilewright.parallel.timetables.search")
SYNCHRONOUS = [kind for kind in TIMETABLES if not kind.asynchronous]
CAPPED = [kind for kind in TIMETABLES if kind.cap]


def _planned(name: str, pp: int, layers: int, batch: int, **fix: object) -> ParallelPlan:
    spec = f"gpt:layers={layers},hidden=12288,heads=96,vocab=51200,positions=2048"
    pinned = {"tp": 8, "pp": pp, "dp": 1, "micro_batch": 1, "timetable": name, "chunks": 1}
    if kind_named(name).parts:
        pinned["chunks"] = 2
    machine = Machine.parse(f"dgx-a100-80g x {8 * pp}")
    return make_plan(spec, machine, batch=batch, fix={**pinned, **fix})


def _again(plan: ParallelPlan, most_passes: int) -> tuple[float, int]:
    spec, machine = ModelSpec.parse(plan.model), Machine.parse(plan.machine)
    found = predict(plan, spec, machine, most_passes=most_passes)
    return found.step_seconds, found.simulation.timetable.micro_batches


@pytest.mark.parametrize("kind", SYNCHRONOUS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("recompute", "overlap", "more"), [("none", "none", 0), ("full", "all", 0), ("full", "none", 3)]
)
def test_a_beginning_takes_as_long_as_the_whole_step(
    kind: Kind, recompute: str, overlap: str, more: int
) -> None:
    """Stages alike, and not.  Of a searched order the rounds are unlike: their mean is taken."""
    pp = 6
    plan = _planned(kind.name, pp, 2 * pp + more, 12 * pp + 3, recompute=recompute, overlap=overlap)
    short, simulated = _again(plan, 1)
    whole, all_of_them = _again(plan, 10**9)
    assert simulated < all_of_them == plan.micro_batches
    assert short == pytest.approx(whole, rel=2e-2 if kind.cap else 2e-3)


@pytest.mark.parametrize(("pp", "batch"), [(3, 9 * 3 + 2), (5, 9 * 5), (5, 9 * 5 + 1)])
def test_an_odd_number_of_ranks_takes_two_rounds_to_begin_anew(pp: int, batch: int) -> None:
    """Both directions of dualpipe-v take turns, which an odd round ends in between."""
    fix = {"recompute": "full", "overlap": "all"}
    plan = _planned("dualpipe-v", pp, 4 * pp - 1, 2 * batch, **fix)
    short, simulated = _again(plan, 1)
    whole, all_of_them = _again(plan, 10**9)
    assert simulated < all_of_them
    assert short == pytest.approx(whole, rel=2e-3)


@pytest.mark.parametrize("kind", SYNCHRONOUS, ids=lambda kind: kind.name)
def test_a_trillion_parameters_on_3072_devices_are_priced_within_a_second(kind: Kind) -> None:
    fix = {
        "tp": 8, "pp": 64, "dp": 6, "micro_batch": 1, "recompute": "full", "timetable": kind.name,
        "chunks": 2 if kind.parts else 1,
    }  # fmt: skip
    for _ in range(6):  # as others may be running
        for cached in (pricing._timetable, pricing.plan_memory, searching._best_rule):
            cached.cache_clear()
        start = time.process_time()
        found = make_plan("megatron-1t", "dgx-a100-80g x 3072", batch=3072, fix=fix).predicted
        seconds = time.process_time() - start
        if seconds < 1:
            break
    assert seconds < 1
    assert 0.3 < found.mfu < 0.6
    assert found.fits == (not kind.fills)


@pytest.mark.parametrize("kind", CAPPED, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("pp", "more"), [(2, 0), (8, 0), (8, 3), (5, 7)])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_searched_order_holds_its_cap_in_the_bytes_that_are_priced(
    kind: Kind, pp: int, more: int, recompute: str
) -> None:
    """ZB-1p: p activations of a micro-batch, ZB-2p 2p, of which a block leaves 32/34 for the
    gradient of the weights where nothing is recomputed.  What is computed again is beside them."""
    plan = _planned(kind.name, pp, 2 * pp + more, 20 * pp, recompute=recompute, attention="unfused")
    held, kept = activation_bytes(plan, ModelSpec.parse(plan.model))
    found = [memory.activations for memory in plan.predicted.memory_bytes]
    if recompute == "full":
        assert min(kept) > min(held)
        found = list(peak_activations(plan.predicted.simulation.timetable, held, held))
    cap = kind.cap * pp
    assert all(size <= cap * one * (1 + 1e-9) for size, one in zip(found, held, strict=True))
    assert max(size / one for size, one in zip(found, held, strict=True)) > cap - 1


@pytest.mark.parametrize(
    ("pp", "more", "recompute"),
    few([(4, 0, "none"), (8, 0, "none"), (8, 0, "full"), (8, 3, "full"), (16, 0, "full")], 8),
)
def test_a_searched_order_is_as_fast_as_those_it_was_searched_among(
    pp: int, more: int, recompute: str
) -> None:
    """It is searched for the times of the plan's own stages, whatever a backward takes."""
    seconds = {
        name: _planned(name, pp, 2 * pp + more, 12 * pp, recompute=recompute).predicted.step_seconds
        for name in ("1f1b", "zb-h1", "zb-1p", "zb-h2", "zb-2p")
    }
    assert seconds["zb-1p"] <= seconds["1f1b"] * (1 + 1e-9)
    assert seconds["zb-1p"] <= seconds["zb-h1"] * 1.01
    assert seconds["zb-2p"] <= seconds["zb-h2"] * 1.01
    assert seconds["zb-2p"] <= seconds["zb-1p"] * (1 + 1e-9)
