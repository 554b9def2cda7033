"""A Program to numbers: compile its kernels, hold its memory, run it, differentiate through it."""

from tilewright.runtime.executable import Executable, load
from tilewright.runtime.standalone import Observed, observe, write_standalone
from tilewright.runtime.toolchain import Toolchain, find_toolchain
from tilewright.runtime.trace import Timed, Trace

__all__ = [
    "Executable",
    "Observed",
    "Timed",
    "Toolchain",
    "Trace",
    "find_toolchain",
    "load",
    "observe",
    "write_standalone",
]
