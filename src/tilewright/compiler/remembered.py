"""Programs of graphs that were compiled before, found again by what they were made from.

The idea: a Program follows from the graph's text, the options, the processor, what was measured on
it, torch's version and this package's own files; under a digest of all these the saved Program is
kept beside the compiled kernels.  What it was decided by is derived again when somebody asks.

This module does not know how a graph becomes a Program.
"""

import functools
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

from tilewright.base.errors import ProgramError
from tilewright.base.sizes import Size
from tilewright.compiler.options import Options
from tilewright.graph.ir import Graph
from tilewright.graph.text import show
from tilewright.program import Program, from_bytes, to_bytes
from tilewright.runtime.cache import Cache
from tilewright.runtime.toolchain import cache_folder
from tilewright.tune import this_processor

_PACKAGE = Path(__file__).parents[1]


def key_of(graph: Graph, options: Options) -> str | None:
    """Return what a graph's Program is kept under; None where that is not all it is made from.

    A Program for sizes that vary is: it is checked against another example each time.
    """
    if any(isinstance(dim, Size) for value in graph.inputs for dim in value.type.shape):
        return None
    if options.verify:
        return None  # whoever asks for checks wants them made
    measured = tuple(_stamps(cache_folder() / "tuned")) if options.tuned else ()
    made_from = (_CODE, _torch(), repr(options), repr(this_processor(options.target)), measured)
    return hashlib.sha256("\n".join(map(str, (*made_from, show(graph)))).encode()).hexdigest()


def remembered(key: str | None) -> Program | None:
    """Return the Program kept under a key; None if there is none that can be read."""
    entry = None if key is None else _programs().get(key)
    if entry is None:
        return None
    try:
        return from_bytes(entry)
    except ProgramError:
        return None  # of another format


def remember(key: str | None, program: Program) -> None:
    """Keep a Program under a key; not where files were edited since this process read them."""
    if key is not None and _code() == _CODE:
        _programs().put(key, to_bytes(program))


def _programs() -> Cache:
    return _cache(cache_folder() / "programs")


@functools.cache
def _cache(folder: Path) -> Cache:
    return Cache(folder)


def _code() -> str:
    """Return what tells this version of the package from others, and from one being edited."""
    return hashlib.sha256(repr(sorted(_stamps(_PACKAGE))).encode()).hexdigest()


@functools.cache
def _torch() -> str:
    """Return the version of the library whose functions Programs name; "" if there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each file below a folder, with its size and when it was last written."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(place, name)
            try:
                found = os.stat(path)
            except FileNotFoundError:  # another process was writing it
                continue
            yield path, found.st_size, found.st_mtime_ns


_CODE = _code()
