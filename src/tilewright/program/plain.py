"""A Program as plain values, and back: what `marshal` writes, for processes of this very code.

The idea: a saved Program is text, for any version to read or refuse; one that is kept for the next
process is read at every start, several times as quickly as text.  A record is a list of its class's
number and its fields, an element type a list of its name; the rest (numbers, text, bytes, tuples of
these) is what it is.  Nothing that is read here is run.

    View("x", (2, 3), (3, 1))   -->   [10, "x", (2, 3), (3, 1), 0, ()]

What is one record in several places is one afterwards, as it is one list.
This module does not know where it is kept.
"""

import marshal
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from tilewright.base.dtypes import BY_NAME, DType
from tilewright.base.errors import Origin
from tilewright.graph.ir import Role, TensorType
from tilewright.program.ir import (
    Branch,
    Buffer,
    Input,
    KernelSource,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    View,
    Vjp,
    While,
)
from tilewright.program.layers import Layer

_CLASSES: tuple[type[Any], ...] = (
    *(Program, Buffer, Input, KernelSource, Segment, Launch, LibraryCall, Loop, While, Branch),
    *(View, Vjp, Layer, TensorType, Role, Origin),
)
_NUMBERS = {cls: number for number, cls in enumerate(_CLASSES)}
_FIELDS = {cls: attrgetter(*(each.name for each in fields(cls))) for cls in _CLASSES}
_PLAIN = (int, str, float, bool, bytes, type(None))


def to_plain(programs: tuple[Program, ...]) -> bytes:
    """Return what `from_plain` reads.  No size of theirs varies."""
    return marshal.dumps(_plain(programs, {}))


def from_plain(data: bytes) -> tuple[Program, ...]:
    """Return the Programs that `to_plain` wrote, in a process of this version of the code."""
    found: tuple[Program, ...] = _read(marshal.loads(data), {})
    return found


def _plain(value: Any, known: dict[int, list[Any]]) -> Any:
    """Return a value without records.  known: what became of records, by their identity."""
    if type(value) is tuple:
        return tuple([_plain(part, known) for part in value])
    if type(value) in _PLAIN:
        return value
    if type(value) is DType:
        return [value.name]
    found = known.get(id(value))
    if found is None:
        cls = type(value)
        assert cls in _NUMBERS, f"{cls.__name__} is no record of a Program"
        inner = _FIELDS[cls](value)
        inner = inner if len(fields(cls)) > 1 else (inner,)
        found = known[id(value)] = [_NUMBERS[cls], *(_plain(part, known) for part in inner)]
    return found


def _read(value: Any, known: dict[int, Any]) -> Any:
    """Return a value with its records.  known: those that were made, by the identity of lists."""
    if type(value) is tuple:
        return tuple([_read(part, known) for part in value])
    if type(value) is not list:
        return value
    found = known.get(id(value))
    if found is None:
        first, *rest = value
        if type(first) is str:
            return BY_NAME[first]
        cls: Callable[..., Any] = _CLASSES[first]
        found = known[id(value)] = cls(*[_read(part, known) for part in rest])
    return found
