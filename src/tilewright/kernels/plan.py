"""Decide how a body becomes loop nests: which loops are shared, which are rows, which columns.

The idea: a body's reductions and outputs are *statements*; everything between is computed where it
is read.  A statement that reads another's result by bare loops runs over the same loops, so their
loops get one name; loops that occur divided (`j // 4`, `j % 4`) are split in two; loops that go
through memory together are merged.  Statements with common loops form a *region*: its rows are the
parallel loops of its reductions, all other loops are columns.

::

    v0[i] max= a0[i, j]                     rows r: v0 max= over columns c
    v1[i] += exp(a0[i, j] - v0[i])     -->          v1 +=   over columns c
    v2[i, j] = a0[i, j] / v1[i]                     v2[r, c] = ...

This module does not know C.
"""

from dataclasses import dataclass

from tilewright.base.expr import Sym
from tilewright.kernels.body import (
    Body,
    is_gather,
    is_pointwise,
    reductions,
    static_extents,
)
from tilewright.kernels.layout import apart, merged, ordered
from tilewright.kernels.regions import Region, components, depths, join_siblings, make_regions
from tilewright.kernels.statement import State, Statement
from tilewright.kernels.unify import share_column, split_divided, unify


@dataclass(frozen=True, slots=True)
class Plan:
    """Regions to be run one after another, none of which needs another's results."""

    regions: tuple[Region, ...]
    reason: str


def make_plan(body: Body) -> Plan | str:
    """Return the plan for a body of solved formulas, or why it cannot have one."""
    for name, formula in body.formulas:
        if not is_gather(formula):
            return f"{name} lands where an index that is read says"
        if formula.op == "=" and reductions(formula):
            return f"{name} assigns an element more than once"
    state = _start(body)
    while unify(state, required=True) or unify(state, required=False) or split_divided(state):
        assert state.count < 1000, "splitting loops comes to an end"
    join_siblings(state)
    regions: list[Region] = []
    for group in components(state):
        while share_column(state, group):
            pass
        made = make_regions(state, group)
        if isinstance(made, str):
            return made
        regions += made
    regions = [merged(state, apart(state, region)) for region in regions]
    regions = [ordered(state, region) for region in regions]
    regions = [named_region(state, region) for region in regions]
    kind = "pointwise"
    if any(statement.is_reduction for region in regions for statement in region.statements):
        lanes = any(region.lane and region.columns for region in regions)
        kind = "columns" if lanes else "rows"
    return Plan(tuple(regions), f"{kind}: {'; '.join(_describe(region) for region in regions)}")


def _start(body: Body) -> State:
    state = State(body)
    for name, formula in body.formulas:
        if name in body.outputs or not is_pointwise(formula):
            extents = static_extents(formula)
            bind = tuple((loop, Sym(state.fresh(extents[loop]))) for loop in extents)
            state.statements[name] = Statement(name, formula, bind)
    return state


def named_region(state: State, region: Region) -> Region:
    """Call rows r0, r1, ... and columns c0, c1, ..., and note what is known of the region."""
    known = depths(state, list(region.statements))
    read = (read.tensor for statement in region.statements for read in state.reads(statement))
    read_again = frozenset(read) & frozenset(known)
    names_ = {old: f"r{at}" for at, old in enumerate(region.rows)}
    names_ |= {old: f"c{at}" for at, old in enumerate(region.columns)}
    extents = {new: state.extents[old] for old, new in names_.items()}
    mapping = {old: Sym(new) for old, new in names_.items()}
    return Region(
        tuple(statement.renamed(mapping, extents) for statement in region.statements),
        tuple(names_[old] for old in region.rows),
        tuple(names_[old] for old in region.columns),
        names_[region.lane] if region.lane else "",
        tuple(known[statement.name] for statement in region.statements),
        read_again,
        tuple(extents.items()),
    )


def _describe(region: Region) -> str:
    extents = dict(region.extents)
    rows = "x".join(str(extents[name]) for name in region.rows) or "1"
    columns = "x".join(str(extents[name]) for name in region.columns)
    text = f"{len(region.statements)} result{'s' * (len(region.statements) > 1)} over {rows}"
    if columns:
        text += f" rows of {columns}"
    if region.lane:
        text += f", {extents[region.lane]} rows side by side" if columns else ", in square tiles"
    return text
