"""The table of splits as a person reads it: what each rank holds, and what it sends.

The idea: every row is made into graphs for a few ranks, and the collectives named are those that
stand in them, with the bytes that they move; so the table cannot promise what does not run.

This module does not know how a row becomes graphs, nor which operators have a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tilewright.graph.ir import Formula, Graph, Node, TensorType
from tilewright.graph.partitions import Partition, Split, number, partitions
from tilewright.ops import across, sent
from tilewright.parallel.course import courses, spread_graph
from tilewright.parallel.exchange import BORDER
from tilewright.parallel.spread import can_share, spread

RANKS = 4
_LAST = ("collectives", "a rank sends")


@dataclass(frozen=True, slots=True)
class Talk:
    """What ranks tell each other: the collectives, and what the busiest rank sends."""

    collectives: str
    bytes: str


def show(formula: Formula, types: Sequence[TensorType], ranks: int = RANKS) -> list[str]:
    """Return the table as lines, its head first; one line alone where nothing can be cut."""
    rows = partitions(formula, types)
    if not rows:
        return ["none: there is nothing to cut"]
    table = [("cut", "y", *formula.operands, *_LAST)]
    for row in rows:
        held = (_splits(splits) or "whole" for splits in row.operands)
        result = _splits(row.result) or ("partial" if row.combine else "whole")
        cut = _cut(row.cut, row.extent, sum(low < high for low, high in row.bounds(ranks)), ranks)
        table += _lines((cut, result, *held), list(_talks(formula, types, row, ranks)))
    return _columns(table)


def show_graph(graph: Graph, ranks: int = RANKS) -> list[str]:
    """Return the table of a graph of formulas: a row for each course of dims that is cut alike."""
    found = courses(graph)
    if not found:
        return ["none: there is no dim that every node can follow"]
    values = (*graph.outputs, *graph.inputs)
    whole = {value.name: value.type for node in graph.nodes for value in node.outputs}
    whole |= {value.name: value.type for value in graph.inputs}
    table = [("cut", *(value.name for value in values), *_LAST)]
    for course in found:
        made = spread_graph(graph, course, ranks)
        held = (_splits(course.split(value)) or "whole" for value in values)
        cut = _cut(course.name, course.extent, len(made.graphs), ranks)
        table += _lines((cut, *held), _talk(made.graphs, whole))
    return _columns(table)


def _lines(held: tuple[str, ...], talks: Sequence[Talk]) -> list[tuple[str, ...]]:
    """Return a line for each thing that ranks tell each other, the first with what they hold."""
    blank = ("",) * len(held)
    return [
        (*(blank if at else held), talk.collectives, talk.bytes) for at, talk in enumerate(talks)
    ]


def _columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    )
    return [line.rstrip() for line in lines]


def _cut(name: str, extent: int, parts: int, ranks: int) -> str:
    """Name what is cut, its extent, and the ranks where it is too short for all of them."""
    return f"{name}<{extent}{f' over {parts}' if parts < ranks else ''}"


def _splits(splits: Sequence[Split]) -> str:
    """Say how dims follow the cut; the halo is what is fetched from before and from after."""
    texts = []
    for split in splits:
        by = f" by {abs(split.step)}" if abs(split.step) != 1 else ""
        backwards = " backwards" if split.step < 0 else ""
        before = split.halo // 2
        halo = f", halo {before}+{split.halo - before}" if split.halo else ""
        texts.append(f"split {split.dim}{by}{backwards}{halo}")
    return ", ".join(texts)


def _talks(
    formula: Formula, types: Sequence[TensorType], row: Partition, ranks: int
) -> Iterator[Talk]:
    made = spread(formula, types, row, ranks)
    whole = dict(zip(formula.operands, types, strict=True)) | {"y": formula.type}
    yield from _talk(made.graphs, whole)
    count = len(made.graphs)
    dims = (dim for dim in range(formula.type.rank) if can_share(formula, row, dim, count))
    share = next(dims, None)
    if share is not None:
        made = spread(formula, types, row, ranks, share=share)
        first, *more = _talk(made.graphs, whole)
        yield from (Talk(f"or {first.collectives}", first.bytes), *more)


def _talk(graphs: Sequence[Graph], whole: dict[str, TensorType]) -> list[Talk]:
    """Say what stands in the graphs, tensor by tensor; all ranks make the same collectives."""
    told: dict[str, list[Node]] = {}
    for node in graphs[0].nodes:
        if across(node) is not None:
            told.setdefault(_tensor(node), []).append(node)
    talks = []
    for name, nodes in told.items():
        calls = ", ".join(_call(node) for node in nodes)
        share = _share(name, nodes, whole)
        talks.append(Talk(calls, f"{share} = {sum(sent(node)[1] for node in nodes):,} bytes"))
    return talks or [Talk("none", "nothing")]


def _call(node: Node) -> str:
    attrs = {name: value for name, value in node.attrs if name != "group"}
    words = [_tensor(node)]
    words += [f"{name}={value}" if name != "op" else str(value) for name, value in attrs.items()]
    return f"{node.op}({', '.join(words)})"


def _tensor(node: Node) -> str:
    return node.inputs[0].name.split(BORDER)[0]


def _share(name: str, nodes: Sequence[Node], whole: dict[str, TensorType]) -> str:
    """Say in symbols what the collectives of one tensor send: |y| is all of it, in bytes."""
    if any(node.op != "shift" for node in nodes):
        return " + ".join(sent(node)[0].replace("|x|", f"|{name}|") for node in nodes)
    moved, total = sum(_bytes(node.inputs[0].type) for node in nodes), _bytes(whole[name])
    return f"{Fraction(moved, total)} |{name}|" if total else "0"


def _bytes(type_: TensorType) -> int:
    count = type_.dtype.bytes
    for size in type_.shape:
        count *= number(size)
    return count
