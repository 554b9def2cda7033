"""What is told of a start, and that a Program is loaded where torch is not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.cold_start import ROOT, beyond, middle

import tilewright as tw


def test_capturing_and_a_step_are_no_part_of_what_a_start_takes_beyond() -> None:
    ours = {"start_wall": 2.0, "step_wall": 0.25, "capture_wall": 1.5}
    loaded = {"start_wall": 0.5, "step_wall": 0.25}
    assert beyond(ours) == beyond(loaded) == 0.25


def test_of_several_starts_the_middle_one_is_told() -> None:
    starts = [{"start_wall": wall, "step_wall": 0.0} for wall in (3.0, 1.0, 2.0)]
    assert middle(starts)["start_wall"] == 2.0


def test_a_program_is_loaded_and_run_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.linspace(-1, 1, 96).reshape(8, 12)
    tw.compile(torch.exp, x).program.save(tmp_path / "program")
    np.savez(tmp_path / "inputs.npz", x.numpy())
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    command = (sys.executable, "-m", "bench.cold_start_process", "load", "tilewright-alone")
    done = subprocess.run(
        (*command, "infer", str(tmp_path)), cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["without_torch"]
    np.testing.assert_allclose(answer["observed"], x.exp().flatten().double(), rtol=1e-6)
