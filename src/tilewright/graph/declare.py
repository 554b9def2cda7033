"""Declarations: lines of the operator table, parsed, still free in rank and attributes.

The grammar is in `notation`.  This module does not know operand types (`instantiate`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.base.errors import NotationError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, transform, walk
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.syntax import Parser

OPS = ("=", "+=", "*=", "max=", "min=", "any=", "all=", "argmax=", "argmin=")
TARGET = "y"
_OP = re.compile(r"\s*(argmax=|argmin=|max=|min=|any=|all=|\+=|\*=|=(?!=))")


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed body: target index with `<` limits taken out, and everything after it."""

    index: tuple[Expr, ...]
    limits: tuple[tuple[str, Expr], ...]
    op: str
    value: Expr
    at: Expr | None
    where: Expr | None
    fill: Expr


@dataclass(frozen=True, slots=True)
class Declaration:
    """One line of the operator table, parsed."""

    name: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    body: Body
    text: str


def declare(text: str) -> Declaration:
    """Parse a declaration; raises NotationError, also for names that it does not explain."""
    head, _, body = text.partition(")")
    match = re.fullmatch(r"\s*([\w.]+)\(([^;]*)(?:;(.*))?", head)
    if match is None:
        raise NotationError(
            "cannot read a declaration",
            expected="name(operands; attributes)  target op value",
            found=text,
        )
    name, operands, attributes = match[1], match[2], match[3] or ""
    made = Declaration(name, _words(operands), _words(attributes), parse_body(body), text)
    check(made)
    return made


def check(declaration: Declaration) -> None:
    """Raise NotationError where a declaration reads what is no operand, or calls no function."""
    body = declaration.body
    limits = (limit for _, limit in body.limits)
    for part in (body.value, body.at, body.where, body.fill, *body.index, *limits):
        for node in walk(part) if part is not None else ():
            match node:
                case Read(tensor, _, _) if tensor not in declaration.operands:
                    raise NotationError(
                        f"{declaration.name} reads {tensor!r}, which is no operand",
                        expected=f"one of {', '.join(declaration.operands) or 'none'}",
                        found=declaration.text.strip(),
                    )
                case Call(fn, args):
                    _check_call(declaration, fn, len(args))


def _check_call(declaration: Declaration, fn: str, count: int) -> None:
    row = FUNCTIONS.get(fn)
    if fn == "radix" or (fn == "size" and count == 1) or (row is not None and row.arity == count):
        return
    if row is None and fn != "size":
        raise NotationError(
            f"{declaration.name} calls {fn!r}, which is no function",
            expected="a function of tilewright/base/scalar.py",
            found=declaration.text.strip(),
        )
    raise NotationError(
        f"{declaration.name} gives {fn!r} {count} arguments",
        expected=f"{row.arity if row is not None else 1} arguments",
        found=declaration.text.strip(),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_body(text: str) -> Body:
    """Parse `target op value ...`; raises NotationError."""
    place = _find_op(text)
    target = Parser(text[: place.start()])
    read = target.expression()
    target.expect_end()
    if not isinstance(read, Read) or read.tensor != TARGET:
        target.fail(f"a target, {TARGET}[...]")
        raise AssertionError("fail raises")
    parser = Parser(text[place.end() :])
    value = parser.expression()
    at = parser.expression() if parser.accept("at") else None
    where = parser.expression() if parser.accept("where") else None
    fill: Expr = Const(0)
    if parser.accept("else"):
        fill = parser.expression()
    elif parser.accept("from"):
        fill = Read(parser.name(), ())
    limits: list[tuple[str, Expr]] = []
    if parser.accept("for"):
        limits += _limits(parser)
    parser.expect_end()
    if place[1].startswith("arg") != (at is not None):
        raise NotationError(
            f"`{place[1]}` {'needs' if at is None else 'takes no'} `at`",
            expected="value at index, after argmax= and argmin= alone",
            found=text.strip(),
        )
    place_read = _take_limits(read, limits)
    assert isinstance(place_read, Read), "taking limits out leaves a read a read"
    index = place_read.index
    bare, at, where = (_take_limits(part, limits) for part in (value, at, where))
    assert bare is not None, "a body has a value"
    return Body(index, tuple(dict(limits).items()), place[1], bare, at, where, fill)


def _find_op(text: str) -> re.Match[str]:
    """Find the assignment operator: the first one outside all brackets."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "[(") - (character in ")]")
        if depth == 0 and character == "]":
            match = _OP.match(text, at + 1)
            if match is not None:
                return match
            break
    raise NotationError(
        "cannot read the notation: no assignment follows the target",
        expected=f"{TARGET}[index] and one of {' '.join(OPS)}",
        found=text.strip(),
    )


def _limits(parser: Parser) -> Iterator[tuple[str, Expr]]:
    while True:
        name = parser.name()
        parser.expect("<")
        yield name, parser._chain(5)
        if not parser.accept(","):
            return


def _take_limits(expr: Expr | None, limits: list[tuple[str, Expr]]) -> Expr | None:
    """Replace each index entry `loop<extent` by `loop`, noting the extent."""

    def entry(part: Expr) -> Expr:
        match part:
            case Call("lt", (Sym(name), extent)):
                limits.append((name, extent))
                return Sym(name)
        return part

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            return Read(node.tensor, tuple(entry(part) for part in node.index), node.default)
        return node

    return None if expr is None else transform(expr, visit)
