"""Ctrl-C in the middle of a step waits for its end, so that weights and what counts them agree.

The idea: Python handles a signal between any two lines, also between the update of the weights and
that of the step count.  While a step runs, the handler is one that takes a note; what the handler
before would have done is done at the end.

This module does not know what a step does.
"""

# What module `signal` wraps this in searches for the names of handlers, which costs more than it.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Made = TypeVar("Made")


def uninterrupted(run: Callable[[], Made]) -> Made:
    """Return what `run` returns; an interrupt (SIGINT) that comes meanwhile is handled after it.

    Only the main thread handles signals: other threads just run.  A handler that is not Python's
    stays as it is.
    """
    before = _signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        return run()
    noted: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append((number, frame))

    _signal.signal(signal.SIGINT, note)
    try:
        return run()
    finally:
        if _signal.getsignal(signal.SIGINT) is note:  # else the run itself has set another
            _signal.signal(signal.SIGINT, before)  # one that is pending is noted before this
        if noted:
            before(*noted[0])
