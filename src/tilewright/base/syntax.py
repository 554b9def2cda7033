"""How expressions are written: a printer and a parser that agree.

::

    ternary  = or ["if" or "else" ternary]
    or       = and {"or" and}           and = not {"and" not}        not = ["not"] compare
    compare  = sum [("<" "<=" ">" ">=" "==" "!=") sum]
    sum      = product {("+" | "-") product}
    product  = unary {("*" | "/" | "//" | "%") unary}
    unary    = "-" unary | primary
    primary  = number | "inf" | "nan" | "true" | "false" | name | name "(" args ")"
             | name "[" args "]" ["??" unary] | "(" ternary ")" | "(" name name ... ")" | "..."

Inside square brackets `/` is the exact division of an index (`exactdiv`), elsewhere it is `div`;
`(g o)` is a mixed-radix index, outermost first.  `parse(show(e)) == e` for every expression.

This module does not know which functions exist: a name before "(" is a function.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from tilewright.base.errors import NotationError
from tilewright.base.expr import KEPT, Call, Const, Expr, Read, Sym

ELLIPSIS = Sym("...")

_BINARY = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "add": ("+", 5),
    "sub": ("-", 5),
    "mul": ("*", 6),
    "div": ("/", 6),
    "exactdiv": ("/", 6),
    "floordiv": ("//", 6),
    "mod": ("%", 6),
}
_COMPARE = {symbol: fn for fn, (symbol, level) in _BINARY.items() if level == 4}
_TERNARY, _NOT, _UNARY, _PRIMARY = 0, 3, 7, 8


# ---------------------------------------------------------------------------------------- printing


def show(expr: Expr, *, index: bool = False) -> str:
    """Return the text of an expression; `index` says that it stands inside square brackets."""
    return _show_open(expr, index)[1]


def show_number(value: bool | int | float) -> str:
    """Return the text of a constant: `true`, `3`, `0.5`, `inf`, `-inf`, `nan`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _show(expr: Expr, level: int, index: bool) -> str:
    own, text = _show_open(expr, index)
    return f"({text})" if own < level else text


@lru_cache(KEPT)
def _show_open(expr: Expr, index: bool) -> tuple[int, str]:
    # As in `children`: every cache key shows every formula of a graph.
    if isinstance(expr, Sym):
        return _PRIMARY, expr.name
    if isinstance(expr, Call):
        return _show_call(expr.fn, expr.args, index)
    if isinstance(expr, Const):
        text = show_number(expr.value)
        return (_UNARY if text.startswith("-") else _PRIMARY), text
    text = f"{expr.tensor}[{', '.join([show(entry, index=True) for entry in expr.index])}]"
    if expr.default is None:
        return _PRIMARY, text
    return _UNARY, f"{text} ?? {_show(expr.default, _PRIMARY, index)}"


def _show_call(fn: str, args: tuple[Expr, ...], index: bool) -> tuple[int, str]:
    if fn == "radix" and all(isinstance(arg, Sym) for arg in args):
        return _PRIMARY, f"({' '.join(show(arg) for arg in args)})"
    if fn == "select" and len(args) == 3:
        cond, yes, no = args
        text = f"{_show(yes, 1, index)} if {_show(cond, 1, index)} else {_show(no, 0, index)}"
        return _TERNARY, text
    if fn == "neg" and len(args) == 1:
        # A literal after the minus would read back as a negative constant.
        inner = _show(args[0], _UNARY, index)
        return _UNARY, f"-({inner})" if isinstance(args[0], Const) else f"-{inner}"
    if fn == "not" and len(args) == 1:
        return _NOT, f"not {_show(args[0], _NOT, index)}"
    if fn in _BINARY and len(args) == 2 and (fn, index) not in (("div", True), ("exactdiv", False)):
        symbol, own = _BINARY[fn]
        left_level = own + 1 if own == 4 else own
        left, right = _show(args[0], left_level, index), _show(args[1], own + 1, index)
        space = "" if index else " "
        return own, f"{left}{space}{symbol}{space}{right}"
    return _PRIMARY, f"{fn}({', '.join(_show(arg, _TERNARY, index) for arg in args)})"


# ----------------------------------------------------------------------------------------- parsing

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)"
    r"|(?P<name>[A-Za-z_@$][A-Za-z0-9_@$]*(?:\.[A-Za-z0-9_]+)*)"
    r"|(?P<symbol>\.\.\.|\?\?|//|<=|>=|==|!=|[-+*/%<>()\[\],;:=])|(?P<end>$)|(?P<bad>.))"
)
_KEYWORDS = {"if", "else", "or", "and", "not", "where", "from", "at", "for"}
_LITERALS = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}
_DEPTH = 64  # nesting that no formula needs; hostile text must not exhaust the stack


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind ("number", "name", "symbol", "end"), its text, and where it starts."""

    kind: str
    text: str
    at: int


def tokenize(text: str) -> tuple[Token, ...]:
    """Split text into tokens, ending with one of kind "end"."""
    tokens: list[Token] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        assert match is not None and match.lastgroup is not None, "the token pattern takes anything"
        kind, start = match.lastgroup, match.start(match.lastgroup)
        if kind == "bad":
            raise NotationError(
                f"cannot read the character {match['bad']!r}",
                found=f"{text}\n{' ' * start}^",
                mend="see the grammar in tilewright/base/syntax.py",
            )
        tokens.append(Token(kind, match[kind], start))
        at = match.end()
        if kind == "end":
            return tuple(tokens)


def parse(text: str) -> Expr:
    """Parse one expression; raises NotationError with the place where reading stopped."""
    parser = Parser(text)
    expr = parser.expression()
    parser.expect_end()
    return expr


class Parser:
    """A cursor over tokens, final; the notation's parser goes on from where this one stops."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0
        self.brackets = 0
        self.depth = 0

    def peek(self) -> str:
        """Return the next token's text ("" at the end)."""
        return self.tokens[self.at].text

    def next(self) -> Token:
        """Take the next token."""
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        token = self.tokens[self.at]
        if token.kind in ("symbol", "name") and token.text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take the next token, which must be `text`."""
        if not self.accept(text):
            self.fail(f"{text!r}")

    def expect_end(self) -> None:
        """Raise unless everything was read."""
        if self.tokens[self.at].kind != "end":
            self.fail("the end of the text")

    def name(self) -> str:
        """Take a name that is not a keyword."""
        token = self.tokens[self.at]
        if token.kind != "name" or token.text in _KEYWORDS:
            self.fail("a name")
        return self.next().text

    def fail(self, expected: str) -> None:
        """Raise NotationError at the next token."""
        token = self.tokens[self.at]
        found = repr(token.text) if token.text else "the end of the text"
        raise NotationError(
            f"cannot read the notation: expected {expected}, found {found}",
            expected=expected,
            found=f"{self.text}\n{' ' * token.at}^",
            mend="see the grammar in tilewright/base/syntax.py",
        )

    def expression(self) -> Expr:
        """Read one expression, a ternary at the outermost."""
        self.depth += 1
        if self.depth > _DEPTH:
            self.fail("an expression nested less deeply")
        value = self._chain(1)
        if self.accept("if"):
            cond = self._chain(1)
            self.expect("else")
            value = Call("select", (cond, value, self.expression()))
        self.depth -= 1
        return value

    def entries(self, close: str) -> tuple[Expr, ...]:
        """Read expressions parted by commas up to the closing bracket, and take that too."""
        found: list[Expr] = []
        if self.accept(close):
            return ()
        while True:
            found.append(self.expression())
            if self.accept(close):
                return tuple(found)
            self.expect(",")

    def _chain(self, level: int) -> Expr:
        if level == _NOT:
            if self.accept("not"):
                return Call("not", (self._chain(_NOT),))
            return self._compare()
        if level == _UNARY:
            return self._unary()
        value = self._chain(level + 1 if level != 2 else _NOT)
        while (fn := self._operator(level)) is not None:
            value = Call(fn, (value, self._chain(level + 1 if level != 2 else _NOT)))
        return value

    def _operator(self, level: int) -> str | None:
        token = self.tokens[self.at]
        if token.kind not in ("symbol", "name"):
            return None
        if token.text == "/":
            fn: str | None = "exactdiv" if self.brackets else "div"
        else:
            fn = next((fn for fn, (symbol, _) in _BINARY.items() if symbol == token.text), None)
        if fn is None or _BINARY[fn][1] != level:
            return None
        self.at += 1
        return fn

    def _compare(self) -> Expr:
        left = self._chain(5)
        fn = _COMPARE.get(self.peek())
        if fn is None:
            return left
        self.at += 1
        return Call(fn, (left, self._chain(5)))

    def _unary(self) -> Expr:
        if not self.accept("-"):
            return self._primary()
        token = self.tokens[self.at]
        if token.kind == "number" or token.text in ("inf", "nan"):
            value = self._primary()
            assert isinstance(value, Const), "a literal reads as a constant"
            return Const(-value.value)
        self.depth += 1
        if self.depth > _DEPTH:
            self.fail("an expression nested less deeply")
        inner = self._unary()
        self.depth -= 1
        return Call("neg", (inner,))

    def _primary(self) -> Expr:
        token = self.tokens[self.at]
        if token.kind == "number":
            self.at += 1
            return Const(int(token.text) if token.text.isdigit() else float(token.text))
        if self.accept("..."):
            return ELLIPSIS
        if self.accept("("):
            return self._parenthesis()
        name = self.name()
        if name in _LITERALS:
            return Const(_LITERALS[name])
        if self.accept("("):
            return Call(name, self.entries(")"))
        if self.accept("["):
            self.brackets += 1
            index = self.entries("]")
            self.brackets -= 1
            default = self._unary() if self.accept("??") else None
            return Read(name, index, default)
        return Sym(name)

    def _parenthesis(self) -> Expr:
        names: list[Expr] = []
        start = self.at
        while self.tokens[self.at].kind == "name" and self.peek() not in _KEYWORDS:
            names.append(Sym(self.next().text))
        if len(names) > 1 and self.accept(")"):
            return Call("radix", tuple(names))
        self.at = start
        inner = self.expression()
        self.expect(")")
        return inner
