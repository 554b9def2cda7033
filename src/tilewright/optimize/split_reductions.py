"""Cut long reductions in two: partial results of chunks, then the combination of those.

The idea: a reduction of few results, or one that runs down the columns of a tensor, has too little
to share among threads and walks memory badly; chunks of its outermost loop run side by side, each
over rows that lie together::

    y[d] += dy[i<1024, d]    -->    p[c<32, d] += dy[c*32+k, d] for k<32 ;  y[d] += p[c, d]

How many chunks is a matter of the shapes alone, so the bits are those of the Program.

This module does not know threads or machines.
"""

from dataclasses import dataclass, replace

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads, substitute, walk
from tilewright.base.sizes import Size, divides, greatest_of, least_of, nominal, same
from tilewright.graph.build import Builder
from tilewright.graph.compose import over_values
from tilewright.graph.ir import FORMULA, Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.notation import operand_order
from tilewright.graph.running import running
from tilewright.graph.total import (
    Types,
    extents_of,
    fixed,
    map_parts,
    parts,
    presence,
    tidy,
)
from tilewright.graph.views import (
    address_of,
    contiguous,
    is_reduction,
    parallel,
    reduced,
)
from tilewright.optimize.rewriting import with_formula, with_nodes
from tilewright.optimize.views import is_for_library


@dataclass(frozen=True, slots=True)
class SplitReductions:
    """Cut reductions that are long, and few or down columns.

    ::

        %y = {y[d<768] += x[i<1024, d]}(%x)
        -->
        %y_parts = {y[i<32, d<768] += x[i*32 + i_, d] for i_<32}(%x)
        %y = {y[d<768] += p[i<32, d]}(%y_parts)

    size: iterations below which it is not worth it.  few: results below which there are few.
    chunks: at most so many; enough: a number of whole outer loops' iterations that will do; least:
    terms that a chunk has at least.  short, rows: columns of so few terms, or fewer, are left whole
    where there are so many rows of results for threads to share.
    """

    size: int = 1 << 15
    few: int = 16
    chunks: int = 32
    enough: int = 8
    least: int = 16
    short: int = 64
    rows: int = 64
    name: str = "split_reductions"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("reductions split",)

    def __call__(self, graph: Graph) -> Graph:
        return with_nodes(graph, self._split)

    def _split(self, node: Node, types: Types, chooser: Builder) -> tuple[Node, ...]:
        if node.formula is None or not self._is_long(node.formula):
            return (node,)
        formula = over_values(node)
        if not _is_splittable(formula, types) or is_for_library(formula, types):
            return (node,)
        order = _outermost_first(formula, types)
        results = 1
        for loop in parallel(formula):
            results *= fixed(loop.extent)
        if nominal(results) >= self.few and not runs_down_columns(formula, types):
            return (node,)
        if self._has_rows(formula, types, results):
            return (node,)
        cut = self._cut(formula, order)
        if cut is None:
            return (node,)
        name = chooser.fresh(f"{node.output.name}_parts")
        partial, total = cut[0], cut[1](name)
        types_there = {**types, name: partial.type}
        inner = replace(node, outputs=(Value(name, partial.type),))
        return (
            with_formula(inner, partial, types),
            with_formula(replace(node, op=FORMULA, attrs=()), total, types_there),
        )

    def _is_long(self, formula: Formula) -> bool:
        count = 1
        for loop in formula.loops:
            count *= fixed(loop.extent)
        return is_reduction(formula) and nominal(count) >= self.size and running(formula) is None

    def _has_rows(self, formula: Formula, types: Types, results: int) -> bool:
        along, terms = _nearest(formula, types), 1
        for loop in reduced(formula):
            terms *= fixed(loop.extent)
        if along is None or nominal(terms) > self.short:
            return False
        return nominal(results) >= self.rows * nominal(extents_of(formula)[along])

    def _cut(self, formula: Formula, order: list[Loop]) -> "tuple[Formula, _Total] | None":
        """Return the partial results, and what makes the total of them once they have a name."""
        terms = 1
        for loop in order:
            terms *= fixed(loop.extent)
        wanted = min(self.chunks, nominal(terms) // self.least)
        made = 1
        taken = {loop.name for loop in formula.loops}
        bindings: dict[str, Expr] = {}
        guards: list[Expr] = []
        outer: list[Loop] = []
        inner: list[Loop] = []
        for loop in order:
            extent, room = fixed(loop.extent), wanted // made
            if room < 2 or made >= self.enough:
                break
            if greatest_of(extent) <= room:
                outer.append(loop)
                made *= greatest_of(extent)
                continue
            count = _best_divisor(extent, room)
            length = -(-extent // count)
            if not isinstance(extent, Size):
                count = -(-extent // length)  # rounding up may leave the last chunks nothing
            if formula.op != "+=" and least_of(extent - (count - 1) * length) <= 0:
                break  # a chunk without terms would give its fill, which may win
            outer.append(Loop(loop.name, count))
            low = loop.name + "_"
            while low in taken:
                low += "_"
            inner.append(Loop(low, length))
            index = Call("add", (Call("mul", (Sym(loop.name), Const(length))), Sym(low)))
            bindings[loop.name] = index
            if least_of(extent - count * length) < 0:
                guards.append(Call("lt", (index, Const(extent))))
            made *= count
            break
        if made < 2:
            return None
        partial = _partial(formula, outer, inner, bindings, guards)
        return partial, _Total(formula, tuple(outer))


@dataclass(frozen=True, slots=True)
class _Total:
    """What combines the partial results of a formula."""

    formula: Formula
    outer: tuple[Loop, ...]

    def __call__(self, name: str) -> Formula:
        formula = self.formula
        loops = [Loop(f"t{at}", dim) for at, dim in enumerate(formula.type.shape)]
        chunks = [Loop(f"c{at}", loop.extent) for at, loop in enumerate(self.outer)]
        index = tuple(Sym(loop.name) for loop in loops)
        value = Read(name, (*(Sym(loop.name) for loop in chunks), *index))
        every = (*loops, *chunks)
        return Formula((name,), every, index, formula.op, value, formula.type, fill=formula.fill)


def _partial(
    formula: Formula,
    outer: list[Loop],
    inner: list[Loop],
    bindings: dict[str, Expr],
    guards: list[Expr],
) -> Formula:
    replaced = {loop.name for loop in outer}
    loops = (*outer, *(loop for loop in formula.loops if loop.name not in replaced), *inner)
    extents = {loop.name: fixed(loop.extent) for loop in loops}
    made = map_parts(formula, lambda part: tidy(substitute(part, bindings), extents))
    where = made.where
    for guard in guards:
        where = guard if where is None else Call("and", (guard, where))
    shape = (*(loop.extent for loop in outer), *formula.type.shape)
    index = (*(Sym(loop.name) for loop in outer), *formula.index)
    type_ = TensorType(shape, formula.type.dtype.compute)
    made = replace(made, loops=loops, index=index, type=type_, where=where)
    return replace(made, operands=operand_order(made))


def _best_divisor(extent: int, room: int) -> int:
    """Return the largest divisor in reach, or `room` itself where that is much smaller."""
    found = max(count for count in range(1, room + 1) if divides(count, extent))
    return found if found * 4 >= room else room


def _is_splittable(formula: Formula, types: Types) -> bool:
    if formula.op == "+=":
        return formula.fill == Const(0)
    present = formula.where is None and not presence(formula.value, types, extents_of(formula))
    return formula.op in ("max=", "min=") and present and not isinstance(formula.fill, Read)


def runs_down_columns(formula: Formula, types: Types) -> bool:
    """Say whether neighbours in memory belong to different results of a reduction."""
    return _nearest(formula, types) in {loop.name for loop in parallel(formula)}


def _nearest(formula: Formula, types: Types) -> str | None:
    """Return the loop of the smallest steps through the tensor that most of the reading is of."""
    steps = _steps(formula, types)
    return min(steps, key=lambda name: nominal(steps[name]), default=None)


def _outermost_first(formula: Formula, types: Types) -> list[Loop]:
    """Return the reduction's loops that may be cut, those with the largest steps in memory first.

    A loop of which each result has a window, as in adaptive pooling, is short where it runs: cut,
    it would be gone through for each result.
    """
    steps, windows = _steps(formula, types), _windowed(formula)
    loops = [loop for loop in reduced(formula) if loop.name not in windows]
    return sorted(loops, key=lambda loop: -nominal(steps.get(loop.name, 0)))


def _windowed(formula: Formula) -> set[str]:
    """Return the reduced loops that are compared with loops of the result."""
    mine, others = ({loop.name for loop in each(formula)} for each in (reduced, parallel))
    conditions = () if formula.where is None else walk(formula.where)
    sides = [names(part) for part in conditions if _compares(part) and not reads(part)]
    return {name for side in sides if side & others for name in side & mine}


def _compares(part: Expr) -> bool:
    return isinstance(part, Call) and part.fn in ("lt", "le", "gt", "ge")


def _steps(formula: Formula, types: Types) -> dict[str, int]:
    """Return how far each loop steps through the tensor that most of the reading is of."""
    extents = extents_of(formula)
    best: dict[str, int] = {}
    most = 0
    for read in (read for part in parts(formula) for read in reads(part)):
        if any(reads(entry) for entry in read.index):
            continue
        shape = tuple(fixed(dim) for dim in types[read.tensor].shape)
        _, terms = algebra.affine(address_of(read.index, contiguous(shape), extents))
        found = {atom.name: abs(factor) for atom, factor in terms.items() if isinstance(atom, Sym)}
        size = types[read.tensor].dtype.bytes
        for name in found:
            size *= extents[name]
        if nominal(size) > most:
            best, most = found, nominal(size)
    return {name: step for name, step in best.items() if not same(extents[name], 1)}
