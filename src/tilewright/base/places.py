"""What stands at some places of a sequence, picked out at once.

The idea: calls pick what a Program takes out of what it is given, each time anew, and one look-up
in C takes a third of the time of a comprehension.  This module does not know what stands there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

Picker = Callable[[Sequence[Any]], tuple[Any, ...]]


def picker(places: Sequence[int]) -> Picker:
    """Return what picks out what stands at these places, in their order."""
    if len(places) > 1:
        return itemgetter(*places)
    return partial(_pick, tuple(places))  # of fewer, itemgetter makes no tuple


def _pick(places: tuple[int, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([values[place] for place in places])
