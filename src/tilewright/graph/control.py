"""Control flow in a graph: what the operands, the sub-graphs and the results of its nodes are.

::

    scan   inputs   first carries, sequences (a leading dim of `length`), closed-over values
           graph    body(carries, elements, closed) -> (carries, results)
           outputs  last carries, then each result stacked along a leading dim of `length`
           attrs    length, carries, sequences (both counts), reverse (from the last index down)
    cond   inputs   predicate (a bool of rank 0), operands
           graphs   then(operands), otherwise(operands): results of equal types
    while  inputs   first carries, closed-over values
           graphs   test(carries, closed) -> bool of rank 0; body(carries, closed) -> carries
           outputs  last carries
           attrs    carries (a count)

The idea: a sub-graph reads nothing but its inputs, so that it can be rewritten, differentiated and
compiled alone; what each input is for follows from its position and the counts.

This module does not know how a node is run or differentiated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import UNKNOWN, GraphError, Origin, SizesError
from tilewright.base.sizes import Size
from tilewright.graph.build import Builder
from tilewright.graph.ir import COND, SCAN, WHILE, Attr, Dim, Graph, Node, TensorType, Value

Item = TypeVar("Item")
PREDICATE = TensorType((), BOOL)


@dataclass(frozen=True, slots=True)
class Parts(Generic[Item]):
    """What belongs to the inputs of a scan or its body, by what they are for."""

    carries: tuple[Item, ...]
    sequences: tuple[Item, ...]
    closed: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan node, read: its body, how many steps it makes, and the counts of its operands."""

    body: Graph
    length: int
    carries: int
    sequences: int
    reverse: bool

    def part(self, items: Sequence[Item]) -> Parts[Item]:
        """Part what stands for the inputs, in their order."""
        first, last = self.carries, self.carries + self.sequences
        return Parts(tuple(items[:first]), tuple(items[first:last]), tuple(items[last:]))

    def order(self) -> range:
        """Return the indices in the order of the steps."""
        return range(self.length - 1, -1, -1) if self.reverse else range(self.length)


@dataclass(frozen=True, slots=True)
class While:
    """A while node, read."""

    test: Graph
    body: Graph
    carries: int


def scan_of(node: Node) -> Scan:
    """Read a scan node that verifies."""
    attrs = dict(node.attrs)
    counts = [attrs[name] for name in ("length", "carries", "sequences")]
    length, carries, sequences = (count for count in counts if isinstance(count, int))
    return Scan(node.graphs[0], length, carries, sequences, bool(attrs["reverse"]))


def while_of(node: Node) -> While:
    """Read a while node that verifies."""
    carries = node.attr("carries")
    assert isinstance(carries, int), "a count is a number"
    return While(node.graphs[0], node.graphs[1], carries)


def add_scan(
    builder: Builder,
    body: Graph,
    inputs: Parts[Value],
    *,
    length: int,
    reverse: bool = False,
    origin: Origin = UNKNOWN,
    names: Sequence[str] = (),
) -> tuple[Value, ...]:
    """Add a scan; returns its last carries, then its stacked results.

    Raises GraphError where the body does not fit: a carry that changes its type, say.
    """
    counts = len(inputs.carries), len(inputs.sequences)
    types = [value.type for value in body.outputs]
    stacked = [TensorType((length, *type_.shape), type_.dtype) for type_ in types[counts[0] :]]
    attrs = scan_attrs(length, *counts, reverse=reverse)
    operands = (*inputs.carries, *inputs.sequences, *inputs.closed)
    outputs = (*types[: counts[0]], *stacked)
    wishes = names or tuple(value.name for value in body.outputs)
    return _added(builder, SCAN, operands, outputs, attrs, (body,), origin, wishes)


def scan_attrs(
    length: int, carries: int, sequences: int, *, reverse: bool
) -> tuple[tuple[str, Attr], ...]:
    """Return the attributes of a scan node."""
    return (
        ("length", length),
        ("carries", carries),
        ("sequences", sequences),
        ("reverse", reverse),
    )


def add_cond(
    builder: Builder,
    predicate: Value,
    then: Graph,
    otherwise: Graph,
    operands: Sequence[Value],
    *,
    origin: Origin = UNKNOWN,
    names: Sequence[str] = (),
) -> tuple[Value, ...]:
    """Add a cond; raises GraphError where its branches give results of different types."""
    types = tuple(value.type for value in then.outputs)
    wishes = names or tuple(value.name for value in then.outputs)
    graphs = (then, otherwise)
    return _added(builder, COND, (predicate, *operands), types, (), graphs, origin, wishes)


def add_while(
    builder: Builder,
    test: Graph,
    body: Graph,
    carries: Sequence[Value],
    closed: Sequence[Value] = (),
    *,
    origin: Origin = UNKNOWN,
    names: Sequence[str] = (),
) -> tuple[Value, ...]:
    """Add a while; raises GraphError where a carry changes its type."""
    types = tuple(value.type for value in body.outputs)
    attrs: tuple[tuple[str, Attr], ...] = (("carries", len(carries)),)
    wishes = names or tuple(value.name for value in body.outputs)
    graphs = (test, body)
    return _added(builder, WHILE, (*carries, *closed), types, attrs, graphs, origin, wishes)


def _added(
    builder: Builder,
    op: str,
    inputs: Sequence[Value],
    types: Sequence[TensorType],
    attrs: tuple[tuple[str, Attr], ...],
    graphs: tuple[Graph, ...],
    origin: Origin,
    names: Sequence[str],
) -> tuple[Value, ...]:
    made = tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True))
    dims = (dim for value in (*inputs, *made) for dim in value.type.shape)
    for number in (*dims, *(value for _, value in attrs)):
        if isinstance(number, Size):
            raise sizes_vary(op, str(number), origin)
    for summary, expected, found in problems(
        Node(op, tuple(inputs), made, attrs, None, graphs, origin)
    ):
        raise GraphError(summary, expected=expected, found=found, where=origin)
    return builder.multi(
        op, inputs, types, attrs=attrs, graphs=graphs, origin=origin, names=tuple(names)
    )


def sizes_vary(op: str, found: str, origin: Origin) -> SizesError:
    """Return the error for sizes that vary in a graph with control flow."""
    return SizesError(
        f"sizes vary in a graph with a {op}",
        expected="sizes that are numbers, where a graph has control flow",
        found=found,
        where=origin,
    )


# ---------------------------------------------------------------------------------------- legality


def problems(node: Node) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a node of control flow: a summary, what was expected and found."""
    if any(graph.updates for graph in node.graphs):
        yield f"a sub-graph of {node.op} updates an input", "", ""
    if node.op == SCAN:
        yield from _scan_problems(node)
    elif node.op == COND:
        yield from _cond_problems(node)
    else:
        yield from _while_problems(node)


def _scan_problems(node: Node) -> Iterator[tuple[str, str, str]]:
    attrs = dict(node.attrs)
    counts = [attrs.get(name) for name in ("length", "carries", "sequences")]
    if not all(type(count) is int and count >= 0 for count in counts):
        yield "a scan lacks a length or the counts of its operands", "", f"{attrs}"
        return
    scan = scan_of(node)
    if scan.carries + scan.sequences > len(node.inputs) or scan.carries > len(node.outputs):
        yield "a scan has fewer operands or results than its counts say", "", f"{attrs}"
        return
    parts = scan.part([value.type for value in node.inputs])
    lengths: list[Dim] = [type_.shape[0] if type_.shape else 0 for type_ in parts.sequences]
    for type_, length in zip(parts.sequences, lengths, strict=True):
        if not type_.shape or length != scan.length:
            yield "a sequence is not as long as its scan", f"{scan.length} steps", str(type_)
            return
    elements = [TensorType(type_.shape[1:], type_.dtype) for type_ in parts.sequences]
    inputs = [*parts.carries, *elements, *parts.closed]
    yield from _alike("the body of a scan does not take its operands", inputs, scan.body.inputs)
    results = [*parts.carries]
    for value in node.outputs[scan.carries :]:
        fits = value.type.shape and value.type.shape[0] == scan.length
        if not fits:
            yield (
                "a result is not stacked for as many steps as its scan makes",
                f"{scan.length} steps",
                str(value.type),
            )
            return
        results.append(TensorType(value.type.shape[1:], value.type.dtype))
    carried = [value.type for value in scan.body.outputs[: scan.carries]]
    yield from _carried("scan", list(parts.carries), carried)
    yield from _alike("the results of a scan are not those of its body", results, scan.body.outputs)
    last = list(node.outputs[: scan.carries])
    yield from _alike("the last carries of a scan are not of its carries' types", carried, last)


def _cond_problems(node: Node) -> Iterator[tuple[str, str, str]]:
    if not node.inputs or node.inputs[0].type != PREDICATE:
        found = str(node.inputs[0].type) if node.inputs else "nothing"
        yield "the predicate of a cond is not a truth value", str(PREDICATE), found
        return
    operands = [value.type for value in node.inputs[1:]]
    for branch in node.graphs:
        what = f"the branch {branch.name!r} of a cond does not take its operands"
        yield from _alike(what, operands, branch.inputs)
    then, otherwise = node.graphs
    types = [value.type for value in then.outputs]
    yield from _alike("the branches of a cond give different results", types, otherwise.outputs)
    yield from _alike("the results of a cond are not those of its branches", types, node.outputs)


def _while_problems(node: Node) -> Iterator[tuple[str, str, str]]:
    count = dict(node.attrs).get("carries")
    if type(count) is not int or not 0 <= count <= len(node.inputs):
        yield "a while lacks the count of its carries", "", f"{node.attrs}"
        return
    loop = while_of(node)
    inputs = [value.type for value in node.inputs]
    yield from _alike("the test of a while does not take its operands", inputs, loop.test.inputs)
    yield from _alike("the body of a while does not take its operands", inputs, loop.body.inputs)
    tested = [value.type for value in loop.test.outputs]
    if tested != [PREDICATE]:
        found = ", ".join(map(str, tested))
        yield "the test of a while does not give a truth value", str(PREDICATE), found
    carried = [value.type for value in loop.body.outputs]
    yield from _carried("while", inputs[:count], carried)
    yield from _alike("the results of a while are not its carries", carried, node.outputs)


def _carried(
    op: str, before: Sequence[TensorType], after: Sequence[TensorType]
) -> Iterator[tuple[str, str, str]]:
    if len(before) != len(after):
        yield (
            f"the body of a {op} gives another number of carries than it takes",
            str(len(before)),
            str(len(after)),
        )
    for at, (taken, given) in enumerate(zip(before, after, strict=False)):
        if taken != given:
            yield f"carry {at} of a {op} changes its type", str(taken), str(given)


def _alike(
    summary: str, expected: Sequence[TensorType], found: Sequence[Value]
) -> Iterator[tuple[str, str, str]]:
    types = [value.type for value in found]
    if list(expected) != types:
        yield summary, ", ".join(map(str, expected)), ", ".join(map(str, types))
