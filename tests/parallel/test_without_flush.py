"""Prices of pipelines that never flush: their pace, their updates and the versions they hold."""

from dataclasses import replace

import pytest
from tests.parallel.ideal import DEEP, FRACTION, HEADLESS, PEAK, ideal, priced

from tilewright.cost import ModelSpec, layer_parameters, model_flops
from tilewright.parallel.timetables import TIMETABLES

STREAMS = [kind.name for kind in TIMETABLES if kind.asynchronous]


@pytest.mark.parametrize("timetable", STREAMS)
@pytest.mark.parametrize(("pp", "batch"), [(1, 3), (2, 8), (4, 6), (4, 64)])
def test_a_pipeline_that_never_flushes_loses_nothing_where_stages_are_alike(
    timetable: str, pp: int, batch: int
) -> None:
    found = priced(HEADLESS, ideal(pp), batch, pp=pp, dp=1, timetable=timetable)
    seconds = model_flops(ModelSpec.parse(HEADLESS), batch, 64) / (pp * PEAK * FRACTION)
    assert found.step_seconds == pytest.approx(seconds, rel=2e-3)
    assert found.bubble.of_total == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize("timetable", STREAMS)
def test_the_slowest_stage_sets_the_pace_of_a_pipeline_that_never_flushes(timetable: str) -> None:
    found = priced(HEADLESS, ideal(4), 12, pp=4, dp=1, timetable=timetable, stages=(1, 4, 2, 1))
    whole = priced(HEADLESS, ideal(1), 12)
    assert found.step_seconds == pytest.approx(whole.step_seconds / 2, rel=2e-3)
    work = found.breakdown.compute
    assert work == pytest.approx(found.step_seconds, rel=2e-3)


@pytest.mark.parametrize(("timetable", "updates"), [
    ("pipedream", 12), ("ampnet", 12), ("pipedream-2bw", 3), ("pipemare", 3), ("1f1b", 1),
])  # fmt: skip
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_every_update_is_sent_and_made(timetable: str, updates: int, zero: int) -> None:
    """Of 12 micro-batches on 4 ranks: after each, or after four.  One update makes of N parameters
    2 N (1 - 1/d) two-byte numbers sent, or under ZeRO-2 one N for each of its micro-batches and one
    for the weights."""
    machine = replace(
        ideal(8, bandwidth=1e9), device=replace(ideal(8).device, memory_bandwidth=1e9)
    )
    found = priced(
        HEADLESS, machine, 24, pp=4, dp=2, timetable=timetable, zero=zero, tied=False
    )  # fmt: skip
    # The stage of most parameters decides; all ranks but the first and the last have two blocks.
    spec = ModelSpec.parse(HEADLESS)
    block = 2 * layer_parameters(spec).total
    of_block = block + spec.hidden * (1 + 64)  # with the embedding and positions
    last = block + 2 * spec.hidden + spec.hidden
    held = {block, of_block, last}
    rounds = 12 // updates + 1 if zero == 2 else 2
    sent = {updates * rounds * count / 2 * 2 / 1e9 for count in held}
    shared = 2 if zero else 1
    # Adam of half-precision weights: state and a copy of 4 bytes read and written, three passes
    # over gradients, weights written.
    made = {updates * count / shared * (8 * 3 + 3 * 2 + 2) / 1e9 for count in held}
    assert any(found.breakdown.data == pytest.approx(one) for one in sent)
    assert any(found.breakdown.optimizer == pytest.approx(one) for one in made)
    parts = found.breakdown
    if timetable != "1f1b":
        busy = parts.compute + parts.data + parts.optimizer + parts.pipeline
        assert found.step_seconds == pytest.approx(busy, rel=0.1)


@pytest.mark.parametrize(("timetable", "versions"), [
    ("pipedream", (4, 3, 2, 1)), ("pipedream-2bw", (2, 2, 2, 2)), ("pipemare", (1, 1, 1, 1)),
    ("ampnet", (1, 1, 1, 1)),
])  # fmt: skip
@pytest.mark.parametrize("batch", [2, 40])
def test_each_version_of_the_weights_is_held(
    timetable: str, versions: tuple[int, ...], batch: int
) -> None:
    """Whatever the micro-batches of a step: the steady state is full.  Activations are 1F1B's."""
    flushed = priced(DEEP, ideal(4), 40, pp=4, dp=1, timetable="1f1b").memory_bytes
    found = priced(DEEP, ideal(4), batch, pp=4, dp=1, timetable=timetable).memory_bytes
    for one, other, count in zip(found, flushed, versions, strict=True):
        assert one.weights == pytest.approx(count * other.weights)
        assert (one.gradients, one.optimizer) == (other.gradients, other.optimizer)
        if timetable != "ampnet":
            assert one.activations == other.activations


def test_ampnet_runs_as_many_micro_batches_as_its_plan_says() -> None:
    one = priced(HEADLESS, ideal(4), 8, pp=4, dp=1, timetable="ampnet", chunks=1)
    four = priced(HEADLESS, ideal(4), 8, pp=4, dp=1, timetable="ampnet")
    assert one.step_seconds == pytest.approx(4 * four.step_seconds, rel=2e-3)


@pytest.mark.parametrize(("pp", "chunks"), [(12, 9), (12, 5), (12, 12), (12, 15), (7, 4)])
def test_fewer_micro_batches_than_ranks_set_the_pace_of_ampnet(pp: int, chunks: int) -> None:
    """Each goes through all ranks and back before the next of its place enters."""
    model = HEADLESS.replace("layers=8", f"layers={pp}")
    found = priced(model, ideal(pp), 12, pp=pp, dp=1, timetable="ampnet", chunks=chunks)
    one = priced(HEADLESS.replace("layers=8", "layers=1"), ideal(1), 12).step_seconds
    assert found.step_seconds == pytest.approx(one * max(1.0, pp / chunks), rel=2e-3)
