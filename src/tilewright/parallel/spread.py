"""Write one way to split a formula as a graph for each rank.

The idea: a rank's graph is the formula over its part of one loop, on its own shares of operands and
result, and the collectives that the row of the table asks for::

    y[m, n] += a[m, k] * b[k, n]  cut at k, in 2
    -->   on each rank, with its half of k:
          %p = {y[m, n] += a[m, k] * b[k, n]}(%a, %b)
          %y = all_reduce(%p, group=(0, 1), op="sum")

Operands with a halo are completed by `shift` before the loops, results that overlap after them.
What no term reaches gets the formula's fill in the end, where it can happen at all.

This module does not know which row is best, nor how graphs are run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import ShapeError
from tilewright.base.expr import Const, Read, Sym
from tilewright.base.syntax import show_number
from tilewright.graph.build import Builder
from tilewright.graph.ir import Formula, Graph, TensorType, Value
from tilewright.graph.partitions import Partition, number
from tilewright.graph.total import presence
from tilewright.ops import emit
from tilewright.ops.operator import write
from tilewright.parallel.exchange import cut_out, fetch, hand_on, loops
from tilewright.parallel.part import NOWHERE, best_of, identity, part_of, reach_of
from tilewright.parallel.shares import Layout, Range, Window, lay_out, length, shape_of

# How truth values are reduced that NumPy would add, multiply or compare.
_OF_TRUTH = {"sum": "any", "max": "any", "prod": "all", "min": "all"}


@dataclass(frozen=True, slots=True)
class Spread:
    """A formula as a graph for each rank.

    graphs: their inputs are named as the formula's operands.  inputs: for each rank, the window of
    each operand that it is given.  outputs: for each rank, the window of each result that it makes;
    ranks that make the same window make the same values.
    """

    graphs: tuple[Graph, ...]
    inputs: tuple[tuple[Window, ...], ...]
    outputs: tuple[tuple[Window, ...], ...]


def spread(
    formula: Formula,
    types: Sequence[TensorType],
    row: Partition,
    parts: int,
    *,
    share: int | None = None,
) -> Spread:
    """Return the graphs of the ranks, as many as there are parts that are not empty.

    share: a dim of the result that ranks keep a part of where it would be whole on every one (a
    reduce_scatter in place of an all_reduce).  Raises ShapeError where that cannot be.
    """
    bounds = tuple(bound for bound in row.bounds(parts) if length(bound))
    if share is not None:
        _check_share(formula, row, share, len(bounds))
    made = [
        RankPart.of(formula, tuple(types), row, bounds, rank, share=share)
        for rank in range(len(bounds))
    ]
    return Spread(
        tuple(part.graph() for part in made),
        tuple(tuple(layout.held[part.rank] for layout in part.operands) for part in made),
        tuple((part.output(),) for part in made),
    )


def can_share(formula: Formula, row: Partition, dim: int, ranks: int) -> bool:
    """Say whether ranks can keep a part of a dim of the sum each, of one size."""
    summed = row.combine == "sum" and not row.result and formula.type.dtype != BOOL
    return summed and number(formula.type.shape[dim]) % ranks == 0


def _check_share(formula: Formula, row: Partition, share: int, ranks: int) -> None:
    if not (0 <= share < formula.type.rank and can_share(formula, row, share, ranks)):
        raise ShapeError(
            f"the result of a cut at {row.cut} cannot be left in shares of dim {share}",
            expected=f"a sum, and a dim of it that {ranks} ranks divide",
            found=f"{row.combine or 'shares'} of {formula.type}",
        )


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a formula that is cut, in the making."""

    formula: Formula
    types: tuple[TensorType, ...]
    row: Partition
    bounds: tuple[Range, ...]
    operands: tuple[Layout, ...]
    result: Layout
    rank: int
    share: int | None
    name: str

    @staticmethod
    def of(
        formula: Formula,
        types: tuple[TensorType, ...],
        row: Partition,
        bounds: tuple[Range, ...],
        rank: int,
        *,
        share: int | None = None,
        name: str = "y",
    ) -> "RankPart":
        """Lay operands and result out for ranks that make these iterations of what is cut."""
        pairs = zip(types, row.operands, strict=True)
        operands = tuple(lay_out(type_, splits, bounds) for type_, splits in pairs)
        result = lay_out(formula.type, row.result, bounds)
        return RankPart(formula, types, row, bounds, operands, result, rank, share, name)

    def output(self) -> Window:
        """Return the window of the result that the rank makes."""
        window = self.result.held[self.rank]
        if self.share is None:
            return window
        part = length(window[self.share]) // len(self.bounds)
        mine = (self.rank * part, (self.rank + 1) * part)
        return (*window[: self.share], mine, *window[self.share + 1 :])

    def graph(self) -> Graph:
        """Return the graph of the formula alone."""
        builder = Builder(f"rank{self.rank}")
        operands = []
        for name, type_, layout in zip(
            self.formula.operands, self.types, self.operands, strict=True
        ):
            shape = shape_of(layout.held[self.rank])
            operands.append(builder.input(name, TensorType(shape, type_.dtype)))
        return builder.finish([self.add(builder, operands)])

    def add(self, builder: Builder, operands: Sequence[Value]) -> Value:
        """Add what makes the rank's window of the result, of its windows of the operands."""
        near = [
            self._completed(builder, value, layout)
            for value, layout in zip(operands, self.operands, strict=True)
        ]
        windows = [layout.touched[self.rank] for layout in self.operands]
        result, bounds = self.result.touched[self.rank], self.bounds[self.rank]
        part = part_of(self.formula, self.row, bounds, windows, result)
        if not self.row.combine:
            return builder.formula(part, *near, name=self.name)
        if self.row.combine.startswith("arg"):
            return self._best_place(builder, part, near)
        made = builder.formula(part, *near, name=self.name)
        met = self._met(builder, made, self.row.combine)
        reached = None
        if self._may_miss():
            there = builder.formula(reach_of(part), *near, name="reached")
            reached = self._met(builder, there, "any")
        return self._filled(builder, met, reached, near)

    def _completed(self, builder: Builder, value: Value, layout: Layout) -> Value:
        """Add what gives the rank all of an operand that its part touches."""
        if layout.dim is None:
            return value
        touched = layout.touched[self.rank]
        dim = layout.dim
        shares, needs = ([window[dim] for window in w] for w in (layout.held, layout.touched))
        value = fetch(builder, value, dim, shares, needs, self.rank)
        for other, (start, stop) in enumerate(touched):
            if other != dim:
                value = cut_out(builder, value, other, start, stop - start)
        return value

    def _met(self, builder: Builder, value: Value, combine: str) -> Value:
        """Add the collectives that make one of what the ranks have made."""
        if self.result.dim is not None:
            dim = self.result.dim
            windows = (self.result.touched, self.result.held)
            made, held = ([window[dim] for window in w] for w in windows)
            return hand_on(builder, value, dim, made, held, self.rank)
        truth = value.type.dtype == BOOL
        how = _OF_TRUTH.get(combine, combine) if truth else combine
        if self.share is not None and not truth:
            return self._collective(builder, "reduce_scatter", value, {"dim": self.share})
        whole = self._collective(builder, "all_reduce", value, {"op": how})
        return whole if self.share is None else self._mine(builder, whole)

    def _mine(self, builder: Builder, value: Value) -> Value:
        """Add the rank's own share of a value that is whole on every rank."""
        for dim, (start, stop) in enumerate(self.output()):
            value = cut_out(builder, value, dim, start, stop - start)
        return value

    def _collective(
        self, builder: Builder, name: str, value: Value, attrs: dict[str, Any]
    ) -> Value:
        group = tuple(range(len(self.bounds)))
        made = emit(builder, name, value, names=(value.name,), group=group, **attrs)
        assert isinstance(made, Value), "a collective has one result"
        return made

    def _may_miss(self) -> bool:
        """Whether elements may be left that no term of any part reaches, and that shows."""
        formula = self.formula
        if formula.fill == Const(identity(formula, self.row.combine)):
            return False
        extents = {loop.name: number(loop.extent) for loop in formula.loops}
        types = dict(zip(formula.operands, self.types, strict=True))
        bare = {entry.name for entry in formula.index if isinstance(entry, Sym)}
        everywhere = (
            formula.where is None
            and len(bare) == formula.type.rank
            and min(extents.values(), default=1) > 0
            and not presence(formula.value, types, extents)
            and all(
                number(size) == extents[entry.name]
                for entry, size in zip(formula.index, formula.type.shape, strict=True)
                if isinstance(entry, Sym)
            )
        )
        return not everywhere

    def _filled(
        self, builder: Builder, met: Value, reached: Value | None, near: Sequence[Value]
    ) -> Value:
        """Add what puts the fill where no term landed, and the result's own type."""
        formula, index = self.formula, ", ".join(loops(met))
        if reached is None and met.type.dtype == formula.type.dtype and not self._base():
            return met
        body = f"f[{index}]" if reached is None else f"f[{index}] where m[{index}]"
        operands = {"f": met} if reached is None else {"f": met, "m": reached}
        if self._base():
            base = near[formula.operands.index(self._base())]
            operands["b"] = self._mine(builder, base) if met.type.shape != base.type.shape else base
            body = f"{formula.op} {body} from b"
        else:
            assert isinstance(formula.fill, Const), "a fill is a number or an operand"
            body = f"= {body} else {show_number(formula.fill.value)}"
        dtype = formula.type.dtype
        return write(builder, f"y[{index}] {body}", operands, dtype=dtype, name=self.name)

    def _base(self) -> str:
        """Return the operand that the result begins with; "" where it is a number."""
        fill = self.formula.fill
        return fill.tensor if isinstance(fill, Read) else ""

    def _best_place(self, builder: Builder, part: Formula, near: Sequence[Value]) -> Value:
        """Add the place of the best: NaN is the best, and of equals the first place wins."""
        how = self.row.combine.removeprefix("arg")
        best = best_of(part, [value.type for value in near])
        mine = builder.formula(best, *near, name="best")
        truth = mine.type.dtype == BOOL
        op = _OF_TRUTH[how] if truth else how
        top = self._collective(builder, "all_reduce", mine, {"op": op})
        place = builder.formula(part, *near, name="place")
        i = ", ".join(loops(place))
        body = f"p[{i}] if v[{i}] == t[{i}] or v[{i}] != v[{i}] else {NOWHERE}"
        mine = write(builder, f"y[{i}] = {body}", p=place, v=mine, t=top, name="place",
                     dtype=place.type.dtype)  # fmt: skip
        first = self._collective(builder, "all_reduce", mine, {"op": "min"})
        assert isinstance(self.formula.fill, Const), "a place is filled with a number"
        fill = show_number(self.formula.fill.value)
        body = f"f[{i}] if f[{i}] != {NOWHERE} else {fill}"
        return write(builder, f"y[{i}] = {body}", f=first, name=self.name, dtype=place.type.dtype)
