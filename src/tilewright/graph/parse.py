"""Read the text of a graph; the grammar is in `text`.

The idea: one cursor over the text, one method for each line of the grammar; every failure is a
GraphError that says which line, what was expected there and what was found.

This module does not know whether a graph is legal: it asks `verify` in the end.
"""

import json
import re
from typing import NoReturn

from tilewright.base import syntax
from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import UNKNOWN, GraphError, Origin, TilewrightError
from tilewright.base.expr import Const
from tilewright.graph import notation
from tilewright.graph.ir import (
    FORMULA,
    Attr,
    Dim,
    Formula,
    Graph,
    Node,
    Role,
    TensorType,
    Value,
)
from tilewright.graph.verify import verify

_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NUMBER = re.compile(r"-?(?:inf\b|nan\b|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)")
_FORMULA = re.compile(r"\{([^{}]*)\}")
_LITERALS: dict[str, Attr] = {"None": None, "True": True, "False": False}
_DEPTH = 32  # of nested tuples, and of graphs in graphs: hostile text must not exhaust the stack


def parse(text: str) -> Graph:
    """Return the graph that `text` says; raises GraphError, with the line, if there is none."""
    reader = _Reader(text)
    graph = reader.graph(0)
    if not reader.ended():
        reader.fail("the end of the text")
    verify(graph)
    return graph


class _Reader:
    """A cursor over the text; final."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    # --- the grammar

    def graph(self, depth: int) -> Graph:
        if depth > _DEPTH:
            self.fail("graphs nested less deeply")
        self.expect("graph")
        name = self.word()
        values: dict[str, Value] = {}
        roles: dict[str, Role] = {}
        self.expect("(")
        inputs: list[Value] = []
        while not self.accept(")"):
            inputs.append(self.input(values, roles))
            if not self.peek(")"):
                self.expect(",")
        self.expect("{")
        nodes: list[Node] = []
        while not self.accept("return"):
            nodes.append(self.node(values, depth))
        outputs = self.known_values(values)
        updates = self.updates() if self.accept("updates") else ()
        order = self.role_order(roles) if self.accept("roles") else tuple(roles)
        self.expect("}")
        pairs = tuple((name, roles[name]) for name in order)
        return Graph(name, tuple(inputs), tuple(nodes), outputs, updates, pairs)

    def input(self, values: dict[str, Value], roles: dict[str, Role]) -> Value:
        name = self.defined(values)
        self.expect(":")
        value = Value(name, self.type())
        values[name] = value
        if not self.peek(",") and not self.peek(")"):
            kind = self.word()
            roles[name] = Role(kind, self.string() if self.peek('"') else "")
        return value

    def node(self, values: dict[str, Value], depth: int) -> Node:
        start = self.at
        names = [self.defined(values)] if self.peek("%") else []
        while names and self.accept(","):
            names.append(self.defined(values))
        self.expect("=")
        loops = self.loops() if self.peek("{") else None
        op = FORMULA if loops is not None else self.word()
        inputs, attrs = self.arguments(values)
        self.expect(":")
        outputs: list[Value] = []
        for name in names:
            if outputs:
                self.expect(",")
            outputs.append(Value(name, self.type()))
        if loops is None and self.peek("{"):
            loops = self.loops()
        formula = None if loops is None else self.formula(*loops, outputs)
        origin = self.origin() if self.accept("@") else UNKNOWN
        graphs: list[Graph] = []
        if self.accept("with"):
            graphs.append(self.graph(depth + 1))
            while self.peek("graph"):
                graphs.append(self.graph(depth + 1))
        for value in outputs:
            if value.name in values:
                self.at = start
                self.fail("results of different names")
            values[value.name] = value
        return Node(op, inputs, tuple(outputs), attrs, formula, tuple(graphs), origin)

    def arguments(
        self, values: dict[str, Value]
    ) -> tuple[tuple[Value, ...], tuple[tuple[str, Attr], ...]]:
        inputs: list[Value] = []
        attrs: list[tuple[str, Attr]] = []
        self.expect("(")
        while not self.accept(")"):
            if self.peek("%"):
                if attrs:
                    self.fail("an attribute: operands stand before them")
                inputs.append(self.known(values))
            else:
                key = self.word()
                self.expect("=")
                attrs.append((key, self.attr(0)))
            if not self.peek(")"):
                self.expect(",")
        return tuple(inputs), tuple(attrs)

    def attr(self, depth: int) -> Attr:
        if depth > _DEPTH:
            self.fail("tuples nested less deeply")
        if self.peek('"'):
            return self.string()
        if self.accept("("):
            parts: list[Attr] = []
            while not self.accept(")"):
                parts.append(self.attr(depth + 1))
                if not self.peek(")"):
                    self.expect(",")
            return tuple(parts)
        for literal, value in _LITERALS.items():
            if self.accept(literal):
                return value
        return self.number()

    def type(self) -> TensorType:
        start = self.at
        name = self.word()
        if name not in BY_NAME:
            self.at = start
            self.fail(f"an element type ({', '.join(BY_NAME)})")
        self.expect("[")
        dims: list[Dim] = []
        while not self.accept("]"):
            dims.append(self.dim())
            if not self.peek("]"):
                self.expect(",")
        return TensorType(tuple(dims), BY_NAME[name])

    def dim(self) -> Dim:
        self.skip()
        start, depth = self.at, 0
        end = start
        while end < len(self.text) and (depth or self.text[end] not in ",]"):
            depth += (self.text[end] in "([") - (self.text[end] in ")]")
            end += 1
        try:
            found = syntax.parse(self.text[start:end])
        except (TilewrightError, ValueError, RecursionError) as error:
            self.fail("an extent", error)
        self.at = end
        match found:
            case Const(int(value)):
                return value
        return found

    def loops(self) -> tuple[str, int]:
        """Take a formula in braces; it can be read only once its type is known."""
        self.skip()
        match = _FORMULA.match(self.text, self.at)
        if match is None:
            self.fail("a formula in braces")
        start, self.at = self.at, match.end()
        return match[1], start

    def formula(self, text: str, start: int, outputs: list[Value]) -> Formula:
        end, self.at = self.at, start
        if len(outputs) != 1:
            self.fail("one result of a formula")
        try:
            found = notation.read(text, outputs[0].type)
        except (TilewrightError, ValueError, RecursionError) as error:
            self.fail("a formula", error)
        self.at = end
        return found

    def origin(self) -> Origin:
        file = self.string()
        self.expect(":")
        line = self.integer()
        code = self.string() if self.peek('"') else ""
        module = self.string() if self.peek('"') else ""
        return Origin(file, line, code, module)

    def updates(self) -> tuple[tuple[str, int], ...]:
        pairs: list[tuple[str, int]] = []
        while True:
            name = self.value_name()
            self.expect("=")
            pairs.append((name, self.integer()))
            if not self.accept(","):
                return tuple(pairs)

    def role_order(self, roles: dict[str, Role]) -> tuple[str, ...]:
        order = [self.value_name()]
        while self.accept(","):
            order.append(self.value_name())
        if sorted(order) != sorted(roles):
            self.fail("the order of all inputs that have a role")
        return tuple(order)

    # --- values

    def value_name(self) -> str:
        self.expect("%")
        return self.word()

    def defined(self, values: dict[str, Value]) -> str:
        start, name = self.at, self.value_name()
        if name in values:
            self.at = start
            self.fail("a name that is free")
        return name

    def known(self, values: dict[str, Value]) -> Value:
        start, name = self.at, self.value_name()
        if name not in values:
            self.at = start
            self.fail("a value that is defined before")
        return values[name]

    def known_values(self, values: dict[str, Value]) -> tuple[Value, ...]:
        found: list[Value] = []
        while self.peek("%"):
            found.append(self.known(values))
            if not self.accept(","):
                break
        return tuple(found)

    # --- tokens

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "any text begins with no space or some"
        self.at = match.end()

    def ended(self) -> bool:
        self.skip()
        return self.at == len(self.text)

    def peek(self, text: str) -> bool:
        self.skip()
        if not self.text.startswith(text, self.at):
            return False
        if not _WORD.fullmatch(text):
            return True
        match = _WORD.match(self.text, self.at)
        return match is not None and match[0] == text

    def accept(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(repr(text))

    def word(self) -> str:
        if self.peek('"'):
            return self.string()
        match = _WORD.match(self.text, self.at)
        if match is None:
            self.fail("a name")
        self.at = match.end()
        return match[0]

    def string(self) -> str:
        self.skip()
        match = _STRING.match(self.text, self.at)
        if match is None:
            self.fail("a string in double quotes")
        try:
            found = json.loads(match[0])
        except ValueError as error:
            self.fail("a string in double quotes", error)
        self.at = match.end()
        return str(found)

    def number(self) -> int | float:
        self.skip()
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.fail("a number, a string, a tuple, None, True or False")
        whole = match[0].lstrip("-").isdigit()
        try:
            found = int(match[0]) if whole else float(match[0])
        except ValueError as error:
            self.fail("a number", error)
        self.at = match.end()
        return found

    def integer(self) -> int:
        found = self.number()
        if not isinstance(found, int):
            self.fail("a whole number")
        return found

    def fail(self, expected: str, cause: Exception | None = None) -> NoReturn:
        """Raise GraphError for what stands at the cursor."""
        self.skip()
        line = self.text.count("\n", 0, self.at) + 1
        rest = self.text[self.at :].split("\n", 1)[0][:60]
        known = ""
        if isinstance(cause, TilewrightError):
            known = cause.summary
        elif cause is not None:
            known = f"{type(cause).__name__}: {cause}"[:200]
        raise GraphError(
            f"line {line}: cannot read the graph",
            expected=expected,
            found=rest or "the end of the text",
            known=known,
        ) from cause
