"""One line of a Program's text, taken token by token.

The idea: a regular expression cuts the line, and every `take` either moves on or refuses with the
line's number; nothing of the text is ever evaluated.  This module does not know what lines mean.
"""

import json
import re
from collections.abc import Callable
from string import ascii_letters, digits
from typing import NoReturn, TypeVar

from tilewright.base.algebra import simplify
from tilewright.base.errors import NotationError, ProgramError
from tilewright.base.expr import Const, substitute
from tilewright.base.sizes import Size, Sizes
from tilewright.base.syntax import parse
from tilewright.program.ir import Template
from tilewright.program.refusal import COMPILE_AGAIN

TOKEN = re.compile(
    r"""(?:
    "[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)  # to the end where it has none, so that it is read once
    | -?(?:[0-9]+\.[0-9]+(?:e[-+]?[0-9]+)?|[0-9]+e[-+]?[0-9]+|[0-9]+) | -inf\b
    | [A-Za-z_][A-Za-z0-9_.]*
    | -> | [()\[\]{}=,;:%$]
    )[ ]*""",
    re.VERBOSE,
)
END = ""
STRING, NUMBER, NAME = "string", "number", "name"
KINDS = dict.fromkeys(f"{ascii_letters}_", NAME) | dict.fromkeys(f"{digits}-", NUMBER)
KINDS |= {'"': STRING}
"""What a token is, by how it begins; marks are none of these, `->` among them."""
MOST_DIGITS = 20
DEEPEST = 32
PLAIN: dict[str, Template] = {"none": None, "true": True, "false": False, "nan": float("nan")}

Item = TypeVar("Item")


class Line:
    """A line being read: its tokens, and how many of them are taken."""

    def __init__(self, text: str, number: int, sizes: Sizes | None = None) -> None:
        self.text = text
        self.sizes = sizes
        self.number = number
        self.at = 0
        place = len(text) - len(text.lstrip(" "))
        found = TOKEN.findall(text, place)
        self.tokens: list[str] = [*map(str.rstrip, found), END]
        if sum(map(len, found)) < len(text) - place:
            self._refuse_gap(place)

    def refuse(self, summary: str, expected: str, found: str = "") -> NoReturn:
        """Raise the error that names this line; found: the next token, if nothing is said."""
        shown = self.text if len(self.text) <= 100 else self.text[:97] + "..."
        token = self.peek()
        raise ProgramError(
            f"the text of a program does not parse: {summary}",
            expected=expected,
            found=(found or (repr(token) if token else "the end of the line"))[:100],
            where=f"line {self.number}   {shown}",
            mend=COMPILE_AGAIN,
        )

    def _refuse_gap(self, place: int) -> NoReturn:
        """Refuse what is no token, where it stands."""
        for match in TOKEN.finditer(self.text, place):
            if match.start() != place:
                break
            place = match.end()
        self.refuse(
            f"{self.text[place]!r} is no part of a program",
            "a name, a number, a quoted text or one of -> ( ) [ ] { } = , ; : %",
            repr(self.text[place : place + 8]),
        )

    def peek(self) -> str:
        """Return the next token, END after the last."""
        return self.tokens[self.at]

    def take(self, word: str) -> bool:
        """Move past the word, a name or a mark, if it is next; say whether it was."""
        if self.tokens[self.at] == word:
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Move past the word, which must be next."""
        if not self.take(word):
            self.refuse(f"{word!r} is missing before {self.peek()!r}", repr(word))

    def end(self) -> None:
        """Refuse unless all is taken."""
        if self.peek() != END:
            self.refuse(f"{self.peek()!r} is too much", "the end of the line")

    def _token(self, kind: str) -> str:
        text = self.tokens[self.at]
        if _kind(text) != kind:
            self.refuse(f"a {kind} is missing before {text!r}", f"a {kind}")
        self.at += 1
        return text

    def name(self) -> str:
        return self._token(NAME)

    def string(self) -> str:
        text = self._token(STRING)
        try:
            value = json.loads(text)
        except ValueError:
            self.refuse(f"{text!r} is no string", "a quoted text as JSON has it", text)
        assert isinstance(value, str), "a quoted JSON text is a string"
        return value

    def integer(self) -> int:
        """Read a number, or what varies: `$"n_0*64"`."""
        if self.take("$"):
            return self._size()
        text = self._token(NUMBER)
        if not text.lstrip("-").isdigit() or len(text) > MOST_DIGITS:
            self.refuse(
                f"{text[:32]!r} is no integer in range",
                f"an integer of at most {MOST_DIGITS} digits",
                repr(text),
            )
        return int(text)

    def _size(self) -> int:
        text = self.string()
        named = {} if self.sizes is None else self.sizes.named()
        try:
            expr = substitute(parse(text), {name: Const(size) for name, size in named.items()})
            found = simplify(expr, {})
        except (NotationError, AssertionError):
            found = Const(0.0)
        if not isinstance(found, Const) or type(found.value) not in (int, Size):
            self.refuse(
                f"{text[:32]!r} is no number that follows from the sizes",
                f"sums, products and divisions of {', '.join(named) or 'numbers'}",
                repr(text),
            )
        assert isinstance(found.value, int), "it is an int or a Size"
        return found.value

    def integers(self, opening: str, closing: str) -> tuple[int, ...]:
        """Read integers between brackets."""
        self.expect(opening)
        return tuple(self.separated(self.integer, closing))

    def separated(self, item: Callable[[], Item], closing: str) -> list[Item]:
        """Read items with commas between them, up to and past the closing mark."""
        items: list[Item] = []
        if self.take(closing):
            return items
        while True:
            items.append(item())
            if self.take(closing):
                return items
            self.expect(",")

    def template(self, depth: int = 0) -> Template:
        """Read the argument of a library call."""
        if depth > DEEPEST:
            self.refuse("arguments are nested too deep", f"at most {DEEPEST} levels", "more")
        if self.take("%"):
            return "%", self.integer()
        if self.take("$"):
            return self._size()
        if self.take(":"):
            return "dtype", self.name()
        if self.take("["):
            return "list", *self.separated(lambda: self.template(depth + 1), "]")
        if self.take("("):
            return tuple(self.separated(lambda: self.template(depth + 1), ")"))
        text = self.peek()
        kind = _kind(text)
        if kind == STRING:
            return self.string()
        if kind == NUMBER:
            return self._number()
        if text not in PLAIN and text != "inf":
            self.refuse(
                f"{text!r} is no argument",
                "%POSITION, :DTYPE, a list, a tuple, a number, a text, none, true or false",
            )
        self.at += 1
        return PLAIN.get(text, float("inf"))

    def _number(self) -> int | float:
        if self.peek().lstrip("-").isdigit():
            return self.integer()
        return float(self._token(NUMBER))


def _kind(token: str) -> str | None:
    """Return STRING, NUMBER or NAME; None of a mark, and of END."""
    return None if token == "->" else KINDS.get(token[:1])
