"""Settings of Python's interpreter that work wants otherwise while it goes on.

The idea: such a setting is that of all threads, so that the first thread inside changes it and the
last one gives back what it was; a child process, which has one of the threads, does so for others.

This module does not know what work goes on.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T", bool, float)

TURN = 5e-4


class _Setting(Generic[T]):
    """What `read` gives and `write` takes, `value` of what it was while some thread is inside.

    Where somebody else has set it meanwhile, it stays as they did.
    """

    def __init__(
        self, read: Callable[[], T], write: Callable[[T], None], value: Callable[[T], T]
    ) -> None:
        self._read: Callable[[], T] = read
        self._write: Callable[[T], None] = write
        self._value: Callable[[T], T] = value
        self._lock = threading.Lock()
        self._inside: list[int] = []  # threads, each once for every time that it is inside
        self._before: T = read()
        self._ours: T = self._before
        os.register_at_fork(after_in_child=self._after_fork)

    @contextmanager
    def held(self) -> Iterator[None]:
        try:
            self._enter()
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = self._read()
            self._inside.append(threading.get_ident())
            if len(self._inside) == 1:
                self._write(self._value(self._before))
                self._ours = self._read()  # what it can be: turns are whole microseconds

    def _leave(self) -> None:
        with self._lock:
            mine = threading.get_ident()
            if mine in self._inside:  # else an interrupt came before it was
                self._inside.remove(mine)
                self._give_back()

    def _give_back(self) -> None:
        if not self._inside and self._read() == self._ours:
            self._write(self._before)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._inside:
            mine = threading.get_ident()
            self._inside = [thread for thread in self._inside if thread == mine]
            self._give_back()


def _collect(looks: bool) -> None:
    (gc.enable if looks else gc.disable)()


def _turn(seconds: float) -> None:
    sys.setswitchinterval(seconds + 5e-7)  # Python cuts it to whole microseconds


_collector = _Setting(gc.isenabled, _collect, lambda _: False)
_turns = _Setting(sys.getswitchinterval, _turn, lambda turn: min(turn, TURN))

uncollected = _collector.held
"""Look for no circles among objects meanwhile, in no thread; also a decorator.

Whole compilations make hundreds of thousands of values that stay until the end, among which there
are few circles; looking for them, again and again, takes a tenth of the time and more.
"""

short_turns = _turns.held
"""Let threads run no longer than TURN seconds while others wait; also a decorator."""
