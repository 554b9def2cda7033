"""What a Program has prepared from inputs that stay, and whether these are still what they were.

The idea: what was prepared is one record, made whole and never written again: a run takes the
record that fits its inputs, or makes the next one; so runs on several threads need no lock, and one
that is under way keeps what it began with.  An input is what it was if it is the very tensor, where
it was, and torch has counted no write since.

This module does not know how values are prepared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_, methodcaller
from typing import Any, NamedTuple

import numpy as np

from tilewright.base.errors import ShapeError
from tilewright.base.places import picker
from tilewright.program import Program

Prepare = Callable[[Sequence[Any]], Sequence[Any]]
Passed = Callable[[Sequence[Any]], Sequence[Any] | None]

# Of names that are one look-up each: they are asked of everything that stays, before every run.
_data_ptr, _version = methodcaller("data_ptr"), attrgetter("_version")
_layout = attrgetter("dtype", "shape", "strides")  # of an array


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Record:
    """What was prepared.  given: from what.  held: its memory, which nobody else gets meanwhile.

    state: of `given`, when it was read (`_state`); None where it is never known to be the same.
    form: likewise (`_form`).
    """

    given: tuple[Any, ...]
    held: tuple[Any, ...]
    state: list[int] | None
    form: list[Any]
    kept: tuple[Any, ...]


class Staying(NamedTuple):
    """An input that stays, and how it lay; of a tensor also where, and how often it was written."""

    value: Any
    form: Any
    address: int
    version: int


class Kept:
    """Gives what a Program's second part takes for what the Program takes (`program.parted`).

    Mutable only in which record is the last.
    """

    def __init__(self, program: Program, first: Program, main: Program) -> None:
        at = {item.buffer: place for place, item in enumerate(program.inputs)}
        self._staying = [at[item.buffer] for item in first.inputs]
        self._stay = picker(self._staying)
        self._pass = picker([at[item.buffer] for item in main.inputs if item.buffer in at])
        self._count = len(program.inputs)
        self._last: Record | None = None

    def inputs(self, inputs: Sequence[Any], prepare: Prepare) -> tuple[Any, ...]:
        """Return what the second part takes; prepare it where that was not done for these inputs.

        prepare: gives what is kept for what stays.
        """
        if len(inputs) != self._count:
            raise ShapeError(
                "a program is called with another number of inputs than it takes",
                expected=str(self._count),
                found=str(len(inputs)),
            )
        record = self._last
        staying = self._stay(inputs)
        if record is None or not _is_current(record, staying) or record.form != _form(staying):
            self._last = None  # what runs under way need, they hold
            record = self._last = _recorded(staying, prepare)
        return self._pass(inputs) + record.kept

    def current(self, inputs: Sequence[Any]) -> Passed:
        """Return what gives `inputs` for as many as these, of their sizes, strides and dtypes; None
        where something has to be prepared."""
        form = self.form(inputs)
        fitting: list[Any] = []  # that of the last record, once it was found to be the same

        def passed(inputs: Sequence[Any]) -> Sequence[Any] | None:
            nonlocal fitting
            record = self._last
            if record is None or not _is_current(record, self._stay(inputs)):
                return None
            if record.form is not fitting:
                if record.form != form:
                    return None
                fitting = record.form
            return self._pass(inputs) + record.kept

        return passed

    @property
    def record(self) -> Record | None:
        """What was prepared last; None where it is never known to be current."""
        last = self._last
        return last if last is not None and last.state is not None else None

    def form(self, inputs: Sequence[Any]) -> list[Any]:
        """Return how those inputs lie that stay, as a record has it."""
        return _form(self._stay(inputs))

    def places(self, record: Record) -> dict[int, Staying]:
        """Return by its place among the inputs what the record was made from."""
        count = len(record.given)
        state = record.state or [0] * (2 * count)
        found = zip(record.given, record.form, state[:count], state[count:], strict=True)
        return dict(zip(self._staying, map(Staying._make, found), strict=True))

    def forget(self) -> None:
        """Let the next run prepare anew."""
        self._last = None


def _is_current(record: Record, staying: Sequence[Any]) -> bool:
    """Say whether what a record was made from is where it was, and was not written since."""
    if record.state is None or not all(map(is_, staying, record.given)):
        return False
    return not record.state or _state(staying) == record.state  # of the same arrays it is empty


def _state(staying: Sequence[Any]) -> list[int] | None:
    """Return where tensors are and how often they were written; nothing of arrays, whose writes
    nobody counts.

    None where writes of tensors are not counted, as of those made in inference mode.
    """
    if staying and isinstance(staying[0], np.ndarray):
        return [] if all(isinstance(value, np.ndarray) for value in staying) else None
    try:
        return [*map(_data_ptr, staying), *map(_version, staying)]
    except (RuntimeError, AttributeError):
        return None


def _form(staying: Sequence[Any]) -> list[Any]:
    """Return how tensors and arrays lie, which may change where they are (`.data`, `.shape`)."""
    if staying and isinstance(staying[0], np.ndarray):
        return [*map(_layout, staying)]
    return [(value.dtype, value.shape, value.stride()) for value in staying]


def _recorded(staying: tuple[Any, ...], prepare: Prepare) -> Record:
    """Prepare; what is written meanwhile the next run sees, as the state is that of before."""
    state = _state(staying)
    form = [] if state is None else _form(staying)
    held = tuple(value.untyped_storage() for value in staying) if state else ()
    return Record(staying, held, state, form, tuple(prepare(staying)))
