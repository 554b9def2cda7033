"""Find a loop that was written out step after step, and make it a scan.

The idea: a stack of values that are made alike, step for step, is read backwards as columns, one
value for each step.  What makes a column up is the same node in every step, or the step's slice of
one tensor, or one value for all steps, or another column one step earlier: a carry::

    %h1 = f(%h0, %x[0])      -->   %h, %y = scan(%h0, %x) with f
    %h2 = f(%h1, %x[1])
    %y = stack(%h1, %h2)

Each column is, step for step, what the scan computes: by construction, there is nothing to prove.
Loops without a carry stay as they are, since their steps may run side by side.

This module does not know how a scan runs, nor any operator but those that take slices apart and
put them together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.expr import Const, Expr, Sym, call
from tilewright.base.sizes import Size
from tilewright.graph.build import Builder, draws, names, producers, prune, sort
from tilewright.graph.control import Parts, add_scan
from tilewright.graph.ir import CONSTANT, FORMULA, Graph, Node, TensorType, Value
from tilewright.optimize.rewriting import moved
from tilewright.optimize.subexpressions import CommonSubexpressions

Column = tuple[Value, ...]
_LONGEST_LAG = 3  # steps that a value is carried over


@dataclass(frozen=True, slots=True)
class RollLoops:
    """Make scans of loops that are written out, of at least as many steps as `least` says.

    Compile time, and the size of what is compiled, are then the same for any number of steps.
    """

    least: int = 8
    name: str = "roll_loops"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if any(isinstance(dim, Size) for value in graph.inputs for dim in value.type.shape):
            return graph  # one scan is of one length
        if not any(self._joins(graph)):
            return graph
        # Each step makes views of its own of what all steps read.
        made, rolled, tried = CommonSubexpressions()(graph), False, set[str]()
        while True:
            join = next((n for n in self._joins(made) if n.output.name not in tried), None)
            if join is None:
                return made if rolled else graph
            tried.add(join.output.name)
            found = _find(made, join.inputs) or _find(made, join.inputs[::-1])
            if found is not None:
                made, rolled = _rolled(made, found), True

    def _joins(self, graph: Graph) -> Iterator[Node]:
        for node in graph.nodes:
            if node.op in ("stack", "cat") and len(node.inputs) >= self.least:
                yield node


# ---------------------------------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class _Slices:
    """A column of slices of one tensor: of step k, at `start + k * step` of a dim."""

    source: Value
    select: bool
    dim: int
    start: int
    step: int
    stride: int


@dataclass(slots=True)
class _Columns:
    """The columns that a join has been read as; owned by `_find`.

    made: nodes that are alike, one of each step.  given: what columns they give.  opened: these
    columns by all their names but the last few.  fixed: values for all steps.  slices: of tensors.
    carries: a column and the value that stands in the place before its first.
    """

    made_by: Mapping[str, Node]
    made: list[tuple[Node, ...]] = field(default_factory=list)
    opened: dict[tuple[str, ...], Column] = field(default_factory=dict)
    fixed: dict[Column, Value] = field(default_factory=dict)
    slices: dict[Column, _Slices] = field(default_factory=dict)
    carries: dict[Column, tuple[Column, Value]] = field(default_factory=dict)
    given: dict[Column, tuple[Node, ...]] = field(default_factory=dict)

    def read(self, column: Column) -> bool:
        """Read a column and what makes it up; says whether that could be done."""
        pending = [column]
        while pending:
            waiting, moved = [], False
            while pending:
                column = pending.pop()
                operands = () if self._known(column) else self._read(column)
                if operands is None:
                    waiting.append(column)  # it may be a carry of a column that comes later
                    continue
                moved = True
                pending.extend(operands)
            if not moved:
                return False
            pending = waiting
        return True

    def _known(self, column: Column) -> bool:
        return any(column in found for found in (self.fixed, self.slices, self.carries, self.given))

    def _read(self, column: Column) -> Sequence[Column] | None:
        """Return the columns that a column is made of; None where it cannot be read."""
        first = column[0]
        if any(value.type != first.type for value in column):
            return None
        if all(value.name == first.name for value in column):
            self.fixed[column] = first
            return ()
        if self._carried(column):
            return ()
        makers = [self.made_by.get(value.name) for value in column]
        nodes = tuple(node for node in makers if node is not None)
        if len(nodes) < len(column):
            return None
        found = _slices(nodes)
        if found is not None:
            self.slices[column] = found
            return ()
        return self._made(column, nodes)

    def _carried(self, column: Column) -> bool:
        """Read a column as another one, some steps earlier: a carry, or several in a row."""
        for lag in range(1, _LONGEST_LAG + 1):
            before = self.opened.get(_names(column[lag:]))
            if before is None:
                continue
            for first in column[lag - 1 :: -1]:
                before, of = (first, *before[:-1]), before
                self.carries[before] = (of, first)
            return True
        return False

    def _made(self, column: Column, nodes: tuple[Node, ...]) -> Sequence[Column] | None:
        at = nodes[0].outputs.index(column[0])
        if not all(_alike(nodes[0], node) for node in nodes[1:]):
            return None
        if any(node.outputs[at] != value for node, value in zip(nodes, column, strict=True)):
            return None
        if len({node.outputs[0].name for node in nodes}) < len(nodes):
            return None
        self.made.append(nodes)
        for outputs in zip(*(node.outputs for node in nodes), strict=True):
            self.given[outputs] = nodes
            for lag in range(1, _LONGEST_LAG + 1):
                self.opened[_names(outputs[:-lag])] = outputs
        return tuple(zip(*(node.inputs for node in nodes), strict=True))


def _names(column: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.name for value in column)


def _alike(one: Node, other: Node) -> bool:
    """Say whether two nodes compute the same of different operands."""
    if one.op == CONSTANT or draws(one):
        return False
    # 1, 1.0 and True are equal as attributes, 0.0 and -0.0 too, and are not the same.
    same = (one.op, repr(one.attrs), one.formula, repr(one.graphs)) == (
        other.op,
        repr(other.attrs),
        other.formula,
        repr(other.graphs),
    )
    types = [value.type for value in (*one.inputs, *one.outputs)]
    return same and types == [value.type for value in (*other.inputs, *other.outputs)]


def _slices(nodes: Sequence[Node]) -> _Slices | None:
    """Read nodes as slices of one tensor that move by one stride from step to step."""
    parts = [_slice(node) for node in nodes]
    first, second = parts[0], parts[1]
    if first is None or second is None or first.start == second.start:
        return None
    step = second.start - first.start
    for k, part in enumerate(parts):
        if part != replace(first, start=first.start + k * step):
            return None
    return replace(first, step=step)


def _slice(node: Node) -> _Slices | None:
    if node.op not in ("select", "slice"):
        return None
    attrs, source = dict(node.attrs), node.inputs[0]
    dim = attrs.get("dim", 0)
    assert isinstance(dim, int), "a dim is a number"
    extent = source.type.shape[dim]
    assert isinstance(extent, int), "sizes are numbers"
    dim %= source.type.rank
    if node.op == "select":
        index = attrs["index"]
        assert isinstance(index, int), "an index is a number"
        return _Slices(source, True, dim, index % extent, 0, 1)
    bounds = (attrs.get(name) for name in ("start", "stop", "step"))
    start, stop, stride = (None if bound is None else int(str(bound)) for bound in bounds)
    start, _, stride = slice(start, stop, stride).indices(extent)
    return _Slices(source, False, dim, start, 0, stride)


def _find(graph: Graph, join: Column) -> _Columns | None:
    """Read what is joined as a loop; None where no scan can be put in its place."""
    columns = _Columns(producers(graph))
    if not columns.read(join) or join not in columns.given or not columns.carries:
        return None
    # What the scan is given must be there before it begins.
    inside = {v.name for nodes in columns.made for n in nodes for v in n.outputs}
    for node in graph.nodes:
        if any(value.name in inside for value in node.inputs):
            inside.update(value.name for value in node.outputs)
    given = [*columns.fixed.values(), *(part.source for part in columns.slices.values())]
    given += [first for _, first in columns.carries.values()]
    if any(value.name in inside for value in given):
        return None
    if any(of[0].type != first.type for of, first in columns.carries.values()):
        return None
    order = {node.outputs[0].name: at for at, node in enumerate(graph.nodes) if node.outputs}
    columns.made.sort(key=lambda nodes: order[nodes[0].outputs[0].name])
    return columns


# ---------------------------------------------------------------------------------------- the scan


def _rolled(graph: Graph, columns: _Columns) -> Graph:
    """Put a scan in the place of the nodes of the steps."""
    gone = {node.outputs[0].name for nodes in columns.made for node in nodes}
    rest = [n for n in graph.nodes if not n.outputs or n.outputs[0].name not in gone]
    outside = {value.name for node in rest for value in node.inputs}
    outside |= {value.name for value in graph.outputs}
    body, stacked = _body(columns, outside)
    builder = Builder.signature_of(graph)
    builder.reserve(names(graph))
    steps = len(next(iter(columns.given)))
    made = add_scan(
        builder,
        body,
        Parts(
            tuple(first for _, first in columns.carries.values()),
            tuple(_sequence(builder, part, steps, at[0].type)
                  for at, part in columns.slices.items()),
            tuple(columns.fixed.values()),
        ),
        length=steps,
        origin=columns.made[0][0].origin,
    )  # fmt: skip
    stacks = dict(zip(stacked, made[len(columns.carries) :], strict=True))
    place = {v.name: (at, k) for at in stacked for k, v in enumerate(at)}
    ends = zip(columns.carries.values(), made, strict=False)
    known = {of[-1].name: value for (of, _), value in ends if of[-1].name in outside}
    for node in rest:
        flipped = node.inputs[::-1] in stacks
        whole = stacks.get(node.inputs[::-1] if flipped else node.inputs)
        if node.op in ("stack", "cat") and whole is not None:
            builder.nodes.append(_joined(node, whole, flipped=flipped))
            continue
        for value in node.inputs:
            _pick(builder, value, place, stacks, known)
        inputs = tuple(known.get(value.name, value) for value in node.inputs)
        builder.nodes.append(replace(node, inputs=inputs))
    for value in graph.outputs:
        _pick(builder, value, place, stacks, known)
    outputs = [known.get(value.name, value) for value in graph.outputs]
    return prune(sort(builder.finish(outputs, graph.updates)))


def _body(columns: _Columns, outside: set[str]) -> tuple[Graph, list[Column]]:
    """Return the graph of a step, and the columns whose values it stacks."""
    inner = Builder("step")
    known: dict[Column, Value] = {}
    for group in (columns.carries, columns.slices, columns.fixed):
        for column in group:
            known[column] = inner.input(column[0].name, column[0].type)
    for nodes in columns.made:
        operands = zip(*(node.inputs for node in nodes), strict=True)
        made = inner.add(replace(nodes[0], inputs=tuple(known[column] for column in operands)))
        outputs = zip(*(node.outputs for node in nodes), strict=True)
        known.update(zip(outputs, made, strict=True))
    carried = {of for of, _ in columns.carries.values()}
    stacked = [
        column
        for column in columns.given
        if any(value.name in outside for value in (column[:-1] if column in carried else column))
    ]
    results = [known[of] for of, _ in columns.carries.values()]
    return inner.finish([*results, *(known[column] for column in stacked)]), stacked


def _pick(
    builder: Builder,
    value: Value,
    place: Mapping[str, tuple[Column, int]],
    stacks: Mapping[Column, Value],
    known: dict[str, Value],
) -> None:
    """Let a value of one step that is read outside of the loop be taken from its stack."""
    if value.name in known or value.name not in place:
        return
    column, at = place[value.name]
    index = tuple(Sym(f"i{k}") for k in range(value.type.rank))
    formula = moved(value.type, (Const(at), *index))
    known[value.name] = builder.formula(formula, stacks[column], name=value.name)


def _sequence(builder: Builder, part: _Slices, steps: int, element: TensorType) -> Value:
    """y[t, i, ...] = x[i, ..., start + t * step, ...]"""
    type_ = TensorType((steps, *element.shape), element.dtype)
    if type_ == part.source.type and (part.select, part.dim, part.start, part.step) == (
        True, 0, 0, 1,
    ):  # fmt: skip
        return part.source
    loops: list[Expr] = [Sym(f"i{k}") for k in range(type_.rank)]
    place = _affine(loops.pop(0), part.step, part.start)
    if not part.select:
        place = call("add", place, _affine(loops.pop(part.dim), part.stride, 0))
    loops.insert(part.dim, place)
    return builder.formula(
        moved(type_, tuple(loops)), part.source, name=f"{part.source.name}_steps"
    )


def _affine(loop: Expr, factor: int, start: int) -> Expr:
    made = loop if factor == 1 else call("mul", loop, Const(factor))
    return made if start == 0 else call("add", made, Const(start))


def _joined(node: Node, whole: Value, *, flipped: bool) -> Node:
    """Let a join read the stack of what it joins.

    stack   y[i, t, j] = x[t, i, j]     cat   y[i, t * n + j] = x[t, i, j]
    """
    type_, dim = node.output.type, dict(node.attrs).get("dim", 0)
    assert isinstance(dim, int), "a dim is a number"
    loops: list[Expr] = [Sym(f"i{k}") for k in range(type_.rank)]
    dim %= type_.rank
    place = loops.pop(dim)
    if node.op == "cat":
        size = whole.type.shape[dim + 1]
        assert isinstance(size, int), "sizes are numbers"
        loops.insert(dim, Const(0) if size == 1 else call("mod", place, Const(size)))
        place = place if size == 1 else call("floordiv", place, Const(size))
    if flipped:
        place = call("sub", Const(len(node.inputs) - 1), place)
    formula = moved(type_, (place, *loops))
    return Node(FORMULA, (whole,), node.outputs, formula=formula, origin=node.origin)
