"""Batches of control flow: bodies on batches.

The idea: a body is batched as any graph is.  A carry has the batch if it ever gets it, and where
samples go different ways, both are gone and each sample takes its own::

    c, y = scan(c0, x, w) with body      -->   the same, with the batched body
    y = cond(p, x) with f, g             -->   y[z] = f(x)[z] if p[z] else g(x)[z]
    c = while(c0) with test, body        -->   while any test: body(c)[z] if test[z] else c[z]

This module does not know how a body is batched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.batch import batch, lead, spread
from tilewright.base.dtypes import BOOL
from tilewright.base.expr import Read, Sym, call
from tilewright.graph.build import Builder
from tilewright.graph.control import Parts, add_cond, add_scan, add_while, scan_of, while_of
from tilewright.graph.ir import COND, SCAN, Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.notation import normal

Known = tuple[Value, bool]


@dataclass(frozen=True, slots=True)
class Samples:
    """How many samples there are, and what a draw of random numbers is for them."""

    size: int
    randomness: str


def batch_control(
    builder: Builder, node: Node, operands: Sequence[Known], samples: Samples
) -> list[Known]:
    """Add what a node of control flow becomes: each result, and whether it has the batch."""
    if node.op == COND:
        if operands[0][1]:
            return _select(builder, node, operands, samples)
        return _batch_cond(builder, node, operands, samples)
    if node.op == SCAN:
        return _batch_scan(builder, node, operands, samples)
    return _batch_while(builder, node, operands, samples)


def _batch_cond(
    builder: Builder, node: Node, operands: Sequence[Known], samples: Samples
) -> list[Known]:
    predicate, *rest = (value for value, _ in operands)
    both = [_batched(branch, [has for _, has in operands[1:]], samples) for branch in node.graphs]
    wanted = [any(flags) for flags in zip(*(flags for _, flags in both), strict=True)]
    then, otherwise = (_with_batch(*one, wanted, samples) for one in both)
    names = [value.name for value in node.outputs]
    made = add_cond(builder, predicate, then, otherwise, rest, origin=node.origin, names=names)
    return list(zip(made, wanted, strict=True))


def _select(
    builder: Builder, node: Node, operands: Sequence[Known], samples: Samples
) -> list[Known]:
    """Run both branches, and let each sample have the results of its own."""
    (predicate, _), *rest = operands
    values = [value for value, _ in rest]
    found = []
    for branch in node.graphs:
        graph, flags = _batched(branch, [has for _, has in rest], samples)
        made = builder.inline(graph, values, origin=node.origin)
        found.append(list(zip(made, flags, strict=True)))
    return [
        (_chosen(builder, predicate, then, otherwise, value.type, node, samples.size), True)
        for then, otherwise, value in zip(*found, node.outputs, strict=True)
    ]


def _batch_scan(
    builder: Builder, node: Node, operands: Sequence[Known], samples: Samples
) -> list[Known]:
    scan = scan_of(node)
    flags = [has for _, has in operands]
    graph, given, flags = _fixed(scan.body, scan.carries, flags, samples)
    wanted = [*flags[: scan.carries], *given[scan.carries :]]
    inputs = [
        _first_batched(builder, known, wants, samples, node)
        for known, wants in zip(operands, flags, strict=True)
    ]
    parts = scan.part(inputs)
    has = scan.part(flags)
    sequences = [
        _turned(builder, value, node) if moved else value
        for value, moved in zip(parts.sequences, has.sequences, strict=True)
    ]
    made = add_scan(
        builder,
        _with_batch(graph, given, wanted, samples),
        Parts(parts.carries, tuple(sequences), parts.closed),
        length=scan.length,
        reverse=scan.reverse,
        origin=node.origin,
        names=[value.name for value in node.outputs],
    )
    return [
        (_turned(builder, value, node) if moved and at >= scan.carries else value, moved)
        for at, (value, moved) in enumerate(zip(made, wanted, strict=True))
    ]


def _batch_while(
    builder: Builder, node: Node, operands: Sequence[Known], samples: Samples
) -> list[Known]:
    loop = while_of(node)
    count = loop.carries
    flags = [has for _, has in operands]
    body, given, flags = _fixed(loop.body, count, flags, samples)
    test, (tested,) = _batched(loop.test, flags, samples)
    if tested:  # samples end at different times: each has carries of its own
        flags = [at < count or has for at, has in enumerate(flags)]
        body, given = _batched(loop.body, flags, samples)
        test, (tested,) = _batched(loop.test, flags, samples)
    body = _with_batch(body, given, flags[:count], samples)
    if tested:
        test, body = _any(test, samples.size), _going_on(test, body, count, node, samples.size)
    inputs = [
        _first_batched(builder, known, wants, samples, node)
        for known, wants in zip(operands, flags, strict=True)
    ]
    names = [value.name for value in node.outputs]
    made = add_while(
        builder, test, body, inputs[:count], inputs[count:], origin=node.origin, names=names
    )
    return list(zip(made, flags[:count], strict=True))


def _any(test: Graph, size: int) -> Graph:
    """test(c)[z]   -->   some test(c)[z]"""
    inner = Builder.extending(test)
    formula = Formula(
        ("x",), (Loop("z", size),), (), "any=", Read("x", (Sym("z"),)), TensorType((), BOOL)
    )
    return inner.finish([inner.formula(normal(formula), test.outputs[0], name="some")])


def _going_on(test: Graph, body: Graph, carries: int, node: Node, size: int) -> Graph:
    """body(c)[z]   -->   body(c)[z] if test(c)[z] else c[z]"""
    inner = Builder.extending(body)
    (goes_on,) = inner.inline(test, body.inputs)
    before = body.inputs[:carries]
    made = [
        _chosen(inner, goes_on, (after, True), (value, True), one.type, node, size)
        for after, value, one in zip(body.outputs, before, node.outputs, strict=True)
    ]
    return inner.finish(made)


# ---------------------------------------------------------------------------------------- bodies


def _batched(body: Graph, flags: Sequence[bool], samples: Samples) -> tuple[Graph, list[bool]]:
    made = batch(body, flags, samples.size, randomness=samples.randomness)
    return made.graph, list(made.outputs)


def _fixed(
    body: Graph, carries: int, flags: Sequence[bool], samples: Samples
) -> tuple[Graph, list[bool], list[bool]]:
    """Return a loop's body batched, which of its results have the batch, and which inputs: a carry
    does if it ever gets it."""
    flags = list(flags)
    while True:
        graph, given = _batched(body, flags, samples)
        grown = [has or (at < carries and given[at]) for at, has in enumerate(flags)]
        if grown == flags:
            return graph, given, flags
        flags = grown


def _with_batch(
    graph: Graph, has: Sequence[bool], wanted: Sequence[bool], samples: Samples
) -> Graph:
    """Let those outputs have the batch that are wanted to."""
    inner = Builder.extending(graph)
    outputs = [
        spread(inner, value, samples.size) if wants and not given else value
        for value, given, wants in zip(graph.outputs, has, wanted, strict=True)
    ]
    return replace(inner.finish(outputs), roles=())


def _first_batched(
    builder: Builder, known: Known, wants: bool, samples: Samples, node: Node
) -> Value:
    value, has = known
    return spread(builder, value, samples.size, node.origin) if wants and not has else value


# ---------------------------------------------------------------------------------------- formulas


def _chosen(
    builder: Builder,
    predicate: Value,
    then: Known,
    otherwise: Known,
    one: TensorType,
    node: Node,
    size: int,
) -> Value:
    """y[z, i] = a[z, i] if p[z] else b[z, i], for results of type `one` of a sample."""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(one.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    a, b = (
        Read(name, (Sym("z"), *index) if has else index)
        for name, (_, has) in (("a", then), ("b", otherwise))
    )
    formula = Formula(
        ("p", "a", "b"),
        (Loop("z", size), *loops),
        (Sym("z"), *index),
        "=",
        call("select", Read("p", (Sym("z"),)), a, b),
        lead(one, size),
    )
    operands = dict(zip("pab", (predicate, then[0], otherwise[0]), strict=True))
    made = normal(formula)
    sources = [operands[name] for name in made.operands]
    return builder.formula(made, *sources, origin=node.origin, name="chosen")


def _turned(builder: Builder, value: Value, node: Node) -> Value:
    """y[i, j, ...] = x[j, i, ...]"""
    first, second, *rest = value.type.shape
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate((second, first, *rest)))
    index = tuple(Sym(loop.name) for loop in loops)
    formula = Formula(
        ("x",),
        loops,
        index,
        "=",
        Read("x", (index[1], index[0], *index[2:])),
        TensorType((second, first, *rest), value.type.dtype),
    )
    return builder.formula(normal(formula), value, origin=node.origin, name=value.name)
