"""The loop IR: one region of a kernel as loops, from the plain ones to those that are printed as C.

The idea: the formulas of the body are the statements, and a nest says in what order their terms are
computed: `v0(i, j)` is the term of formula v0 at one choice of its loops.  Cutting, fusing and
reordering loops changes the lines around a statement, never the statement, so that what a nest
computes is seen beside how.

Grammar
-------
::

    nest   = body item*                                the items run one after another
    item   = Loop(name, low, high, items, kind, step)  for r0 in 0..48: ...
           | Let(name, value)                          let r0 = u // 64
           | Do(formula, loops)                        v0(r0, c0)

    kind   = "serial"       one iteration after another
           | "parallel"     iterations in any order, shared by threads
           | "lanes"        iterations side by side, in the lanes of vectors

`low`, `high`, `value` and `loops` are expressions (`base/expr`) over the loops that are open and
the indices that are defined; a loop runs from `low` to before `high`.  No name is open twice, and
loops of one name are one loop in several places.

A formula that no item computes is computed where it is read.  `loops_text` prints and parses a
nest, `loops_check` judges one, `schedule` rewrites one, `loops_c` prints one as C.

This module does not know why a nest is cut as it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr
from tilewright.base.sizes import larger, least_of, same
from tilewright.kernels.body import Body
from tilewright.kernels.regions import Region
from tilewright.kernels.statement import Statement

Kind = Literal["serial", "parallel", "lanes"]


@dataclass(frozen=True, slots=True)
class Let:
    """An index under a name, for the items after it."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Do:
    """One term of a formula: what each of the formula's loops is, in their order."""

    formula: str
    loops: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The items for `name` from `low` to before `high`, `step` apart."""

    name: str
    low: Expr
    high: Expr
    items: "tuple[Item, ...]"
    kind: Kind = "serial"
    step: int = 1


Item = Loop | Let | Do


@dataclass(frozen=True, slots=True)
class LoopNest:
    """What is computed, and in what order."""

    body: Body
    items: tuple[Item, ...]

    def statement(self, do: Do) -> Statement:
        """Return the formula of an item with its loops bound."""
        formula = self.body.formula(do.formula)
        assert formula is not None, f"{do.formula} is an input: nothing computes it"
        names = (loop.name for loop in formula.loops)
        return Statement(do.formula, formula, tuple(zip(names, do.loops, strict=True)))


def canonical_nest(body: Body, region: Region) -> LoopNest:
    """Return a region's plain loops: each statement in its own, rows outside of columns."""
    extents = dict(region.extents)
    items: list[Item] = []
    for statement in region.statements:
        item: Item = Do(statement.name, tuple(expr for _, expr in statement.bind))
        own = statement.loops()
        for name in reversed((*region.rows, *region.columns)):
            if name in own:
                item = Loop(name, Const(0), Const(extents[name]), (item,))
        items.append(item)
    return LoopNest(body, tuple(items))


def walk(items: Iterable[Item]) -> Iterator[Item]:
    """Yield all items, each before what is inside it."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from walk(item.items)


def named(nest: LoopNest, name: str) -> list[Loop]:
    """Return the loops of that name."""
    return [item for item in walk(nest.items) if isinstance(item, Loop) and item.name == name]


def parts(bound: Expr, fn: str) -> tuple[Expr, ...]:
    """Return what a bound is the `fn`, `min` or `max`, of; else itself."""
    return bound.args if isinstance(bound, Call) and bound.fn == fn else (bound,)


def ranges(items: Iterable[Item]) -> dict[str, int]:
    """Return for every name the number that its values are proved to be below, none negative.

    A name of which that cannot be proved is left out.
    """
    found: dict[str, int] = {}
    known: tuple[int, int] | None
    for item in walk(items):
        match item:
            case Loop(name, low, high, _, _, step):
                first, last = algebra.bounds(low, found), algebra.bounds(high, found)
                if first is None or last is None:
                    continue
                known = first[0], last[1] - 1
                if same(*first):
                    known = first[0], first[0] + (last[1] - 1 - first[0]) // step * step
            case Let(name, value):
                known = algebra.bounds(value, found)
            case Do():
                continue
        if known is not None and least_of(known[0]) >= 0:
            before = found.get(name, known[1] + 1)
            after = known[1] + 1
            found[name] = before if same(before, after) else larger(before, after)
    return found
