"""A folder of compiled objects, found again by what they were made from.

The idea: an entry is one file, its own sha256 first, so that a cut or altered one is seen as
absent; it appears by renaming, so that processes may share the folder without locks.  A folder
that cannot be written costs time, not function: a warning once, then memory takes its place.
This module does not know what the entries are.
"""

import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from tilewright.base.errors import CacheWarning

SUM_BYTES = 32


class Cache:
    """Entries by key (a name of hexadecimal digits); what this process made is kept if need be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[str, bytes] = {}
        self._writable = True

    def place(self, key: str) -> Path:
        """Return the file that holds the entry of that key."""
        return self.folder / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """Return the entry, or None if there is none or it is damaged."""
        if key in self._kept:
            return self._kept[key]
        try:
            content = self.place(key).read_bytes()
        except OSError:
            return None
        entry = content[SUM_BYTES:]
        return entry if _sum(entry) == content[:SUM_BYTES] else None

    def put(self, key: str, entry: bytes) -> None:
        """Keep the entry, in the folder if it can be written."""
        if self._writable:
            try:
                _write(self.place(key), _sum(entry) + entry)
            except OSError as error:
                self._writable = False
                warnings.warn(
                    f"the kernel cache {self.folder} cannot be written ({error.strerror}): kernels "
                    "are compiled again by each process; set TILEWRIGHT_CACHE to a folder of yours",
                    CacheWarning,
                    stacklevel=2,
                )
        if not self._writable:
            self._kept[key] = entry


def _sum(entry: bytes) -> bytes:
    return hashlib.sha256(entry).digest()


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
