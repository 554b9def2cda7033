"""What was found where something was looked for: facts, which can be asked again without looking.

The idea: who walks from object to object writes down each step as a fact, of which this very object
was the answer; while all of them hold, another walk would end where this one did.  This module does
not know who walks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """What was found, by identity.

    dicts: a dict, or a class for its own; whether it holds nothing but those; keys and values in
    turn.  types: an object and its type.  attributes: an object, a name and the attribute.
    answers: what is called without arguments, and what it gave.  lists: a list and all its items.
    """

    dicts: tuple[tuple[dict[Any, Any] | type, bool, tuple[Any, ...]], ...]
    types: tuple[tuple[Any, type], ...]
    attributes: tuple[tuple[Any, str, Any], ...]
    answers: tuple[tuple[Callable[[], Any], Any], ...]
    lists: tuple[tuple[list[Any], tuple[Any, ...]], ...] = ()

    def and_also(self, other: "Facts") -> "Facts":
        """Return the facts of both."""
        return Facts(
            self.dicts + other.dicts,
            self.types + other.types,
            self.attributes + other.attributes,
            self.answers + other.answers,
            self.lists + other.lists,
        )
