"""Integer and scalar expressions: one algebra for shapes, indices, bounds, costs and values.

The idea: an expression is a constant, a name, a call or a read of a tensor, and nothing else, so
that substitution, printing, differentiation and code generation are each one walk over four cases.

Grammar
-------
::

    expr  = Const(value)                    3, 0.5, True, inf, nan
          | Sym(name)                       a loop, a size or an attribute, by its name
          | Call(fn, args)                  fn is a name of `scalar.FUNCTIONS`: add, exp, lt, ...
          | Read(tensor, index, default)    x[i, j+1], x[i-1] ?? 0, table[ids[b], d]

This module does not know what a function computes (`scalar`), how an expression is written
(`syntax`) or how an index is simplified and bounded (`algebra`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

KEPT = 1 << 13
"""For how many expressions an answer about one is kept: most are asked again and again."""


@dataclass(frozen=True, slots=True)
class Const:
    """A number: a bool, an int (exact) or a float (NaN and infinities included)."""

    value: bool | int | float

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True, 0.0 and -0.0 are different constants; NaN equals itself.
        if not isinstance(other, Const):
            return False
        if type(self.value) is int and type(other.value) is int:  # most are
            return self.value == other.value
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.value if type(self.value) is int else self._key())

    def _key(self) -> tuple[str, str]:
        return type(self.value).__name__, repr(self.value)


@dataclass(frozen=True, slots=True)
class Sym:
    """A name: a loop of the formula at hand, a named size, or an attribute before binding."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `scalar.FUNCTIONS` applied to its arguments."""

    fn: str
    args: tuple["Expr", ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # a hash is of one process
        return Call, (self.fn, self.args)


@dataclass(frozen=True, slots=True)
class Read:
    """One element of a tensor.

    A direct read outside the tensor makes the whole term absent, unless `default` says what is read
    instead.  An index that itself contains a read is indirect: out of range it raises IndexError.
    """

    tensor: str
    index: tuple["Expr", ...]
    default: "Expr | None" = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.tensor, self.index, self.default)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Read, (self.tensor, self.index, self.default)


Expr = Const | Sym | Call | Read


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions, in order (a read's default last)."""
    # Asked of every part of every expression: a chain of tests is half the price of a `match`.
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Read):
        return expr.index if expr.default is None else (*expr.index, expr.default)
    return ()


def rebuild(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """Return `expr` with its children replaced by `parts` (as many as `children` gave)."""
    match expr:
        case Call(fn, _):
            return Call(fn, parts)
        case Read(tensor, index, default):
            rank = len(index)
            return Read(tensor, parts[:rank], None if default is None else parts[rank])
        case _:
            return expr


def transform(expr: Expr, rewrite: Callable[[Expr], Expr]) -> Expr:
    """Rewrite bottom-up: children first, then the node made of the rewritten children."""
    parts = children(expr)
    if parts:
        fresh = tuple([transform(part, rewrite) for part in parts])
        for a, b in zip(fresh, parts, strict=True):
            if a is not b:
                expr = rebuild(expr, fresh)
                break
    return rewrite(expr)


def substitute(expr: Expr, bindings: Mapping[str, Expr]) -> Expr:
    """Replace every name in `bindings` at once."""
    found = tuple([(name, bindings[name]) for name in names(expr) if name in bindings])
    return _substituted(expr, found) if found else expr


@lru_cache(KEPT)
def _substituted(expr: Expr, found: tuple[tuple[str, Expr], ...]) -> Expr:
    bindings = dict(found)

    def replace(node: Expr) -> Expr:
        return bindings.get(node.name, node) if isinstance(node, Sym) else node

    return transform(expr, replace)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, outermost first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Call):
            waiting += node.args[::-1]
        elif isinstance(node, Read):
            waiting += children(node)[::-1]


@lru_cache(KEPT)
def names(expr: Expr) -> frozenset[str]:
    """Return the names that occur free (tensor names are not among them)."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Sym))


def reads(expr: Expr) -> tuple[Read, ...]:
    """Return the reads in order of appearance, indirect ones' inner reads after their outer."""
    return tuple(node for node in walk(expr) if isinstance(node, Read))


def call(fn: str, *args: "Expr | bool | int | float") -> Expr:
    """Build `Call(fn, args)`, wrapping plain numbers as constants."""
    return Call(fn, tuple(as_expr(arg) for arg in args))


def as_expr(value: "Expr | bool | int | float") -> Expr:
    """Wrap a plain number as a constant; return an expression as it is."""
    if isinstance(value, bool | int | float):
        return Const(value)
    return value
