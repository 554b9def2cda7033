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

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock
from typing import Any
from weakref import ref

from tilewright.base.sizes import Size

KEPT = 1 << 13
"""For how many expressions an answer about one is kept: most are asked again and again."""


Key = int | str | tuple[object, ...]
_SWEPT = 1 << 14


class _Known:
    """All expressions that somebody has, by what they are made of; final.

    Two that are made alike are one object, so that to compare and to hash one is to do so with its
    address.  What is gone leaves an empty reference, and its parts in the key; these are swept out
    whenever there are twice as many as were left the last time.
    Mutable, and shared by threads: without the lock, references are only added, each under a key
    that had none.
    """

    def __init__(self) -> None:
        self._found: dict[Key, ref[Any]] = {}
        self._lock = RLock()
        self._limit = _SWEPT
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = RLock()  # another thread may have had it, which a child has not

    def get(self, key: Key) -> Any:
        """Return the expression that is made of this; None where nobody has it."""
        found = self._found.get(key)
        return None if found is None else found()

    def add(self, key: Key, made: Any) -> Any:
        """Note an expression; return it, or the one that another thread has noted before."""
        own = ref(made)
        while (found := self._found.setdefault(key, own)) is not own:
            if (known := found()) is not None:
                return known
            with self._lock:
                if self._found.get(key) is found:
                    del self._found[key]
        if len(self._found) > self._limit:
            self._sweep()
        return made

    def _sweep(self) -> None:
        with self._lock:
            if len(self._found) > self._limit:
                keys = list(self._found)
                while keys:  # whole before parts: the key of one that is gone holds its parts
                    key = keys.pop()
                    found = self._found.get(key)
                    if found is not None and found() is None:
                        del self._found[key]
                self._limit = max(_SWEPT, 2 * len(self._found))


def _told(value: bool | int | float) -> object:
    # A size is that of one compilation, also where it was read from a file of another process.
    return (id(value.sizes), value.key) if isinstance(value, Size) else repr(value)


_KNOWN = _Known()
_known, _set = _KNOWN.get, object.__setattr__


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Const:
    """A number: a bool, an int (exact) or a float (NaN and infinities included)."""

    value: bool | int | float

    def __new__(cls, value: bool | int | float) -> "Const":
        # 1, 1.0 and True, 0.0 and -0.0 are different constants; NaN equals itself.
        key: Key = value if type(value) is int else (type(value).__name__, _told(value))
        made: Const | None = _known(key)
        if made is None:
            made = object.__new__(cls)
            _set(made, "value", value)
            made = _KNOWN.add(key, made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Const, (self.value,)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Sym:
    """A name: a loop of the formula at hand, a named size, or an attribute before binding."""

    name: str

    def __new__(cls, name: str) -> "Sym":
        made: Sym | None = _known(name)
        if made is None:
            made = object.__new__(cls)
            _set(made, "name", name)
            made = _KNOWN.add(name, made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Sym, (self.name,)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Call:
    """A function of `scalar.FUNCTIONS` applied to its arguments."""

    fn: str
    args: tuple["Expr", ...]

    def __new__(cls, fn: str, args: tuple["Expr", ...]) -> "Call":
        key = (fn, args)
        made: Call | None = _known(key)
        if made is None:
            made = object.__new__(cls)
            _set(made, "fn", fn)
            _set(made, "args", args)
            made = _KNOWN.add(key, made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.fn, self.args)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Read:
    """One element of a tensor.

    A direct read outside the tensor makes the whole term absent, unless `default` says what is read
    instead.  An index that itself contains a read is indirect: out of range it raises IndexError.
    """

    tensor: str
    index: tuple["Expr", ...]
    default: "Expr | None" = None

    def __new__(
        cls, tensor: str, index: tuple["Expr", ...], default: "Expr | None" = None
    ) -> "Read":
        key = (tensor, index, default)
        made: Read | None = _known(key)
        if made is None:
            made = object.__new__(cls)
            _set(made, "tensor", tensor)
            _set(made, "index", index)
            _set(made, "default", default)
            made = _KNOWN.add(key, made)
        return made

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
    if isinstance(expr, Sym):
        return bindings.get(expr.name, expr)
    found = tuple([(name, bindings[name]) for name in names(expr) if name in bindings])
    return _substituted(expr, found) if found else expr


@lru_cache(KEPT)
def _substituted(expr: Expr, found: tuple[tuple[str, Expr], ...]) -> Expr:
    return _replaced(expr, dict(found))


def _replaced(expr: Expr, bindings: Mapping[str, Expr]) -> Expr:
    if isinstance(expr, Sym):
        return bindings.get(expr.name, expr)
    if names(expr).isdisjoint(bindings):
        return expr
    return rebuild(expr, tuple([_replaced(part, bindings) for part in children(expr)]))


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
