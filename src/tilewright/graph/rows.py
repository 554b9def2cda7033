"""Whether a graph works row by row: what may be padded at its end and cut off again.

The idea: the rows of an input are followed from node to node.  A loop that indexes them bare is the
loop over rows; it must be parallel, and nothing may ask for its number::

    y[b, o] += x[b, i] * w[o, i]    rows of x are rows of y
    m[i] += x[b, i]                 reduces over them: what is padded would be summed
    y[b, i] = x[7-b, i]             reads them in another order: what is padded comes first

Rows may lie in a longer dim, as after a reshape of `[b, t, c]` to `[b t, c]`: then the first
`b * t` of it are the real ones.  Padding the end of a batch then changes no element of the rest.

This module does not know how many rows there are, nor who pads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.base import algebra
from tilewright.base.errors import SizesError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads, transform
from tilewright.graph.ir import FORMULA, Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.notation import show
from tilewright.graph.partitions import number

MEND = "compile without buckets, or leave this out of the compiled function"


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows lie in a value: the first `each` elements of `dim` are the first row's, and on."""

    dim: int
    each: int = 1


def follow_rows(graph: Graph, inputs: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return where rows lie in each value that has them; inputs: in those of the graph.

    Raises SizesError, with the user's line, for the first node that does not work row by row.
    """
    found, free = dict(inputs), _free(graph)
    lengths = {v.type.shape[inputs[v.name].dim] for v in graph.inputs if v.name in inputs}
    assert len(lengths) == 1, f"inputs have as many rows as each other, not {lengths}"
    (count,) = (number(length) for length in lengths)
    for node in graph.nodes:
        if not any(value.name in found for value in node.inputs):
            continue
        if node.formula is None:
            raise _refused(node, f"{node.op} is not told by its loops")
        found[node.output.name] = _Following(node, node.formula, found, free).result(count)
    return found


def same_but_for_rows(
    one: Graph, other: Graph, rows: Mapping[str, Rows], counts: tuple[int, int]
) -> None:
    """Raise SizesError unless two graphs differ in their numbers of rows alone.

    A number that was computed from the number of rows tells itself by being another one.
    """
    if len(one.nodes) != len(other.nodes) or one.outputs != _renamed(one, other):
        raise _differ(None)
    free = _free(one)
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if _without_rows(a, rows, free, counts[0]) != _without_rows(b, rows, free, counts[1]):
            raise _differ(a)


class _Following:
    """The search for the rows of one node's result; final."""

    def __init__(
        self, node: Node, formula: Formula, found: Mapping[str, Rows], free: set[str]
    ) -> None:
        self.node = node
        self.formula = formula
        named = zip(formula.operands, (value.name for value in node.inputs), strict=True)
        pairs = list(named)
        self.rows = {operand: found[name] for operand, name in pairs if name in found}
        self.free = {operand for operand, name in pairs if name in free}
        self.extents = {loop.name: loop.extent for loop in formula.loops}

    def result(self, count: int) -> Rows:
        """Return where the rows of the result lie; count: how many there are."""
        formula = self.formula
        leads = [self._lead(read) for read in self._reads() if read.tensor in self.rows]
        if not leads or len(set(leads)) > 1:
            raise self._no("reads its rows in two ways" if leads else "copies its rows whole")
        loop, each = leads[0]
        self._check_others(loop, each)
        places = [(dim, entry) for dim, entry in enumerate(formula.index) if loop in names(entry)]
        if not places:
            raise self._no("reduces over the rows")
        if len(places) > 1:
            raise self._no("writes a row to places of two dims")
        found = self._landing(*places[0], loop, each)
        whole = (each * count, found.each * count)
        if (self.extents[loop], formula.type.shape[found.dim]) != whole:
            raise self._no("takes a part of the rows, or more")
        base = formula.fill.tensor if isinstance(formula.fill, Read) else ""
        if base and base not in self.free and self.rows.get(base) != found:
            raise self._no("writes its rows over another tensor's")
        return found

    def _check_others(self, loop: str, each: int) -> None:
        """Nothing but the rows themselves may be read by their number."""
        formula = self.formula
        for read in self._reads():
            mine = self.rows.get(read.tensor)
            for dim, entry in enumerate(read.index):
                if (mine is None or dim != mine.dim) and read.tensor not in self.free:
                    self._check_unasked(entry, loop, each)
        for part in (formula.value, formula.where, formula.at):
            if part is not None:
                self._check_unasked(part, loop, each)

    def _reads(self) -> Iterator[Read]:
        formula = self.formula
        for part in (formula.value, formula.where, formula.at, *formula.index):
            if part is not None:
                yield from reads(part)

    def _lead(self, read: Read) -> tuple[str, int]:
        """Return the loop over the rows that a read makes, and its iterations for each row."""
        mine = self.rows[read.tensor]
        entry = read.index[mine.dim]
        match entry:
            case Sym(loop):
                return loop, mine.each
            case Call("floordiv", (Sym(loop), Const(int(width)))):
                return loop, mine.each * width
        loop, step = self._blocks(entry)
        if mine.each % step:
            raise self._no("reads across its rows")
        return loop, mine.each // step

    def _landing(self, dim: int, entry: Expr, loop: str, each: int) -> Rows:
        if entry == Sym(loop):
            return Rows(dim, each)
        found, step = self._blocks(entry)
        if found != loop:
            raise self._no("writes its rows in another order")
        return Rows(dim, each * step)

    def _blocks(self, entry: Expr) -> tuple[str, int]:
        """Return the loop and the step of `loop * step + rest`, the rest less than a step."""
        constant, terms = algebra.affine(entry)
        known = {name: size for name, size in self.extents.items() if isinstance(size, int)}
        ordered = sorted(terms.items(), key=lambda item: -item[1])
        if constant == 0 and ordered and isinstance(ordered[0][0], Sym):
            (first, step), *rest = ordered
            most = 0
            for atom, factor in rest:
                limits = algebra.bounds(atom, known)
                if limits is None or limits[0] < 0 or factor < 0:
                    raise self._no("reads its rows by values or backwards")
                most += factor * limits[1]
            if step > 0 and most < step:
                assert isinstance(first, Sym), "looked at above"
                return first.name, step
        raise self._no("reads or writes its rows in another order, or by values")

    def _check_unasked(self, part: Expr, loop: str, each: int) -> None:
        """A place within its row is the same for all rows; any other number of it is not."""

        def visit(node: Expr) -> Expr:
            match node:
                case Call("mod", (Sym(name), Const(int(width)))) if name == loop:
                    return node if each % width else Const(0)
            return node

        if loop in names(transform(transform(part, _without_reads), visit)):
            raise self._no("asks for the number of a row")

    def _no(self, why: str) -> SizesError:
        name = "a formula" if self.node.op == FORMULA else self.node.op
        return _refused(self.node, f"{name} {why}")


def _free(graph: Graph) -> set[str]:
    """Return the values that are one number everywhere: they have as many rows as anything else."""
    return {
        node.output.name
        for node in graph.nodes
        if node.formula is not None and not node.inputs and not _asks(node.formula)
    }


def _asks(formula: Formula) -> bool:
    """Whether an element of a tensor made of nothing depends on its place."""
    parts = (formula.value, formula.where, formula.at)
    bare = all(isinstance(entry, Sym) for entry in formula.index)
    return not bare or any(part is not None and names(part) for part in parts)


def _without_reads(node: Expr) -> Expr:
    return Const(0) if isinstance(node, Read) else node


def _without_rows(node: Node, rows: Mapping[str, Rows], free: set[str], count: int) -> Node:
    """Return a node with 0 for every extent that is a number of rows."""

    def bare(value: Value) -> Value:
        if value.name in free:
            return Value(value.name, TensorType((), value.type.dtype))
        mine = rows.get(value.name)
        if mine is None or value.type.shape[mine.dim] != mine.each * count:
            return value
        shape = tuple(0 if dim == mine.dim else n for dim, n in enumerate(value.type.shape))
        return Value(value.name, TensorType(shape, value.type.dtype))

    inputs, outputs = tuple(map(bare, node.inputs)), tuple(map(bare, node.outputs))
    formula = node.formula
    if formula is None or inputs + outputs == node.inputs + node.outputs:
        return node
    if outputs[0].name in free:
        made = replace(formula, loops=(), index=(), type=outputs[0].type)
        return Node(node.op, (), outputs, (), made, (), node.origin)
    loops = tuple(
        Loop(loop.name, 0) if _is_over_rows(formula, loop, node, rows) else loop
        for loop in formula.loops
    )
    made = replace(formula, loops=loops, type=outputs[0].type)
    return Node(node.op, inputs, outputs, (), made, (), node.origin)


def _is_over_rows(formula: Formula, loop: Loop, node: Node, rows: Mapping[str, Rows]) -> bool:
    mine = rows.get(node.output.name)
    return (
        mine is not None
        and loop.name in names(formula.index[mine.dim])
        and _leads(formula.index[mine.dim], loop.name)
    )


def _leads(entry: Expr, loop: str) -> bool:
    """Whether a loop has the largest step of an index."""
    _, terms = algebra.affine(entry)
    return max(terms, key=lambda atom: terms[atom]) == Sym(loop)


def _renamed(one: Graph, other: Graph) -> tuple[Value, ...]:
    """Return the outputs of one under the names that the other's have."""
    types = {value.name: value for node in one.nodes for value in node.outputs}
    types |= {value.name: value for value in one.inputs}
    return tuple(types.get(value.name, value) for value in other.outputs)


def _refused(node: Node, why: str) -> SizesError:
    formula = "" if node.formula is None else show(node.formula)
    return SizesError(
        f"the batch cannot be padded: {why}",
        expected="operators that work row by row on the batch, from arguments to results",
        found=formula or node.op,
        where=node.origin,
        mend=MEND,
    )


def _differ(node: Node | None) -> SizesError:
    return SizesError(
        "the batch cannot be padded: what is computed depends on how long it is",
        expected="the same operators, and the same numbers in them, for any batch",
        found="others for a batch twice as long" if node is None else node.op,
        where=node.origin if node is not None else "",
        mend=MEND,
    )
