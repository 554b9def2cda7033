"""The bench of collectives runs under torchrun, and writes what it measured and predicted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sweep
def test_processes_of_torchrun_measure_every_algorithm_and_write_it_down(tmp_path: Path) -> None:
    out = tmp_path / "collectives.json"
    words = ["--standalone", "--nproc-per-node", "3", "-m", "bench.collectives"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words,
         "--most", "16777216", "--repeats", "5", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [group["ranks"] for group in found["ranks"]] == [2, 3]
    for group in found["ranks"]:
        assert len({row["algorithm"] for row in group["rows"]}) == 7
        assert all(row["measured"] > 0 for row in group["rows"])
        assert group["bus_bandwidth"] > 0
