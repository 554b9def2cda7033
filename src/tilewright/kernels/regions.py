"""Find the regions of a body: the statements that run over common loops, their rows and columns.

The idea: statements that share loops, or read each other's reductions, belong together; the
parallel loops of their reductions are the region's rows, and what reads a reduction runs over them.

This module does not know memory.
"""

from dataclasses import dataclass

from tilewright.base.expr import Sym
from tilewright.kernels.body import Body
from tilewright.kernels.statement import State, Statement
from tilewright.kernels.unify import same_loop


@dataclass(frozen=True, slots=True)
class Region:
    """Statements over common loops.

    rows: outermost first; columns: all others, outermost first.  lane: the row loop that is cut
    into tiles and run innermost, where that is how memory lies (without columns: the loop that is
    tiled together with the innermost one, because some tensor lies that way); else empty.
    depths: how many reductions, one after another, come before each statement.  read_again: the
    statements whose results others read.
    """

    statements: tuple[Statement, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    lane: str = ""
    depths: tuple[int, ...] = ()
    read_again: frozenset[str] = frozenset()
    extents: tuple[tuple[str, int], ...] = ()

    def state(self, body: Body) -> State:
        """Return the state of a body whose statements these are."""
        state = State(body)
        state.extents = dict(self.extents)
        state.statements = {statement.name: statement for statement in self.statements}
        return state


def components(state: State) -> list[tuple[str, ...]]:
    """Return groups of statements that share loops or read each other's reductions."""
    leader: dict[str, str] = {name: name for name in state.statements}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    seen: dict[str, str] = {}
    for name, statement in state.statements.items():
        for loop in statement.loops():
            leader[find(name)] = find(seen.setdefault(loop, name))
        for read in state.reads(statement):
            other = state.statements.get(read.tensor)
            if other is not None and other.is_reduction:
                leader[find(name)] = find(read.tensor)
    groups: dict[str, list[str]] = {}
    for name in state.statements:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]


def make_regions(state: State, group: tuple[str, ...]) -> list[Region] | str:
    statements = [state.statements[name] for name in group]
    reduced = [statement for statement in statements if statement.is_reduction]
    if not reduced:
        return _pointwise_regions(statements)
    rows = frozenset(reduced[0].parallel())
    dependent = depths(state, statements)
    inside, apart = [], []
    for statement in statements:
        own = frozenset(statement.parallel())
        if statement.is_reduction and own != rows:
            return f"{statement.name} and {reduced[0].name} are reduced to different rows"
        if rows <= own:
            inside.append(statement)
        elif dependent[statement.name] == 0:
            apart.append(statement)
        else:
            return f"{statement.name} reads reductions of rows that it does not run over"
    for statement in inside:
        for read in state.reads(statement):
            other = state.statements.get(read.tensor)
            if other is None or not other.is_reduction:
                continue
            there = tuple(state.simplify(other.bound(entry)) for entry in other.formula.index)
            if there != read.index:
                return f"{statement.name} reads {other.name} of another row"
    order = next((s for s in inside if not s.is_reduction), inside[0])
    order = max((*inside,), key=lambda s: (len(s.loops()), s is order))
    loops = list(dict.fromkeys(loop for s in (order, *inside) for loop in s.loops()))
    region = Region(
        tuple(inside),
        tuple(loop for loop in loops if loop in rows),
        tuple(loop for loop in loops if loop not in rows),
    )
    return [region, *_pointwise_regions(apart)]


def _pointwise_regions(statements: list[Statement]) -> list[Region]:
    groups: dict[frozenset[str], list[Statement]] = {}
    for statement in statements:
        groups.setdefault(frozenset(statement.loops()), []).append(statement)
    return [Region(tuple(group), group[0].loops(), ()) for group in groups.values()]


def depths(state: State, statements: list[Statement]) -> dict[str, int]:
    """Return how many reductions, one after another, come before each statement."""
    found: dict[str, int] = {}
    for statement in statements:  # in topological order
        before = [
            found[read.tensor] + 1
            for read in state.reads(statement)
            if read.tensor in found and state.statements[read.tensor].is_reduction
        ]
        found[statement.name] = max(before, default=0)
    return found


def join_siblings(state: State) -> None:
    """Let groups that read the same elements share their loops, if they can still be run."""
    joined = True
    while joined:
        joined = False
        groups = components(state)
        for at, group in enumerate(groups):
            for other in groups[at + 1 :]:
                trial = state.copy()
                if _join(trial, group, other) and _all_valid(trial, len(groups)):
                    state.become(trial)
                    joined = True
                    break
            if joined:
                break


def _join(state: State, group: tuple[str, ...], other: tuple[str, ...]) -> bool:
    mine = {read.tensor: read for name in group for read in state.reads(state.statements[name])}
    for name in other:
        for read in state.reads(state.statements[name]):
            known = mine.get(read.tensor)
            if known is None or len(read.index) == 0:
                continue
            pairs = [(a, b) for a, b in zip(known.index, read.index, strict=True) if a != b]
            if pairs and all(isinstance(a, Sym) and isinstance(b, Sym) for a, b in pairs):
                made = [
                    same_loop(state, a.name, b.name)
                    for a, b in pairs
                    if isinstance(a, Sym) and isinstance(b, Sym)
                ]
                return all(made)
    return False


def _all_valid(state: State, before: int) -> bool:
    groups = components(state)
    made = [make_regions(state, group) for group in groups]
    regions = [region for item in made if not isinstance(item, str) for region in item]
    return (
        len(groups) < before
        and len(regions) < before
        and not any(isinstance(item, str) for item in made)
    )
