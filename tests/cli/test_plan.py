"""`tilewright plan`: what it prints, what it writes, and how a mistake is told."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.parallel import ParallelPlan

Golden = Callable[[str, str], None]
Command = Callable[..., tuple[int, str, str]]
WORDS = ("plan", "megatron-1.7b", "--machine", "dgx-a100-80g x 16", "--batch", "32")
FIX = "tp=2,pp=2,micro_batch=1,recompute=full,attention=unfused"


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run `tilewright` with words, in an empty folder; returns exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tilewright", *words])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return run


def test_a_plan_is_printed_with_its_seconds_bytes_and_days(
    command: Command, golden: Golden
) -> None:
    code, out, _ = command(*WORDS, "--fix", FIX, "--tokens", "1e12")
    assert code == 0
    golden("plan.txt", out)


def test_a_plan_is_saved_read_and_changed(command: Command, tmp_path: Path) -> None:
    code, first, _ = command(*WORDS, "--fix", FIX, "--save", "one.plan")
    assert code == 0
    kept = ParallelPlan.parse((tmp_path / "one.plan").read_text(encoding="utf-8"))
    assert (kept.tp, kept.pp, kept.dp, kept.recompute) == (2, 2, 4, "full")

    code, again, _ = command("plan", "--from", "one.plan")
    assert code == 0
    assert again.splitlines()[:20] == first.splitlines()[:20]

    code, changed, _ = command("plan", "--from", "one.plan", "--fix", "recompute=none")
    assert code == 0
    assert "recompute none" in changed


def test_a_module_is_captured_with_its_inputs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))\n"
    )
    words = ("plan", "my_models:net", "--input", "8x64:float32", "--machine", "host-2core",
             "--batch", "32")  # fmt: skip
    code, out, err = command(*words, "--fix", "pp=2", "--save", "net.plan")
    assert code == 0, err
    assert "4 micro-batches of 8 examples" in out
    code, again, err = command(*words, "--from", "net.plan")
    assert code == 0, err
    assert again.splitlines()[:12] == out.splitlines()[:12]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_machine", ("plan", "gpt2", "--batch", "8")),
        ("no_file", ("plan", "--from", "none.plan")),
        ("unknown_setting", (*WORDS, "--fix", "tp=2,piplines=2")),
        ("degrees", (*WORDS, "--fix", "tp=2,pp=2,dp=2")),
    ],
)
def test_a_mistake_is_told_without_a_traceback(
    name: str, words: tuple[str, ...], command: Command, golden: Golden
) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    golden(f"plan_{name}.txt", err)
