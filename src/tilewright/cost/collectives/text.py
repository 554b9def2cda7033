"""The text of a message program, which parses back.

::

    all-reduce by ring: 4 ranks, 4 chunks
    round
      0 -> 1 reduce 0
      1 -> 2 reduce 1
    round
      0 -> 1 copy 0-2, 3

A rooted collective says `, root 2` at the end of the first line.  Chunks are numbers and ranges.

The idea: reading checks how a text is written and that numbers are within bounds; whether what it
says delivers is the verifier's business.  This module does not know what a program means.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tilewright.base.errors import MessageError, expect_text
from tilewright.cost.collectives.program import COLLECTIVES, Message, MessageProgram

TOKEN = re.compile(r"(?P<name>[a-z][a-z0-9-]*)|(?P<number>\d{1,9}(?!\d))|(?P<mark>->|[:,-])")
MOST_RANKS = 1 << 16
MOST_CHUNKS = 1 << 22
LONGEST_LINE = 1 << 20


def show_program(program: MessageProgram) -> str:
    """Return the text of a program; `parse_program` of it is the program."""
    root = f", root {program.root}" if COLLECTIVES[program.collective].rooted else ""
    lines = [
        f"{program.collective} by {program.variant}: {_count(program.ranks, 'rank')}, "
        f"{_count(program.chunks, 'chunk')}{root}"
    ]
    for round_ in program.rounds:
        lines.append("round")
        lines += [f"  {show_message(message)}" for message in round_]
    return "\n".join(lines) + "\n"


def show_message(message: Message) -> str:
    """Return one message as it stands in the text."""
    verb = "reduce" if message.reduce else "copy"
    return f"{message.source} -> {message.target} {verb} {show_numbers(message.chunks)}"


def show_numbers(numbers: Sequence[int]) -> str:
    """Return ascending numbers, runs of them as ranges: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_program(text: str) -> MessageProgram:
    """Return the program that a text says.

    Raises MessageError, with line and column, where it is not written as one.  It is not verified.
    """
    text = expect_text(text, "a message program", MessageError)
    lines = [_Line(line, at) for at, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        _Line("", 1).refuse("it is empty", "a first line such as: all-gather by ring: 4 ranks, ...")
    head = _head(lines[0])
    rounds: list[list[Message]] = []
    for line in lines[1:]:
        if line.take("round"):
            rounds.append([])
        elif not rounds:
            line.refuse("a message stands before the first round", "the word 'round'")
        else:
            rounds[-1].append(_message(line, head))
        line.end()
    kind, variant, ranks, chunks, root = head
    return MessageProgram(kind, variant, ranks, chunks, tuple(map(tuple, rounds)), root)


Head = tuple[str, str, int, int, int]


def _head(line: "_Line") -> Head:
    kind = line.name("a collective")
    if kind not in COLLECTIVES:
        line.at -= 1
        line.refuse(f"there is no collective {kind!r}", f"one of {', '.join(COLLECTIVES)}")
    line.expect("by")
    variant = line.name("the name of an algorithm")
    line.expect(":")
    ranks = line.number("how many ranks", 1, MOST_RANKS)
    line.expect("rank" if ranks == 1 else "ranks")
    line.expect(",")
    chunks = line.number("how many chunks", 1, MOST_CHUNKS)
    line.expect("chunk" if chunks == 1 else "chunks")
    root = 0
    if COLLECTIVES[kind].rooted:
        line.expect(",")
        line.expect("root")
        root = line.number("the root's rank", 0, ranks - 1)
    line.end()
    return kind, variant, ranks, chunks, root


def _message(line: "_Line", head: Head) -> Message:
    _, _, ranks, chunks, _ = head
    source = line.number("the rank that sends", 0, ranks - 1)
    line.expect("->")
    target = line.number("the rank that receives", 0, ranks - 1)
    reduce = line.take("reduce")
    if not reduce:
        line.expect("copy", "'copy' or 'reduce'")
    return Message(source, target, tuple(_numbers(line, chunks)), reduce)


def _numbers(line: "_Line", chunks: int) -> Iterable[int]:
    last = -1
    while True:
        if last + 1 == chunks:
            line.refuse("there are no more chunks", f"chunks below {chunks}, ascending")
        low = line.number("a chunk, ascending", last + 1, chunks - 1)
        last = line.number("the last of the range", low, chunks - 1) if line.take("-") else low
        yield from range(low, last + 1)
        if not line.take(","):
            return


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


class _Line:
    """A line being read: its tokens, where they stand, and how many are taken."""

    def __init__(self, text: str, number: int) -> None:
        self.text, self.line, self.at = text, number, 0
        self.tokens: list[tuple[str, str, int]] = []
        place = 0
        while place < len(text) and len(text) <= LONGEST_LINE:
            match = TOKEN.match(text, place)
            if match is not None and match.lastgroup is not None:
                self.tokens.append((match.lastgroup, match.group(), place + 1))
                place = match.end()
            elif text[place] in " \t\r":
                place += 1
            else:
                self.tokens.append(("bad", text[place], place + 1))
                break
        if len(text) > LONGEST_LINE:
            self.refuse("a line is too long", f"at most {LONGEST_LINE} characters")

    def next(self) -> tuple[str, str, int]:
        """Return kind, text and column of the next token."""
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return "end", "", len(self.text.rstrip()) + 1

    def refuse(self, summary: str, expected: str) -> NoReturn:
        """Raise the error that names the next token's place."""
        _, text, column = self.next()
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        raise MessageError(
            f"the text of a message program does not parse: {summary}",
            expected=expected,
            found=repr(text) if text else "the end of the line",
            where=f"line {self.line}, column {column}   {shown.strip()}",
            mend="write it as `tilewright collective all-gather --ranks 4 --text ring` does",
        )

    def take(self, word: str) -> bool:
        """Move past the word if it is next; say whether it was."""
        if self.next()[1] != word:
            return False
        self.at += 1
        return True

    def expect(self, word: str, expected: str = "") -> None:
        """Move past the word, which must be next."""
        if not self.take(word):
            self.refuse(f"{word!r} is missing", expected or repr(word))

    def name(self, expected: str) -> str:
        """Take a name."""
        kind, text, _ = self.next()
        if kind != "name":
            self.refuse("a name is missing", expected)
        self.at += 1
        return text

    def number(self, expected: str, least: int, most: int) -> int:
        """Take a whole number within bounds."""
        kind, text, _ = self.next()
        if kind != "number":
            self.refuse("a number is missing", expected)
        if not least <= int(text) <= most:
            limits = f": {least} to {most}" if least < most else f": {most}"
            self.refuse("a number is out of range", f"{expected}{limits}")
        self.at += 1
        return int(text)

    def end(self) -> None:
        """Refuse unless the line is all taken."""
        if self.at < len(self.tokens):
            self.refuse("there is more on the line", "the end of the line")
