"""Control flow in a Program: where carries, elements and results of a sub-graph lie.

The idea: a sub-graph is assembled as a graph is, into a block of instructions whose views move with
the loop.  The element of a sequence is a view of it; a result is written where it is stacked.  A
carry lies in one place that each step updates; if its values are stacked anyway, the stack is that
place, with room for one more::

    stack of T + 1     step i reads slot i, writes slot i + 1; the last slot is the last carry

This module does not know how nodes are computed: the assembly does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.base.sizes import nominal
from tilewright.graph.control import Scan, scan_of, while_of
from tilewright.graph.ir import COND, SCAN, WHILE, Graph, Node, TensorType, Value
from tilewright.program import (
    Branch,
    Instruction,
    Launch,
    LibraryCall,
    Loop,
    Segment,
    View,
    While,
)

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

Step = Launch | LibraryCall | Loop | While | Branch


def in_segments(steps: Sequence[Step]) -> tuple[Instruction, ...]:
    """Return steps as instructions: launches between two others are one segment."""
    instructions: list[Instruction] = []
    launches: list[Launch] = []
    for step in steps:
        if isinstance(step, Launch):
            launches.append(step)
            continue
        if launches:
            instructions.append(Segment(tuple(launches)))
            launches = []
        instructions.append(step)
    if launches:
        instructions.append(Segment(tuple(launches)))
    return tuple(instructions)


@dataclass(frozen=True, slots=True)
class _Carry:
    """Where a carry lies when a step begins and when it has ended, and after the last step.

    moves: whether these are different places; else each step updates the one.
    """

    before: View
    after: View
    last: View
    moves: bool


MANY = 8
"""Steps worth a copy of what all of them multiply many rows by: it takes as long as several do."""


def place_scan(assembly: "Assembly", node: Node) -> str:
    """Add a scan as a loop; returns what was decided."""
    scan = scan_of(node)
    parts = scan.part([assembly.places[value.name] for value in node.inputs])
    carries = [_carry(assembly, node, scan, at) for at in range(scan.carries)]
    elements = [_slice(assembly, scan, sequence) for sequence in parts.sequences]
    targets: dict[str, View] = {}
    copies: list[tuple[Value, View]] = []

    def send(value: Value, target: View) -> None:
        """Let a value be made where it has to lie; if it has to lie elsewhere too, copy it."""
        if targets.setdefault(value.name, target) != target or value in scan.body.inputs:
            copies.append((value, target))

    for value, carry in zip(scan.body.outputs, carries, strict=False):
        if carry.moves:
            send(value, carry.after)
    for value, result in zip(
        scan.body.outputs[scan.carries :], node.outputs[scan.carries :], strict=True
    ):
        if result.name not in assembly.places:  # else it is a stack of carries
            send(value, _slice(assembly, scan, assembly.place(result)))
    fixed = [at for at, carry in enumerate(carries) if not carry.moves]
    names = [value.name for value in scan.body.inputs]
    body = replace(scan.body, updates=tuple((names[at], at) for at in fixed))
    places = [*(carry.before for carry in carries), *elements, *parts.closed]
    inner = assembly.inside(body, places, targets, depth=assembly.depth + 1)
    written = {view.buffer for carry in carries for view in (carry.before, carry.after)}
    written |= {assembly.places[value.name].buffer for value in node.outputs}
    inner.around = assembly
    inner.lasting = frozenset(view.buffer for view in parts.closed) - written
    if nominal(scan.length) >= MANY:
        inner.carried = _made_of(body, names[: scan.carries])
    inner.run()
    _deliver(inner, targets, copies)
    inner.write_updates({names[at]: body.outputs[at] for at in fixed})
    assembly.steps.append(Loop(inner.block(), scan.length))
    return f"{scan.length} steps of {body.name}"


def _made_of(body: Graph, carries: Sequence[str]) -> frozenset[str]:
    """Return the carries and all that is made of them."""
    made = set(carries)
    for node in body.nodes:
        if any(value.name in made for value in node.inputs):
            made |= {value.name for value in node.outputs}
    return frozenset(made)


def _carry(assembly: "Assembly", node: Node, scan: Scan, at: int) -> _Carry:
    """Decide where a carry lies, and bring its first value there."""
    before, after = scan.body.inputs[at], scan.body.outputs[at]
    first = assembly.places[node.inputs[at].name]
    results = zip(scan.body.outputs, node.outputs, strict=True)
    stacked = [
        (value, result)
        for value, result in list(results)[scan.carries :]
        if value in (before, after)
        and result.name not in assembly.results
        and result.name not in assembly.places
    ]
    if not stacked or before == after:
        place = assembly.place(node.outputs[at])
        assembly.copy(first, place, "a carry before the first step")
        return _Carry(place, place, place, moves=False)
    type_ = TensorType((scan.length + 1, *before.type.shape), before.type.dtype)
    stack = assembly.scratch(f"{assembly.prefix}{node.outputs[at].name}_steps", type_)
    low = replace(stack, shape=(scan.length, *stack.shape[1:]))
    high = replace(low, offset=_stride(stack))
    early, late = (high, low) if scan.reverse else (low, high)
    for value, result in stacked:
        assembly.places[result.name] = early if value == before else late
    ends = [_slot(stack, scan.length), _slot(stack, 0)]
    last, start = ends if not scan.reverse else ends[::-1]
    assembly.places[node.outputs[at].name] = last
    assembly.copy(first, start, "a carry before the first step")
    read, written = (_slice(assembly, scan, view) for view in (early, late))
    return _Carry(read, written, last, moves=True)


def _stride(stack: View) -> int:
    """Return how far apart slots lie: those that hold nothing lie all where the buffer begins."""
    return 0 if 0 in stack.shape[1:] else stack.strides[0]


def _slot(stack: View, at: int) -> View:
    offset = stack.offset + at * _stride(stack)
    return replace(stack, shape=stack.shape[1:], strides=stack.strides[1:], offset=offset)


def _slice(assembly: "Assembly", scan: Scan, view: View) -> View:
    """Return the view of one element along the leading dim, that moves with the scan's loop."""
    first = scan.length - 1 if scan.reverse and scan.length else 0
    step = -_stride(view) if scan.reverse else _stride(view)
    blank = (0,) * (assembly.depth - len(view.steps))
    return replace(_slot(view, first), steps=(*view.steps, *blank, step))


def place_cond(assembly: "Assembly", node: Node) -> str:
    """Add a cond as a branch; returns what was decided."""
    holds, *operands = (assembly.places[value.name] for value in node.inputs)
    results = [assembly.place(value) for value in node.outputs]
    then, otherwise = (_arm(assembly, branch, operands, results) for branch in node.graphs)
    assembly.steps.append(Branch(holds, then, otherwise))
    return f"{node.graphs[0].name} or {node.graphs[1].name}"


def _arm(
    assembly: "Assembly", branch: Graph, operands: Sequence[View], results: Sequence[View]
) -> tuple[Instruction, ...]:
    targets: dict[str, View] = {}
    copies: list[tuple[Value, View]] = []
    for value, place in zip(branch.outputs, results, strict=True):
        if targets.setdefault(value.name, place) != place or value in branch.inputs:
            copies.append((value, place))
    inner = assembly.inside(branch, operands, targets, depth=assembly.depth)
    inner.run()
    _deliver(inner, targets, copies)
    return inner.block()


def place_while(assembly: "Assembly", node: Node) -> str:
    """Add a while; returns what was decided."""
    loop = while_of(node)
    given = [assembly.places[value.name] for value in node.inputs]
    carries = [assembly.place(value) for value in node.outputs]
    for first, place in zip(given, carries, strict=False):
        assembly.copy(first, place, "a carry before the first step")
    places = [*carries, *given[loop.carries :]]
    test = assembly.inside(loop.test, places, {}, depth=assembly.depth)
    test.run()
    names = [value.name for value in loop.body.inputs[: loop.carries]]
    body = replace(loop.body, updates=tuple((name, at) for at, name in enumerate(names)))
    inner = assembly.inside(body, places, {}, depth=assembly.depth)
    inner.run()
    inner.write_updates(dict(zip(names, body.outputs, strict=True)))
    holds = test.places[loop.test.outputs[0].name]
    assembly.steps.append(While(test.block(), holds, inner.block()))
    return f"{body.name} while {loop.test.name}"


def _deliver(
    inner: "Assembly", targets: Mapping[str, View], copies: Sequence[tuple[Value, View]]
) -> None:
    """Copy results that could not be made where they have to lie."""
    made = [(value, targets[value.name]) for value in inner.graph.outputs if value.name in targets]
    for value, target in dict.fromkeys([*made, *copies]):
        if inner.places[value.name] != target:
            inner.copy(inner.places[value.name], target, "a result of a step")


PLACED: dict[str, Callable[["Assembly", Node], str]] = {
    SCAN: place_scan,
    COND: place_cond,
    WHILE: place_while,
}
