"""Merge formulas into regions, the merge that saves most bytes first.

The idea: a region moves every tensor it reads and every result that others need once; making one
of two regions saves what the one wrote for the other, and what both read.  A merge must be legal:
one space (`space`), no circle (`groups`), and a shape that a kernel runs well.

This module does not know how a region becomes a node, nor what is computed twice.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.base import algebra
from tilewright.base.expr import Sym
from tilewright.base.sizes import nominal
from tilewright.graph.ir import Formula, Graph
from tilewright.graph.running import running
from tilewright.graph.total import Types, fixed
from tilewright.graph.views import address_of, bytes_of, contiguous, is_pointwise, reads_own
from tilewright.optimize.groups import Groups
from tilewright.optimize.plan import bytes_read, show_bytes
from tilewright.optimize.space import Space, join, space_of
from tilewright.optimize.split_reductions import runs_down_columns


@dataclass(frozen=True, slots=True)
class Limits:
    """What a kernel should not exceed, and what is worth looking at.

    rows: rows below which a kernel has too little to share among threads, if it has more than
    `points` iterations.  shared: bytes of a common input from which merging is tried for it.  tiny:
    iterations up to which pointwise kernels are put in one, whatever they run over.
    """

    nodes: int = 64
    tensors: int = 32
    rows: int = 8
    points: int = 1 << 15
    shared: int = 4096
    tiny: int = 64


@dataclass(frozen=True, slots=True)
class Group:
    """A region in the making.  reads: bytes of every tensor that its formulas read."""

    space: Space
    kind: str
    formulas: tuple[str, ...]
    reads: tuple[tuple[str, int], ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A merge to try; the one that saves most comes first, then the one that stands first."""

    rank: tuple[float, int, int]
    saved: int
    one: Group
    other: Group

    def __lt__(self, other: "_Entry") -> bool:
        return self.rank < other.rank


def _worth(saved: int, one: Group, other: Group) -> float:
    """Return what is saved; less where formulas go from rows in memory to kernels across it."""
    across = one.kind != other.kind and "columns" in (one.kind, other.kind)
    return saved / 2 if across else saved


class Merger:
    """The state of merging.  Mutable: it is owned by `plan_fusion`."""

    def __init__(
        self, graph: Graph, formulas: dict[str, Formula], types: Types, limits: Limits
    ) -> None:
        self.graph, self.formulas, self.types, self.limits = graph, formulas, types, limits
        self.groups = Groups(graph)
        self.position = {v.name: at for at, node in enumerate(graph.nodes) for v in node.outputs}
        self.users: dict[str, list[int]] = {}
        for at, node in enumerate(graph.nodes):
            name = node.outputs[0].name if node.outputs else ""
            operands = formulas[name].operands if name in formulas else _names(node.inputs)
            for operand in dict.fromkeys(operands):
                self.users.setdefault(operand, []).append(at)
        self.results = {value.name for value in graph.outputs}
        self.updated = {graph.outputs[at].name: name for name, at in graph.updates}
        self.group: dict[int, Group] = {}
        for name, formula in formulas.items():
            self.group[self.position[name]] = _single(name, formula, types)
        self._refused: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
        self._costs: dict[int, tuple[Group, int]] = {}

    def run(self) -> None:
        """Merge until no merge that saves bytes is legal."""
        heap: list[_Entry] = []
        for at in list(self.group):
            self._push(heap, at, self._below(at))
        while heap:
            entry = heapq.heappop(heap)
            (_, a, b), one, other = entry.rank, entry.one, entry.other
            if self.group.get(a) is not one or self.group.get(b) is not other:
                continue
            if self.groups.closes_circle(a, b):
                continue
            made = self._merged(a, b, entry.saved)
            if isinstance(made, str):
                self._note(a, b, made, entry.saved)
                continue
            self.groups.merge(a, b)
            del self.group[b]
            self.group[a] = made
            self._push(heap, a, self._around(a))

    def gather_tiny(self) -> None:
        """Put tiny pointwise groups in one kernel, as far as none waits for what comes between."""
        leaders: list[int] = []
        for at in sorted(self.group):
            group = self.group[at]
            if group.kind != "pointwise" or group.space.size(group.space.digits) > self.limits.tiny:
                continue
            for leader in leaders:
                formulas = self.group[leader].formulas + group.formulas
                touched = _both(self.group[leader].reads, group.reads)
                fits = not self._too_large(formulas, touched)
                if fits and not self.groups.closes_circle(leader, at):
                    self.groups.merge(leader, at)
                    del self.group[at]
                    ordered = tuple(sorted(formulas, key=lambda name: self.position[name]))
                    why = f"{group.formulas[-1]} is tiny and needs no kernel of its own"
                    reasons = (*self.group[leader].reasons, why)
                    self.group[leader] = replace(
                        self.group[leader], formulas=ordered, reads=touched, reasons=reasons
                    )
                    break
            else:
                leaders.append(at)

    # Who could merge with whom.

    def _push(self, heap: list[_Entry], at: int, others: Iterable[int]) -> None:
        for other in others:
            saved = self._saving(at, other)
            if saved > 0:
                a, b = min(at, other), max(at, other)
                one, two = self.group[a], self.group[b]
                rank = (-_worth(saved, one, two), a, b)
                heapq.heappush(heap, _Entry(rank, saved, one, two))

    def _below(self, at: int) -> set[int]:
        """Return the groups that use what a group makes, and later ones that read what it reads."""
        found: set[int] = set()
        for name in self.group[at].formulas:
            found.update(self.groups.group_of[user] for user in self.users.get(name, ()))
        found |= {other for other in self._readers(at) if other > at}
        return {other for other in found if other in self.group and other != at}

    def _around(self, at: int) -> set[int]:
        made = {
            self.groups.group_of[self.position[name]]
            for name, _ in self.group[at].reads
            if name in self.position
        }
        found = self._below(at) | made | self._readers(at)
        return {other for other in found if other in self.group and other != at}

    def _readers(self, at: int) -> set[int]:
        return {
            self.groups.group_of[user]
            for name, size in self.group[at].reads
            if size >= self.limits.shared
            for user in self.users[name]
        }

    # What a merge saves, and what it makes.

    def outputs(self, formulas: Iterable[str], inside: set[int]) -> list[str]:
        """Return the values that something outside some groups needs."""
        return [
            name
            for name in formulas
            if name in self.results
            or any(self.groups.group_of[user] not in inside for user in self.users.get(name, ()))
        ]

    def cost(self, group: Group, inside: set[int]) -> int:
        """Return the bytes that a group moves."""
        own = set(group.formulas)
        total = sum(size for name, size in group.reads if name not in own)
        written = self.outputs(group.formulas, inside)
        return total + sum(bytes_of(self.types[name]) for name in written)

    def _saving(self, a: int, b: int) -> int:
        one, other = self.group[a], self.group[b]
        together = Group(
            one.space, "", one.formulas + other.formulas, _both(one.reads, other.reads)
        )
        return self._alone(a) + self._alone(b) - self.cost(together, {a, b})

    def _alone(self, at: int) -> int:
        """Return the bytes that a group moves by itself: the same as long as it is not merged."""
        group = self.group[at]
        known = self._costs.get(at)
        if known is None or known[0] is not group:
            known = self._costs[at] = group, self.cost(group, {at})
        return known[1]

    def _merged(self, a: int, b: int, saved: int) -> Group | str:
        one, other = self.group[a], self.group[b]
        formulas = tuple(
            sorted((*one.formulas, *other.formulas), key=lambda name: self.position[name])
        )
        touched = _both(one.reads, other.reads)
        problem = self._too_large(formulas, touched)
        if problem:
            return problem
        problem = self._overwrites(formulas)
        if problem:
            return problem
        if "alone" in (one.kind, other.kind):
            return "an index that is read says where it lands"
        if "running" in (one.kind, other.kind):
            return "running results are made in a pass of their own"
        kinds = {one.kind, other.kind} - {"pointwise"}
        if len(kinds) == 2:
            return "one is reduced along memory, the other across it"
        space = join(one.space, other.space, self.types, self._shared(one, other))
        if isinstance(space, str):
            return space
        kind = kinds.pop() if kinds else "pointwise" if space.rows is None else "rows"
        group = Group(space, kind, formulas, touched)
        problem = self._bad_shape(group, one, other)
        if problem:
            return problem
        made = f"{_last(one)} with {_last(other)}: saves {show_bytes(saved)}"
        return replace(group, reasons=(*one.reasons, *other.reasons, made))

    def _shared(self, one: Group, other: Group) -> dict[str, bool]:
        """Return what both touch: what one makes first, then by size."""
        made = {*one.formulas, *other.formulas}
        mine = {*one.formulas, *(name for name, _ in one.reads)}
        both = [name for name in (*other.formulas, *dict(other.reads)) if name in mine]
        ordered = sorted(both, key=lambda name: (name not in made, -bytes_of(self.types[name])))
        return {name: name in made for name in ordered}

    def _too_large(self, formulas: tuple[str, ...], touched: tuple[tuple[str, int], ...]) -> str:
        if len(formulas) > self.limits.nodes:
            return f"more than {self.limits.nodes} formulas in one kernel"
        outside = [name for name, _ in touched if name not in formulas]
        if len(outside) > self.limits.tensors:
            return f"more than {self.limits.tensors} tensors in one kernel"
        return ""

    def _overwrites(self, formulas: tuple[str, ...]) -> str:
        """Say where a kernel could not write an update in place for what else it would compute.

        Beside a sum each result has loops of its own, which read again what they are made of.
        """
        for made in formulas:
            source = self.updated.get(made)
            if source is None or bytes_of(self.types[source]) < self.limits.shared:
                continue
            for name in formulas:
                formula = self.formulas[name]
                own = formula.type.shape == self.types[made].shape and reads_own(formula, {source})
                if formula.op != "=" or (source in formula.operands and not own):
                    return f"{made} could not be written over {source}"
        return ""

    def _bad_shape(self, group: Group, one: Group, other: Group) -> str:
        space = group.space
        if space.rows is None:
            return ""
        rows, points = space.size(space.rows), space.size(space.digits)
        if rows < self.limits.rows and points >= self.limits.points:
            return f"{rows} rows are too few to share among threads"
        if one.space.rows is None and other.space.rows is None and not self._rows_are_outer(space):
            return "what is computed once per row would be computed across memory"
        return ""

    def _rows_are_outer(self, space: Space) -> bool:
        assert space.rows is not None, "there are rows"
        extents = dict(space.extents)
        for member in space.members:
            if member.digits == space.rows:
                continue
            shape = [fixed(dim) for dim in self.types[member.name].shape]
            _, terms = algebra.affine(address_of(member.index, contiguous(shape), extents))
            weights = {atom.name: w for atom, w in terms.items() if isinstance(atom, Sym)}
            inner = [nominal(w) for name, w in weights.items() if name not in space.rows]
            outer = [nominal(w) for name, w in weights.items() if name in space.rows]
            if inner and outer and max(inner) > min(outer):
                return False
        return True

    def _note(self, a: int, b: int, why: str, saved: int) -> None:
        pair = self.group[a].formulas, self.group[b].formulas
        if pair not in self._refused and saved >= self.limits.shared:
            self._refused[pair] = f"{why}: would save {show_bytes(saved)}"

    def refusals(self, formulas: tuple[str, ...]) -> tuple[str, ...]:
        """Return why a region was not merged with others."""
        own = set(formulas)
        found: dict[str, str] = {}
        for (left, right), why in self._refused.items():
            for mine, theirs in ((left, right), (right, left)):
                if own.issuperset(mine) and not own.issuperset(theirs):
                    found[theirs[-1]] = why
        return tuple(f"not with {name}: {why}" for name, why in found.items())


def _names(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(getattr(value, "name", "")) for value in values)


def _single(name: str, formula: Formula, types: Types) -> Group:
    space = space_of(name, formula)
    reads = tuple(bytes_read([formula], types).items())
    kind = "pointwise"
    if running(formula) is not None:
        kind = "running"
    elif space.rows is not None:
        kind = "columns" if runs_down_columns(formula, types) else "rows"
    elif not is_pointwise(formula):
        kind = "alone"
    return Group(space, kind, (name,), reads)


def _both(
    one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    found = dict(one)
    for name, size in other:
        found[name] = max(found.get(name, 0), size)
    return tuple(found.items())


def _last(group: Group) -> str:
    return group.formulas[-1]
