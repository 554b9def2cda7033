"""A text of words, quantities and marks, read token by token, with the place of each.

The idea: one scanner serves every small language of this package; it only moves on or refuses,
and a refusal names line and column.  This module does not know what a word means.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from tilewright.base.errors import TilewrightError

TOKEN = re.compile(
    r"(?P<number>[0-9][A-Za-z0-9./]*(?:(?<=[0-9]e)[-+][0-9]+[A-Za-z/]*)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.\-]*)"
    r"|(?P<mark>[,:=\n])"
)
LONGEST = 10_000  # characters: a text of a machine or a model is short


@dataclass(frozen=True, slots=True)
class Token:
    """kind: "number", "word", "mark", or "end".  line, column: from 1."""

    kind: str
    text: str
    line: int
    column: int


class Scanner:
    """The tokens of a text, and how many of them are taken.  Mutable: it moves on.

    what: names the text in messages.  error: the class that they raise.  mend: what they advise.
    """

    def __init__(self, text: str, what: str, error: type[TilewrightError], mend: str) -> None:
        self.text, self.what, self.error, self.mend = text, what, error, mend
        self.at = 0
        self.tokens: tuple[Token, ...] = (Token("end", "", 1, 1),)
        if len(text) > LONGEST:
            self.refuse("it is too long", f"at most {LONGEST} characters", f"{len(text)}")
        self.tokens = tuple(self._cut())

    def _cut(self) -> Iterable[Token]:
        line, start, place = 1, 0, 0
        while place < len(self.text):
            if self.text[place] in " \t\r":
                place += 1
                continue
            match = TOKEN.match(self.text, place)
            if match is None:
                self.tokens = (Token("end", self.text[place], line, place - start + 1),)
                self.refuse("a character has no meaning", "a word, a number, or one of , : =")
            assert match is not None and match.lastgroup is not None, "every alternative is named"
            yield Token(match.lastgroup, match.group(), line, place - start + 1)
            place = match.end()
            if match.group() == "\n":
                line, start = line + 1, place
        yield Token("end", "", line, place - start + 1)

    @property
    def next(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def refuse(
        self, summary: str, expected: str, found: str = "", *, known: str = "", mend: str = ""
    ) -> NoReturn:
        """Raise the error that names the next token's place."""
        token = self.next
        line = self.text.split("\n")[token.line - 1][:100]
        shown = repr(token.text) if token.text else "the end of the text"
        raise self.error(
            f"the text of a {self.what} does not parse: {summary}",
            expected=expected,
            found=(found or shown)[:100],
            known=known,
            where=f"line {token.line}, column {token.column}   {line}",
            mend=mend or self.mend,
        )

    def take(self, text: str) -> bool:
        """Move past the token if it is next; say whether it was."""
        if self.next.text != text or self.next.kind == "end":
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        """Move past the token, which must be next."""
        if not self.take(text):
            self.refuse(f"{text!r} is missing", repr(text))

    def word(self, expected: str) -> str:
        """Take a word."""
        token = self.next
        if token.kind != "word":
            self.refuse("a word is missing", expected)
        self.at += 1
        return token.text

    def one_of(self, choices: Iterable[str], expected: str) -> str:
        """Take a word that must be one of the choices; offer the nearest where it is not."""
        listed = tuple(choices)
        if self.next.text not in listed:
            self.unknown(self.next.text, listed, expected)
        self.at += 1
        return self.tokens[self.at - 1].text

    def unknown(self, name: str, choices: Iterable[str], expected: str) -> NoReturn:
        """Refuse a name, offering the nearest of the choices."""
        listed = tuple(choices)
        self.refuse(
            f"there is no {expected} {name!r}",
            f"one of {', '.join(listed)}",
            repr(name) if name.strip() else "",
            known=nearest(name, listed),
        )

    def integer(self, expected: str, *, most: int) -> int:
        """Take a whole number from 1 to `most`."""
        text = self.next.text
        if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
            self.refuse("a whole number is missing", f"{expected}: from 1 to {most}")
        self.at += 1
        return int(text)

    def end(self) -> None:
        """Refuse unless all is taken, blank lines left out."""
        while self.take("\n"):
            pass
        if self.next.kind != "end":
            self.refuse("there is something after its end", "the end of the text")


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a phrase with the choices closest to a name, or nothing."""
    close = difflib.get_close_matches(name.lower(), list(choices), n=3, cutoff=0.5)
    return f"close to it: {', '.join(close)}" if close else ""
