"""`tilewright bench`: the measuring sticks of the repository, run where they are.

The idea: benchmarks belong to a checkout, not to the installed package; this only finds them.

This module does not know what is measured.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright.base.errors import OptionError


def run_bench(arguments: Sequence[str]) -> int:
    """Run `bench.cpu_models` of the checkout that holds this file or the working folder."""
    folder = _checkout()
    command = [sys.executable, "-m", "bench.cpu_models", *arguments]
    return subprocess.run(command, cwd=folder, check=False).returncode


def _checkout() -> Path:
    for start in (Path.cwd(), Path(__file__).resolve()):
        for folder in (start, *start.parents):
            if (folder / "bench" / "cpu_models.py").is_file():
                return folder
    raise OptionError(
        "there are no benchmarks here",
        expected="a checkout of the repository, with bench/cpu_models.py",
        found=str(Path.cwd()),
        mend="clone the repository and run `make bench` in it",
    )
