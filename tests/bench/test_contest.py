"""The race: blocks are timed in the contender's process, failures leave it, load is detected."""

import json
import os
import sys
from pathlib import Path

import pytest
from bench import cases, cpu_models, machine, saved
from bench.contest import Block, Contestant, Entry, Rules, Score, race

ROOT = Path(__file__).parents[2]
# Any foreign load is allowed: these tests are about the protocol, not about a quiet machine.
RULES = Rules(blocks=3, seconds=0.02, pause=0.0, foreign=1e9, patience=60)

# A contender that sleeps two milliseconds a step.
SLEEPER = """
import time
from bench.protocol import Running, serve

def prepare():
    print("noise that a library writes")
    nothing = lambda *_: None
    return lambda: Running(lambda: time.sleep(0.002), nothing, nothing, lambda: [1.0], {"it": "1"})

serve(prepare)
"""


def _entry(name: str, program: str) -> Entry:
    return Entry(name, (sys.executable, "-c", program), ROOT, dict(os.environ))


def test_steps_are_timed_in_the_contenders_process(tmp_path: Path) -> None:
    scores = race([_entry("sleeper", SLEEPER)], tmp_path, RULES, lambda _: None)
    score = scores["sleeper"]
    assert len(score.blocks) == 3
    assert all(0.002 <= block.seconds_per_step < 0.05 for block in score.blocks)
    assert score.observed == [1.0]
    assert score.notes == {"it": "1"}
    assert score.peak_mib is not None
    assert not score.error


def test_a_contender_that_ends_leaves_the_race_with_its_last_words(tmp_path: Path) -> None:
    entries = [_entry("gone", "raise SystemExit('no such thing')"), _entry("sleeper", SLEEPER)]
    scores = race(entries, tmp_path, RULES, lambda _: None)
    assert scores["gone"].error == "no such thing"
    assert len(scores["sleeper"].blocks) == 3


def test_an_error_inside_a_step_is_the_contenders_answer(tmp_path: Path) -> None:
    broken = SLEEPER.replace("time.sleep(0.002)", "1 / 0")
    scores = race([_entry("broken", broken)], tmp_path, RULES, lambda _: None)
    assert scores["broken"].error == "ZeroDivisionError: division by zero"


def test_a_contender_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    runner = Contestant(_entry("mute", "import sys; sys.stdin.read(); sys.exit(3)"), tmp_path)
    with pytest.raises(Exception, match="no answer to 'start' within 0 s"):
        runner.ask({"do": "start"}, patience=0.1)
    runner.close()
    assert runner.process.returncode is not None


def test_disturbed_blocks_are_repeated_and_the_last_resort_is_marked(tmp_path: Path) -> None:
    rules = Rules(blocks=1, seconds=0.02, pause=0.0, foreign=-1.0, repeats=4, patience=60)
    score = race([_entry("sleeper", SLEEPER)], tmp_path, rules, lambda _: None)["sleeper"]
    assert score.thrown_away == 4
    assert [block.disturbed for block in score.blocks] == [True]


def test_busy_time_is_everything_but_idle_and_waiting() -> None:
    stat = "cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert machine.busy_seconds(stat, 100) == pytest.approx(1.71)


def test_foreign_load_is_what_neither_the_contender_nor_we_used() -> None:
    span = machine.Span(wall=2.0, busy=3.0, own=0.25)
    assert span.foreign(ours=2.25) == pytest.approx(0.25)
    assert span.foreign(ours=5.0) == 0.0


# Judging --------------------------------------------------------------------------------------


def _score(milliseconds: float, observed: list[float]) -> Score:
    blocks = [Block(milliseconds / 1e3, 0.0, False)] * 3
    return Score(blocks=blocks, cold_seconds=1.0, peak_mib=5.0, observed=observed)


def _judge(**scores: Score) -> dict[str, object]:
    flops = 10**9
    ceiling = _score(5.0, [5e8])  # 100 GFLOP/s: a limit of 10 ms
    return cpu_models.judge(
        cases.CASES[0], "train", {"ceiling": ceiling} | scores, [2.0, 1.0], flops
    )


def test_the_best_valid_peer_is_compared_with_ours() -> None:
    match = _judge(
        tilewright=_score(20.0, [2.0, 1.0]),
        eager=_score(60.0, [2.0, 1.0001]),
        jax=_score(40.0, [2.0, 1.0]),
        **{"tilewright-saved": _score(10.0, [2.0, 1.0])},  # no peer, but a variant of ours
    )
    assert match["limit_ms"] == pytest.approx(10.0)
    assert match["best_peer_over_ours"]["median"] == pytest.approx(2.0)  # type: ignore[index]
    assert match["best_peer_over_ours"]["peer"] == "jax"  # type: ignore[index]
    assert match["contenders"]["tilewright"]["fraction_of_limit"] == pytest.approx(0.5)  # type: ignore[index]


@pytest.mark.parametrize("observed", [[2.0, 1.1], [2.0, float("nan")], [2.0]])
def test_a_contender_with_other_numbers_is_not_timed(observed: list[float]) -> None:
    match = _judge(tilewright=_score(20.0, [2.0, 1.0]), eager=_score(1.0, observed))
    assert "computes something else" in match["contenders"]["eager"]["error"]  # type: ignore[index]
    assert match["best_peer_over_ours"] is None


def test_a_new_match_replaces_the_old_one_and_another_machine_starts_afresh() -> None:
    here: dict[str, str | int | float] = {"cpu": "this"}
    old = {"model": "mlp", "mode": "train", "date": "old"}
    other = {"model": "gpt", "mode": "infer"}
    stored = {"machine": here, "matches": [old, other]}
    new = {"model": "mlp", "mode": "train", "date": "new"}
    assert cpu_models.merge(stored, new, here)["matches"] == [new, other]
    assert cpu_models.merge(stored, new, {"cpu": "that"})["matches"] == [new]
    updated = here | {"system": "a newer build"}
    assert cpu_models.merge(stored, new, updated)["matches"] == [new, other]


# Cases ----------------------------------------------------------------------------------------


def test_flops_of_the_mlp_are_its_matrix_products() -> None:
    forward = 2 * 32 * (64 * 128 + 128 * 128 + 128 * 10)
    first_layer_input_gradient = 2 * 32 * 64 * 128
    assert cases.flops(cases.CASES[0], "infer") == forward
    assert cases.flops(cases.CASES[0], "train") == 3 * forward - first_layer_input_gradient


def test_flops_of_the_lstm_include_the_recurrent_layers() -> None:
    case = next(case for case in cases.CASES if case.name == "lstm")
    tokens, width, vocabulary, layers = 8 * 64, 256, 1000, 2
    per_token = layers * 2 * (width + width) * 4 * width + 2 * width * vocabulary
    assert cases.flops(case, "infer") == tokens * per_token


def test_flops_of_the_gpt_include_attention() -> None:
    case = cases.CASES[1]
    tokens, width, vocab, length = 128, 64, 512, 64
    per_token = 2 * (2 * 12 * width**2 + width * vocab) + 2 * 2 * 2 * length * width
    assert cases.flops(case, "infer") == tokens * per_token


def test_a_case_reads_back_as_it_was_written(tmp_path: Path) -> None:
    loaded = cases.build(cases.CASES[1], seed=5)
    cases.write(loaded, tmp_path)
    back = cases.read(tmp_path)
    assert back.case == loaded.case
    assert json.loads((tmp_path / "case.json").read_text())["name"] == "gpt-small"
    for mode in cases.MODES:
        assert cases.reference(back, mode) == cases.reference(loaded, mode)


def test_a_saved_program_is_served_without_torch_and_observes_the_reference(tmp_path: Path) -> None:
    loaded = cases.build(cases.CASES[0])
    cases.write(loaded, tmp_path)
    saved.export(tmp_path)
    serving = (
        "import sys; from pathlib import Path; from bench import protocol, saved\n"
        "protocol.serve(saved.prepare_case(Path(sys.argv[1])), ('tilewright.runtime',))\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = (sys.executable, "-c", serving, str(tmp_path))
    entry = Entry("saved", command, ROOT, dict(os.environ))
    runner = Contestant(entry, tmp_path)
    answer = runner.ask({"do": "start"}, patience=60)
    assert runner.ask({"do": "block", "seconds": 0.01}, patience=60)["steps"] > 0
    runner.close()
    assert runner.process.returncode == 0, runner.log.read_text()
    expected = cases.reference(loaded, "infer")
    assert cases.largest_difference(answer["observed"], expected) < 1e-5
