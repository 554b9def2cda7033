"""What was measured of one kernel: each way to compute it by the clock; and what follows from it.

The idea: everything is kept, the slow ways too, with what was predicted of them: the best is found
when it is asked for, under what is allowed then.  Another way replaces the usual one only where it
is clearly faster: by a share, and beyond the spread of both.

The text is JSON, read field by field: nothing in it can be more than a number or a short name.

This module does not know files, nor what the names of ways mean.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.tune.processor import Processor

FORMAT = 1
LIBRARY = "library"
CLEAR = 1.03
"""How many times as fast something has to be, at least, to be taken in the place of the usual."""
LONGEST, MOST = 1 << 20, 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """One way: seconds (the median), low and high (the quartiles), of so many rounds; what was
    predicted, None where nothing was."""

    choice: str
    seconds: float
    low: float
    high: float
    rounds: int
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel by its description, the version of its recipe, and every way that was timed."""

    processor: Processor
    kernel: str
    recipe: int
    flops: int
    timings: tuple[Timing, ...]

    def timing(self, choice: str) -> Timing | None:
        """Return what a way took."""
        return next((one for one in self.timings if one.choice == choice), None)

    def __str__(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def parse(cls, text: str) -> "Measured":
        """Return what a text says; raise ValueError, with the reason, for anything else."""
        if len(text) > LONGEST:
            raise ValueError("longer than any measurement")
        try:
            found = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return cls.read(found)

    @classmethod
    def read(cls, found: object) -> "Measured":
        """Return what a parsed text says; raise ValueError for anything else."""
        fields = _fields(found, ("format", "processor", "kernel", "recipe", "flops", "timings"))
        if fields["format"] != FORMAT:
            raise ValueError(f"of format {fields['format']!r}, not {FORMAT}")
        rows = fields["timings"]
        if not isinstance(rows, list) or len(rows) > MOST:
            raise ValueError("timings are no list")
        name, *sizes = ("name", "vector", "l1", "l2", "l3", "threads")
        told = _fields(fields["processor"], (name, *sizes))
        numbers = (_whole(told[size]) for size in sizes)
        return cls(
            Processor(_word(told[name]), *numbers),
            _word(fields["kernel"]),
            _whole(fields["recipe"]),
            _whole(fields["flops"]),
            tuple(map(_timing, rows)),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a measurement: the way to take, and why, in the words of `explain`."""

    choice: str
    reason: str
    gain: float


def judge(
    measured: Measured, default: str, allowed: Callable[[str], bool] = lambda _: True
) -> Verdict:
    """Return the fastest way that is allowed, or the usual one where none is clearly faster."""
    usual = measured.timing(default)
    if usual is None:
        return Verdict(default, "", 1.0)
    clear = [
        one
        for one in measured.timings
        if allowed(one.choice) and usual.seconds >= CLEAR * one.seconds and one.high < usual.low
    ]
    best = min(clear, key=lambda one: one.seconds, default=usual)
    gain = usual.seconds / best.seconds
    words = "tuned: the default is best" if best is usual else f"tuned: {gain:.2f}x over default"
    library = measured.timing(LIBRARY)
    if library is not None and library is not best:
        words += f", library {usual.seconds / library.seconds:.2f}x"
    return Verdict(best.choice, words, gain)


def _timing(row: object) -> Timing:
    fields = _fields(row, ("choice", "seconds", "low", "high", "rounds", "predicted"))
    seconds, low, high = (_seconds(fields[name]) for name in ("seconds", "low", "high"))
    predicted = fields["predicted"]
    if not low <= seconds <= high:
        raise ValueError("a median that is not between its quartiles")
    return Timing(
        _word(fields["choice"]),
        seconds,
        low,
        high,
        _whole(fields["rounds"]),
        None if predicted is None else _seconds(predicted),
    )


def _fields(found: object, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(found, dict) or set(found) != set(names):
        raise ValueError(f"not a record of {', '.join(names)}")
    return found


def _word(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 2000 or not value.isprintable():
        raise ValueError("a name that is none")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("a number that is none")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise ValueError("seconds that are none")
    return float(value)
