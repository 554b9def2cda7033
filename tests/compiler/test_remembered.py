"""A graph that was compiled before is found again; anything else it is made from makes it anew."""

import hashlib
import json
import marshal
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.errors import CacheWarning, ProgramError
from tilewright.compiler import pipeline, remembered
from tilewright.compiler.assemble import Assembled
from tilewright.compiler.choices import Answer
from tilewright.graph.ir import Graph
from tilewright.train.step import TrainStep
from tilewright.tune import Measured, Store, Timing, this_processor


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Remember in a folder of the test's own; the names of the graphs that were compiled."""
    monkeypatch.setattr(pipeline, "key_of", remembered.key_of)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    names: list[str] = []
    derive = pipeline._reasons

    def noting(graph: Graph, **rest: Any) -> pipeline.Reasons:
        names.append(graph.name)
        return derive(graph, **rest)

    monkeypatch.setattr(pipeline, "_reasons", noting)
    return names


def _step(width: int = 8, options: tw.Options | None = None) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(5, 6), torch.randint(3, (5,))
    return tw.train_step(model, F.cross_entropy, optimizer, x, y, options=options or tw.Options())


def _losses(step: TrainStep) -> list[float]:
    torch.manual_seed(1)
    x, y = torch.randn(5, 6), torch.randint(3, (5,))
    return [float(step(x, y)) for _ in range(3)]


def test_the_same_graph_is_compiled_once_and_explains_itself(made: list[str]) -> None:
    first = _step()
    assert len(made) == 1
    again = _step()
    assert len(made) == 1
    assert again.program == first.program
    assert _losses(again) == _losses(first)
    lines = [text.splitlines()[:-1] for text in (first.explain(), again.explain())]
    assert lines[0] == lines[1]  # the last line says how long it took
    assert len(made) == 2
    again.explain()
    assert len(made) == 2


def test_another_graph_or_another_option_is_compiled_anew(made: list[str]) -> None:
    _step()
    _step(width=9)
    _step(options=tw.Options(library=False))
    _step(options=tw.Options(fuse=False))
    _step(options=tw.Options(verify=True))
    assert len(made) == 5


def _asked(step: TrainStep) -> list[Answer]:
    return [answer for answer in step.built.why().answers if answer.kernel.startswith("product")]


def _measure(kernel: str, recipe: int, seconds: float) -> None:
    timing = Timing("library", seconds, seconds, seconds, 9)
    processor = this_processor()
    Store(processor).put(Measured(processor, kernel, recipe, 1000, (timing,)))


def test_a_measurement_that_nobody_asked_for_changes_nothing(made: list[str]) -> None:
    step = _step()
    (first, *_) = _asked(step)
    assert first.measured == ""
    _measure("product of nobody", first.recipe, 1.0)
    _measure(first.kernel, first.recipe + 1, 1.0)
    _step()
    assert len(made) == 1


def test_what_was_measured_of_what_was_asked_is_part_of_the_key(made: list[str]) -> None:
    (first, *_) = _asked(_step())
    for seconds in (1.0, 2.0):
        _measure(first.kernel, first.recipe, seconds)
        (found,) = [a for a in _asked(_step()) if a.kernel == first.kernel]
        assert json.loads(found.measured)["timings"][0]["seconds"] == seconds
        _step()
    assert len(made) == 3
    _step(options=tw.Options(tuned=False))
    _measure(first.kernel, first.recipe, 3.0)
    _step(options=tw.Options(tuned=False))
    assert len(made) == 4


def test_what_is_measured_while_a_graph_is_compiled_is_not_taken_for_what_it_was_made_with(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = _asked(_step())
    assemble = pipeline.assemble

    def beside(*given: Any, **named: Any) -> Assembled:
        done = assemble(*given, **named)
        _measure(first.kernel, first.recipe, 1.0)
        return done

    _measure(first.kernel, first.recipe, 2.0)
    with monkeypatch.context() as tuning:
        tuning.setattr(pipeline, "assemble", beside)
        _step()
    assert len(made) == 2
    _step()
    assert len(made) == 3


@pytest.mark.parametrize("name", ["_CODE", "_versions", "this_processor"])
def test_all_else_a_program_is_made_from_is_part_of_the_key(
    made: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _step(options=tw.Options(tuned=False))
    another: Any = "of another version"
    if name == "_versions":
        another = lambda: ("3.99", "", "")  # noqa: E731
    if name == "this_processor":
        another = lambda target: replace(this_processor(target), l2=12345)  # noqa: E731
    monkeypatch.setattr(remembered, name, another)
    _step(options=tw.Options(tuned=False))
    assert len(made) == 2


def test_a_file_of_the_package_that_was_replaced_is_another(tmp_path: Path) -> None:
    """By one of the same size, said to be of the same time."""
    file = tmp_path / "module.py"
    file.write_text("CLEAR = 1.03")
    os.utime(file, ns=(0, 0))
    (before,) = remembered._stamps(tmp_path)
    time.sleep(0.02)
    file.write_text("CLEAR = 1.05")
    os.utime(file, ns=(0, 0))
    (after,) = remembered._stamps(tmp_path)
    assert before != after


def test_what_old_code_made_is_not_kept_as_what_new_code_would(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as edited:
        edited.setattr(remembered, "_code", lambda: "edited since it was imported")
        _step()
    assert not (tmp_path / "programs").exists()
    _step()
    assert len(made) == 2


def test_a_program_that_breaks_a_rule_is_not_kept(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is kept is believed to break none."""
    assemble = pipeline.assemble

    def too_small(*given: Any, **named: Any) -> Assembled:
        assembled = assemble(*given, **named)
        return replace(assembled, program=replace(assembled.program, arena_bytes=8))

    with monkeypatch.context() as broken:
        broken.setattr(pipeline, "assemble", too_small)
        with pytest.raises(ProgramError, match="not inside the arena"):
            _step()
    assert not (tmp_path / "programs").exists()
    _step()
    assert len(made) == 2


def test_reasons_that_have_changed_since_say_so(made: list[str]) -> None:
    _step()
    found = _step()
    assert "changed since" not in found.explain()
    again = _step()
    with pytest.MonkeyPatch.context() as measured:
        other = pipeline.assemble

        def differing(*given: Any, **named: Any) -> Assembled:
            assembled = other(*given, **named)
            return replace(assembled, program=replace(assembled.program, name="another"))

        measured.setattr(pipeline, "assemble", differing)
        assert "what was measured has changed since" in again.explain()
    assert len(made) == 3


def _whole(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"not a program",
        None,
        _whole(b"hello"),
        _whole(marshal.dumps(3)),
        _whole(marshal.dumps((b"", None, []))),
        _whole(marshal.dumps((marshal.dumps(([99, 1],)), None, []))),
    ],
)
def test_a_damaged_entry_is_compiled_anew(
    made: list[str], tmp_path: Path, damage: bytes | None
) -> None:
    expected = _losses(_step())
    (entry,) = (path for path in (tmp_path / "programs").rglob("*") if path.is_file())
    content = entry.read_bytes()
    entry.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert _losses(_step()) == expected
    assert len(made) == 2
    assert entry.read_bytes() == content


def test_sizes_that_vary_are_compiled_anew(made: list[str]) -> None:
    def double(x: Tensor) -> Tensor:
        return x.sin() * 2

    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="tilewright", dynamic=True)
        for length in (3, 7):
            x = torch.randn(length)
            torch.testing.assert_close(compiled(x), double(x))
    assert len(made) >= 2


def test_programs_that_are_not_asked_for_are_removed(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "0")
    expected = _losses(_step())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert _losses(_step()) == expected
    assert len(made) == 2


def test_a_folder_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("TILEWRIGHT_CACHE", os.fspath(blocked))
    with pytest.warns(CacheWarning):
        assert _losses(_step()) == _losses(_step())
