"""A processor as measurements see it: its name, its vectors, its caches, and how many threads.

The idea: what a kernel takes depends on these; a measurement counts where all of them are the same.

This module does not know what is measured.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime import NATIVE, processor, thread_count

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL = (32 << 10, 512 << 10, 8 << 20)
"""Bytes of the caches where the system does not tell."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_VECTORS = (("avx512f", 64), ("avx", 32))
_LEVELS = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


@dataclass(frozen=True, slots=True)
class Processor:
    """name: as the system tells it.  vector: bytes of a vector.  l1, l2, l3: bytes of the caches
    for data, of one core, and shared.  threads: on which kernels run."""

    name: str
    vector: int
    l1: int
    l2: int
    l3: int
    threads: int


def this_processor(target: str = NATIVE) -> Processor:
    """Return the processor that this process runs on, for an instruction set."""
    told = processor()
    named = re.search(r"^model name\s*:\s*(.*)$", told, re.MULTILINE)
    caches = _caches(CACHES)
    name = named.group(1).strip() if named else told.split("\n")[0]
    return Processor(name, _LEVELS.get(target, _native(told)), *caches, thread_count())


def has_squares(target: str = NATIVE) -> bool:
    """Say whether this processor multiplies squares of bfloat16 at once (AMX), and kernels for an
    instruction set may use that."""
    return target == NATIVE and "amx_bf16" in processor().split()


def library_vector() -> int:
    """Return the bytes of a vector of the library's products on this processor: MKL, which torch is
    built with for x86-64, takes those of 64 bytes on Intel's processors alone."""
    return library_vector_of(processor())


def library_vector_of(told: str) -> int:
    """Return them for a processor that says this of itself."""
    return _native(told) if is_at_home(told) else min(32, _native(told))


def is_library_at_home() -> bool:
    """Say whether this processor is one of those that the library's kernels were written for: of
    MKL, and of oneDNN, they are Intel's."""
    return is_at_home(processor())


def is_at_home(told: str) -> bool:
    """Say so of a processor that says this of itself."""
    return "GenuineIntel" in told


def _native(told: str) -> int:
    abilities = set(told.split())
    return next((size for flag, size in _VECTORS if flag in abilities), 16)


@functools.lru_cache
def _caches(folder: Path) -> tuple[int, int, int]:
    """Return the bytes of the caches that hold data, by level."""
    found = dict(enumerate(USUAL, 1))
    for place in sorted(folder.glob("index*")):
        try:
            kind, level, size = (
                (place / name).read_text(encoding="ascii").strip()
                for name in ("type", "level", "size")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind in ("Data", "Unified") and level in ("1", "2", "3") and match:
            found[int(level)] = int(match.group(1)) * _UNITS[match.group(2)]
    return found[1], found[2], found[3]
