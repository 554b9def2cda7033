"""Prices of plans beside closed forms: operations, traffic, bubbles and bytes counted by hand."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parallel.ideal import DEEP, FRACTION, GPT, HEADLESS, PEAK, ideal, priced

from tilewright.cost import (
    Machine,
    ModelSpec,
    model_flops,
    parameters,
)
from tilewright.parallel import ParallelPlan, make_plan, predict
from tilewright.parallel.timetables import TIMETABLES, Kind

GIB = 2**30

# --------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("model", [GPT, "llama:layers=4,hidden=256,heads=8,kv_heads=2,vocab=999"])
@pytest.mark.parametrize(("tp", "dp"), [(1, 1), (1, 4), (2, 2), (2, 1)])
def test_with_nothing_but_products_a_step_takes_its_operations_at_the_reached_peak(
    model: str, tp: int, dp: int
) -> None:
    spec = ModelSpec.parse(model)
    found = priced(model, ideal(tp * dp), 8, tp=tp, dp=dp)
    flops = model_flops(spec, 8, 64)
    # The head's columns are rounded up to whole ones on each rank.
    columns = -(-spec.vocab // tp) * tp - spec.vocab
    flops += 3 * 2 * 8 * 64 * spec.hidden * columns
    assert found.step_seconds == pytest.approx(flops / (tp * dp * PEAK * FRACTION), rel=1e-3)
    assert found.mfu <= FRACTION * (1 + 1e-9)


def test_full_recomputation_takes_a_third_more_of_the_layers_and_mfu_is_three_quarters_of_hfu() -> (
    None
):
    plain = priced(HEADLESS, ideal(1), 8)
    full = priced(HEADLESS, ideal(1), 8, recompute="full")
    assert full.step_seconds / plain.step_seconds == pytest.approx(4 / 3, rel=2e-3)
    assert full.breakdown.recompute == pytest.approx(full.step_seconds / 4, rel=2e-3)
    assert full.mfu / full.hfu == pytest.approx(3 / 4, rel=2e-3)


def test_fused_attention_makes_half_the_scores_and_two_and_a_half_times_as_many_backward() -> None:
    """Operations of the scores' square, counted by hand, at 0.75 of what products reach."""
    unfused = priced(HEADLESS, ideal(1), 8)
    fused = priced(HEADLESS, ideal(1), 8, attention="fused")
    square = 8 * 8 * 4 * 64 * 64 * 512  # batch, layers, and 4 s s h
    gained = (3 - 3.5 / 2 / 0.75) * square / (PEAK * FRACTION)
    assert unfused.step_seconds - fused.step_seconds == pytest.approx(gained, rel=1e-3)


def test_experts_take_what_the_chosen_ones_take_whoever_shares_them() -> None:
    moe = "moe:layers=4,hidden=256,heads=8,vocab=1000,ffn=512,experts=8,top_k=2"
    spec = ModelSpec.parse(moe)
    for ep in (1, 2, 4):
        found = priced(moe, ideal(4), 8, dp=4, ep=ep)
        wanted = model_flops(spec, 8, 64) / (4 * PEAK * FRACTION)
        assert found.step_seconds == pytest.approx(wanted, rel=2e-2)


# ------------------------------------------------------------------------------------------ traffic


@pytest.mark.parametrize(("zero", "rounds"), [(0, 2), (1, 2), (2, 3 + 1), (3, 3 * 3)])
def test_data_parallel_ranks_send_what_zero_says(zero: int, rounds: int) -> None:
    """DDP and ZeRO-1 2 N elements, ZeRO-2 (m + 1) N, ZeRO-3 3 m N, each times (P - 1)/P; m is 3."""
    bandwidth, count = 1e9, parameters(ModelSpec.parse(GPT))
    found = priced(GPT, ideal(4, bandwidth=bandwidth), 12, dp=4, zero=zero)
    expected = rounds * 2 * count * 3 / 4 / bandwidth
    assert found.breakdown.data == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("timetable", ["chimera", "dualpipe"])
def test_stages_that_are_held_twice_sum_their_gradients(timetable: str) -> None:
    """Two ranks, each with the whole model: 2 N (P - 1)/P elements each, as in a ring of two."""
    model, bandwidth = "llama:layers=4,hidden=256,heads=8,vocab=1000", 1e9
    found = priced(model, ideal(2, bandwidth=bandwidth), 4, pp=2, dp=1, timetable=timetable)
    elements = parameters(ModelSpec.parse(model))
    assert found.breakdown.data == pytest.approx(2 * elements / bandwidth, rel=1e-9)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_gradients_of_experts_are_summed_among_those_that_hold_the_same(ep: int) -> None:
    """2 N (P - 1)/P elements, of experts among dp / ep ranks that hold an e-th of them each."""
    moe = "moe:layers=4,hidden=256,heads=8,vocab=1000,ffn=512,experts=8,top_k=2"
    spec, bandwidth = ModelSpec.parse(moe), 1e9
    found = priced(moe, ideal(4, bandwidth=bandwidth), 8, dp=4, ep=ep)
    experts = 4 * 8 * 3 * 256 * 512
    others, holders = parameters(spec) - experts, 4 // ep
    elements = 2 * others * 3 / 4 + 2 * experts / ep * (holders - 1) / holders
    assert found.breakdown.data == pytest.approx(2 * elements / bandwidth, rel=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_tensor_parallel_ranks_send_eight_b_s_h_a_layer(shared: bool) -> None:
    """Elements: 8 b s h (t - 1)/t in each layer, and the embedding's and the head's sums."""
    t, bandwidth = 4, 1e9
    found = priced(HEADLESS, ideal(t, bandwidth=bandwidth), 3, tp=t, sequence_parallel=shared)
    elements = 3 * (8 * 8 + 2 * 2) * 64 * 512 * (t - 1) / t
    assert found.breakdown.tensor == pytest.approx(2 * elements / bandwidth, rel=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_computed_again_takes_no_longer_where_links_are_slow(shared: bool) -> None:
    """Its collectives are collectives: 12 b s h (t - 1)/t elements a layer, where plain ones are 8;
    the embedding's and the head's sums are not made again."""
    t = 4
    slow, fast = (
        priced(
            GPT, ideal(t, bandwidth=speed), 3, tp=t, sequence_parallel=shared, recompute="full"
        ).breakdown
        for speed in (1e9, 1e15)
    )
    assert slow.recompute == pytest.approx(fast.recompute, rel=1e-6)
    assert slow.compute == pytest.approx(fast.compute, rel=1e-6)
    elements = 3 * (8 * 12 + 2 * 2) * 64 * 512 * (t - 1) / t
    assert slow.tensor == pytest.approx(2 * elements / 1e9, rel=1e-9)


def test_no_part_is_negative_where_the_ends_send_more_than_the_layers() -> None:
    found = make_plan(
        "gpt:layers=12,hidden=1024,heads=16,vocab=50257,positions=1024",
        "p3.16xlarge x 64", batch=32, seq=512,
        fix={"tp": 4, "pp": 4, "cp": 2, "dp": 2, "zero": 0, "recompute": "full",
             "attention": "fused", "overlap": "all", "micro_batch": 2, "sequence_parallel": False,
             "precision": "float16", "order": ("pp", "dp", "cp", "tp")},
    ).predicted  # fmt: skip
    assert all(part >= 0 for _, part in found.breakdown.rows)
    assert found.breakdown.recompute > 0


def test_what_is_hidden_behind_computing_costs_its_slowdown() -> None:
    slow = 1.25
    plain = priced(GPT, ideal(4, bandwidth=1e14, slowdown=slow), 8, dp=4)
    hidden = priced(GPT, ideal(4, bandwidth=1e14, slowdown=slow), 8, dp=4, overlap="data")
    assert hidden.breakdown.data == pytest.approx(plain.breakdown.data * (1 - 1 / slow), rel=1e-9)
    # And what is longer than the last backward sticks out by the difference.
    plain = priced(GPT, ideal(4, bandwidth=1e8, slowdown=slow), 8, dp=4)
    hidden = priced(GPT, ideal(4, bandwidth=1e8, slowdown=slow), 8, dp=4, overlap="data")
    backward = plain.breakdown.compute / 2 * 2 / 3
    assert plain.breakdown.data - hidden.breakdown.data == pytest.approx(backward, rel=1e-3)


@given(st.floats(1e8, 1e12), st.floats(1.0, 16.0), st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
def test_faster_links_never_make_a_step_slower(
    bandwidth: float, factor: float, timetable: str
) -> None:
    slow, fast = (
        priced(GPT, ideal(8, bandwidth=speed), 16, tp=2, dp=2, pp=2, timetable=timetable)
        for speed in (bandwidth, bandwidth * factor)
    )
    assert fast.step_seconds <= slow.step_seconds * (1 + 1e-12)


# ---------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize(
    ("timetable", "chunks", "bubble"),
    [("gpipe", 1, 3), ("1f1b", 1, 3), ("interleaved", 2, 3 / 2), ("zb-h1", 1, 1)],
)
def test_the_bubble_is_the_timetables(timetable: str, chunks: int, bubble: float) -> None:
    """(p - 1)(F + B + W), over v where interleaved, (p - 1)(F + B - W) for ZB-H1; F = B = W."""
    wide = "gpt:layers=8,hidden=8192,heads=64,vocab=1,positions=8"
    found = priced(wide, ideal(4), 16, seq=8, pp=4, timetable=timetable, chunks=chunks)
    one = found.breakdown.compute / 16  # F + B + W of a rank's stages
    assert found.breakdown.bubble / one == pytest.approx(bubble, rel=2e-3)


@pytest.mark.parametrize("timetable", ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-2p"])
@pytest.mark.parametrize(
    "stages", [(4, 4, 4, 4), (7, 3, 3, 3), (3, 3, 3, 7), (3, 7, 3, 3), (1, 6, 6, 3)]
)
def test_the_bubble_is_what_the_busiest_rank_does_not_work(
    timetable: str, stages: tuple[int, ...]
) -> None:
    """Where nothing is sent: (cost - m (F + B + W))/cost with the largest F + B + W, and over the
    work; the parts of the busiest rank are m times those of its layers."""
    wide = "gpt:layers=16,hidden=2048,heads=16,vocab=1,positions=8"
    alone = priced(wide, ideal(1), 12, seq=8).breakdown
    layer = (alone.compute - alone.optimizer) / 12 / 16
    found = priced(wide, ideal(4), 12, seq=8, pp=4, timetable=timetable, stages=stages)
    work, once = found.breakdown.compute, found.breakdown.data + found.breakdown.optimizer
    assert work == pytest.approx(12 * max(stages) * layer, rel=1e-3)
    cost = found.step_seconds - once
    assert found.bubble.of_total == pytest.approx((cost - work) / cost, abs=1e-9)
    assert found.bubble.of_ideal == pytest.approx((cost - work) / work, abs=1e-9)
    simulated = found.simulation.bubble  # which is tested against published tables
    assert found.bubble.of_total == pytest.approx(simulated.of_total, abs=1e-4)
    assert found.bubble.of_ideal == pytest.approx(simulated.of_ideal, abs=1e-4)


@pytest.mark.parametrize(("timetable", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_a_beginning_is_as_good_as_the_whole_step(
    timetable: str, chunks: int, overlap: str
) -> None:
    machine, spec = Machine.parse("dgx-a100-80g x 64"), ModelSpec.parse("megatron-7.5b")
    plan = make_plan(
        spec, machine, batch=1021 if chunks == 1 else 1024, seq=512,
        fix={"tp": 8, "pp": 8, "dp": 1, "micro_batch": 1, "timetable": timetable,
             "chunks": chunks, "overlap": overlap},
    )  # fmt: skip
    short, whole = plan.predicted, predict(plan, spec, machine, most_passes=10**9)
    assert short.simulation.timetable.micro_batches < 510
    assert whole.simulation.timetable.micro_batches == plan.micro_batches
    assert short.step_seconds == pytest.approx(whole.step_seconds, rel=2e-3)
    assert short.memory_bytes == whole.memory_bytes


@pytest.mark.parametrize(
    "kind", [kind for kind in TIMETABLES if not kind.asynchronous], ids=lambda kind: kind.name
)
@pytest.mark.parametrize(("pp", "batch"), [(2, 23), (4, 56), (4, 65), (8, 150)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_beginning_has_the_bytes_of_the_whole_step(
    kind: Kind, pp: int, batch: int, recompute: str
) -> None:
    """Whatever the timetable: the first rounds say what is in flight when all have begun."""
    chunks, machine, spec = 2 if kind.parts else 1, ideal(pp), ModelSpec.parse(DEEP)
    fix = {
        "tp": 1, "pp": pp, "dp": 1, "micro_batch": 1, "timetable": kind.name, "chunks": chunks,
        "recompute": recompute, "precision": "float16",
    }  # fmt: skip
    plan = make_plan(spec, machine, batch=batch, seq=64, fix=fix)
    short, whole = (predict(plan, spec, machine, most_passes=most) for most in (1, 10**9))
    assert short.simulation.timetable.micro_batches < whole.simulation.timetable.micro_batches
    for one, other in zip(short.memory_bytes, whole.memory_bytes, strict=True):
        assert one.total == pytest.approx(other.total, rel=1e-12)


@given(
    st.sampled_from(["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "chimera", "dualpipe-v"]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([(1, 2, 4), (2, 2, 2), (4, 4, 1), (2, 4, 1)]),
    st.integers(0, 3),
    st.sampled_from(["none", "data", "all"]),
    st.integers(1, 6),
)
def test_the_parts_of_a_step_are_never_negative_and_a_device_has_at_most_its_peak(
    timetable: str, recompute: str, degrees: tuple[int, int, int], zero: int, overlap: str, m: int
) -> None:
    tp, pp, dp = degrees
    machine = Machine.parse("dgx-a100-80g").with_devices(tp * pp * dp)
    found = priced(
        GPT, machine, dp * m, tp=tp, pp=pp, dp=dp, timetable=timetable, recompute=recompute,
        zero=zero if dp > 1 else 0, overlap=overlap, chunks=2 if timetable == "interleaved" else 1,
    )  # fmt: skip
    assert all(part >= 0 for _, part in found.breakdown.rows)
    assert all(size >= 0 for memory in found.memory_bytes for _, size in memory.rows)
    assert 0 < found.mfu <= found.hfu < machine.constants.gemm_fraction
    assert found.step_seconds > 0
    assert len(found.memory_bytes) == pp


# -------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("shared", "recompute", "gib"),
    [(False, "none", 66.8438), (True, "none", 41.4141), (False, "selective", 37.7812),
     (True, "selective", 12.3516), (False, "full", 5.8125)],
)  # fmt: skip
def test_the_first_stage_of_the_175b_model_keeps_what_is_published(
    shared: bool, recompute: str, gib: float
) -> None:
    """Korthikanti et al. 2022: GiB of activations on the first stage, interleaved in 3 chunks; the
    mask of the embedding's dropout, s b h p / t, is counted beside them."""
    found = make_plan(
        "megatron-175b", "dgx-a100-80g x 64", batch=64,
        fix={"tp": 8, "pp": 8, "micro_batch": 1, "timetable": "interleaved", "chunks": 3,
             "recompute": recompute, "sequence_parallel": shared, "attention": "unfused"},
    ).predicted  # fmt: skip
    held = found.memory_bytes[0].activations
    in_flight = held - gib * GIB
    mask = 2048 * 12288 / (8 if shared else 1)
    assert in_flight / mask == pytest.approx(round(in_flight / mask), abs=0.25)
    assert 8 <= round(in_flight / mask) <= 24


@pytest.mark.parametrize("timetable", ["zb-h1", "zb-h2", "zb-v", "1f1b"])
def test_what_is_computed_again_waits_for_the_gradient_of_the_weights(timetable: str) -> None:
    """A block keeps its input, 2 s b h, until its backward; from there on, where the gradient of
    the weights comes later, the operands of its products, 32 s b h (arXiv 2401.10241)."""
    sbh = 64 * 512
    found = priced(
        GPT, ideal(4), 8, tp=1, pp=4, dp=1, timetable=timetable, recompute="full"
    )  # fmt: skip
    table = found.simulation.timetable
    layers = 8 / table.stages
    for rank, actions in enumerate(table.ranks):
        held, most = dict[tuple[int, int], float](), 0.0
        for action in actions:
            for part in action:
                size = {"F": 2.0, "B": 32.0, "W": 0.0, "BW": 0.0}[part.kind] * layers * sbh
                mask = sbh if part.stage == 0 and size else 0  # of the embedding's dropout
                held[part.stage, part.micro_batch] = size + mask
            most = max(most, sum(held.values()))
        assert found.memory_bytes[rank].activations == pytest.approx(most)
    told = any("waits in memory" in note for note in found.notes)
    assert told == (timetable != "1f1b")


def test_state_is_that_of_zero_on_the_stage_that_has_most_parameters() -> None:
    """18 bytes a parameter with gradients in float32, 12 of them shared under ZeRO-1."""
    found = priced(GPT, ideal(4), 8, dp=4, zero=1, precision="bfloat16").memory_bytes[0]
    count = parameters(ModelSpec.parse(GPT))
    assert found.weights + found.gradients == pytest.approx(6 * count)
    assert found.optimizer == pytest.approx(12 * count / 4)


MOE = "moe:layers=4,hidden=256,heads=8,vocab=1000,ffn=512,experts=8,top_k=2"


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("model", "ep"), [(GPT, 1), (MOE, 1), (MOE, 2), (MOE, 4), (MOE, 8), ("mixtral-8x7b", 8)]
)
def test_ranks_together_hold_all_state_once_and_what_zero_shares_only_once(
    model: str, ep: int, zero: int
) -> None:
    """Bytes a parameter: 2 of weights, 4 of gradients (float32), 12 of Adam's state."""
    machine, count = Machine.parse("dgx-h100 x 8"), parameters(ModelSpec.parse(model))
    found = priced(
        model, machine, 8, dp=4, cp=2, ep=ep, zero=zero, precision="bfloat16"
    ).memory_bytes[0]
    for held, bytes_each, shared_from in (
        (found.optimizer, 12, 1), (found.gradients, 4, 2), (found.weights, 2, 3),
    ):  # fmt: skip
        if zero >= shared_from:
            assert 8 * held == pytest.approx(bytes_each * count, rel=1e-9)
        else:
            assert 8 * held >= bytes_each * count * (1 - 1e-9)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_the_update_under_zero_takes_the_same_whoever_shares_the_experts(ep: int) -> None:
    machine = Machine.parse("dgx-h100 x 8")
    alone, shared = (
        priced(MOE, machine, 8, dp=8, ep=ranks, zero=1).breakdown.optimizer for ranks in (1, ep)
    )
    assert shared == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    "kind", [kind for kind in TIMETABLES if not kind.asynchronous], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("pp", [2, 4])
def test_a_tied_embedding_is_copied_and_summed_where_two_ranks_hold_its_ends(
    kind: Kind, pp: int
) -> None:
    """Bytes of all ranks: 2 a parameter and model, and one matrix more where its ends are apart;
    only then do they send it.  Chimera and DualPipe hold two models, whose gradients meet."""
    bandwidth, chunks = 1e9, 2 if kind.parts else 1
    spec, machine = ModelSpec.parse(DEEP), ideal(pp, bandwidth=bandwidth)
    found = priced(DEEP, machine, 8, pp=pp, dp=1, timetable=kind.name, chunks=chunks, tied=True)
    models = 2 if kind.name in ("chimera", "dualpipe") else 1
    together = kind.name in ("zb-v", "v-half", "v-min", "dualpipe-v", "chimera", "dualpipe")
    matrix = spec.vocab * spec.hidden
    apart = 0 if together else matrix
    held = sum(memory.weights for memory in found.memory_bytes)
    assert held == 2 * (models * parameters(spec) + apart)
    if models == 1:
        assert found.breakdown.data == pytest.approx(2 * apart / bandwidth, rel=1e-9)


def test_a_plan_that_does_not_fit_is_priced_and_flagged() -> None:
    fix = {"tp": 8, "pp": 1, "dp": 1, "micro_batch": 1, "recompute": "full"}
    found = make_plan("megatron-175b", "dgx-a100-80g x 8", batch=8, fix=fix).predicted
    assert not found.fits
    assert found.peak_bytes > 300 * GIB
    assert found.step_seconds > 1
    assert "DOES NOT FIT" in found.explain()


def test_no_rank_is_averaged_away() -> None:
    """A stage with more layers holds more, and the fullest decides."""
    machine = Machine.parse("dgx-a100-80g x 2")
    even = priced(GPT, machine, 8, pp=2, dp=1, stages=(4, 4))
    skew = priced(GPT, machine, 8, pp=2, dp=1, stages=(1, 7))
    assert skew.memory_bytes[1].weights > even.memory_bytes[1].weights
    assert skew.peak_bytes == max(memory.total for memory in skew.memory_bytes)
    assert skew.step_seconds > even.step_seconds


# ---------------------------------------------------------------------------------- the whole thing


def test_a_measured_layer_takes_the_place_of_the_roofline() -> None:
    plan = make_plan(
        HEADLESS, ideal(1), batch=8, seq=64,
        fix={"micro_batch": 1, "recompute": "none", "attention": "unfused"},
        layer_seconds=0.25,
    )  # fmt: skip
    assert plan.predicted.step_seconds == pytest.approx(8 * 8 * 0.25, rel=1e-4)


def test_a_prediction_is_a_pure_function() -> None:
    machine = Machine.parse("dgx-a100-80g x 16")
    spec = ModelSpec.parse("megatron-1.7b")
    plan = make_plan(spec, machine, batch=32)
    again = predict(plan, spec, machine)
    assert replace(again, notes=()) == replace(plan.predicted, notes=())


@pytest.mark.parametrize(
    ("model", "machine", "batch"),
    [("gpt3-175b", "dgx-a100-80g x 64", 64), ("llama-3-70b", "dgx-h100 x 64", 256),
     ("mixtral-8x7b", "hgx-h200 x 16", 128), ("gpt2", "host-2core", 8),
     ("llama-2-7b", "p3.16xlarge x 8 nodes", 64)],
)  # fmt: skip
def test_what_is_not_pinned_is_chosen_so_that_it_fits(model: str, machine: str, batch: int) -> None:
    plan = make_plan(model, machine, batch=batch)
    assert plan.predicted.fits
    assert any(note.startswith("by default: tp") for note in plan.predicted.notes)
    # Fewer ranks for each copy of the model do not fit, whatever is computed again.
    if plan.tp == 2:
        with_less = make_plan(model, machine, batch=batch, fix={"tp": 1, "pp": 1})
        assert not with_less.predicted.fits
    # All of it pinned is the same plan, and the same price.
    again = make_plan(model, machine, fix=ParallelPlan.parse(str(plan)))
    assert again == plan
    assert math.isclose(again.predicted.step_seconds, plan.predicted.step_seconds)


def test_a_specification_is_priced_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import tilewright as tw\n"
        "plan = tw.plan('gpt3-175b', tw.Machine.parse('dgx-a100-80g x 64'), batch=64)\n"
        "assert plan.predicted.fits and tw.ParallelPlan.parse(str(plan)) == plan\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
