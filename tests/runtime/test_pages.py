"""What runs use is nothing until they run, and is put into huge pages after the first of them."""

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilewright.runtime import Executable
from tilewright.runtime.arrays import ArrayContext
from tilewright.runtime.pages import HUGE, merge_pages

from .programs import chain

SMAPS = Path("/proc/self/smaps")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")

pytestmark = pytest.mark.skipif(
    not HUGE_PAGES.exists() or not SMAPS.exists() or "VmFlags" not in SMAPS.read_text("utf-8"),
    reason="the system knows no huge pages, or does not tell what memory is made of",
)

N = 1 << 21


def test_memory_of_a_first_run_on_arrays_is_none_until_it_runs_and_asks_for_no_huge_pages() -> None:
    executable = Executable(chain(5, N, 4))
    context = ArrayContext(executable.program, executable._segments)
    lies, kilobytes = context.arena.ctypes.data, executable.program.arena_bytes >> 10
    before = _memory_at(lies)
    (y,) = context.run([np.zeros(N, np.float32)])
    assert (y == 5).all()
    after = _memory_at(lies)
    assert int(after["Rss"].split()[0]) - int(before["Rss"].split()[0]) >= kilobytes == 1 << 14
    assert "hg" not in after["VmFlags"].split()


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_after_a_first_run_the_system_may_put_its_pages_together(
    make: Callable[[int], Any],
) -> None:
    executable = Executable(chain(5, N, 4))
    x = make(N) if make is torch.zeros else np.zeros(N, np.float32)
    assert (executable(x)[0] == 5).all()
    ((arena),) = [context.arena for context in (*executable._idle, *executable._idle_arrays)]
    lies = arena.data_ptr() if isinstance(arena, torch.Tensor) else arena.ctypes.data
    # Not at its ends: pages there need not lie in it as wholes.
    assert "hg" in _memory_at(lies + executable.program.arena_bytes // 2)["VmFlags"].split()
    assert (executable(x + 1)[0] == 6).all()


def test_memory_is_left_as_it_is_where_there_is_no_huge_page_of_it() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 4 * HUGE), dtype=np.uint8)
    lies = memory.ctypes.data
    merge_pages(lies, HUGE - 1)
    merge_pages(lies, 0)
    assert "hg" not in _memory_at(lies)["VmFlags"].split()
    memory[:] = 7
    merge_pages(lies + 1, 3 * HUGE)
    assert "hg" in _memory_at(lies + HUGE)["VmFlags"].split()
    assert (memory == 7).all()


def _memory_at(address: int) -> dict[str, str]:
    """Return what the system tells of the mapping that an address lies in."""
    told: dict[str, str] = {}
    inside = False
    for line in SMAPS.read_text(encoding="utf-8").split("\n"):
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside:
            name, _, value = line.partition(":")
            told[name] = value
    return told
