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
           | Do(formula, loops, into, slot)            v0(r0, c0), or v0(r0, c0) into s0[l]
           | Do(formula, loops, streamed=True)         stream v0(r0, c0)
           | Sums(name, formula, length, dtype)        sums s0[32]: f64 of v0
           | Merge(sums, into)                         merge t0 into s0
           | Fold(formula, index, sums, slot)          v0[r0] from s0, or v0[r0] from s0[r0 - m]
           | Buffer(name, formula, length)             buffer k0[1000] of v2
           | Keep(read, buffer, place)                 keep v2[r0, c0] in k0[c0]
           | Fetch(element, cache)                     fetch a0[r0 + 1, b0 + 16] into cache 2

    kind   = "serial"       one iteration after another
           | "parallel"     iterations in any order, shared by threads
           | "lanes"        iterations side by side, in the lanes of vectors

`low`, `high`, `value` and `loops` are expressions (`base/expr`) over the loops that are open and
the indices that are defined; a loop runs from `low` to before `high`.  No name is open twice, and
loops of one name are one loop in several places.

Terms of a reduction go into accumulators, `Sums`, each of which begins at what a sum begins from;
`Merge` takes each of them into one of others, that may be of a wider type; `Fold` makes the result
of all, pairwise (of equal terms of `argmax=` that with the least index), or of one. A formula that
no item computes is computed where it is read, but where a loop before has kept it. `Fetch` computes
nothing: it asks for memory that will be touched soon, and may name what lies beyond a tensor. What
is streamed is written past the caches: nothing here reads it again, and lanes write runs of it that
begin with lines of memory. `loops_text` prints and parses a nest, `loops_check` judges one,
`schedule` rewrites one, `loops_c` prints one as C.

This module does not know why a nest is cut as it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from tilewright.base import algebra
from tilewright.base.dtypes import DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute
from tilewright.base.sizes import larger, least_of, same
from tilewright.kernels.body import Body
from tilewright.kernels.reduce import BEST
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
    """One term of a formula: what each of the formula's loops is, in their order.

    into, slot: of a reduction, the accumulators and which of them; "" before there are any.
    streamed: whether a result is written past the caches.
    """

    formula: str
    loops: tuple[Expr, ...]
    into: str = ""
    slot: Expr = Const(0)
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Sums:
    """Accumulators of a reduction, of that type, for the items after them."""

    name: str
    formula: str
    length: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Merge:
    """All accumulators of a block of terms, each taken into the one of as many at its place."""

    sums: str
    into: str


@dataclass(frozen=True, slots=True)
class Fold:
    """The result of a reduction at one index: of all accumulators (slot None), or of one."""

    formula: str
    index: tuple[Expr, ...]
    sums: str
    slot: Expr | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory near, for values of a formula, or elements of an input, in later loops."""

    name: str
    formula: str
    length: int


@dataclass(frozen=True, slots=True)
class Keep:
    """From here on a value is not computed again: it is read from a buffer, or, where that is "",
    from the result that it was just stored to."""

    read: Read
    buffer: str = ""
    place: Expr = Const(0)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A wish that the line of memory with this element be near: to be read, or written where it is
    a result.  cache: 1, the nearest, or 2 where it is to come no nearer than the second."""

    element: Read
    cache: int = 1


@dataclass(frozen=True, slots=True)
class Loop:
    """The items for `name` from `low` to before `high`, `step` apart."""

    name: str
    low: Expr
    high: Expr
    items: "tuple[Item, ...]"
    kind: Kind = "serial"
    step: int = 1


Item = Loop | Let | Do | Sums | Merge | Fold | Buffer | Keep | Fetch


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
    """Return a region's plain loops: each statement in its own, rows outside of columns.

    They stand in phases: what reads no reduction, what reads reductions of that, and so on.
    """
    extents = dict(region.extents)
    items: list[Item] = []
    for statement in (each for group in phases(region) for each in group):
        item: Item = Do(statement.name, tuple(expr for _, expr in statement.bind))
        own = statement.loops()
        for name in reversed((*region.rows, *region.columns)):
            if name in own:
                item = Loop(name, Const(0), Const(extents[name]), (item,))
        items.append(item)
    return LoopNest(body, tuple(items))


def phases(region: Region) -> list[list[Statement]]:
    """Return the statements in groups that can share their loops, each after what it reads;
    `argmax=` shares with none."""
    groups: dict[tuple[object, ...], list[Statement]] = {}
    for statement, depth in zip(region.statements, region.depths, strict=True):
        columns = columns_of(region, statement)
        alone = statement.name if statement.formula.op in BEST else ""
        groups.setdefault((depth, bool(columns), columns, alone), []).append(statement)
    return [group for _, group in sorted(groups.items(), key=lambda item: item[0][:2])]


def columns_of(region: Region, statement: Statement) -> tuple[str, ...]:
    """Return the columns that a statement runs over, in the region's order."""
    own = statement.loops()
    return tuple(loop for loop in region.columns if loop in own)


def walk(items: Iterable[Item]) -> Iterator[Item]:
    """Yield all items, each before what is inside it."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from walk(item.items)


def named(nest: LoopNest, name: str) -> list[Loop]:
    """Return the loops of that name."""
    return [item for item in walk(nest.items) if isinstance(item, Loop) and item.name == name]


def used_names(item: Item) -> frozenset[str]:
    """Return the indices that an item uses itself, not what is inside of it."""
    exprs: tuple[Expr, ...]
    match item:
        case Loop(_, low, high):
            exprs = low, high
        case Let(_, value):
            exprs = (value,)
        case Do(_, loops, _, slot):
            exprs = *loops, slot
        case Fold(_, index, _, slot):
            exprs = index if slot is None else (*index, slot)
        case Keep(read, _, place):
            exprs = *read.index, place
        case Fetch(element):
            exprs = element.index
        case _:
            exprs = ()
    return frozenset(name for expr in exprs for name in names(expr))


def parts(bound: Expr, fn: str) -> tuple[Expr, ...]:
    """Return what a bound is the `fn`, `min` or `max`, of; else itself."""
    if isinstance(bound, Call) and bound.fn == fn:
        return tuple(part for arg in bound.args for part in parts(arg, fn))
    return (bound,)


def ranges(items: Iterable[Item]) -> dict[str, int]:
    """Return for every name the number that its values are proved to be below, none negative.

    A name of which that cannot be proved, be it in one of several places, is left out.
    """
    found: dict[str, int] = {}
    lost: set[str] = set()
    _note_ranges(items, {}, found, lost)
    return {name: below for name, below in found.items() if name not in lost}


def _note_ranges(
    items: Iterable[Item], around: Mapping[str, int], found: dict[str, int], lost: set[str]
) -> None:
    """Note the ranges of names where each stands: loops of one name may have several."""
    here = dict(around)
    for item in items:
        if not isinstance(item, Loop | Let):
            continue
        known = _limits(item, here) if used_names(item) <= here.keys() else None
        if known is not None and least_of(known[0]) >= 0:
            here[item.name] = after = known[1] + 1
            before = found.get(item.name, after)
            found[item.name] = before if same(before, after) else larger(before, after)
        else:
            lost.add(item.name)
            here.pop(item.name, None)
        if isinstance(item, Loop):
            _note_ranges(item.items, here, found, lost)


def _limits(item: Loop | Let, known: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the least and the greatest value of a name, or None where nothing is known."""
    if isinstance(item, Let):
        return algebra.bounds(item.value, known)
    first, last = algebra.bounds(item.low, known), algebra.bounds(item.high, known)
    if first is None or last is None:
        return None
    low, high = first[0], last[1] - 1
    if same(*first) and type(low) is type(high) is int:  # a whole number of steps on
        high = low + (high - low) // item.step * item.step
    # As many steps on from wherever it begins, which may be less than its bound says.
    match algebra.simplify(Call("sub", (item.high, item.low)), known):
        case Const(int(length)) if type(length) is type(first[1]) is type(high) is int:
            high = min(high, first[1] + (length - 1) // item.step * item.step)
    return low, high


def fits(place: Expr, length: int, path: Sequence[Loop | Let], known: Mapping[str, int]) -> bool:
    """Say whether a place is proved to lie below a length, none negative, be it for what the bounds
    of the loops around it have to do with each other.

    path: the loops and definitions around it, outermost first.
    """
    lows, highs = {place}, {place}
    hidden = {item.name for item in path}.difference(known)  # these may be negative
    for item in reversed(path):
        lows |= {end for low in lows for end in _ends(low, item, "max", known, hidden)}
        highs |= {end for high in highs for end in _ends(high, item, "min", known, hidden)}
    limits = [
        [algebra.bounds(algebra.simplify(e, known), known) for e in es if not hidden & names(e)]
        for es in (lows, highs)
    ]
    return any(limit and least_of(limit[0]) >= 0 for limit in limits[0]) and any(
        limit and least_of(length - limit[1]) > 0 for limit in limits[1]
    )


def _ends(
    place: Expr, item: Loop | Let, fn: str, known: Mapping[str, int], hidden: Set[str]
) -> set[Expr]:
    """Return what a place that depends on a name is at least (`fn` max), or at most (min), by the
    name's bounds: a place that falls as the name grows is least at the name's last value.

    hidden: names of which nothing is known.
    """
    if item.name not in names(place):
        return set()
    if isinstance(item, Let):
        return {substitute(place, {item.name: item.value})}
    if hidden & names(place):
        return set()
    flat = algebra.simplify(place, known)  # an end may lie beyond where this is the same
    steps = algebra.affine(flat)[1]
    step = steps.get(Sym(item.name), 0)
    inside = any(item.name in names(atom) for atom in steps if atom != Sym(item.name))
    if inside or type(step) is not int or step == 0:
        return set()
    if (step > 0) is (fn == "max"):
        ends = parts(item.low, "max")
    else:
        ends = tuple(Call("sub", (part, Const(1))) for part in parts(item.high, "min"))
    return {substitute(flat, {item.name: end}) for end in ends}
