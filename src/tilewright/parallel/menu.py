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
from tilewright.parallel.exchange import BORDER
from tilewright.parallel.spread import can_share, spread

RANKS = 4


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
    table = [("cut", "y", *formula.operands, "collectives", "a rank sends")]
    for row in rows:
        held = (_splits(splits) or "whole" for splits in row.operands)
        result = _splits(row.result) or ("partial" if row.combine else "whole")
        first, *more = _talks(formula, types, row, ranks)
        table.append((_cut(row, ranks), result, *held, first.collectives, first.bytes))
        blank = ("",) * (2 + len(formula.operands))
        table += [(*blank, f"or {talk.collectives}", talk.bytes) for talk in more]
    widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    )
    return [line.rstrip() for line in lines]


def _cut(row: Partition, ranks: int) -> str:
    """Name what is cut, its extent, and the ranks where it is too short for all of them."""
    parts = sum(low < high for low, high in row.bounds(ranks))
    return f"{row.cut}<{row.extent}{f' over {parts}' if parts < ranks else ''}"


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
    yield _talk(made.graphs, whole)
    count = len(made.graphs)
    dims = (dim for dim in range(formula.type.rank) if can_share(formula, row, dim, count))
    share = next(dims, None)
    if share is not None:
        yield _talk(spread(formula, types, row, ranks, share=share).graphs, whole)


def _talk(graphs: Sequence[Graph], whole: dict[str, TensorType]) -> Talk:
    """Say what stands in the graphs; all ranks make the same collectives."""
    nodes = [node for node in graphs[0].nodes if across(node) is not None]
    if not nodes:
        return Talk("none", "nothing")
    total = sum(sent(node)[1] for node in nodes)
    words = " + ".join(dict.fromkeys(_share(node, nodes, whole) for node in nodes))
    return Talk(", ".join(_call(node) for node in nodes), f"{words} = {total:,} bytes")


def _call(node: Node) -> str:
    attrs = {name: value for name, value in node.attrs if name != "group"}
    words = [_tensor(node)]
    words += [f"{name}={value}" if name != "op" else str(value) for name, value in attrs.items()]
    return f"{node.op}({', '.join(words)})"


def _tensor(node: Node) -> str:
    return node.inputs[0].name.split(BORDER)[0]


def _share(node: Node, nodes: Sequence[Node], whole: dict[str, TensorType]) -> str:
    """Say in symbols what the collectives of one tensor send: |y| is all of it, in bytes."""
    name = _tensor(node)
    text, _ = sent(node)
    if node.op != "shift":
        return text.replace("|x|", f"|{name}|")
    borders = [other for other in nodes if other.op == "shift" and _tensor(other) == name]
    moved = sum(_bytes(other.inputs[0].type) for other in borders)
    total = _bytes(whole[name])
    return f"{Fraction(moved, total)} |{name}|" if total else "0"


def _bytes(type_: TensorType) -> int:
    count = type_.dtype.bytes
    for size in type_.shape:
        count *= number(size)
    return count
