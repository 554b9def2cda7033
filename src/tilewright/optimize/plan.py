"""What fusion has decided: regions, what stays outside, and the bytes that either way are moved.

The idea: a plan is data: it prints with the reason of every decision, and can be checked against
the graph before it is applied.

This module does not decide anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilewright.base.expr import Read, Sym, reads
from tilewright.base.sizes import nominal
from tilewright.graph.ir import Formula, Graph, Node, TensorType, Value
from tilewright.graph.total import Types, extents_of, parts
from tilewright.graph.views import bytes_of, contiguous, place, size_of

LINE, FAR = 64, 1 << 20
"""Bytes that memory is moved by; of a tensor from which on it does not stay in a core's caches."""


@dataclass(frozen=True, slots=True)
class Region:
    """The formulas of one kernel, in order; operands are values.

    recipe: "pointwise", "rows" (reductions along memory), "columns" (across it) or "alone" (one
    formula, whatever it is).  rows, columns: how many points there are of each.  again: values that
    are computed here although another region computes them too.  reasons: why it is as it is.
    """

    recipe: str
    rows: int
    columns: int
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bytes: int
    again: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.nodes[-1].output.name


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """regions: one kernel each.  kept: nodes that stay as they are, and why.  before, after: bytes
    read and written by formulas, each a kernel of its own, and by the regions.
    """

    regions: tuple[Region, ...]
    kept: tuple[tuple[str, str], ...]
    before: int
    after: int

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count = sum(len(region.nodes) for region in self.regions)
        yield (
            f"{count} formulas in {len(self.regions)} kernels: "
            f"{show_bytes(self.after)} moved instead of {show_bytes(self.before)}"
        )
        for region in self.regions:
            shape = f"{region.rows} x {region.columns}"
            yield f"  {region.recipe} {shape}, {show_bytes(region.bytes)}: {_names(region.nodes)}"
            yield f"    reads {_values(region.inputs)}; writes {_values(region.outputs)}"
            yield from (f"    {reason}" for reason in region.reasons)
        for name, why in self.kept:
            yield f"  outside: {name}: {why}"


def _names(nodes: Iterable[Node]) -> str:
    return " ".join(node.output.name for node in nodes)


def _values(values: Iterable[Value]) -> str:
    return " ".join(value.name for value in values) or "nothing"


def show_bytes(count: int) -> str:
    """Return bytes as a person reads them."""
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GB"


def bytes_read(formulas: Iterable[Formula], types: Types) -> dict[str, int]:
    """Return the bytes of each operand that a kernel of these formulas reads, each once."""
    found: dict[str, int] = {}
    for formula in formulas:
        for name, size in _bytes_of_one(formula, tuple(types[n] for n in formula.operands)):
            found[name] = max(found.get(name, 0), size)
    return found


@lru_cache(maxsize=1 << 14)
def _bytes_of_one(formula: Formula, types: tuple[TensorType, ...]) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    by_name = dict(zip(formula.operands, types, strict=True))
    every = [read for part in parts(formula) for read in reads(part)]
    if isinstance(formula.fill, Read):
        every.append(Read(formula.fill.tensor, formula.index))
    for read in dict.fromkeys(every):
        type_ = by_name[read.tensor]
        touched = min(nominal(_elements(read, formula, type_)), nominal(size_of(type_)))
        found[read.tensor] = max(found.get(read.tensor, 0), touched * type_.dtype.bytes)
    return tuple(found.items())


def _elements(read: Read, formula: Formula, type_: TensorType) -> int:
    """Return at most how many elements a read touches: the loops that move it, all iterations."""
    extents = extents_of(formula)
    points = 1
    for extent in extents.values():
        points *= extent
    if nominal(points) <= nominal(size_of(type_)) and all(
        isinstance(entry, Sym) for entry in read.index
    ):
        moved = {entry.name for entry in read.index if isinstance(entry, Sym)}
        if len(moved) == len(extents):
            return points
    if read.index and reads(read.index[-1]) and nominal(size_of(type_)) * type_.dtype.bytes >= FAR:
        return points * max(1, LINE // type_.dtype.bytes)  # each lies in a line of its own
    if any(reads(entry) for entry in read.index):
        return points
    shape = tuple(dim for dim in type_.shape if isinstance(dim, int))
    lies = place(read.index, contiguous(shape), list(extents), extents)
    if lies is None:
        return points
    count = 1
    for stride, extent in zip(lies.strides, extents.values(), strict=True):
        count *= extent if stride else 1
    return count


def bytes_moved(graph: Graph, formulas: dict[str, Formula], types: Types) -> int:
    """Return the bytes that formulas move if each is a kernel of its own."""
    total = 0
    for node in graph.nodes:
        formula = formulas.get(node.outputs[0].name) if node.outputs else None
        if formula is not None:
            total += sum(bytes_read([formula], types).values()) + bytes_of(formula.type)
    return total


def problems(plan: FusionPlan, graph: Graph) -> Iterator[str]:
    """Yield what is wrong with a plan for a graph: nothing, unless fusion has an error."""
    made_by = {v.name: node for node in graph.nodes for v in node.outputs}
    placed: dict[str, int] = {}
    for at, region in enumerate(plan.regions):
        for value in region.outputs:
            if value.name in placed:
                yield f"{value.name} is written by two regions"
            placed[value.name] = at
        known = {value.name for value in region.inputs}
        for node in region.nodes:
            yield from (
                f"{value.name} is not there for {node.output.name}"
                for value in node.inputs
                if value.name not in known
            )
            known.add(node.output.name)
        yield from (f"{v.name} is not made" for v in region.outputs if v.name not in known)
    outside = {name for name, _ in plan.kept}
    for region in plan.regions:
        for value in region.inputs:
            inside = value.name in placed or value.name in outside
            if value.name in made_by and not inside:
                yield f"{value.name} is read by {region.name} and nobody makes it"
    for value in graph.outputs:
        if value.name in made_by and value.name not in placed and value.name not in outside:
            yield f"the result {value.name} is not made"
