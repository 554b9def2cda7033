"""A Program to numbers: compile its kernels, hold its memory, run it, differentiate through it."""

from tilewright.runtime.ahead import Ahead
from tilewright.runtime.executable import Executable, load
from tilewright.runtime.standalone import Observed, observe, write_standalone
from tilewright.runtime.target import NATIVE, TARGETS, check_target
from tilewright.runtime.threads import thread_count
from tilewright.runtime.toolchain import Toolchain, find_toolchain, processor
from tilewright.runtime.trace import Timed, Trace

__all__ = [
    "NATIVE",
    "TARGETS",
    "Ahead",
    "Executable",
    "Observed",
    "Timed",
    "Toolchain",
    "Trace",
    "check_target",
    "find_toolchain",
    "load",
    "observe",
    "processor",
    "thread_count",
    "write_standalone",
]
