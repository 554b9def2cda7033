"""A saved Program as C in a folder, with inputs drawn from a seed and what it makes of them.

The idea: what is exported can check itself, so inputs and results go with it.

This module does not know what the C looks like.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import ProgramError
from tilewright.program import Buffer, Program, load
from tilewright.runtime import observe, write_standalone

Array = np.ndarray[Any, np.dtype[Any]]


def export(path: Path, folder: Path, seed: int) -> str:
    """Write the C of the Program at `path` into a new folder; return what to do there.

    Raises ProgramError where the folder holds something, LibraryCallError where the Program calls
    the library.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProgramError(
            "a program is exported into a folder of its own",
            expected="a folder that is empty, or not there",
            found=str(folder),
            mend="name another one",
        )
    program = load(path)
    write_standalone(program, observe(program, drawn(program, seed)), folder)
    return (
        f"{len(program.kernels)} kernels and {len(program.buffers)} buffers of {program.name}\n"
        f"  make -C {folder} check       runs it, each buffer between guard pages, and compares\n"
        f"  make -C {folder} sanitize    does so under AddressSanitizer and UBSan"
    )


def drawn(program: Program, seed: int) -> list[Array]:
    """Return inputs for a program: normal floats, and zeros, which are in range for any index."""
    source = np.random.default_rng(seed)
    buffers = {buffer.name: buffer for buffer in program.buffers}
    return [_drawn(buffers[item.buffer], source) for item in program.inputs]


def _drawn(buffer: Buffer, source: np.random.Generator) -> Array:
    dtype = buffer.dtype
    if dtype.kind != "float":
        return np.zeros(buffer.shape, dtype.numpy)
    return source.standard_normal(buffer.shape).astype(dtype.numpy)
