"""Compute what is wide a few rows at a time, so that the whole of it never exists.

The idea: rows are cut where all that reads them lets them be cut.  A product whose result is very
large, as the scores of a vocabulary are, is followed by steps in which a row meets no other but in
sums; then a scan over chunks of rows computes the product and those steps, with the sums as its
carries (linear and cross-entropy with their gradients: Hsu et al., Liger Kernel, 2024)::

    %s = linear(%x, %w)         : f32[4096, 50000]
    %t = {y[i] += exp(s[i, j])}(%s)
    %d = {y[i, j] = exp(s[i, j]) / t[i] - ...}(%s, %t)            %dx, %dw = scan(%x) of 16 chunks
    %dx = {y[i, k] += d[i, j] * w[j, k]}(%d, %w)            -->   of 256 rows, %dw its carry
    %dw = {y[j, k] += d[i, j] * x[i, k]}(%d, %x)

Which rows belong to a chunk is followed through the indices: `c * block + i` of one dim, and no
other index, condition or value that knows the chunk; otherwise the graph stays as it is.

This module does not know losses or vocabularies.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base import algebra
from tilewright.base.dtypes import F32, F64
from tilewright.base.expr import (
    Call,
    Const,
    Expr,
    Read,
    Sym,
    call,
    names,
    reads,
    substitute,
    transform,
    walk,
)
from tilewright.base.sizes import Size
from tilewright.graph.build import Builder, producers, sort, users
from tilewright.graph.compose import over_values, types_of
from tilewright.graph.control import Parts, add_scan
from tilewright.graph.ir import Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.total import Types, fixed, map_parts
from tilewright.graph.total import parts as parts_of
from tilewright.graph.views import bytes_of, is_reduction
from tilewright.optimize.rewriting import moved, with_formula

_CHUNK = "chunk"  # the loop over chunks, until it is that of the scan


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Make scans over chunks of rows of what follows products with very large results.

    bytes: of a result that is worth it.  room: bytes of the result that a chunk has, at most, if
    that leaves it `least` rows (sums over rows are read and written once a chunk).  most: nodes
    that are chunked together.
    """

    bytes: int = 64 << 20
    room: int = 16 << 20
    least: int = 256
    most: int = 32
    name: str = "chunk_rows"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if any(isinstance(dim, Size) for value in graph.inputs for dim in value.type.shape):
            return graph  # one scan is of one length
        for name in [node.outputs[0].name for node in graph.nodes if self._is_wide(node)]:
            node = producers(graph).get(name)
            if node is not None and self._is_wide(node):  # else it is chunked with another
                found = next(filter(None, map(self._whole(graph), self._cuts(graph, node))), None)
                graph = graph if found is None else _chunked(graph, found)
        return graph

    def _is_wide(self, node: Node) -> bool:
        formula = node.formula
        if formula is None or formula.op != "+=" or len(formula.operands) != 2:
            return False
        if not is_reduction(formula) or not formula.type.shape:
            return False
        return bytes_of(formula.type) >= self.bytes

    def _cuts(self, graph: Graph, node: Node) -> "Iterator[_Cut]":
        """Yield ways to begin: the dims of the product's result but the last, in chunks."""
        assert node.formula is not None, "a product has loops"
        *dims, _ = [fixed(dim) for dim in node.formula.type.shape]
        rows, size = math.prod(dims), bytes_of(node.formula.type)
        for dim, extent in enumerate(dims):
            ways = [n for n in range(2, extent + 1) if extent % n == 0 and rows // n >= self.least]
            if ways:
                chunks = next((n for n in ways if size <= n * self.room), ways[-1])
                cut = _Cut(chunks, types_of(graph), node.outputs[0])
                if cut.begin(node, dim):
                    yield cut

    def _whole(self, graph: Graph) -> "Callable[[_Cut], _Cut | None]":
        """Return what takes all nodes in that have to be; it gives None where one cannot be cut."""
        readers = users(graph)
        results = {value.name for value in graph.outputs}

        def grown(cut: _Cut) -> _Cut | None:
            while True:
                wide = [
                    name for name in cut.rows if 2 * cut.bytes(name) >= cut.bytes(cut.first.name)
                ]
                if results.intersection(wide):
                    return None
                ends = {node.outputs[0].name for name in wide for node in readers[name]}
                missing = [
                    node for node in _between(graph, cut.first.name, ends) if node not in cut
                ]
                if not missing:
                    return cut
                if len(missing) + len(cut.nodes) > self.most or not all(map(cut.take, missing)):
                    return None

        return grown


def _between(graph: Graph, first: str, ends: set[str]) -> list[Node]:
    """Return, in order, the nodes on the ways from a value to those that make some others."""
    after, before = {first}, set(ends)
    for node in graph.nodes:
        if any(value.name in after for value in node.inputs):
            after.update(value.name for value in node.outputs)
    for node in reversed(graph.nodes):
        if any(value.name in before for value in node.outputs):
            before.update(value.name for value in node.inputs)
    both = after & before
    return [node for node in graph.nodes if any(value.name in both for value in node.outputs)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which part of a tensor belongs to chunk c: indices `c * block + i`, i < block, of a dim."""

    dim: int
    block: int


@dataclass(slots=True)
class _Cut:
    """What is computed chunk by chunk, in the making; owned by the pass.

    first: the result that is too large.  nodes, formulas: what is inside, by the value it makes,
    and its loops over one chunk, operands named by values.  rows: of the values made inside; `sums`
    are those that are carries.  sequences: rows of values from outside, of which a chunk reads its
    part; `closed` ones it reads whole.
    """

    chunks: int
    types: Types
    first: Value
    nodes: dict[str, Node] = field(default_factory=dict)
    formulas: dict[str, Formula] = field(default_factory=dict)
    rows: dict[str, _Rows] = field(default_factory=dict)
    sums: list[str] = field(default_factory=list)
    sequences: dict[str, _Rows] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def __contains__(self, node: Node) -> bool:
        return node.outputs[0].name in self.nodes

    def bytes(self, name: str) -> int:
        """Return the bytes of a value as a whole."""
        return bytes_of(self.types[name])

    def begin(self, node: Node, dim: int) -> bool:
        """Take the first node in: its result is cut along a dim."""
        formula = over_values(node)
        entry = formula.index[dim]
        assert isinstance(entry, Sym), "the target of a reduction is bare"
        return self._take(node, formula, entry.name, fixed(formula.extent(entry.name)))

    def take(self, node: Node) -> bool:
        """Take a node in that reads what is inside; says whether its loops can be cut alike."""
        if node.formula is None or len(node.outputs) != 1:
            return False
        formula = over_values(node)
        inside = [read for part in parts_of(formula) for read in reads(part)]
        inside = [read for read in inside if read.tensor in self.rows]
        if not inside:
            return False  # of sums, which are not known before the last chunk
        rows = self.rows[inside[0].tensor]
        behind = _loops_behind(inside[0].index[rows.dim], rows.block * self.chunks)
        return any(self._take(node, formula, *way) for way in behind)

    def _take(self, node: Node, formula: Formula, loop: str, extent: int) -> bool:
        """Take a node in with a loop of this extent cut in chunks, if that makes its rows."""
        loops = {each.name: fixed(each.extent) for each in formula.loops}
        if loops.get(loop) != extent or extent % self.chunks or _CHUNK in loops:
            return False
        part = _Part(self, loop, extent // self.chunks, loops)
        made = part.of(formula)
        if made is None:
            return False
        name = node.outputs[0].name
        self.nodes[name], self.formulas[name] = node, made
        self.sequences |= part.sequences
        self.closed |= part.closed
        if part.rows is None:
            self.sums.append(name)
        else:
            self.rows[name] = part.rows
        return True


def _loops_behind(entry: Expr, extent: int) -> Iterator[tuple[str, int]]:
    """Yield loops, and what extents they would have, that an index of so many rows may stand for.

    ``i`` as many, ``i * 128 + j`` a 128th, ``i // 128`` 128 times as many.
    """
    for atom, factor in algebra.affine(entry)[1].items():
        if isinstance(atom, Sym) and factor > 0 and extent % factor == 0:
            yield atom.name, extent // factor
    for part in walk(entry):
        match part:
            case Call("floordiv", (Sym(name), Const(int(divisor)))):
                yield name, extent * divisor


class _Part:
    """One formula over the rows of a chunk; mutable, owned by `_Cut`.

    rows: of its result, None if it is a sum over rows.  sequences, closed: as those of the cut.
    """

    def __init__(self, cut: _Cut, loop: str, block: int, loops: dict[str, int]) -> None:
        self.cut, self.loop, self.block = cut, loop, block
        self.extents = {**loops, loop: block, _CHUNK: cut.chunks}
        self.rows: _Rows | None = None
        self.sequences: dict[str, _Rows] = {}
        self.closed: set[str] = set()
        self.fits = True

    def of(self, formula: Formula) -> Formula | None:
        """Return the formula of a chunk; None where it has to know which one it is."""
        start = call("mul", Sym(_CHUNK), Const(self.block))
        bindings = {self.loop: call("add", start, Sym(self.loop))}
        bound = map_parts(formula, lambda part: substitute(part, bindings))
        made = map_parts(bound, lambda part: transform(part, self._read))
        index, self.rows = self._parted(bound.index)
        shape = [fixed(dim) for dim in formula.type.shape]
        if self.rows is not None:
            self.fits &= shape[self.rows.dim] == self.rows.block * self.cut.chunks
            shape[self.rows.dim] = self.rows.block
        else:
            self.fits &= formula.op == "+=" and formula.type.dtype in (F32, F64)
        loops = tuple(replace(each, extent=self.extents[each.name]) for each in formula.loops)
        type_ = TensorType(tuple(shape), formula.type.dtype)
        made = replace(made, loops=loops, index=index, type=type_)
        known = any(_CHUNK in names(part) for part in parts_of(made))
        return made if self.fits and not known and formula.fill == Const(0) else None

    def _read(self, expr: Expr) -> Expr:
        if not isinstance(expr, Read):
            return expr
        cut, tensor = self.cut, expr.tensor
        index, rows = self._parted(expr.index)
        if tensor in cut.rows:
            self.fits &= rows == cut.rows[tensor]
        elif rows is None:
            self.closed.add(tensor)
        else:
            self.fits &= self.sequences.setdefault(tensor, rows) == rows
            self.fits &= cut.sequences.get(tensor, rows) == rows
            whole = fixed(cut.types[tensor].shape[rows.dim])
            self.fits &= whole == rows.block * cut.chunks
        # A sum is not known before the last chunk, and nothing is read both in part and whole.
        self.fits &= tensor not in cut.sums
        self.fits &= not (self.closed | cut.closed) & (self.sequences.keys() | cut.sequences.keys())
        return replace(expr, index=index)

    def _parted(self, index: Sequence[Expr]) -> tuple[tuple[Expr, ...], _Rows | None]:
        """Return an index within a chunk, and the rows that chunks part the tensor in."""
        made, rows = [algebra.simplify(entry, self.extents) for entry in index], None
        for dim, entry in enumerate(made):
            constant, found = algebra.affine(entry)
            terms = dict(found)
            block = terms.pop(Sym(_CHUNK), 0)
            if not block:
                continue
            rest = algebra.from_affine(constant, terms)
            self.fits &= rows is None and algebra.within(rest, block, self.extents)
            made[dim], rows = rest, _Rows(dim, block)
        return tuple(made), rows


# ----------------------------------------------------------------------------------------- the scan


def _chunked(graph: Graph, cut: _Cut) -> Graph:
    """Return the graph with a scan in place of the nodes of a cut."""
    builder = Builder.extending(graph)
    builder.nodes = [node for node in graph.nodes if node not in cut]
    read = {value.name for node in builder.nodes for value in node.inputs}
    read |= {value.name for value in graph.outputs}
    kept = [name for name in cut.rows if name in read]
    sequences = sorted(cut.sequences)
    closed = sorted(cut.closed)
    body = _body(cut, sequences, closed, kept)

    def outside(name: str) -> Value:
        return Value(name, cut.types[name])

    parts = Parts(
        tuple(_zeros(builder, cut.types[name]) for name in cut.sums),
        tuple(_sliced(builder, outside(name), cut.sequences[name], cut) for name in sequences),
        tuple(map(outside, closed)),
    )
    origin = cut.nodes[cut.first.name].origin
    wishes = [f"{name}_chunks" for name in kept]
    builder.taken.difference_update(cut.sums)  # nodes that read these find them as they were
    made = add_scan(
        builder, body, parts, length=cut.chunks, origin=origin, names=[*cut.sums, *wishes]
    )
    for name, stack in zip(kept, made[len(cut.sums) :], strict=True):
        builder.taken.discard(name)
        _joined(builder, stack, outside(name), cut.rows[name])
    return sort(builder.finish(graph.outputs, graph.updates))


def _body(cut: _Cut, sequences: list[str], closed: list[str], kept: list[str]) -> Graph:
    """Return what is computed for one chunk: carries, parts of sequences, closed -> results."""
    inner = Builder("chunk")
    inner.reserve(cut.nodes)
    carries = {name: inner.input(f"{name}_before", cut.types[name]) for name in cut.sums}
    known = [
        inner.input(name, _of_chunk(cut.types[name], cut.sequences[name])) for name in sequences
    ]
    known += [inner.input(name, cut.types[name]) for name in closed]
    types = {value.name: value.type for value in (*carries.values(), *known)}
    made: dict[str, Value] = {}
    for name, node in cut.nodes.items():
        formula = cut.formulas[name]
        if name in carries:
            formula = replace(formula, fill=Read(carries[name].name, ()))
        made[name] = Value(name, formula.type)
        types[name] = formula.type
        inner.nodes.append(with_formula(replace(node, outputs=(made[name],)), formula, types))
    return inner.finish([made[name] for name in (*cut.sums, *kept)])


def _of_chunk(type_: TensorType, rows: _Rows) -> TensorType:
    shape = (*type_.shape[: rows.dim], rows.block, *type_.shape[rows.dim + 1 :])
    return TensorType(shape, type_.dtype)


def _zeros(builder: Builder, type_: TensorType) -> Value:
    """y[i, ...] = 0.0"""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    return builder.formula(Formula((), loops, index, "=", Const(0.0), type_), name="zeros")


def _sliced(builder: Builder, value: Value, rows: _Rows, cut: _Cut) -> Value:
    """y[c, i, ...] = x[c * block + i, ...]"""
    element = _of_chunk(value.type, rows)
    type_ = TensorType((cut.chunks, *element.shape), element.dtype)
    index: list[Expr] = [Sym(f"i{k + 1}") for k in range(element.rank)]
    index[rows.dim] = call("add", call("mul", Sym("i0"), Const(rows.block)), index[rows.dim])
    return builder.formula(moved(type_, tuple(index)), value, name=f"{value.name}_chunks")


def _joined(builder: Builder, stack: Value, value: Value, rows: _Rows) -> None:
    """y[i, ...] = x[i // block, i % block, ...]"""
    index: list[Expr] = [Sym(f"i{k}") for k in range(value.type.rank)]
    row, block = index[rows.dim], Const(rows.block)
    index[rows.dim] = call("mod", row, block)
    whole = moved(value.type, (call("floordiv", row, block), *index))
    builder.formula(whole, stack, name=value.name)
