"""Which threads a Program runs on: those that torch uses, or would use, or one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.program import show

from .programs import chain

N = 50_000
COUNT = f"""
import os, sys
from pathlib import Path
import numpy as np
from tilewright.program import read
from tilewright.runtime import Executable, thread_count
from tilewright.runtime.threads import find_team

def ran():
    return len(os.listdir("/proc/self/task"))

executable = Executable(read(Path(sys.argv[1]).read_text()))
x = np.arange({N}, dtype=np.float32)
before = ran()
for _ in range(3):
    assert (executable(x)[0] == x[::-1] + 3).all()
print("torch" in sys.modules, thread_count(), ran() - before)
"""
TORCH = """
import torch
torch.set_num_threads(2)
assert (executable(torch.tensor(x))[0].numpy() == x[::-1] + 3).all()
print(thread_count())
torch.set_num_threads(1)
print(thread_count())
maps = Path("/proc/self/maps").read_text()
libraries = {line.split()[-1] for line in maps.splitlines() if "libgomp.so" in line}
print(*libraries)
"""
FORKED = """
pid = os.fork()
if pid == 0:
    right = thread_count() == 1 and bool((executable(x)[0] == x[::-1] + 3).all())
    os._exit(0 if right else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def told(folder: Path, text: str, threads: str) -> list[str]:
    """Return the words that a process of its own prints."""
    file = folder / "chain.program"
    file.write_text(show(chain(3, N, parts=64)))
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": threads}
    environment |= {"PYTHONPATH": ":".join(sys.path), "TILEWRIGHT_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", text, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_without_torch_as_many_threads_run_as_are_asked_for(tmp_path: Path, threads: int) -> None:
    found = told(tmp_path, COUNT, str(threads))
    assert found == ["False", str(threads), str(threads - 1)]


def test_torch_that_comes_later_says_how_many(tmp_path: Path) -> None:
    two, one, *libraries = told(tmp_path, COUNT + TORCH, "3")[3:]
    assert (two, one) == ("2", "1")
    assert len(libraries) == 1, "and its threads are those that ran before"
    assert "torch" in libraries[0]


def test_a_forked_child_runs_on_one(tmp_path: Path) -> None:
    assert told(tmp_path, COUNT + FORKED, "2")[-1] == "0"
