"""Programs of graphs that were compiled before, found again by what they were made from.

The idea: Programs follow from the text of a captured graph, what is said of what is derived from
it, the options, the processor, the versions of Python, NumPy and torch, this package's own files,
and what was measured.  Under a digest of all but the last they are kept beside the compiled
kernels, with what their compilation asked the measurements and was answered: where it would be
answered otherwise by now, they are other Programs, which take the place.  What they were decided
by, and the graphs that were derived, are derived again when somebody asks.

An entry is read by the very code that wrote it, so it need not be the text of a saved Program,
which takes several times as long to read.

This module does not know how a graph becomes a Program.
"""

import functools
import hashlib
import importlib.metadata
import marshal
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.sizes import Size
from tilewright.compiler.choices import Answer, choices_for
from tilewright.compiler.options import Options
from tilewright.graph.ir import Graph
from tilewright.graph.text import show
from tilewright.program import Program, from_plain, to_plain
from tilewright.runtime.cache import Cache
from tilewright.runtime.toolchain import cache_bytes, cache_folder
from tilewright.tune import has_squares, is_library_at_home, library_vector, this_processor

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Entry:
    """Programs of graphs that were derived together, and what their caller knows of these: numbers,
    text, and tuples and sets of such.

    answers: what was asked of the measurements for them.
    """

    programs: tuple[Program, ...]
    about: Any
    answers: tuple[Answer, ...]


def key_of(graph: Graph, options: Options, said: str) -> str | None:
    """Return what Programs are kept under; None where that is not all they are made from.

    graph: what was captured.  said: all else that the graphs to compile, and how they lie, follow
    from, in one line.

    A Program for sizes that vary is: it is checked against another example each time.
    """
    if any(isinstance(dim, Size) for value in graph.inputs for dim in value.type.shape):
        return None
    if options.verify:
        return None  # whoever asks for checks wants them made
    runs_on = f"{this_processor(options.target)} {library_vector()} {is_library_at_home()}"
    runs_on += f" {has_squares(options.target)}"
    made_from = (_CODE, *_versions(), repr(options), said, runs_on)
    return hashlib.sha256("\n".join((*made_from, show(graph))).encode()).hexdigest()


def remembered(key: str | None, options: Options) -> Entry | None:
    """Return what is kept under a key; None if there is nothing, or what was measured has changed
    since."""
    kept = None if key is None else _programs().get(key)
    if kept is None:
        return None
    try:
        programs, about, said = marshal.loads(kept)
        entry = Entry(from_plain(programs), about, tuple(Answer(*each) for each in said))
    except (AttributeError, EOFError, LookupError, TypeError, ValueError):
        return None  # whole, but not what this code wrote
    choices = choices_for(options)
    return entry if all(choices.answer(a.kernel, a.recipe) == a for a in entry.answers) else None


def remember(key: str | None, entry: Entry) -> None:
    """Keep Programs that break no rule under a key; not where files were edited since this process
    read them."""
    if key is not None and _code() == _CODE:
        answers = [(one.kernel, one.recipe, one.measured) for one in entry.answers]
        _programs().put(key, marshal.dumps((to_plain(entry.programs), entry.about, answers)))


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
