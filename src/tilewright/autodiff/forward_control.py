"""Forward mode of control flow: the same node, whose bodies take and give changes beside values.

The idea: a body is differentiated as any graph is, and runs beside its own change::

    c, y = scan(c0, x, w) with body   -->   c, tc, y, ty = scan(c0, tc0, x, tx, w, tw) with its push

A carry has a change if it ever gets one.  The node stands in the place of the old one, so that no
body runs twice; a sort afterwards puts it behind the changes that it takes.

This module does not know how a body is differentiated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.forward import forward
from tilewright.autodiff.reverse import active_carries, full
from tilewright.graph.build import Builder
from tilewright.graph.control import Parts, add_cond, add_scan, add_while, scan_of, while_of
from tilewright.graph.ir import COND, SCAN, WHILE, Graph, Node, Value

Changes = tuple[Value | None, ...]
Place = tuple[int, bool]
"""The position of a value, and whether its change is meant."""
Added = tuple[list[Place], tuple[Value, ...]]


def push_control(builder: Builder, node: Node, changes: Sequence[Value | None]) -> Changes:
    """Put a node that gives its changes, too, in the place of a node of control flow.

    changes: of the operands.  Returns those of the results, which keep their names.
    """
    builder.nodes = [other for other in builder.nodes if other is not node]
    builder.taken.difference_update(value.name for value in node.outputs)
    push = {COND: _push_cond, SCAN: _push_scan, WHILE: _push_while}[node.op]
    places, made = push(builder, node, changes)
    found: list[Value | None] = [None] * len(node.outputs)
    for (at, is_change), value in zip(places, made, strict=True):
        if is_change:
            found[at] = value
    return tuple(found)


def _push_cond(builder: Builder, node: Node, changes: Sequence[Value | None]) -> Added:
    predicate, *operands = node.inputs
    flags = [change is not None for change in changes[1:]]
    both = [_pushed(branch, flags) for branch in node.graphs]
    count = len(node.outputs)
    changing = [any(one.given[at] is not None for one in both) for at in range(count)]
    taken, given = _order([range(len(operands))], flags), _order([range(count)], changing)
    then, otherwise = (one.with_zeros(changing).finish(taken, given) for one in both)
    made = add_cond(
        builder,
        predicate,
        then,
        otherwise,
        _chosen(operands, changes[1:], taken),
        origin=node.origin,
        names=_names(node, given),
    )
    return given, made


def _push_scan(builder: Builder, node: Node, changes: Sequence[Value | None]) -> Added:
    scan = scan_of(node)
    operands, flags = _with_first(builder, node, scan.body, scan.carries, changes)
    pushed = _pushed(scan.body, flags).with_zeros(flags[: scan.carries])
    last = scan.carries + scan.sequences
    groups = [range(scan.carries), range(scan.carries, last), range(last, len(node.inputs))]
    parts = [_order([group], flags) for group in groups]
    changing = [change is not None for change in pushed.given]
    given = _order([range(scan.carries), range(scan.carries, len(node.outputs))], changing)
    made = add_scan(
        builder,
        pushed.finish([place for part in parts for place in part], given),
        Parts(*(tuple(_chosen(node.inputs, operands, part)) for part in parts)),
        length=scan.length,
        reverse=scan.reverse,
        origin=node.origin,
        names=_names(node, given),
    )
    return given, made


def _push_while(builder: Builder, node: Node, changes: Sequence[Value | None]) -> Added:
    loop = while_of(node)
    operands, flags = _with_first(builder, node, loop.body, loop.carries, changes)
    carries = _order([range(loop.carries)], flags)
    closed = _order([range(loop.carries, len(node.inputs))], flags)
    test = Builder.extending(loop.test)
    unread = [test.input(f"t_{value.name}", value.type) for value in loop.test.inputs]
    test.inputs = _chosen(loop.test.inputs, unread, [*carries, *closed])
    pushed = _pushed(loop.body, flags).with_zeros(flags[: loop.carries])
    made = add_while(
        builder,
        test.finish(loop.test.outputs),
        pushed.finish([*carries, *closed], carries),
        _chosen(node.inputs, operands, carries),
        _chosen(node.inputs, operands, closed),
        origin=node.origin,
        names=_names(node, carries),
    )
    return carries, made


def _with_first(
    builder: Builder, node: Node, body: Graph, carries: int, changes: Sequence[Value | None]
) -> tuple[list[Value | None], list[bool]]:
    """Return the changes of a loop's operands, and which there are: that of a carry which gets one
    in the loop only begins with zero."""
    flags = active_carries(body, carries, [change is not None for change in changes])
    given = list(changes)
    for at, (on, change) in enumerate(zip(flags, changes, strict=True)):
        if on and change is None:
            zero = full(node.inputs[at].type, 0.0)
            given[at] = builder.formula(zero, origin=node.origin, name="zero")
    return given, flags


# ---------------------------------------------------------------------------------------- bodies


@dataclass(frozen=True, slots=True)
class _Pushed:
    """A body that takes and gives changes beside values.

    graph: holds all of them, its inputs and outputs in no order yet.  inputs, outputs: the values;
    taken, given: the change of each, or None.
    """

    graph: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    taken: Changes
    given: Changes

    def with_zeros(self, has: Sequence[bool]) -> "_Pushed":
        """Let the first outputs have a change where `has` says so."""
        inner, given = Builder.extending(self.graph), list(self.given)
        for at, wanted in enumerate(has):
            if wanted and given[at] is None:
                given[at] = inner.formula(full(self.outputs[at].type, 0.0), name="zero")
        return replace(self, graph=inner.finish(self.graph.outputs), given=tuple(given))

    def finish(self, inputs: Sequence[Place], outputs: Sequence[Place]) -> Graph:
        """Return the body, which takes and gives what stands at these places, in their order."""
        return replace(
            self.graph,
            inputs=tuple(_chosen(self.inputs, self.taken, inputs)),
            outputs=tuple(_chosen(self.outputs, self.given, outputs)),
            roles=(),
        )


def _pushed(body: Graph, flags: Sequence[bool]) -> _Pushed:
    """Differentiate a body along changes of the inputs that `flags` choose."""
    made = forward(body, [value.name for value, on in zip(body.inputs, flags, strict=True) if on])
    tangents = iter(made.graph.inputs[len(body.inputs) :])
    return _Pushed(
        made.graph,
        body.inputs,
        made.graph.outputs[: len(body.outputs)],
        tuple(next(tangents) if on else None for on in flags),
        tuple(None if at is None else made.graph.outputs[at] for at in made.changes),
    )


def _order(groups: Sequence[range], has: Sequence[bool]) -> list[Place]:
    """Return the places of groups: in each, all values, then the changes that there are."""
    places: list[Place] = []
    for group in groups:
        places += [(at, False) for at in group]
        places += [(at, True) for at in group if has[at]]
    return places


def _chosen(
    values: Sequence[Value], changes: Sequence[Value | None], places: Sequence[Place]
) -> list[Value]:
    """Return what stands at these places."""
    found = [changes[at] if is_change else values[at] for at, is_change in places]
    assert None not in found, "a place of a change has one"
    return [value for value in found if value is not None]


def _names(node: Node, places: Sequence[Place]) -> list[str]:
    names = [value.name for value in node.outputs]
    return [f"t_{names[at]}" if is_change else names[at] for at, is_change in places]
