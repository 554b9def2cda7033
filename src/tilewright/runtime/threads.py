"""The threads that segments run on: those of the OpenMP library that torch has loaded.

The idea: a second pool of threads beside torch's makes both slow, so a segment is handed the
entry of torch's own (`GOMP_parallel`) and, without one, runs on the thread that calls it.
A forked child has only the thread that forked: there everything runs on one.
This module does not know what runs.
"""

import ctypes
import os
import re
import sys
from pathlib import Path

OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*$")


class Team(ctypes.Structure):
    """What C needs to run a function on many threads, and what it learns of them; it mirrors `Team`
    in `segments.c`."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("rank", ctypes.c_void_p),
        ("asked", ctypes.c_long),
        ("ran", ctypes.c_long),
        ("resting", ctypes.c_long),
    )


class _State:
    """What this process knows: the team once it is found, and whether it is a forked child."""

    team: Team | None = None
    forked = False


def find_team() -> Team | None:
    """Return the team of the OpenMP library in this process, if there is one."""
    if _State.team is None:
        _State.team = _loaded_team()
    return _State.team


def thread_count() -> int:
    """Return how many threads a segment may use: as many as torch does, one without torch."""
    torch = sys.modules.get("torch")
    if torch is None or _State.forked or find_team() is None:
        return 1
    count: int = torch.get_num_threads()
    return count


def _loaded_team() -> Team | None:
    for path in _loaded_libraries():
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            entries = (library.GOMP_parallel, library.omp_get_num_threads)
            addresses = [ctypes.cast(entry, ctypes.c_void_p) for entry in entries]
            rank = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
        return Team(*addresses, rank)
    return None


def _loaded_libraries() -> list[str]:
    """Return the OpenMP libraries mapped into this process, in the order of their addresses."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    paths = [line[line.find("/") :] for line in lines if "/" in line]
    return [path for path in dict.fromkeys(paths) if OPENMP.search(path)]


def _after_fork() -> None:
    # The OpenMP library believes in threads that the child does not have.
    _State.forked = True


os.register_at_fork(after_in_child=_after_fork)
