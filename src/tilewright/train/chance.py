"""Masks from a seed: what torch would draw from its generator becomes a function of a graph input.

The idea: a mask element is `uniform(seed, its own number)`, so it is the same under any order of
computation, costs no memory traffic, and a run resumed at the same seed draws the same masks::

    noise = aten.bernoulli.p(x, q)   -->   noise = {y[...] = 1 if uniform(seed[], n) < q else 0}

The numbers fall into streams of 2**32, one for each mask, in the order of the nodes.  A scan takes
as many as its body for each of its steps, and tells each step the first of its own::

    scan(c, xs)   -->   scan(c, xs, {y[t] = first[] + t * streams}, seed)

This module does not know where a seed comes from; what it does not rewrite still draws from torch:
in the bodies of a while, which may make any number of steps, and whatever is no Bernoulli mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.dtypes import I64
from tilewright.graph.build import Builder, draws, prune
from tilewright.graph.control import Parts, add_cond, add_scan, scan_of
from tilewright.graph.ir import COND, LIBRARY, SCAN, Graph, Node, Role, TensorType, Value
from tilewright.ops.operator import write

SEED = "seed"
_BERNOULLI = "aten.bernoulli.p"
_NUMBER = TensorType((), I64)


def seed_masks(graph: Graph) -> Graph:
    """Draw every Bernoulli mask from one more input, `seed`, an integer of rank 0.

    A graph without masks stays as it is.
    """
    if not _streams(graph):
        return graph
    builder = Builder.signature_of(graph)
    builder.reserve(value.name for node in graph.nodes for value in node.outputs)
    seed = builder.input(SEED, _NUMBER, Role("seed", SEED))
    _rewrite(builder, graph, _Source(seed, None))
    return prune(builder.finish(graph.outputs, graph.updates))


def seeded_by(graph: Graph) -> str | None:
    """Return the name of the input that is the seed, or None."""
    return next((name for name, role in graph.roles if role.kind == "seed"), None)


def draws_from_torch(graph: Graph) -> bool:
    """Say whether something in the graph still draws from torch's own generator."""
    return any(map(draws, graph.nodes))


@dataclass(frozen=True, slots=True)
class _Source:
    """What the masks of a graph are numbers of: a seed, from a first stream on (None: the 0th)."""

    seed: Value
    first: Value | None

    def start(self) -> dict[str, Value]:
        return {} if self.first is None else {"first": self.first}

    def stream(self, at: int) -> str:
        return str(at) if self.first is None else f"first[] + {at}"

    def number(self, at: int) -> str:
        """Return the first number of a stream."""
        return str(at << 32) if self.first is None else f"({self.stream(at)}) * {1 << 32}"


def _streams(graph: Graph) -> int:
    """Return how many streams the masks of a graph take."""
    return sum(map(_streams_of, graph.nodes))


def _streams_of(node: Node) -> int:
    if node.op == SCAN:
        scan = scan_of(node)
        return scan.length * _streams(scan.body)
    return max(map(_streams, node.graphs)) if node.op == COND else int(_is_mask(node))


def _is_mask(node: Node) -> bool:
    if node.op != LIBRARY or node.attr("target") != _BERNOULLI or "through" in dict(node.attrs):
        return False
    args = node.attr("args")
    return isinstance(args, tuple) and isinstance(args[-1], float | int)


def _rewrite(builder: Builder, graph: Graph, source: _Source) -> None:
    """Add the nodes of a graph, with masks that are drawn from the source."""
    at = 0
    for node in graph.nodes:
        streams = _streams_of(node)
        if not streams:
            builder.nodes.append(node)
            continue
        if node.op == SCAN:
            made = _scan(builder, node, source, at)
        elif node.op == COND:
            made = _cond(builder, node, source, at)
        else:
            made = (_draw(builder, node, source, at),)
        assert made == builder.nodes[-1].outputs, "what stands for the node comes last"
        builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
        at += streams


def _scan(builder: Builder, node: Node, source: _Source, at: int) -> Sequence[Value]:
    scan = scan_of(node)
    body = f"y[t<{scan.length}] = {source.stream(at)} + t * {_streams(scan.body)}"
    firsts = write(builder, body, source.start(), dtype=I64, origin=node.origin, name="streams")
    given, taken = scan.part(node.inputs), scan.part(scan.body.inputs)
    inner = _inside(scan.body)
    first, seed = (Value(inner.fresh(name), _NUMBER) for name in ("first", SEED))
    inner.inputs = [*taken.carries, *taken.sequences, first, *taken.closed, seed]
    _rewrite(inner, scan.body, _Source(seed, first))
    return add_scan(
        builder,
        prune(inner.finish(scan.body.outputs)),
        Parts(given.carries, (*given.sequences, firsts), (*given.closed, source.seed)),
        length=scan.length,
        reverse=scan.reverse,
        origin=node.origin,
    )


def _cond(builder: Builder, node: Node, source: _Source, at: int) -> Sequence[Value]:
    body = f"y[] = {source.stream(at)}"
    first = write(builder, body, source.start(), dtype=I64, origin=node.origin, name="streams")
    branches: list[Graph] = []
    for branch in node.graphs:  # never both run: they may draw the same numbers
        inner = _inside(branch)
        taken = _Source(inner.input(SEED, _NUMBER), inner.input("first", _NUMBER))
        _rewrite(inner, branch, taken)
        branches.append(prune(inner.finish(branch.outputs)))
    predicate, *operands = node.inputs
    given = (*operands, source.seed, first)
    then, otherwise = branches
    return add_cond(builder, predicate, then, otherwise, given, origin=node.origin)


def _inside(body: Graph) -> Builder:
    builder = Builder.signature_of(body)
    builder.reserve(value.name for node in body.nodes for value in node.outputs)
    return builder


def _draw(builder: Builder, node: Node, source: _Source, stream: int) -> Value:
    """Add a mask."""
    args = node.attr("args")
    assert isinstance(args, tuple) and isinstance(args[-1], float | int), "a mask was recognised"
    type_ = node.output.type
    names = [f"i{k}" for k in range(type_.rank)]
    number = source.number(stream)
    stride = 1
    for name, size in zip(reversed(names), reversed(type_.shape), strict=True):
        assert isinstance(size, int), "a training step has static sizes"
        number += f" + {name} * {stride}"
        stride *= size
    limits = ", ".join(f"{name}<{size}" for name, size in zip(names, type_.shape, strict=True))
    body = f"y[{limits}] = 1 if uniform(seed[], {number}) < {float(args[-1])!r} else 0"
    given = {"seed": source.seed} | source.start()
    return write(builder, body, given, dtype=type_.dtype, origin=node.origin, name="mask")
