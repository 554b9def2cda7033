"""Where measurements are kept: an entry for each kernel and processor, beside compiled kernels.

The idea: an entry appears whole or not at all, so that a tuner may be stopped at any time and goes
on where it was.  What was measured here counts before what came with the package.  An entry that
does not read as one is ignored, with a warning: a guess costs time, a wrong entry would too.

This module does not know how anything is measured.
"""

import functools
import hashlib
import json
import warnings
from pathlib import Path

from tilewright.base.errors import CacheWarning
from tilewright.runtime.cache import Cache
from tilewright.runtime.toolchain import cache_folder
from tilewright.tune.measured import Measured
from tilewright.tune.processor import Processor

SHIPPED = Path(__file__).with_name("shipped.json")
"""Measurements that come with the package."""


class Store:
    """The measurements of one processor; final.  Mutable in that `put` adds to its folder."""

    def __init__(
        self, processor: Processor, folder: Path | None = None, shipped: Path | None = SHIPPED
    ) -> None:
        """folder: where entries are; `tuned` in the folder of compiled kernels, if not given."""
        self.processor = processor
        self.entries = Cache(cache_folder() / "tuned" if folder is None else folder)
        self._shipped = {} if shipped is None else _shipped(shipped, processor)

    def get(self, kernel: str, recipe: int) -> Measured | None:
        """Return what was measured of a kernel under this version of its recipe."""
        entry = self.entries.get(_key(self.processor, kernel, recipe))
        if entry is not None:
            found = _read(entry, str(self.entries.place(_key(self.processor, kernel, recipe))))
            # Another's entry under this name would be believed for what it is not.
            if found is not None and _is_of(found, self.processor, kernel, recipe):
                return found
        found = self._shipped.get(kernel)
        return found if found is not None and found.recipe == recipe else None

    def put(self, measured: Measured) -> None:
        """Keep a measurement; it takes the place of an earlier one."""
        key = _key(measured.processor, measured.kernel, measured.recipe)
        self.entries.put(key, str(measured).encode())


def _key(processor: Processor, kernel: str, recipe: int) -> str:
    return hashlib.sha256(repr((processor, kernel, recipe)).encode()).hexdigest()


def _is_of(found: Measured, processor: Processor, kernel: str, recipe: int) -> bool:
    return (found.processor, found.kernel, found.recipe) == (processor, kernel, recipe)


def _read(entry: bytes, place: str) -> Measured | None:
    try:
        return Measured.parse(entry.decode())
    except ValueError as error:
        warnings.warn(
            f"the measurement {place} is ignored: it is {error}; `tilewright tune` makes it anew",
            CacheWarning,
            stacklevel=2,
        )
        return None


@functools.lru_cache
def _shipped(path: Path, processor: Processor) -> dict[str, Measured]:
    """Return the measurements of a processor that a file holds, by kernel."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    found = map(Measured.read, rows)
    return {one.kernel: one for one in found if one.processor == processor}
