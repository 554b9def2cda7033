"""Which updates may be written straight into the input they update.

The idea: `w_new = w - lr * g` can overwrite w if nothing reads w afterwards and the kernel reads
w only at the element it is writing.  Everything else computes into memory of its own and is copied.

This module does not know buffers.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.base.sizes import nominal
from tilewright.graph.classify import classify_contraction
from tilewright.graph.ir import FUSED, Graph, Node
from tilewright.graph.views import reads_own, view_of
from tilewright.kernels import read_together

MOST_COPIED = 1 << 16
"""Elements that an input may have to be written at the end, so that a refused call has not."""


@dataclass(frozen=True, slots=True)
class ReadBeforeUpdates:
    """Let what reads an input that is updated stand before the node that makes its new value.

    ::

        %n = {y[i] = w[i] - g[i]}(%w, %g)        -->   %s = {y[] += w[i] * x[i]}(%w, %x)
        %s = {y[] += w[i] * x[i]}(%w, %x)              %n = {y[i] = w[i] - g[i]}(%w, %g)
        return %s  update %w = %n                      return %s  update %w = %n

    A reader that waits for the new value itself stays behind it.
    """

    name: str = "read_before_updates"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        seen_as = _seen_inputs(graph)
        updated = {name: graph.outputs[position].name for name, position in graph.updates}
        made_at = {value.name: at for at, node in enumerate(graph.nodes) for value in node.outputs}
        after = users_of(graph)
        moved = False
        for reader, node in enumerate(graph.nodes):
            for source in {seen_as.get(value.name, value.name) for value in node.inputs}:
                maker = made_at.get(updated.get(source, ""), reader)
                if maker < reader and not leads(after, maker, reader):
                    after[reader].add(maker)
                    moved = True
        return replace(graph, nodes=ordered(graph.nodes, after)) if moved else graph


def users_of(graph: Graph) -> list[set[int]]:
    """Return for each node the positions of those that read what it makes."""
    made_at = {value.name: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    after: list[set[int]] = [set() for _ in graph.nodes]
    for at, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value.name in made_at:
                after[made_at[value.name]].add(at)
    return after


def leads(after: Sequence[Collection[int]], start: int, end: int) -> bool:
    """Say whether one node is among those that come after another, of any distance."""
    seen, stack = {start}, [start]
    while stack:
        for at in after[stack.pop()]:
            if at == end:
                return True
            if at not in seen:
                seen.add(at)
                stack.append(at)
    return False


def ordered(nodes: Sequence[Node], after: Sequence[Collection[int]]) -> tuple[Node, ...]:
    """Return the nodes in an order that holds, each as early as that and the old order allow."""
    waiting = [0] * len(nodes)
    for follow in after:
        for at in follow:
            waiting[at] += 1
    ready = [at for at, count in enumerate(waiting) if count == 0]
    ordered: list[Node] = []
    while ready:
        first = heapq.heappop(ready)
        ordered.append(nodes[first])
        for at in after[first]:
            waiting[at] -= 1
            if waiting[at] == 0:
                heapq.heappush(ready, at)
    assert len(ordered) == len(nodes), "an order was asked for that is none"
    return tuple(ordered)


def updates_in_place(graph: Graph, first: int = 0) -> dict[str, str]:
    """Return, for values that may live in the input they update, that input's name.

    first: the first node that may write into an input, unless it is a large one: a copy at the end
    of every run would cost more than a refused run that is made again.
    """
    seen_as = _seen_inputs(graph)
    last_read: dict[str, int] = {}
    made_at: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            last_read[value.name] = position
            # A view has no memory of its own; the node that makes the update must not read one.
            if value.name in seen_as:
                last_read[seen_as[value.name]] = position + 1
        made_at.update((value.name, position) for value in node.outputs)
    counts = [value.name for value in graph.outputs]
    handed_out = {seen_as.get(name, name) for name in counts}
    found: dict[str, str] = {}
    types = {value.name: value.type for value in graph.inputs}
    for name, position in graph.updates:
        value = graph.outputs[position]
        at = made_at.get(value.name)
        if at is None or counts.count(value.name) > 1 or name in handed_out:
            continue
        sizes = [nominal(dim) for dim in value.type.shape if isinstance(dim, int)]
        if at < first and prod(sizes) <= MOST_COPIED:
            continue
        if value.type != types[name] or last_read.get(name, -1) > at:
            continue
        if pointwise_at(graph.nodes[at], name, value.name):
            found[value.name] = name
    return found


def _seen_inputs(graph: Graph) -> dict[str, str]:
    """Return for every value that may be a view of an input, or of such a view, that input."""
    inputs = {value.name for value in graph.inputs}
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.formula is None or len(node.inputs) != 1:
            continue
        operand = node.inputs[0]
        if view_of(node.formula, {node.formula.operands[0]: operand.type}) is not None:
            source = found.get(operand.name, operand.name)
            if source in inputs:
                found[node.outputs[0].name] = source
    return found


def pointwise_at(node: Node, source: str, result: str) -> bool:
    """Say whether a node reads `source` only at the element of `result` that it is writing."""
    if node.op != FUSED:
        if node.formula is None:
            return False
        operands = _operand(node, source)
        return reads_own(node.formula, operands) or _is_added_to(node, operands)
    body = node.graphs[0]
    inner = {
        own.name
        for own, value in zip(body.inputs, node.inputs, strict=True)
        if value.name == source
    }
    position = [value.name for value in node.outputs].index(result)
    own_name = body.outputs[position].name
    if any(item.formula is None for item in body.nodes):
        return False
    shape = next(item.output.type.shape for item in body.nodes if item.output.name == own_name)
    # What is made of the source may be computed again where it is read, results too.
    touched = set(inner)
    for item in body.nodes:
        formula = item.formula
        assert formula is not None, "the body was looked at"
        names = {
            name
            for name, value in zip(formula.operands, item.inputs, strict=True)
            if value.name in touched
        }
        if not names:
            continue
        if item.output.type.shape != shape or not reads_own(formula, names):
            return False
        touched.add(item.output.name)
    outputs = {value.name for value in body.outputs}
    if any(map(_sums, body.nodes)):
        # Beside sums each result has loops of its own, which compute again what they need.  But a
        # product may keep its sums so far where its result will be.
        return touched & outputs <= {own_name} and not any(map(_is_product, body.nodes))
    if _read_after(body, own_name, inner):
        return False
    return all(read_together(body, name, position) for name in inner)


def _read_after(body: Graph, result: str, source: set[str]) -> bool:
    """Say whether a kernel reads the source again once it has written the result over it.

    What is no result is computed where it is used, and reads then what it is made of.
    """
    outputs = {value.name for value in body.outputs}
    reading = set(source)  # the source, and values that have to read it where they are used
    written = False
    for item in body.nodes:
        name = item.output.name
        if any(value.name in reading for value in item.inputs):
            if written:
                return True
            if name not in outputs:
                reading.add(name)
        written = written or name == result
    return False


def _sums(node: Node) -> bool:
    return node.formula is not None and node.formula.op != "="


def _is_product(node: Node) -> bool:
    if node.formula is None:
        return False
    words = zip(node.formula.operands, node.inputs, strict=True)
    return classify_contraction(node.formula, {word: v.type for word, v in words}) is not None


def _operand(node: Node, source: str) -> set[str]:
    assert node.formula is not None, "pointwise_at has looked"
    return {
        name
        for name, value in zip(node.formula.operands, node.inputs, strict=True)
        if value.name == source
    }


def _is_added_to(node: Node, operands: set[str]) -> bool:
    """Say whether a matrix product is added to these operands, and reads them nowhere else."""
    assert node.formula is not None, "pointwise_at has looked"
    words = zip(node.formula.operands, node.inputs, strict=True)
    found = classify_contraction(node.formula, {word: value.type for word, value in words})
    if found is None or not found.is_matrix:
        return False
    return found.onto in operands and not operands & {found.left.tensor, found.right.tensor}
