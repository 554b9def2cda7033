"""A graph over pipeline ranks: where each operator runs, in what pieces, and who waits for whom.

The idea: operators of one rank that wait for the same values from elsewhere, and for whose results
the same others wait, are one piece; the pieces of a chain are its stages, those of branches lie
side by side, and a rank may hold several.
A step is a list schedule of them: a rank that is free runs what is ready, backwards first, with no
more micro-batches in flight than 1F1B has.

This module does not know how long operators take; seconds and bytes come in.
"""

import difflib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.base.errors import PlanError
from tilewright.graph.ir import Graph, Node
from tilewright.parallel.plan import Placement
from tilewright.parallel.timetables import Action, Pass, Simulation, Timetable

FORWARD, BACKWARD = "F", "BW"


@dataclass(frozen=True, slots=True)
class Piece:
    """Operators that run as one.  depth: how many changes of rank lie before it at most."""

    rank: int
    depth: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """What one piece gives another, by positions.  bytes: of a micro-batch."""

    giver: int
    taker: int
    bytes: int


def name_of(node: Node) -> str:
    """Return the name by which an operator is placed: that of its first result."""
    return node.outputs[0].name


def ranks_of(graph: Graph, placement: Placement, ranks: int) -> dict[str, int]:
    """Return the rank of every operator, by name.

    An entry of a placement names an operator, or a module with all in it (the longest name counts).
    What nothing places runs where the last of its operands is made, or at first on rank 0.
    Raises PlanError for a name that nothing has, or a rank that there is not.
    """
    said = dict(placement)
    _check_places(graph, said, ranks)
    found: dict[str, int] = {}
    made: dict[str, int] = {}
    for node in graph.nodes:
        chosen = _said(said, node)
        if chosen is None:
            chosen = max((made[v.name] for v in node.inputs if v.name in made), default=0)
        found[name_of(node)] = chosen
        made.update((value.name, chosen) for value in node.outputs)
    return found


def _said(said: Mapping[str, int], node: Node) -> int | None:
    if name_of(node) in said:
        return said[name_of(node)]
    path = node.origin.module
    while path:
        if path in said:
            return said[path]
        path = path.rpartition(".")[0]
    return None


def _check_places(graph: Graph, said: Mapping[str, int], ranks: int) -> None:
    known = {name_of(node) for node in graph.nodes}
    for node in graph.nodes:
        path = node.origin.module
        while path:
            known.add(path)
            path = path.rpartition(".")[0]
    for name, rank in said.items():
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=3)
            raise PlanError(
                f"the graph has no operator or module {name!r}",
                expected="the name of a result, or the path of a module",
                found=repr(name),
                known=f"close to it: {', '.join(near)}" if near else "",
                mend="`tilewright show` prints the graph with its names",
            )
        if rank >= ranks:
            raise PlanError(
                f"{name} is placed on a rank that there is not",
                expected=f"a pipeline rank from 0 to {ranks - 1}",
                found=str(rank),
                mend=f"take pp={rank + 1}, or another rank",
            )


def pieces_of(graph: Graph, ranks: Mapping[str, int]) -> tuple[Piece, ...]:
    """Return the pieces of a placed graph, in the order of their first operators.

    No two wait for each other in a circle: what lies between two operators of a piece waits for
    as much as the first and is waited for by as much as the last, so it is of the piece too.
    """
    before, depths = _waits_for(graph, ranks)
    after = _waited_for(graph, ranks)
    pieces: dict[tuple[int, frozenset[str], frozenset[str]], list[Node]] = {}
    for node in graph.nodes:
        name = name_of(node)
        pieces.setdefault((ranks[name], before[name], after[name]), []).append(node)
    return tuple(
        Piece(key[0], max(depths[name_of(node)] for node in nodes), tuple(nodes))
        for key, nodes in pieces.items()
    )


def _waits_for(
    graph: Graph, ranks: Mapping[str, int]
) -> tuple[dict[str, frozenset[str]], dict[str, int]]:
    """Return for each operator the values from other ranks that it waits for, and how many changes
    of rank lie before it at most."""
    maker = {value.name: name_of(node) for node in graph.nodes for value in node.outputs}
    found: dict[str, frozenset[str]] = {}
    depths: dict[str, int] = {}
    for node in graph.nodes:
        name, waits, depth = name_of(node), frozenset[str](), 0
        for value in node.inputs:
            if value.name in maker:
                giver = maker[value.name]
                crosses = ranks[giver] != ranks[name]
                waits |= found[giver] | ({value.name} if crosses else set())
                depth = max(depth, depths[giver] + crosses)
        found[name], depths[name] = waits, depth
    return found, depths


def _waited_for(graph: Graph, ranks: Mapping[str, int]) -> dict[str, frozenset[str]]:
    """Return for each operator the values for other ranks that wait for it."""
    maker = {value.name: name_of(node) for node in graph.nodes for value in node.outputs}
    found = {name_of(node): frozenset[str]() for node in graph.nodes}
    for node in reversed(graph.nodes):
        name = name_of(node)
        for value in node.inputs:
            if value.name in maker:
                giver = maker[value.name]
                crosses = ranks[giver] != ranks[name]
                found[giver] |= found[name] | ({value.name} if crosses else set())
    return found


def edges_of(pieces: Sequence[Piece], size: Callable[[str], int]) -> tuple[Edge, ...]:
    """Return what pieces give each other.  size: the bytes of a value."""
    maker = {
        value.name: at
        for at, piece in enumerate(pieces)
        for node in piece.nodes
        for value in node.outputs
    }
    taken: dict[tuple[int, int], set[str]] = {}
    for at, piece in enumerate(pieces):
        for node in piece.nodes:
            for value in node.inputs:
                if maker.get(value.name, at) != at:
                    taken.setdefault((maker[value.name], at), set()).add(value.name)
    return tuple(
        Edge(giver, taker, sum(map(size, names))) for (giver, taker), names in sorted(taken.items())
    )


# ---------------------------------------------------------------------------------------- the clock


def schedule(
    pieces: Sequence[Piece],
    edges: Sequence[Edge],
    seconds: Sequence[tuple[float, float]],
    transfer: Sequence[float],
    *,
    ranks: int,
    micro_batches: int,
    filled: bool,
) -> Simulation:
    """Run a step: forward and backward of every piece and micro-batch.

    seconds: of each piece, forward and backward.  transfer: of each edge.  filled: all forwards
    before the first backward (GPipe).
    """
    work = _Work(pieces, edges, seconds, transfer, ranks, micro_batches, filled)
    work.run()
    rows = tuple(tuple(row) for row in work.actions)
    timetable = Timetable("placed", len(pieces), micro_batches, rows)
    busy = tuple(
        sum(end - start for start, end in zip(*row, strict=True))
        for row in zip(work.starts, work.ends, strict=True)
    )
    starts, ends = (tuple(map(tuple, rows)) for rows in (work.starts, work.ends))
    return Simulation(timetable, starts, ends, busy, ())


_Task = tuple[str, int, int]
"""(kind, piece, micro-batch)."""


@dataclass(slots=True)
class _Work:
    """A step as it runs; mutable, lives as long as one `schedule`."""

    pieces: Sequence[Piece]
    edges: Sequence[Edge]
    seconds: Sequence[tuple[float, float]]
    transfer: Sequence[float]
    ranks: int
    micro_batches: int
    filled: bool
    actions: list[list[Action]] = field(default_factory=list)
    starts: list[list[float]] = field(default_factory=list)
    ends: list[list[float]] = field(default_factory=list)
    left: dict[_Task, int] = field(default_factory=dict)
    after: dict[_Task, list[tuple[_Task, float]]] = field(default_factory=dict)
    ready: list[list[tuple[float, _Task]]] = field(default_factory=list)
    flying: list[int] = field(default_factory=list)
    late: dict[_Task, float] = field(default_factory=dict)
    forwards: int = 0

    def __post_init__(self) -> None:
        for rows in (self.actions, self.starts, self.ends, self.ready):
            rows.extend([] for _ in range(self.ranks))
        self.flying = [0] * len(self.pieces)
        for task, needed, delay in self._needs():
            self.left[task] = self.left.get(task, 0) + (needed is not None)
            if needed is not None:
                self.after.setdefault(needed, []).append((task, delay))
        for task, count in self.left.items():
            if not count:
                self.ready[self.pieces[task[1]].rank].append((0.0, task))

    def _needs(self) -> Iterator[tuple[_Task, _Task | None, float]]:
        """Yield (task, what it needs, seconds between), and each forward once for itself."""
        for n in range(self.micro_batches):
            for at in range(len(self.pieces)):
                yield (FORWARD, at, n), None, 0.0
                yield (BACKWARD, at, n), (FORWARD, at, n), 0.0
            for edge, delay in zip(self.edges, self.transfer, strict=True):
                giver, taker = edge.giver, edge.taker
                yield (FORWARD, taker, n), (FORWARD, giver, n), delay
                yield (BACKWARD, giver, n), (BACKWARD, taker, n), delay

    def run(self) -> None:
        """Start, whenever a rank is free or something arrives, the best of what is ready."""
        times = [0.0]
        free = [0.0] * self.ranks
        while times:
            now = heapq.heappop(times)
            while times and times[0] <= now:
                heapq.heappop(times)
            for rank in range(self.ranks):
                if free[rank] > now:
                    continue
                task = self._best(rank, now)
                if task is not None:
                    free[rank] = self._start(rank, task, now, times)
        total = 2 * len(self.pieces) * self.micro_batches
        assert sum(map(len, self.actions)) == total, "every pass of a step has run"

    def _best(self, rank: int, now: float) -> _Task | None:
        """Return what the rank does next: backwards, then forwards that there is room for."""
        here = [(arrived, task) for arrived, task in self.ready[rank] if arrived <= now]
        allowed = [(self._order(task), task, arrived) for arrived, task in here if self._room(task)]
        if not allowed:
            return None
        _, task, arrived = min(allowed)
        self.ready[rank].remove((arrived, task))
        return task

    def _order(self, task: _Task) -> tuple[int, int, int]:
        """The oldest micro-batch first, of it what is nearest to the end of its way."""
        kind, at, n = task
        depth = self.pieces[at].depth
        return (0, n, depth) if kind == BACKWARD else (1, n, -depth)

    def _room(self, task: _Task) -> bool:
        kind, at, _ = task
        everything = len(self.pieces) * self.micro_batches
        if self.filled:
            return kind == FORWARD or self.forwards == everything
        if kind == BACKWARD:
            return True
        deepest = max(piece.depth for piece in self.pieces)
        return self.flying[at] <= deepest - self.pieces[at].depth

    def _start(self, rank: int, task: _Task, now: float, times: list[float]) -> float:
        kind, at, n = task
        end = now + self.seconds[at][kind == BACKWARD]
        self.flying[at] += 1 if kind == FORWARD else -1
        self.forwards += kind == FORWARD
        self.actions[rank].append((Pass(kind, at, n),))
        self.starts[rank].append(now)
        self.ends[rank].append(end)
        heapq.heappush(times, end)
        for later, delay in self.after.get(task, ()):
            self.left[later] -= 1
            arrived = end + delay
            place = self.pieces[later[1]].rank
            waiting = self.ready[place]
            self._arrive(waiting, later, arrived)
            if arrived > end:
                heapq.heappush(times, arrived)
        return end

    def _arrive(self, waiting: list[tuple[float, _Task]], task: _Task, arrived: float) -> None:
        """A task is ready when the last of what it needs has arrived."""
        self.late[task] = max(self.late.get(task, 0.0), arrived)
        if not self.left[task]:
            waiting.append((self.late[task], task))
