"""Compute a value again where it is read, if that moves fewer bytes than keeping it.

The idea: a result of a region that others read is written once and read by each; if its formula is
cheap and what it reads is read there anyway, or is no larger, the formula moves to its readers::

    region A writes x, n = (x - m) * r;  region B reads x, n     -->     A writes x, m, r
                                                                         B reads x, m, r

This module does not know how regions came about.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.base.expr import Expr, Read, reads
from tilewright.base.sizes import nominal
from tilewright.graph.compose import rename_operands
from tilewright.graph.ir import Formula
from tilewright.graph.total import extents_of, flops
from tilewright.graph.views import bytes_of, size_of
from tilewright.optimize.merge import Group, Merger
from tilewright.optimize.plan import bytes_read, show_bytes

LANDING_FLOPS = 4
"""Operations of a value that is computed where an index says that it lands, at most."""


@dataclass(frozen=True, slots=True)
class Again:
    """How a value is computed again.  cone: its formulas, in order.  leaves: what they read."""

    cone: tuple[str, ...]
    leaves: tuple[str, ...]
    flops: int


@dataclass(slots=True)
class _Reader:
    """What one region computes again.  Mutable while fusion is planned: formulas as they become."""

    formulas: dict[str, Formula]
    again: dict[str, str]


class Recomputing:
    """Decides what is computed again.  Mutable: it owns the regions' formulas from here on."""

    def __init__(self, merger: Merger, *, balance: float) -> None:
        self.merger = merger
        self.balance = balance
        self.types = dict(merger.types)
        self.readers = {
            at: _Reader({name: merger.formulas[name] for name in group.formulas}, {})
            for at, group in merger.group.items()
        }
        self.reasons: dict[int, list[str]] = {at: [] for at in merger.group}
        self.home = {name: at for at, group in merger.group.items() for name in group.formulas}
        self._readers: dict[str, set[int]] = {}
        for at, reader in self.readers.items():
            for formula in reader.formulas.values():
                self._note(formula, at)

    def run(self) -> None:
        """Look at the values that cross regions, the largest first."""
        crossing = [name for name in self.home if self.readers_of(name)]
        for name in sorted(crossing, key=lambda n: (-bytes_of(self.types[n]), self._place(n))):
            self._consider(name)

    def outputs(self, at: int) -> list[str]:
        """Return the values that a region must write."""
        return [name for name in self.merger.group[at].formulas if self._is_needed(name)]

    def readers_of(self, name: str) -> list[int]:
        """Return the regions that read a value from memory."""
        return sorted(self._readers.get(name, set()) - {self.home[name]})

    def _note(self, formula: Formula, at: int) -> None:
        for operand in formula.operands:
            self._readers.setdefault(operand, set()).add(at)

    def _place(self, name: str) -> int:
        return self.merger.position[name]

    def _is_fixed(self, name: str) -> bool:
        """Say whether a value is written whatever regions do: a result, or for a node outside."""
        if name in self.merger.results:
            return True
        users = self.merger.users.get(name, ())
        return any(self.merger.groups.group_of[user] not in self.merger.group for user in users)

    def _is_needed(self, name: str) -> bool:
        return self._is_fixed(name) or bool(self.readers_of(name))

    def _consider(self, name: str) -> None:
        home = self.home[name]
        made = self._recipe(name)
        targets = self.readers_of(name)
        if made is None or not targets:
            return
        gains = {at: self._gain(name, made, at) for at in targets}
        written = [leaf for leaf in made.leaves if self._is_written_for(leaf, home)]
        price = sum(bytes_of(self.types[leaf]) for leaf in written)
        if not self._is_fixed(name):
            total = sum(gains.values()) + bytes_of(self.types[name]) - price
            total += self._freed(name, made)
            if total > 0 and all(gain > -float("inf") for gain in gains.values()):
                for at in targets:
                    self._move(name, made, at, total)
            return
        for at, gain in gains.items():
            if gain - price > 0:
                self._move(name, made, at, gain - price)
                price = 0

    def _recipe(self, name: str) -> Again | None:
        """Return the formulas between a value and what is in memory; None for a reduction."""
        home = self.home[name]
        own = self.merger.formulas
        cone: list[str] = []
        leaves: dict[str, None] = {}
        stack = [name]
        while stack:
            at = stack.pop()
            if own[at].op != "=" or self.merger.group[home].kind == "alone":
                return None
            cone.append(at)
            for operand in own[at].operands:
                inner = self.home.get(operand) == home and own[operand].op == "="
                if inner and not self._is_needed(operand):
                    if operand not in cone and operand not in stack:
                        stack.append(operand)
                else:
                    leaves[operand] = None
        cone.sort(key=self._place)
        work = sum(flops(own[part].value) for part in cone)
        return Again(tuple(cone), tuple(leaves), work)

    def _is_written_for(self, leaf: str, home: int) -> bool:
        return self.home.get(leaf) == home and not self._is_needed(leaf)

    def _gain(self, name: str, made: Again, at: int) -> float:
        """Return the bytes that a region moves less (or the like of operations)."""
        group, reader = self.merger.group[at], self.readers[at]
        never = -float("inf")
        if group.kind == "alone" and not self._may_land(made, group):
            return never
        users = [f for f in reader.formulas.values() if name in f.operands]
        points = sum(self._points(formula, name) for formula in users)
        times = sum(self._points(f, name) * _places(f, name) for f in users)
        if points > 2 * nominal(size_of(self.types[name])) * len(users):
            return never
        before = bytes_read(reader.formulas.values(), self.types)
        there = set(before) | set(reader.formulas)
        touched = bytes_read((self.merger.formulas[part] for part in made.cone), self.types)
        fresh = [leaf for leaf in made.leaves if leaf not in there]
        if len(there) + len(fresh) > self.merger.limits.tensors + len(reader.formulas):
            return never
        read = sum(touched[leaf] for leaf in fresh)
        return before[name] - read - made.flops * times / self.balance

    def _may_land(self, made: Again, group: Group) -> bool:
        """Say whether a value may be computed where its terms land: they replace, add or are
        compared, what it costs is little, which threads may not share, and what they are written
        over is not what it is made of."""
        over = {self.merger.updated.get(result) for result in group.formulas}
        lands = all(_meets_terms(self.merger.formulas[result]) for result in group.formulas)
        return lands and made.flops <= LANDING_FLOPS and over.isdisjoint(made.leaves)

    def _freed(self, name: str, made: Again) -> float:
        """Return the bytes (and the like of operations) that a region made for a value alone moves.

        Where all its readers compute the value themselves, they are no more; unless it is made of
        what the region still has to reduce.
        """
        home = self.home[name]
        if self.outputs(home) != [name] or any(self.home.get(leaf) == home for leaf in made.leaves):
            return 0
        read = sum(bytes_read(self.readers[home].formulas.values(), self.types).values())
        return read + made.flops * nominal(size_of(self.types[name])) / self.balance

    def _points(self, formula: Formula, name: str) -> int:
        """Return how often a formula computes a value that it reads."""
        if name not in {read.tensor for part in _terms(formula) for read in reads(part)}:
            return nominal(size_of(formula.type))  # what terms land on is filled once
        result = 1
        for extent in extents_of(formula).values():
            result *= extent
        return nominal(result)

    def _move(self, name: str, made: Again, at: int, gain: float) -> None:
        """Let a region compute a value itself."""
        reader = self.readers[at]
        renamed: dict[str, str] = {}
        fresh: dict[str, Formula] = {}
        for part in made.cone:
            if part in reader.again:
                renamed[part] = reader.again[part]
                continue
            again = f"{part}_again"
            while again in self.types:
                again += "_"
            formula = rename_operands(self.merger.formulas[part], renamed)
            renamed[part] = again
            self.types[again] = formula.type
            reader.again[part] = again
            fresh[again] = formula
        here = {name: renamed[name]}
        users = {key: rename_operands(f, here) for key, f in reader.formulas.items()}
        reader.formulas = {**fresh, **users}
        self._readers[name].discard(at)
        for formula in fresh.values():
            self._note(formula, at)
        saved = show_bytes(int(gain))
        self.reasons[at].append(f"{name} is computed again: saves {saved}")


def _meets_terms(formula: Formula) -> bool:
    """Say whether terms meet what they land on at once, so that what they are made of may stand
    there: a result that must know whether any came is made by plain loops."""
    if formula.op in ("max=", "min="):
        return isinstance(formula.fill, Read)
    return formula.op in ("=", "+=")


def _places(formula: Formula, name: str) -> int:
    """Return at how many places a formula reads a value for one element."""
    found = {read for part in _terms(formula) for read in reads(part)}
    return max(1, len({read.index for read in found if read.tensor == name}))


def kept_formulas(formulas: dict[str, Formula], outputs: Iterable[str]) -> dict[str, Formula]:
    """Return the formulas that some of them need, in an order in which they can be computed."""
    live = set(outputs)
    order = _ordered(formulas)
    for name in reversed(order):
        if name in live:
            live.update(formulas[name].operands)
    return {name: formulas[name] for name in order if name in live}


def _ordered(formulas: dict[str, Formula]) -> list[str]:
    """Return names so that each comes after its operands, otherwise as they stand."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        for operand in formulas[name].operands:
            if operand in formulas:
                visit(operand)
        done[name] = None

    for name in formulas:
        visit(name)
    return list(done)


def _terms(formula: Formula) -> list[Expr]:
    """Return what is read for each term."""
    parts = (formula.value, formula.where, formula.at, *formula.index)
    return [part for part in parts if part is not None]
