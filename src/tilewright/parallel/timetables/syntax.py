"""Read a timetable from its text: `read_timetable(show_timetable(t)) == t`.

The idea: a line for the head and one for each rank, words between spaces; a word that is no action
is refused with its line and column.  What the words mean together is `verify_timetable`'s.

Grammar
-------
::

    timetable 1f1b stages 2 micro-batches 3
    rank 0: 0F0 0F1 0BW0 0F2 0BW1 0BW2
    rank 1: 1F0 1BW0 1F1 1BW1 1F2 1BW2

`slices 4` may end the head.  Passes are written as `timetable.py` says; `&` joins an overlapped
pair.  Empty lines, and what follows a `#`, are left out.
"""

import re
from collections.abc import Iterator
from typing import NoReturn

from tilewright.base.errors import TimetableError, expect_text
from tilewright.parallel.timetables.timetable import Action, Pass, Timetable

WORD = re.compile(r"\S+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
NUMBER = re.compile(r"[0-9]{1,7}")
PASS = re.compile(
    r"(?P<stage>[0-9]{1,7})(?P<kind>BW|[FBWU])(?P<batch>[0-9]{1,7})(@(?P<version>[0-9]{1,7}))?"
)
MEND = "write it as `tilewright timetable 1f1b --save FILE` does"


def read_timetable(text: str) -> Timetable:
    """Return the timetable of a text; raise TimetableError, with line and column, if it is none."""
    text = expect_text(text, "a timetable", TimetableError)
    lines = [(k, line.partition("#")[0]) for k, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    if not lines:
        _refuse("there is nothing in it", "a line `timetable NAME stages P ...`", "", (1, "", 0))
    name, sizes = _head(*lines[0])
    rows = [_rank(rank, number, line) for rank, (number, line) in enumerate(lines[1:])]
    return Timetable(name, sizes[0], sizes[1], tuple(rows), sizes[2])


def _head(number: int, line: str) -> tuple[str, tuple[int, int, int]]:
    words = _Words(number, line)
    words.expect("timetable")
    name = words.match(NAME, "a name").group()
    words.expect("stages")
    stages = words.size()
    words.expect("micro-batches")
    micro_batches, slices = words.size(), 1
    if not words.done:
        words.expect("slices")
        slices = words.size()
    if not words.done:
        words.refuse("the end of the line")
    return name, (stages, micro_batches, slices)


def _rank(rank: int, number: int, line: str) -> tuple[Action, ...]:
    words = _Words(number, line)
    words.expect("rank")
    words.expect(f"{rank}:")
    return tuple(words.actions())


class _Words:
    """The words of one line, taken one after the other; mutable."""

    def __init__(self, number: int, line: str) -> None:
        self.number, self.line = number, line
        self.words = list(WORD.finditer(line))
        self.at = 0

    @property
    def done(self) -> bool:
        return self.at == len(self.words)

    def expect(self, word: str) -> None:
        """Move past a word, which must be next."""
        if self.done or self.words[self.at].group() != word:
            self.refuse(f"`{word}`")
        self.at += 1

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Move past a word that is wholly of a pattern."""
        found = None if self.done else pattern.fullmatch(self.words[self.at].group())
        if found is None:
            self.refuse(what)
        self.at += 1
        return found

    def size(self) -> int:
        """Move past a number of 1 or more."""
        size = int(self.match(NUMBER, "a whole number, 1 or more").group())
        if size == 0:
            self.at -= 1
            self.refuse("a whole number, 1 or more")
        return size

    def actions(self) -> Iterator[Action]:
        """Read actions to the end of the line."""
        while not self.done:
            start = self.words[self.at].start()
            parts = []
            for text in self.words[self.at].group().split("&"):
                parts.append(self._pass(text, start))
                start += len(text) + 1
            self.at += 1
            yield tuple(parts)

    def _pass(self, text: str, start: int) -> Pass:
        found = PASS.fullmatch(text)
        if found is None:
            what = "a pass such as 0F3, 0B3, 0W3, 0BW3, 0F3@1 or 0U3@1"
            _refuse(f"{text!r} is no pass", what, text, (self.number, self.line, start))
        version = None if found["version"] is None else int(found["version"])
        return Pass(found["kind"], int(found["stage"]), int(found["batch"]), version)

    def refuse(self, expected: str) -> NoReturn:
        """Refuse the next word, or the end of the line."""
        place = len(self.line.rstrip()) if self.done else self.words[self.at].start()
        found = "" if self.done else self.words[self.at].group()
        _refuse(f"{expected} is missing", expected, found, (self.number, self.line, place))


def _refuse(summary: str, expected: str, found: str, where: tuple[int, str, int]) -> NoReturn:
    number, line, place = where
    shown = line if len(line) <= 80 else line[max(0, place - 30) : place + 50]
    raise TimetableError(
        f"the text of a timetable does not parse: {summary}",
        expected=expected,
        found=repr(found) if found else "the end of the line",
        where=f"line {number}, column {place + 1}   {shown.strip()}".rstrip(),
        mend=MEND,
    )
