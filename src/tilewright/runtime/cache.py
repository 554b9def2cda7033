"""A folder of compiled objects, found again by what they were made from.

The idea: an entry is one file, its own sha256 first, so that a cut or altered one is seen as
absent; it appears by renaming, so that processes may share the folder without locks.  A folder
that cannot be written costs time, not function: a warning once, then memory takes its place.  A
folder that has a bound loses the entries that nobody has asked for longest: one that was read is in
memory, so that any process may remove any entry at any time.
This module does not know what the entries are.
"""

import hashlib
import os
import re
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from tilewright.base.errors import CacheWarning

SUM_BYTES = 32
LEFT = 0.75
"""The share of its bound that a folder is brought down to once it is above."""
LOOKS = 64
"""A process looks how large a folder is when it first writes, and as often while it fills one."""
FORGOTTEN = 3600
"""Seconds after which a file that was never finished is another process's no more."""
_FOLDER = re.compile("[0-9a-f]{2}")
_ENTRY = re.compile("[0-9a-f]+")


class Cache:
    """Entries by key (a name of hexadecimal digits); what this process made is kept if need be.

    most: about how many bytes the folder may hold, None for any number; each process that writes at
    the same time may be a `LOOKS`th above.
    """

    def __init__(self, folder: Path, most: int | None = None) -> None:
        self.folder = folder
        self.most = most
        self._unlooked = 0
        self._kept: dict[str, bytes] = {}
        self._writable = True

    def place(self, key: str) -> Path:
        """Return the file that holds the entry of that key."""
        return self.folder / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """Return the entry, or None if there is none or it is damaged."""
        if key in self._kept:
            return self._kept[key]
        place = self.place(key)
        try:
            content = place.read_bytes()
        except OSError:
            return None
        if self.most is not None:
            with suppress(OSError):  # of a folder that is only read
                os.utime(place)
        entry = content[SUM_BYTES:]
        return entry if _sum(entry) == content[:SUM_BYTES] else None

    def put(self, key: str, entry: bytes) -> None:
        """Keep the entry, in the folder if it can be written.

        Threads may do so at once, as processes may: without a lock, that a child of a fork could
        find held for ever; at worst a folder is looked at twice.
        """
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
        elif self.most is not None:
            self._unlooked -= len(entry)
            if self._unlooked <= 0:
                self._unlooked = self.most // LOOKS
                trim(self.folder, self.most)


def trim(folder: Path, most: int) -> None:
    """Remove the entries that were asked for longest ago, if a folder holds more than so much."""
    found = sorted(_entries(folder))
    held = sum(size for _, size, _ in found)
    if held <= most:
        return
    for _, size, path in found:
        if held <= most * LEFT:
            return
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError:
            continue
        held -= size


def _entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield when each entry was last asked for, its bytes and its path."""
    begun = time.time() - FORGOTTEN
    for place in _listed(folder):
        if not _FOLDER.fullmatch(place.name):
            continue  # of other entries
        for item in _listed(place):
            with suppress(OSError):
                told = item.stat(follow_symlinks=False)
                if not S_ISREG(told.st_mode):
                    continue
                if _ENTRY.fullmatch(item.name) or told.st_mtime < begun:
                    yield told.st_mtime, told.st_size, item.path


def _listed(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


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
