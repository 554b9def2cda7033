"""C text under construction: nested blocks, and the scopes in which values are named once.

The idea: a scope is a block of C with the loops that are open in it.  A value is defined in the
outermost scope that has all it depends on, so that what does not change in a loop is not computed
in it, and defined once, so that what is used twice is not computed twice.

This module does not know expressions: a definition's text comes from `expression`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.base.dtypes import BOOL, F64, DType
from tilewright.base.expr import Expr
from tilewright.base.sizes import Size

ATOM, UNARY, PRODUCT, SUM, COMPARE, TERNARY = 9, 8, 7, 6, 5, 1
ONE_BY_ONE = "#pragma GCC unroll 1"
"""Stands before a loop that is to stay one until the compiler looks for vectors.

GCC 12.2, for one, adds the wrong elements where it has unrolled a short loop that adds to one
variable, and they lie in another order (its bug 110381, mended in 2023)."""
NO_VECTORS = '__asm__ volatile("");'
"""Stands in such a loop of one turn, which is unrolled whatever stands before it."""
SECOND = ", 2"
"""Has a prefetch bring a line no nearer than the second cache: more of them may be on the way to it
than to the first."""


@dataclass(frozen=True, slots=True)
class Term:
    """A C expression: its text, its type, and how tightly its operator binds.

    weak: made of Python numbers and loops alone; it takes the type of what it meets, and until then
    a float is held as a double.  literal: its value where it is a constant.  exact: the half type
    that holds it as it is: it was read from or rounded to that, or is made of such without being
    longer.  either: a condition, and the two constants (or terms like this) that it chooses from:
    they take a type, and not what is chosen.
    """

    text: str
    dtype: DType
    level: int = ATOM
    weak: bool = False
    literal: bool | int | float | None = None
    exact: DType | None = None
    either: "tuple[Term, Term, Term] | None" = None

    @property
    def held(self) -> DType:
        """The type that the C expression has."""
        return F64 if self.weak and self.dtype.kind == "float" else self.dtype

    def at(self, level: int) -> str:
        """Return the text, in parentheses where it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def c_type(dtype: DType) -> str:
    """Return the C type that a value is computed in (a truth value is an int)."""
    return "int" if dtype == BOOL else dtype.compute.c


def unsigned(number: int) -> str:
    """Return the C text of a number that is not negative, as an unsigned long."""
    return f"(unsigned long){number}" if isinstance(number, Size) else f"{number}ul"


class Block:
    """Lines of C, some of them blocks of their own.  Mutable: it is being written.

    head: what stands before the brace (`for (...)`); None for lines without braces of their own.
    """

    def __init__(self, head: str | None = None) -> None:
        self.head = head
        self.lines: list[str | Block] = []

    def render(self, indent: int = 0) -> Iterator[str]:
        """Yield the lines, indented."""
        pad = "    " * indent
        inner = indent if self.head is None else indent + 1
        if self.head is not None:
            yield f"{pad}{self.head}{' ' if self.head else ''}{{"
        for line in self.lines:
            if isinstance(line, Block):
                yield from line.render(inner)
            else:
                yield "    " * inner + line
        if self.head is not None:
            yield f"{pad}}}"


class Scope:
    """A block, the loops open in it, and the values known in it.  Mutable while it is written.

    pinned: what is computed here stays here, because it may depend on what came before in it.
    """

    def __init__(self, block: Block, loops: frozenset[str], parent: "Scope | None" = None) -> None:
        self.block = block
        self.loops = loops
        self.parent = parent
        self.known: dict[Expr, Term] = {}
        self.pinned = False

    def find(self, expr: Expr) -> Term | None:
        """Return the term that an expression is known as, here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if expr in scope.known:
                return scope.known[expr]
            scope = scope.parent
        return None

    def home(self, needed: frozenset[str]) -> "Scope":
        """Return the outermost scope in which all the loops needed are open."""
        scope = self
        while scope.parent is not None and not scope.pinned and needed <= scope.parent.loops:
            scope = scope.parent
        return scope

    def add(self, line: "str | Block") -> None:
        """Add a line."""
        self.block.lines.append(line)

    def inner(self, *loops: str) -> "Scope":
        """Return a scope inside this one, in which these loops are open.

        Its block is added with `attach`, once it is written: after what it has caused to be
        defined out here.
        """
        return Scope(Block(), self.loops | frozenset(loops), self)

    def attach(self, inner: "Scope", head: str) -> None:
        """Add the block of an inner scope under `head` (`for (...)`, or nothing)."""
        inner.block.head = head
        self.block.lines.append(inner.block)
