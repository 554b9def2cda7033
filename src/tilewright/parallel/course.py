"""Cut a whole graph along one dim: the loops that follow it from node to node.

The idea: a loop and the dims that it indexes bare are cut alike, and so are all that meet in such
dims: a *course* through the graph, for which every node has a row of its table of splits.  A course
may end in a reduction: there the ranks meet, and what comes after is whole on every one::

    scores[m, n] += q[m, e] * k[n, e]         cut at n: k is split, scores split,
    top[m] max= scores[m, n]                  all_reduce(top, max),
    powers[m, n] = exp(scores[m, n] - top[m]) split again

This module does not know how one formula is cut (`spread`), nor which course is best.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.base.expr import Read, Sym
from tilewright.graph.build import Builder
from tilewright.graph.ir import Formula, Graph, Node, TensorType, Value
from tilewright.graph.partitions import Partition, Split, all_reads, number, partitions
from tilewright.parallel.shares import Range, Window, lay_out, length, shape_of
from tilewright.parallel.spread import RankPart, Spread

Place = tuple[str, str, int | str]  # ("dim", value, dim) or ("loop", first result, loop)


@dataclass(frozen=True, slots=True)
class Course:
    """Dims and loops of a graph that are cut alike.

    name: that of the loop in the first node that has it.  dims: the dim of each value that has one.
    rows: for the first result of each node that has such a loop, how its formula is cut.
    """

    name: str
    extent: int
    dims: dict[str, int]
    rows: dict[str, Partition]

    def split(self, value: Value) -> tuple[Split, ...]:
        """Return how a value follows the cut."""
        return (Split(self.dims[value.name]),) if value.name in self.dims else ()


def courses(graph: Graph) -> tuple[Course, ...]:
    """Return every way to cut a graph of formulas along one dim of its inputs or outputs."""
    found = (_course(graph, places) for places in _together(graph))
    seen = {value.name for value in (*graph.inputs, *graph.outputs)}
    return tuple(course for course in found if course is not None and seen & set(course.dims))


def spread_graph(graph: Graph, course: Course, parts: int) -> Spread:
    """Return a graph for each rank, as many as there are parts that are not empty."""
    bounds = tuple(
        (course.extent * k // parts, course.extent * (k + 1) // parts) for k in range(parts)
    )
    bounds = tuple(bound for bound in bounds if length(bound))
    ranks = range(len(bounds))
    graphs = tuple(_rank_graph(graph, course, bounds, rank) for rank in ranks)
    inputs, outputs = (
        tuple(tuple(_window(value, course, bounds, rank) for value in values) for rank in ranks)
        for values in (graph.inputs, graph.outputs)
    )
    return Spread(graphs, inputs, outputs)


def _rank_graph(graph: Graph, course: Course, bounds: tuple[Range, ...], rank: int) -> Graph:
    builder = Builder(f"rank{rank}")
    known: dict[str, Value] = {}
    for value in graph.inputs:
        shape = shape_of(_window(value, course, bounds, rank))
        known[value.name] = builder.input(value.name, TensorType(shape, value.type.dtype))
    for node in graph.nodes:
        near = [known[value.name] for value in node.inputs]
        row = course.rows.get(node.outputs[0].name)
        if row is None:
            moved = Node(node.op, tuple(near), node.outputs, node.attrs, node.formula,
                         node.graphs, node.origin)  # fmt: skip
            made = builder.add(moved)
        else:
            assert node.formula is not None, "what is cut has loops"
            types = tuple(value.type for value in node.inputs)
            part = RankPart.of(node.formula, types, row, bounds, rank, name=node.output.name)
            made = (part.add(builder, near),)
        known.update(zip((value.name for value in node.outputs), made, strict=True))
    return builder.finish([known[value.name] for value in graph.outputs])


def _window(value: Value, course: Course, bounds: tuple[Range, ...], rank: int) -> Window:
    return lay_out(value.type, course.split(value), bounds).held[rank]


# ----------------------------------------------------------------------------- what is cut together


def _together(graph: Graph) -> list[list[Place]]:
    """Return the sets of dims and loops that one loop indexes bare, in order of appearance."""
    leader: dict[Place, Place] = {}

    def find(place: Place) -> Place:
        while leader.setdefault(place, place) != place:
            place = leader[place]
        return place

    for node in graph.nodes:
        for one, other in _pairs(node):
            leader[find(other)] = find(one)
    sets: dict[Place, list[Place]] = {}
    for place in leader:
        sets.setdefault(find(place), []).append(place)
    return list(sets.values())


def _pairs(node: Node) -> Iterator[tuple[Place, Place]]:
    formula = node.formula
    if formula is None:
        return
    names = dict(zip(formula.operands, (value.name for value in node.inputs), strict=True))
    result = node.output.name
    for read in all_reads(formula):
        for dim, entry in enumerate(read.index):
            if isinstance(entry, Sym):
                yield ("dim", names[read.tensor], dim), ("loop", result, entry.name)
    for dim, entry in enumerate(formula.index):
        if isinstance(entry, Sym):
            yield ("loop", result, entry.name), ("dim", result, dim)
        if isinstance(formula.fill, Read):
            yield ("dim", names[formula.fill.tensor], dim), ("dim", result, dim)


def _course(graph: Graph, places: list[Place]) -> Course | None:
    """Return a set as a course; None where a value or a node has two of it, or cannot be cut so."""
    dims = [(name, at) for kind, name, at in places if kind == "dim" and isinstance(at, int)]
    loops = [(name, at) for kind, name, at in places if kind == "loop" and isinstance(at, str)]
    if len(dict(dims)) < len(dims) or len(dict(loops)) < len(loops) or not loops:
        return None
    follows, rows = dict(dims), {}
    extent = 0
    for node in graph.nodes:
        result = node.outputs[0].name
        loop = dict(loops).get(result)
        if loop is None:
            if any(value.name in follows for value in (*node.inputs, *node.outputs)):
                return None
            continue
        assert node.formula is not None, "a loop is that of a formula"
        extent = number(node.formula.extent(loop))
        row = _row(node, node.formula, loop, follows)
        if row is None:
            return None
        rows[result] = row
    return Course(loops[0][1], extent, follows, rows)


def _row(node: Node, formula: Formula, loop: str, dims: dict[str, int]) -> Partition | None:
    """Return the row that cuts a node at its loop, if it cuts just these dims."""
    wanted = [(Split(dims[v.name]),) if v.name in dims else () for v in node.inputs]
    result = (Split(dims[node.output.name]),) if node.output.name in dims else ()
    for row in partitions(formula, [value.type for value in node.inputs]):
        if (row.cut, row.operands, row.result) == (loop, tuple(wanted), result):
            return row if row.align == 1 else None
    return None
