"""Gradient accumulation: a batch taken as several smaller ones, by a scan over them.

The idea: loss and gradient of one small batch are the body of a scan, the sums over the batches its
carries, so that what a step holds at a time is what one small batch needs::

    joint(batch [m, ...])   -->   scan(joint) over batch [n m, ...] seen as [n, m, ...]

Loss and gradient are the means of the small batches' own; buffers (batch norm's statistics) go from
one to the next, and each has masks of its own.

This module does not know optimizers.
"""

from dataclasses import replace

from tilewright.autodiff import Joint
from tilewright.autodiff.reverse import full
from tilewright.base.dtypes import I64
from tilewright.graph.build import Builder, names
from tilewright.graph.control import Parts, add_scan
from tilewright.graph.ir import Graph, TensorType, Value
from tilewright.ops import emit
from tilewright.ops.operator import write


def accumulated(joint: Joint, n: int) -> Joint:
    """Return loss and gradient of a batch that is `n` batches of `joint`, one after the other.

    What has the role "argument" and a rank is part of the batch, along its first dim.
    """
    graph = joint.graph
    kinds = {value.name: graph.role(value.name).kind for value in graph.inputs}
    updated = dict(graph.updates)
    batch = [v for v in graph.inputs if kinds[v.name] == "argument" and v.type.rank]
    seeds = [v for v in graph.inputs if kinds[v.name] == "seed"]
    moving = [v for v in graph.inputs if v.name in updated]
    special = {v.name for v in (*batch, *seeds, *moving)}
    closed = [v for v in graph.inputs if v.name not in special]
    sums = [at for at in range(len(graph.outputs)) if at not in set(updated.values())]

    builder = Builder(graph.name)
    builder.reserve(names(graph))
    whole = {v.name: Value(v.name, _longer(v.type, n)) for v in batch}
    builder.inputs = [whole.get(v.name, v) for v in graph.inputs]
    builder.roles = list(graph.roles)
    starts = [
        builder.formula(full(graph.outputs[at].type, 0.0), name=f"no_{graph.outputs[at].name}")
        for at in sums
    ]
    parts = Parts(
        (*starts, *moving),
        (
            *(_parted(builder, whole[v.name], n) for v in batch),
            *(_seeds(builder, v, n) for v in seeds),
        ),
        tuple(closed),
    )
    body = _body(graph, sums, (*batch, *seeds), moving, closed)
    made = add_scan(builder, body, parts, length=n)
    means = [
        write(builder, "y[...] = s[...] / n", s=total, n=n, dtype=total.type.dtype, name=wish)
        for total, wish in zip(made, (graph.outputs[at].name for at in sums), strict=False)
    ]
    by_place = dict(zip(sums, means, strict=True))
    last = dict(zip((v.name for v in moving), made[len(sums) :], strict=True))
    by_place |= {at: last[name] for name, at in updated.items()}
    outputs = [by_place[at] for at in range(len(graph.outputs))]
    return replace(joint, graph=builder.finish(outputs, graph.updates))


def _longer(type_: TensorType, n: int) -> TensorType:
    first, *rest = type_.shape
    assert isinstance(first, int), "a training step has static sizes"
    return TensorType((n * first, *rest), type_.dtype)


def _parted(builder: Builder, value: Value, n: int) -> Value:
    """Return a batch with a dim more, over its parts."""
    first, *rest = value.type.shape
    assert isinstance(first, int), "a training step has static sizes"
    shape = [dim for dim in (n, first // n, *rest) if isinstance(dim, int)]
    made = emit(builder, "reshape", value, shape=tuple(shape))
    assert isinstance(made, Value), "a reshape has one result"
    return made


def _seeds(builder: Builder, seed: Value, n: int) -> Value:
    """Return a seed for each small batch; those of one step are not those of the next."""
    body = f"y[i<{n}] = seed[] * {n} + i"
    return write(builder, body, seed=seed, dtype=I64, name="seeds")


def _body(
    graph: Graph,
    sums: list[int],
    elements: tuple[Value, ...],
    moving: list[Value],
    closed: list[Value],
) -> Graph:
    """Return the graph of one small batch, which adds its loss and gradient to those before."""
    builder = Builder("small_batch")
    builder.reserve(names(graph))
    before = [builder.input(f"sum_{graph.outputs[at].name}", graph.outputs[at].type) for at in sums]
    builder.inputs += [*moving, *elements, *closed]
    builder.nodes = list(graph.nodes)
    after = [
        write(
            builder, "y[...] = s[...] + a[...]", s=total, a=graph.outputs[at],
            dtype=total.type.dtype, name=f"sum_{graph.outputs[at].name}",
        )
        for total, at in zip(before, sums, strict=True)
    ]  # fmt: skip
    updated = dict(graph.updates)
    return builder.finish([*after, *(graph.outputs[updated[v.name]] for v in moving)])
