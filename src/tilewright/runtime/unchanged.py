"""Has anything changed since it was looked at?  C asks that of facts, before every call.

The idea: Python looks, and says what it found as facts; while these hold, it need not look again.
C (`unchanged.c`) only ever says that all is as it was, or that it does not know.  This module does
not know who looks.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.base.facts import Facts
from tilewright.runtime.calls import extension

SOURCE = Path(__file__).with_name("unchanged.c")

MOST_LESSONS = 16
"""How often `Look` may learn what it asks, where something keeps changing."""

Look = Callable[[], Facts | None]
"""Looks, and gives what was found; None where something has changed, or cannot be said as facts."""


def unlearned() -> bool:
    """Say of what was not looked at that it may have changed."""
    return False


class Unchanged:
    """`holds()` says that all is as it was when Python looked; else that it may not be.

    Mutable: it learns what to ask.  A copy has learned nothing: facts are of these very objects.
    """

    def __init__(self) -> None:
        self.holds: Callable[[], bool] = unlearned
        self._lessons = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Unchanged, ()

    def forget(self) -> None:
        """Let go of what was learned: what it says may be so again, and mean another thing."""
        self.holds = unlearned

    def take(self, facts: Facts | None) -> None:
        """Ask these from now on, if they hold."""
        self.holds = unlearned
        if facts is not None and (kind := _kind()) is not None:
            holds = kind(*facts)
            self.holds = holds if holds() else unlearned

    def learn(self, look: Look) -> None:
        """Learn what `look` finds, for who has seen that nothing has changed though `holds` did not
        know; not yet the first time, which may be the only one."""
        self.holds = unlearned  # and nothing stays alive for facts that do not hold
        if self._lessons > MOST_LESSONS:
            return
        self._lessons += 1
        if self._lessons > 1 and _kind() is not None:
            self.take(look())


@functools.cache
def _kind() -> Callable[..., Callable[[], bool]] | None:
    """Return the type of `unchanged.c`; None where Python looks each time."""
    library = extension(SOURCE)
    if library is None:
        return None
    kind: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(("tilewright_unchanged", library))()
    return kind  # type: ignore[no-any-return]
