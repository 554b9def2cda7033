"""Programs of graphs that were compiled before, found again by what they were made from.

The idea: a Program follows from the graph's text, the options, the processor, the versions of
Python, NumPy and torch, this package's own files, and what was measured.  Under a digest of all but
the last the saved Program is kept beside the compiled kernels, with what its compilation asked the
measurements and was answered: where it would be answered otherwise by now, it is another Program,
which takes the place.  What it was decided by is derived again when somebody asks.

This module does not know how a graph becomes a Program.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilewright.base.errors import ProgramError
from tilewright.base.sizes import Size
from tilewright.compiler.choices import Answer, choices_for
from tilewright.compiler.lying import ROW_BY_ROW, Lying
from tilewright.compiler.options import Options
from tilewright.graph.ir import Graph
from tilewright.graph.text import show
from tilewright.program import Program, from_bytes, to_bytes
from tilewright.runtime.cache import Cache
from tilewright.runtime.toolchain import cache_bytes, cache_folder
from tilewright.tune import is_library_at_home, library_vector, this_processor

_PACKAGE = Path(__file__).parents[1]


def key_of(graph: Graph, options: Options, lying: Lying = ROW_BY_ROW) -> str | None:
    """Return what a graph's Program is kept under; None where that is not all it is made from.

    A Program for sizes that vary is: it is checked against another example each time.
    """
    if any(isinstance(dim, Size) for value in graph.inputs for dim in value.type.shape):
        return None
    if options.verify:
        return None  # whoever asks for checks wants them made
    runs_on = f"{this_processor(options.target)} {library_vector()} {is_library_at_home()}"
    made_from = (_CODE, *_versions(), repr(options), repr(lying), runs_on)
    return hashlib.sha256("\n".join((*made_from, show(graph))).encode()).hexdigest()


def remembered(key: str | None, options: Options) -> Program | None:
    """Return the Program kept under a key; None if there is none that can be read, or what was
    measured has changed since."""
    entry = None if key is None else _programs().get(key)
    if entry is None:
        return None
    first, _, saved = entry.partition(b"\n")
    choices = choices_for(options)
    try:
        answers = [Answer(*answer) for answer in json.loads(first)]
        if any(choices.answer(one.kernel, one.recipe) != one for one in answers):
            return None
        return from_bytes(saved, verified=True)
    except (ProgramError, TypeError, ValueError):
        return None  # of another format


def remember(key: str | None, program: Program, answers: tuple[Answer, ...]) -> None:
    """Keep a Program that breaks no rule under a key, with what was asked for it; not where files
    were edited since this process read them."""
    if key is not None and _code() == _CODE:
        first = json.dumps([(one.kernel, one.recipe, one.measured) for one in answers])
        _programs().put(key, first.encode() + b"\n" + to_bytes(program))


def _programs() -> Cache:
    return _cache(cache_folder() / "programs", cache_bytes())


@functools.cache
def _cache(folder: Path, most: int) -> Cache:
    return Cache(folder, most)


def _code() -> str:
    """Return what tells this version of the package from others, and from one being edited."""
    return hashlib.sha256(repr(sorted(_stamps(_PACKAGE))).encode()).hexdigest()


@functools.cache
def _versions() -> tuple[str, ...]:
    """Return the versions of what folds constants, and of the library whose functions Programs
    name; "" for that if there is none."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return sys.version, np.__version__, torch


def _stamps(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield each file below a folder, with its size and when it was last written, as it says and as
    the system has it: some installers set the first to the same for all versions."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(place, name)
            try:
                found = os.stat(path)
            except FileNotFoundError:  # another process was writing it
                continue
            yield path, found.st_size, found.st_mtime_ns, found.st_ctime_ns


_CODE = _code()
