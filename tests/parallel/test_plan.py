"""Plans as texts, and the rules that a plan must keep."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.errors import MachineError, ModelSpecError, PlanError, TilewrightError
from tilewright.cost import OPTIMIZERS, RECOMPUTE, Machine, ModelSpec, parse_program
from tilewright.graph.ir import Graph
from tilewright.parallel import (
    SETTINGS,
    TIMETABLES,
    ParallelPlan,
    even_stages,
    make_plan,
    read_fix,
    read_timetable,
)
from tilewright.parallel.plan import ATTENTIONS, AXES, OVERLAPS, PRECISIONS

Golden = Callable[[str, str], None]

PINNED = {
    "tp": 2, "pp": 2, "dp": 4, "micro_batch": 1, "recompute": "full", "attention": "unfused",
    "precision": "float16", "overlap": "none",
}  # fmt: skip
MODEL, MACHINE = "megatron-1.7b", "dgx-a100-80g x 16"


def _plan(**changes: object) -> ParallelPlan:
    return make_plan(MODEL, MACHINE, batch=32, fix=PINNED | changes)


# ---------------------------------------------------------------------------------------- the texts

_counts = st.integers(1, 1 << 30)
_names = st.from_regex(r"[a-z_][a-z0-9_.]{0,12}", fullmatch=True)


@st.composite
def _plans(draw: st.DrawFn) -> ParallelPlan:
    return ParallelPlan(
        model=draw(st.from_regex(r"[a-z][a-z0-9:=,.\-]{0,30}", fullmatch=True)),
        machine=draw(st.from_regex(r"[a-z][a-z0-9\-]{0,12} x [1-9][0-9]{0,3}", fullmatch=True)),
        batch=draw(_counts),
        seq=draw(_counts),
        tp=draw(_counts),
        cp=draw(_counts),
        dp=draw(_counts),
        pp=draw(_counts),
        ep=draw(_counts),
        order=tuple(draw(st.permutations(AXES))),
        zero=draw(st.integers(0, 3)),
        micro_batch=draw(_counts),
        timetable=draw(st.sampled_from([row.name for row in TIMETABLES])),
        chunks=draw(_counts),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        sequence_parallel=draw(st.booleans()),
        overlap=draw(st.sampled_from(OVERLAPS)),
        precision=draw(st.sampled_from(PRECISIONS)),
        optimizer=draw(st.sampled_from([name for name, _ in OPTIMIZERS])),
        attention=draw(st.sampled_from(ATTENTIONS)),
        tied=draw(st.booleans()),
        stages=tuple(draw(st.lists(st.integers(0, 99), max_size=5))),
        placement=tuple(draw(st.dictionaries(_names, st.integers(0, 9), max_size=4)).items()),
    )


@given(_plans())
def test_a_plan_is_read_as_it_was_printed(plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(str(plan)) == plan


def test_the_text_of_a_plan(golden: Golden) -> None:
    golden("plan.txt", str(_plan()))


def test_a_plan_that_was_read_is_priced_as_the_one_that_was_printed() -> None:
    made = _plan()
    again = make_plan(MODEL, MACHINE, fix=ParallelPlan.parse(str(made)))
    assert again == made
    assert again.predicted.breakdown == made.predicted.breakdown
    assert again.predicted.memory_bytes == made.predicted.memory_bytes


def test_comments_blank_lines_and_defaults_may_be_left_out() -> None:
    text = "# by hand\nplan\n\n  model m\n  machine n x 2\n  batch 8\n  seq 4\n"
    assert ParallelPlan.parse(text) == ParallelPlan("m", "n x 2", 8, 4)


def test_pinned_settings_are_read_as_they_are_written() -> None:
    found = read_fix("tp=8, pp=2,order=tp dp pp cp,sequence_parallel=yes,stages=3 4,zero=1")
    assert found == {
        "tp": 8, "pp": 2, "order": ("tp", "dp", "pp", "cp"), "sequence_parallel": True,
        "stages": (3, 4), "zero": 1,
    }  # fmt: skip
    assert read_fix("") == {}


TEXTS = {
    "empty": "",
    "another_head": "timetable 1f1b\n",
    "unknown_setting": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\n  microbatch 2\n",
    "unknown_timetable": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\ntimetable 1b1f\n",
    "no_number": "plan\nmodel m\nmachine n x 2\nbatch eight\n",
    "zero_of_four": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\nzero 4\n",
    "said_twice": "plan\nmodel m\nmachine n x 2\nbatch 8\nbatch 8\n",
    "nothing_of_the_batch": "plan\nmodel m\nmachine n x 2\n",
    "axes_left_out": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\norder tp dp\n",
    "no_place": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\nplace conv1\n",
    "two_places": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\nplace a 0\nplace a 1\n",
    "superscript": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\ntp 8²\n",
    "superscript_stages": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\nstages 12 1²\n",
    "superscript_place": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\nplace a ²\n",
    "no_answer": "plan\nmodel m\nmachine n x 2\nbatch 8\nseq 4\ntied true\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_plan_is_refused_with_its_place(name: str, golden: Golden) -> None:
    with pytest.raises(PlanError) as caught:
        ParallelPlan.parse(TEXTS[name])
    golden(f"plan_text_{name}.txt", str(caught.value))


def test_a_pinned_setting_that_is_unknown_is_refused(golden: Golden) -> None:
    with pytest.raises(PlanError) as caught:
        read_fix("tp=8,pipeline=2")
    golden("plan_fix_unknown.txt", str(caught.value))
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, MACHINE, batch=32, fix={"recomputation": "full"})
    golden("plan_fix_unknown_in_python.txt", str(caught.value))


WRONG: dict[str, dict[str, object]] = {
    "batch": {"batch": "8"},
    "seq": {"seq": math.nan},
    "fix": {"fix": 5},
    "fix_text": {"fix": "tp=8"},
    "fix_name": {"fix": {8: "tp"}},
    "fix_value": {"fix": {"tp": 2.0}},
    "fix_placement": {"fix": {"placement": {"layers.0": "1"}}},
    "fix_placement_number": {"fix": {"placement": 3}},
    "layer_seconds": {"layer_seconds": "0.1"},
    "layer_seconds_negative": {"layer_seconds": -1.0},
    "inputs": {"inputs": ("8x64",)},
    "machine": {"machine": None},
    "model": {"model": 175},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_another_type_or_range_is_refused(name: str, golden: Golden) -> None:
    arguments = {"model": MODEL, "machine": MACHINE, "batch": 32} | WRONG[name]
    model, machine = arguments.pop("model"), arguments.pop("machine")
    with pytest.raises(TilewrightError) as caught:
        make_plan(model, machine, **arguments)  # type: ignore[arg-type]
    golden(f"plan_argument_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


STRANGE = ("8", "", None, -1, 0, 1.5, math.nan, math.inf, True, 10**30, [], {}, b"x", (1, 2), "\n")
ARGUMENTS = ("batch", "seq", "fix", "layer_seconds", "machine")


@pytest.mark.parametrize("where", [*ARGUMENTS, *(f"fix {setting.name}" for setting in SETTINGS)])
def test_whatever_is_given_a_plan_is_priced_or_refused_with_a_typed_error(where: str) -> None:
    for value in STRANGE:
        arguments: dict[str, Any] = {"machine": MACHINE, "batch": 32}
        setting = where.removeprefix("fix ")
        arguments |= {where: value} if setting == where else {"fix": {setting: value}}
        with contextlib.suppress(TilewrightError):
            made = make_plan(MODEL, arguments.pop("machine"), **arguments)
            assert 0 < made.predicted.step_seconds < math.inf


@pytest.mark.parametrize("value", [None, 5, b"x", ["a"]], ids=repr)
@pytest.mark.parametrize(
    "read",
    [ParallelPlan.parse, Machine.parse, ModelSpec.parse, read_timetable, parse_program, read_fix],
    ids=lambda read: read.__qualname__,
)
def test_what_is_no_text_is_not_read(read: Callable[[Any], object], value: object) -> None:
    with pytest.raises(TilewrightError, match="is read from a text"):
        read(value)


@pytest.mark.parametrize("tokens", ["8", -1, math.nan, math.inf, None], ids=repr)
def test_tokens_that_are_never_seen_take_no_days(tokens: Any) -> None:
    with pytest.raises(PlanError, match="never seen"):
        _plan().predicted.days(tokens)


def test_measured_layers_are_refused_for_a_graph() -> None:
    graph = Graph("empty", (), (), ())
    with pytest.raises(PlanError, match="layer_seconds has no effect"):
        make_plan(graph, MACHINE, batch=32, layer_seconds=0.1)


# ---------------------------------------------------------------------------------------- the rules

BROKEN: dict[str, dict[str, object]] = {
    "degrees": {"dp": 3},
    "batch": {"micro_batch": 3},
    "heads": {"tp": 16, "pp": 1, "dp": 1},
    "sequence": {"cp": 2, "dp": 2, "seq": 1023},
    "experts_of_none": {"ep": 2},
    "sequence_parallel_alone": {"tp": 1, "dp": 8, "sequence_parallel": True},
    "zero_alone": {"tp": 8, "dp": 1, "zero": 1},
    "scores_of_fused_attention": {"attention": "fused", "recompute": "selective"},
    "stages": {"stages": (11, 11)},
    "placed_layers": {"placement": (("matmul", 0),)},
}


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "placed_layers"])
def test_a_plan_that_cannot_be_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(PlanError) as caught:
        _plan(**BROKEN[name])
    golden(f"plan_rule_{name}.txt", str(caught.value))


def test_a_plan_made_for_another_model_or_machine_is_refused(golden: Golden) -> None:
    made = _plan()
    with pytest.raises(PlanError) as caught:
        make_plan("megatron-3.6b", MACHINE, fix=made)
    golden("plan_rule_another_model.txt", str(caught.value))
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, "dgx-h100 x 16", fix=made)
    golden("plan_rule_another_machine.txt", str(caught.value))


def test_layers_of_a_specification_are_cut_not_placed(golden: Golden) -> None:
    made = replace(_plan(), placement=(("matmul", 0),))
    with pytest.raises(PlanError) as caught:
        made.verify(ModelSpec.parse(MODEL), Machine.parse(MACHINE))
    golden("plan_rule_placed_layers.txt", str(caught.value))


def test_a_plan_without_a_batch_or_with_two_is_refused(golden: Golden) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, MACHINE)
    golden("plan_rule_no_batch.txt", str(caught.value))
    with pytest.raises(PlanError) as caught:
        make_plan(MODEL, MACHINE, batch=64, fix=_plan())
    golden("plan_rule_two_batches.txt", str(caught.value))


def test_a_plan_that_was_read_has_no_price(golden: Golden) -> None:
    with pytest.raises(PlanError) as caught:
        _ = ParallelPlan.parse(str(_plan())).predicted
    golden("plan_not_priced.txt", str(caught.value))


def test_unknown_machines_and_models_are_refused_with_the_nearest_names() -> None:
    with pytest.raises(MachineError, match="close to it: dgx-a100-80g"):
        make_plan(MODEL, "dgx-a100-80 x 8", batch=8)
    with pytest.raises(ModelSpecError, match=r"close to it: .*megatron-175b"):
        make_plan("megatron-176b", MACHINE, batch=8)


@given(st.integers(0, 200), st.integers(1, 40))
def test_layers_are_cut_as_evenly_as_can_be_with_less_at_the_ends(layers: int, stages: int) -> None:
    cut = even_stages(layers, stages)
    assert (len(cut), sum(cut)) == (stages, layers)
    assert max(cut) - min(cut) <= 1
    assert min(cut) == min(cut[0], cut[-1])


def test_the_published_cuts_of_the_zero_bubble_models_are_the_even_ones() -> None:
    for layers, stages in ((22, 8), (30, 8), (46, 16), (62, 32)):
        each = (layers + 2) // stages
        assert even_stages(layers, stages) == (each - 1, *[each] * (stages - 2), each - 1)
