"""What a plan is made of: statements over the kernel's loops, and their state while being planned.

The idea: a statement's own loops are bound to expressions over the kernel's loops, so that giving
two loops one name, splitting a loop and merging two are all the same act: a substitution.

This module does not decide anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.base import algebra
from tilewright.base.expr import KEPT, Expr, Read, Sym, children, names, substitute
from tilewright.graph.ir import Formula
from tilewright.kernels.body import (
    Body,
    is_pointwise,
)
from tilewright.kernels.expression import bound_to

Binding = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A formula that is computed into memory or a row's variable.

    bind: what each of its loops is, over the loops of the kernel.
    """

    name: str
    formula: Formula
    bind: Binding

    def loops(self) -> tuple[str, ...]:
        """Return the kernel's loops that the statement runs over, outermost first."""
        found = [name for _, expr in self.bind for name in _in_order(expr)]
        return tuple(dict.fromkeys(found))

    def parallel(self) -> tuple[str, ...]:
        """Return the kernel's loops that its target names."""
        bind = dict(self.bind)
        targets = [entry.name for entry in self.formula.index if isinstance(entry, Sym)]
        return tuple(dict.fromkeys(n for name in targets for n in _in_order(bind[name])))

    def bound(self, expr: Expr) -> Expr:
        """Return an expression of the formula over the kernel's loops."""
        return substitute(expr, dict(self.bind))

    def renamed(self, mapping: Mapping[str, Expr], extents: Mapping[str, int]) -> "Statement":
        """Put expressions in the place of some of the kernel's loops."""
        bind = tuple(
            (name, algebra.simplify(substitute(expr, mapping), extents)) for name, expr in self.bind
        )
        return replace(self, bind=bind)

    @property
    def is_reduction(self) -> bool:
        return not is_pointwise(self.formula)


@lru_cache(KEPT)
def _in_order(expr: Expr) -> tuple[str, ...]:
    """Return the loops of an index, those with the larger steps first."""
    _, terms = algebra.affine(expr)
    ordered = sorted(terms.items(), key=lambda item: -abs(item[1]))
    return tuple(name for atom, _ in ordered for name in sorted(names(atom)))


class State:
    """The statements while their loops are brought together.  Mutable; `copy` before a try."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.statements: dict[str, Statement] = {}
        self.extents: dict[str, int] = {}
        self.count = 0
        self._reads: dict[str, tuple[Binding, list[Read]]] = {}
        self._simple: dict[Expr, Expr] = {}
        self._made: dict[str, tuple[Formula | None, bool]] = {}

    def copy(self) -> "State":
        """Return a state that can change without this one."""
        made = State(self.body)
        made.become(self)
        made._made = self._made  # of the body alone
        return made

    def simplify(self, expr: Expr) -> Expr:
        """Bring an index to its normal form."""
        found = self._simple.get(expr)
        if found is None:
            found = self._simple[expr] = algebra.simplify(expr, self.extents)
        return found

    def become(self, other: "State") -> None:
        """Take over what a try has come to."""
        self.statements, self.extents = dict(other.statements), dict(other.extents)
        self.count = other.count
        self._reads, self._simple = dict(other._reads), dict(other._simple)

    def substitute(self, mapping: Mapping[str, Expr]) -> None:
        """Put expressions in the place of loops, in all statements."""
        for name, statement in self.statements.items():
            if any(loop in mapping for loop in statement.loops()):
                self.statements[name] = statement.renamed(mapping, self.extents)

    def fresh(self, extent: int) -> str:
        """Return a new loop."""
        name = f"l{self.count}"
        self.count += 1
        self.extents[name] = extent
        return name

    def made(self, name: str) -> tuple[Formula | None, bool]:
        """Return the formula that makes a value, None for an input; whether it may be computed
        where it is read."""
        known = self._made.get(name)
        if known is None:
            formula = self.body.formula(name)
            known = self._made[name] = formula, formula is not None and is_pointwise(formula)
        return known

    def reads(self, statement: Statement) -> list[Read]:
        """Return all reads of memory and of statements, computed values looked through."""
        return [read for read in self.all_reads(statement) if not read.tensor.startswith("@")]

    def all_reads(self, statement: Statement) -> list[Read]:
        """Return those reads, and as reads of `@name` the places that values are computed at."""
        cached = self._reads.get(statement.name)
        if cached is not None and cached[0] == statement.bind:
            return cached[1]
        found: dict[Read, None] = {}
        formula = statement.formula
        parts: list[Expr | None] = [formula.value, formula.where, formula.at, formula.fill]
        if isinstance(formula.fill, Read):
            parts[3] = Read(formula.fill.tensor, formula.index)
        for part in parts:
            if part is not None:
                self._collect(statement.bound(part), found)
        self._reads[statement.name] = (statement.bind, list(found))
        return list(found)

    def _collect(self, expr: Expr, found: dict[Read, None]) -> None:
        waiting = [expr]  # not by recursion: chains of values may be long
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            if not isinstance(node, Read):
                continue
            index = tuple(self.simplify(entry) for entry in node.index)
            mark = Read("@" + node.tensor, index)
            if mark in found:
                continue
            found[mark] = None
            formula, pointwise = self.made(node.tensor)
            if formula is None or node.tensor in self.statements:
                found[Read(node.tensor, index)] = None
            if formula is not None and pointwise:
                waiting += [part for part in bound_to(formula, index) if part is not None]
