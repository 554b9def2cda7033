"""A graph that was compiled before is found again; anything else it is made from makes it anew."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.errors import CacheWarning
from tilewright.compiler import pipeline, remembered
from tilewright.compiler.assemble import Assembled
from tilewright.graph.ir import Graph
from tilewright.train.step import TrainStep


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Remember in a folder of the test's own; the names of the graphs that were compiled."""
    monkeypatch.setattr(pipeline, "key_of", remembered.key_of)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    names: list[str] = []
    derive = pipeline._reasons

    def noting(graph: Graph, *rest: object) -> pipeline.Reasons:
        names.append(graph.name)
        return derive(graph, *rest)  # type: ignore[arg-type]

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


def test_what_was_measured_and_the_package_itself_are_part_of_the_key(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _step()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "a").write_text("measured")
    _step()
    assert len(made) == 2
    _step(options=tw.Options(tuned=False))
    (tmp_path / "tuned" / "a").write_text("measured again")
    _step(options=tw.Options(tuned=False))
    assert len(made) == 3
    monkeypatch.setattr(remembered, "_CODE", "of another version")
    _step(options=tw.Options(tuned=False))
    assert len(made) == 4


def test_what_old_code_made_is_not_kept_as_what_new_code_would(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as edited:
        edited.setattr(remembered, "_code", lambda: "edited since it was imported")
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

        def differing(graph: Graph, *rest: object) -> Assembled:
            assembled = other(graph, *rest)  # type: ignore[arg-type]
            return replace(assembled, program=replace(assembled.program, name="another"))

        measured.setattr(pipeline, "assemble", differing)
        assert "what was measured has changed since" in again.explain()
    assert len(made) == 3


@pytest.mark.parametrize("damage", [b"", b"not a program", None])
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


def test_a_folder_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("TILEWRIGHT_CACHE", os.fspath(blocked))
    with pytest.warns(CacheWarning):
        assert _losses(_step()) == _losses(_step())
