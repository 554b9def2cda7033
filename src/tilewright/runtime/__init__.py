"""A Program to numbers: compile its kernels, hold its memory, run it, differentiate through it."""

from tilewright.runtime.executable import Executable, load
from tilewright.runtime.toolchain import Toolchain, find_toolchain

__all__ = ["Executable", "Toolchain", "find_toolchain", "load"]
