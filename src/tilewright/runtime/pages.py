"""Memory that many runs use, in huge pages: fewer addresses to look up; and how much is kept.

The idea: a huge page is cleared as a whole when it is first touched, which in a virtual machine may
take longer than a first run.  After it the system is told that it may put small pages together,
which it does beside what runs (Linux's khugepaged, some megabytes a second).

This module does not know what the memory is for.
"""

import ctypes
import mmap
import sys

HUGE = 1 << 21
LARGE = 1 << 20
"""Bytes of an output from which its memory is used again: the C library gives much of what is freed
back to the system, and each page that comes again costs a fault and is filled with zeros."""
SPARE = 2
"""Outputs whose memory is kept: a loop holds the last result until it has the next one."""


def merge_pages(address: int, size: int) -> None:
    """Let the system put the pages of `size` bytes together in time; where it cannot, do nothing.

    Only pages that lie in the range as wholes are meant.  The memory stays what it is.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if sys.platform != "linux" or advice is None or length < HUGE:
        return
    # One that is not known, or not allowed, is refused by a result that nobody needs.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
