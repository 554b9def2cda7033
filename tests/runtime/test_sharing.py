"""Threads take the parts of launches from each other, each part once and none too early."""

import subprocess
from pathlib import Path

import pytest

from tilewright.runtime.segments import RUNNER

DRIVER = Path(__file__).with_name("sharing.c")
ROUNDS = 600
RACES = "-fsanitize=thread"


def compiled(folder: Path, *flags: str) -> Path:
    """Return the driver with `segments.c`, compiled."""
    made = folder / "sharing"
    command = ["cc", "-std=gnu11", "-g", "-O1", *flags, DRIVER, RUNNER, "-o", made, "-lpthread"]
    subprocess.run(command, check=True)
    return made


def said(command: Path, rounds: int) -> str:
    """Return what the driver says on errors, "" where nothing is wrong."""
    done = subprocess.run([command, str(rounds)], capture_output=True, text=True, timeout=300)
    assert bool(done.returncode) == bool(done.stderr), done
    return done.stderr


def test_every_part_is_computed_once_and_after_what_it_waits_for(tmp_path: Path) -> None:
    """Random tables on teams of 1 to 6 threads, some of which come late or sleep in a part; and
    little work has a team that is awake."""
    assert said(compiled(tmp_path), ROUNDS) == ""


def test_threads_that_share_do_not_race(tmp_path: Path) -> None:
    none = tmp_path / "none.c"
    none.write_text("int main(void) { return 0; }\n")
    command = ["cc", RACES, str(none), "-o", str(tmp_path / "none")]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode or subprocess.run([tmp_path / "none"], check=False).returncode:
        pytest.skip("the C compiler has no ThreadSanitizer, or it does not run here")
    assert said(compiled(tmp_path, RACES), ROUNDS // 4) == ""
