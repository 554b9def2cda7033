"""Real text that every machine has: the sources of the Python standard library, as bytes.

The idea: a corpus is a pure function of the installed Python, split into train and held-out by
file, and a batch is a pure function of (seed, step), so that a run resumes at any step without
replaying the ones before.  Does not know any model.
"""

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

VOCAB = 256
END = 0
"""The byte that closes every file; it occurs in no source."""

# Not programs of the library: what was installed beside it, and tests (many generated, some
# broken on purpose).
_FOREIGN = frozenset({"site-packages", "dist-packages", "_bundled", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test", "turtledemo", "__phello__"})
# Tables (code pages, help topics) and a frozen copy of a grammar.
_TABLES = frozenset({"encodings", "pydoc_data", "lib2to3"})
_SKIPPED_PREFIXES = ("_sysconfigdata", "__hello__", "__phello__")
_HELD_OUT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Corpus:
    """Two disjoint sets of files (paths relative to the library) and their bytes, uint8 `[n]`."""

    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]
    train: Tensor
    held_out: Tensor


@dataclass(frozen=True, slots=True)
class TextBatches:
    """Random windows of `data`, one batch per step; stateless, so any step can be asked for."""

    data: Tensor
    batch: int
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.data) <= self.length:
            raise ValueError(f"{len(self.data)} bytes hold no window of {self.length + 1}")

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (the inputs shifted by one), int64 `[batch, length]`, of a step."""
        digest = hashlib.sha256(f"{self.seed}:{step}".encode()).digest()
        source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        starts = torch.randint(len(self.data) - self.length, (self.batch,), generator=source)
        return _windows(self.data, starts, self.length)


def standard_library(root: Path | None = None) -> Corpus:
    """The corpus under `root`, by default the running Python's standard library."""
    folder = root or Path(sysconfig.get_paths()["stdlib"])
    names = sorted(_sources(folder))
    held_out = tuple(name for name in names if _is_held_out(name))
    train = tuple(name for name in names if not _is_held_out(name))
    if not train or not held_out:
        raise FileNotFoundError(f"no Python sources to train on under {folder}")
    return Corpus(train, held_out, _read(folder, train), _read(folder, held_out))


def evaluation_batches(
    data: Tensor, batch: int, length: int, count: int
) -> tuple[tuple[Tensor, Tensor], ...]:
    """`count` fixed batches whose windows are spread evenly over `data`."""
    if len(data) <= length:
        raise ValueError(f"{len(data)} bytes hold no window of {length + 1}")
    last = len(data) - length - 1
    starts = torch.linspace(0, last, batch * count, dtype=torch.float64).long().view(count, batch)
    return tuple(_windows(data, starts[i], length) for i in range(count))


def decode(ids: Tensor) -> str:
    """Bytes as text; what is not UTF-8 becomes the replacement character."""
    return bytes(ids.flatten().tolist()).decode("utf-8", errors="replace")


def _sources(folder: Path) -> list[str]:
    """Names, relative to `folder`, of the sources that belong to the corpus."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _FOREIGN | _TESTS | _TABLES]
        for name in files:
            if name.endswith(".py") and not name.startswith(_SKIPPED_PREFIXES):
                found.append((Path(place) / name).relative_to(folder).as_posix())
    return found


def _is_held_out(name: str) -> bool:
    """By the name's hash: which side a file is on does not depend on the other files."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") < _HELD_OUT_SHARE * 2**32


def _read(folder: Path, names: tuple[str, ...]) -> Tensor:
    content = b"".join((folder / name).read_bytes() + bytes([END]) for name in names)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _windows(data: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    positions = starts[:, None] + torch.arange(length + 1)
    ids = data[positions].long()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
