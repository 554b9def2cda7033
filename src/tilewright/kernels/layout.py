"""Order a region's loops by how memory lies: merge what is contiguous, put the best innermost.

The idea: every access has a flat offset; a loop is good innermost where it steps by one or not at
all, and two loops are one where every offset, value and condition stays as simple without them.

This module does not know C.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, children, names, walk
from tilewright.base.sizes import nominal
from tilewright.kernels.body import (
    has_read,
    static_shape,
    volume,
)
from tilewright.kernels.expression import bound_to
from tilewright.kernels.reduce import BEST
from tilewright.kernels.regions import Region
from tilewright.kernels.statement import State

SHORT = 16  # columns fewer than this are no vectors
NEAR = 4  # elements apart of which some vectors are taken together
LANE = 8  # row loops shorter than this are not worth running innermost


def apart(state: State, region: Region) -> Region:
    """Give a region loops of its own: what is done to them is then no matter to other regions."""
    fresh = {name: state.fresh(state.extents[name]) for name in (*region.rows, *region.columns)}
    mapping = {old: Sym(new) for old, new in fresh.items()}
    for statement in region.statements:
        state.statements[statement.name] = statement.renamed(mapping, state.extents)
    return replace(
        region,
        statements=tuple(state.statements[statement.name] for statement in region.statements),
        rows=tuple(fresh[name] for name in region.rows),
        columns=tuple(fresh[name] for name in region.columns),
    )


def merged(state: State, region: Region) -> Region:
    """Merge neighbouring loops that every access goes through as through one."""
    rows, columns = list(region.rows), list(region.columns)
    if len(rows) < 2 and len(columns) < 2:
        return region
    before = sum(_divisions(state, region))  # no merge is accepted that makes them more
    for loops in (rows, columns):
        at = len(loops) - 2
        while at >= 0:
            made = _merge_pair(state, region, loops[at], loops[at + 1], before)
            if made is not None:
                region, name = made
                loops[at : at + 2] = [name]
            at = min(at - 1, len(loops) - 2)
    return replace(region, rows=tuple(rows), columns=tuple(columns))


def _merge_pair(
    state: State, region: Region, a: str, b: str, before: int
) -> tuple[Region, str] | None:
    for statement in region.statements:
        if len({a, b} & set(statement.loops())) == 1:
            return None
    inner = state.extents[b]
    if inner == 0:  # nothing runs, and nothing can be divided by it
        return None
    if before == 0 and any(_parted(offset, a, b, state) for offset, _ in offsets(state, region)):
        return None
    trial = state.copy()
    name = trial.fresh(state.extents[a] * inner)
    trial.substitute(
        {
            a: Call("floordiv", (Sym(name), Const(inner))),
            b: Call("mod", (Sym(name), Const(inner))),
        }
    )
    made = replace(region, statements=tuple(trial.statements[s.name] for s in region.statements))
    if any(count > before for count in accumulate(_divisions(trial, made))):
        return None
    state.become(trial)
    return made, name


def _parted(offset: Expr, a: str, b: str, state: State) -> bool:
    """Say whether a flat offset is sure to be divided once loop `b` is merged into `a`."""
    _, terms = algebra.affine(offset)
    outer, inner = state.extents[a], state.extents[b]
    steps = (terms.get(Sym(a), 0), terms.get(Sym(b), 0), outer, inner)
    if any(type(number) is not int for number in steps) or outer < 2 or inner < 2:
        return False
    bare = not any(names(atom) & {a, b} for atom in terms if atom not in (Sym(a), Sym(b)))
    return bare and steps[0] != steps[1] * inner


def offsets(state: State, region: Region) -> Iterator[tuple[Expr, int]]:
    """Yield (flat offset, element size) of every access to memory in a region."""
    strides = {t.name: (t.strides, t.type.dtype.bytes) for t in state.body.inputs}
    for statement in region.statements:
        accesses = [r for r in state.reads(statement) if r.tensor in strides]
        for read in accesses:
            steps, size = strides[read.tensor]
            yield _flat(state, read.index, steps), size
        if statement.name in state.body.outputs:
            steps, index = state.body.strides(statement.name), statement.formula.index
            index = tuple(statement.bound(entry) for entry in index)
            yield _flat(state, index, steps), statement.formula.type.dtype.bytes


def _flat(state: State, index: tuple[Expr, ...], strides: tuple[int, ...]) -> Expr:
    total: Expr = Const(0)
    for entry, stride in zip(index, strides, strict=True):
        total = Call("add", (total, Call("mul", (entry, Const(stride)))))
    return state.simplify(total)


def _divisions(state: State, region: Region) -> Iterator[int]:
    """Yield how many divisions each of a region's offsets, values and conditions takes."""
    for offset, _ in offsets(state, region):
        yield _count_divisions(offset)
    for statement in region.statements:
        for read in state.reads(statement):
            yield sum(_count_divisions(entry) for entry in read.index if has_read(entry))
        formula = statement.formula
        for part in (formula.value, formula.where, formula.at):
            if part is not None:
                yield _value_divisions(state, statement.bound(part))


def _count_divisions(expr: Expr) -> int:
    return sum(_is_division(node) for node in walk(expr))


def _value_divisions(state: State, expr: Expr) -> int:
    """Count divisions of loops outside the indices of reads, and where an index may lie outside."""
    total = 0
    seen: set[Read] = set()
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Call):
            simple = node if has_read(node) else state.simplify(node)
            total += not has_read(simple) and _is_division(simple)
            waiting += children(simple)
        elif isinstance(node, Read):
            index = tuple(state.simplify(entry) for entry in node.index)
            if Read(node.tensor, index) in seen:
                continue
            seen.add(Read(node.tensor, index))
            shape = static_shape(state.body.type(node.tensor))
            for entry, extent in zip(index, shape, strict=True):
                if not algebra.within(entry, extent, state.extents):
                    total += _count_divisions(entry)
            formula, pointwise = state.made(node.tensor)
            if formula is not None and pointwise:
                waiting += [part for part in bound_to(formula, index) if part is not None]
    return total


def _is_division(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.fn in ("floordiv", "mod", "exactdiv")


def _score(state: State, region: Region, loop: str) -> int:
    """Say how well memory is gone through with this loop innermost: larger is better."""
    total = 0
    for offset, size in offsets(state, region):
        _, terms = algebra.affine(offset)
        step = terms.get(Sym(loop), 0)
        divided = any(loop in names(atom) for atom in terms if atom != Sym(loop))
        touched = volume([state.extents[n] for n in names(offset) if n in state.extents])
        touched = size * nominal(touched)
        if divided or nominal(abs(step)) > 1:
            total -= 2 * touched
        elif step:
            total += touched
    return total


def _crossing(state: State, region: Region, inner: str) -> str:
    """Return the loop along which what `inner` strides over is contiguous, if there is one."""
    for offset, _ in offsets(state, region):
        _, terms = algebra.affine(offset)
        if nominal(abs(terms.get(Sym(inner), 0))) > 1:
            for name in region.rows:
                extents = state.extents[name], state.extents[inner]
                long = min(map(nominal, extents)) >= LANE
                if name != inner and nominal(abs(terms.get(Sym(name), 0))) == 1 and long:
                    return name
    return ""


def _written_in_order(state: State, region: Region, loop: str) -> bool:
    """Say whether all that a region writes lies together along a loop, and what it reads not far
    apart."""
    steps: list[int] = []
    for offset, _ in offsets(state, region):
        _, terms = algebra.affine(offset)
        if any(loop in names(atom) for atom in terms if atom != Sym(loop)):
            return False
        steps.append(nominal(abs(terms.get(Sym(loop), 0))))
    return max(steps, default=0) <= NEAR and 1 in steps


def ordered(state: State, region: Region) -> Region:
    """Put innermost the loop along which memory is gone through best; merge again."""
    if not region.columns:
        if not region.rows:
            return region
        best = max(region.rows, key=lambda n: (_score(state, region, n), region.rows.index(n)))
        rows = (*(n for n in region.rows if n != best), best)
        return replace(region, rows=rows, lane=_crossing(state, region, best))
    if any(statement.formula.op in BEST for statement in region.statements):
        column = region.columns[-1]  # of equal terms it is the first that counts: they stay
    else:
        choice = [(_score(state, region, n), k) for k, n in enumerate(region.columns)]
        column = region.columns[max(choice)[1]]
    columns = (*(n for n in region.columns if n != column), column)
    lane = ""
    wide = [n for n in region.rows if nominal(state.extents[n]) >= LANE]
    if wide:
        best = max(wide, key=lambda n: (_score(state, region, n), region.rows.index(n)))
        if _score(state, region, best) > _score(state, region, column):
            lane = best
        elif nominal(state.extents[column]) < SHORT:
            # No vectors along columns: those that write in order are worth what they read apart.
            lane = next((n for n in wide if _written_in_order(state, region, n)), "")
    return replace(region, columns=columns, lane=lane)
