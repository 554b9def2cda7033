"""The threads that segments run on: those of the OpenMP library that torch has loaded.

The idea: a second pool of threads beside torch's makes both slow, so a segment is handed the
entry of torch's own (`GOMP_parallel`).  In a process that has not imported torch it is the same
library where torch is installed, so that torch will find its own should it come later, and else
the system's; with as many threads as the library would take (`OMP_NUM_THREADS`, else the processors
that the process may use).  Without any library, a segment runs on the thread that calls it.
A forked child has only the thread that forked: there everything runs on one.
This module does not know what runs.
"""

import ctypes
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*$")
PLAIN = re.compile(r"/lib(?:gomp|iomp5|omp)\.so[^/]*$")
SYSTEMS = ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so")
"""What the library is called where compilers have put it."""


class Team(ctypes.Structure):
    """What C needs to run a function on many threads, and what it learns of them; it mirrors `Team`
    in `segments.c`."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("rank", ctypes.c_void_p),
        ("asked", ctypes.c_long),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A team, how many threads its library would take, and whether torch was there by then."""

    team: Team | None
    count: int
    beside_torch: bool


class _State:
    """What this process knows: the team once it is found, and whether it is a forked child."""

    found: _Found | None = None
    forked = False


def find_team() -> Team | None:
    """Return the team of the OpenMP library that torch uses, or would use."""
    return _find().team


def thread_count() -> int:
    """Return how many threads a segment may use: as many as torch does; without torch, as many as
    the OpenMP library would."""
    if _State.forked:
        return 1
    found = _State.found
    if found is None or not found.beside_torch:  # torch, once there, stays
        found = _find()
    if found.team is None or not found.beside_torch:
        return found.count
    count: int = sys.modules["torch"].get_num_threads()
    return count


def _find() -> _Found:
    found, torch = _State.found, sys.modules.get("torch")
    # A torch that is half imported has loaded no library yet.
    beside_torch = hasattr(torch, "get_num_threads")
    if found is None or found.beside_torch != beside_torch:
        found = _State.found = _team_of_torch(torch) if beside_torch else _team_without_torch()
    return found


def _team_of_torch(torch: Any) -> _Found:
    folder = str(Path(torch.__file__).parent)
    # Others bring a library of their own, under a name with a hash.
    paths = sorted(_loaded_libraries(), key=lambda path: not path.startswith(folder))
    plain = [path for path in paths if PLAIN.search(path)]
    for path in (*plain, *paths):
        if (library := _library(path, os.RTLD_NOLOAD | os.RTLD_NOW)) is not None:
            return _Found(_team(library), 1, beside_torch=True)
    return _Found(None, 1, beside_torch=True)


def _team_without_torch() -> _Found:
    for name in (*_installed_with_torch(), *SYSTEMS):
        if (library := _library(name, os.RTLD_NOW)) is not None:
            return _Found(_team(library), library.omp_get_max_threads(), beside_torch=False)
    return _Found(None, 1, beside_torch=False)


def _installed_with_torch() -> list[str]:
    """Return where torch keeps its OpenMP library, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return []
    files = (Path(found.origin).parent / "lib").glob("*.so*")
    return sorted(str(file) for file in files if OPENMP.search(str(file)))


def _library(name: str, mode: int) -> ctypes.CDLL | None:
    """Return a library that has what a team needs."""
    try:
        library = ctypes.CDLL(name, mode=mode)
        _team(library)
    except (OSError, AttributeError):
        return None
    return library


def _team(library: ctypes.CDLL) -> Team:
    entries = (library.GOMP_parallel, library.omp_get_num_threads, library.omp_get_thread_num)
    return Team(*(ctypes.cast(entry, ctypes.c_void_p) for entry in entries))


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
