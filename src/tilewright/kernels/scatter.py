"""The recipe for results that land where a read index says: `y[ids[r], d] += dy[r, d]`.

The idea: terms that land on one element must be met in order, by one thread.  A loop that the
target names bare (`d`) keeps its elements apart.  Where elements of the last dim are, that loop
alone is cut into parts and runs innermost: each part fills its slice of the result, then goes
through all the terms.  Else all such loops run outermost, and each of their iterations fills its
piece of the result, then goes through the terms that land there: `y[c, t[c, r]] += dy[c, r]`.

This recipe does not know operations other than `=` and `+=`, nor sums that need a wider type.
"""

from collections.abc import Sequence

from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.base.sizes import larger, same
from tilewright.graph.ir import Formula
from tilewright.kernels.body import (
    Body,
    contiguous,
    has_read,
    is_pointwise,
    static_extents,
    static_shape,
    volume,
)
from tilewright.kernels.conversion import convert, stored
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.functions import apply
from tilewright.kernels.text import Scope, Term

SLICE = 16  # elements of the apart loop that a part has at least: one cache line


def scattered(body: Body) -> Formula | str:
    """Return the formula that scatters, or why this recipe cannot print the body."""
    *before, (name, formula) = body.formulas
    if not any(has_read(entry) for entry in formula.index):
        return f"{name} is no scatter"
    if body.outputs != (name,) or not all(is_pointwise(other) for _, other in before):
        return f"other results are made beside {name}"
    dtype = formula.type.dtype
    if formula.op not in ("=", "+=") or (formula.op == "+=" and dtype.compute != dtype):
        return f"{name} needs to note more than its elements while terms are met"
    empty = isinstance(formula.fill, Read) or formula.fill in (Const(0), Const(0.0))
    if formula.op == "+=" and not empty:
        return f"{name} is filled with something else than what sums start from"
    return formula


def apart_loops(formula: Formula) -> tuple[str, ...]:
    """Return the loops that keep target elements apart: each named bare by one dim alone, a whole
    one.

    One that does so in the last dim comes alone: it runs innermost.  Others come in the target's
    order: they run outermost.
    """
    extents = static_extents(formula)
    found: dict[str, None] = {}
    for entry, extent in zip(formula.index, static_shape(formula.type), strict=True):
        alone = formula.index.count(entry) == 1
        if isinstance(entry, Sym) and alone and same(extents.get(entry.name, -1), extent):
            found[entry.name] = None
    last = formula.index[-1]
    return (last.name,) if isinstance(last, Sym) and last.name in found else tuple(found)


def print_scatter(printer: Printer, formula: Formula, target: Memory, root: Scope) -> int:
    """Print the kernel's body; returns how many equal units its work can be cut into."""
    extents, apart = static_extents(formula), apart_loops(formula)
    printer.extents.update(extents)
    if _runs_innermost(formula, apart):
        length = extents[apart[0]]
        root.add(f"const long low = {length} * part / parts, high = {length} * end / parts;")
        head = f"for (long {apart[0]} = low; {apart[0]} < high; {apart[0]}++)"
        _print_fill(printer, formula, target, apart, root, head)
        _print_terms(printer, formula, target, apart, root, head)
        units: int = larger(1, length // SLICE)
        return units
    units = volume([extents[name] for name in apart])
    unit = root.inner(*apart)
    below: int = 1
    for name in reversed(apart):
        before = "u" if same(below, 1) else f"u / {_factor(below)}"
        unit.add(f"const long {name} = {before} % {_factor(extents[name])};")
        below = below * extents[name]
    _print_fill(printer, formula, target, apart, unit, "")
    _print_terms(printer, formula, target, apart, unit, "")
    bounds = f"u = {units} * part / parts; u < {units} * end / parts; u++"
    root.attach(unit, f"for (long {bounds})" if apart else "")
    return units


def _runs_innermost(formula: Formula, apart: Sequence[str]) -> bool:
    """Say whether the loop that keeps elements apart does so in the last dim."""
    return bool(apart) and formula.index[-1] == Sym(apart[-1])


def _factor(size: int) -> str:
    return str(size) if type(size) is int else f"({size})"


def _print_terms(
    printer: Printer,
    formula: Formula,
    target: Memory,
    apart: Sequence[str],
    root: Scope,
    innermost: str,
) -> None:
    """Print the loops over all terms; `innermost`: the head of the loop that keeps them apart."""
    extents = static_extents(formula)
    scope, opened = root, []
    for loop in formula.loops:
        if loop.name not in apart:
            inner = scope.inner(loop.name)
            head = f"for (long {loop.name} = 0; {loop.name} < {extents[loop.name]}; {loop.name}++)"
            opened.append((scope, inner, head))
            scope = inner
    body = scope.inner(*apart)
    _print_term(printer, formula, target, body)
    if innermost:
        scope.add("#pragma GCC ivdep")
    scope.attach(body, innermost)
    for outer, inner, head in reversed(opened):
        outer.attach(inner, head)


def _print_fill(
    printer: Printer,
    formula: Formula,
    target: Memory,
    apart: Sequence[str],
    root: Scope,
    innermost: str,
) -> None:
    shape = static_shape(formula.type)
    places = {name: formula.index.index(Sym(name)) for name in apart}
    others = [k for k in range(len(shape)) if k not in places.values()]
    steps = contiguous(tuple(shape[k] for k in others))
    printer.extents["n"] = count = volume([shape[k] for k in others])
    outer = root.inner("n")
    inner = outer.inner(*apart)
    index: list[Expr] = [*formula.index]
    for k, step in zip(others, steps, strict=True):
        digit = Call("floordiv", (Sym("n"), Const(step)))
        index[k] = Call("mod", (digit, Const(shape[k])))
    fill = formula.fill
    value = Read(fill.tensor, tuple(index)) if isinstance(fill, Read) else fill
    term = printer.value(value, inner)
    place = printer.offset(printer.normal(Read("", tuple(index))), target, inner)
    inner.add(f"{target.pointer}[{place}] = {stored(term, target.dtype, printer.used)};")
    outer.attach(inner, innermost)
    root.attach(outer, f"for (long n = 0; n < {count}; n++)")


def _print_term(printer: Printer, formula: Formula, target: Memory, scope: Scope) -> None:
    """Print one term's way into its element."""
    parts = [formula.value, *formula.index]
    present = [c for part in parts for c in printer.presence(part)]
    if formula.where is not None:
        present = [*printer.presence_where(formula.value, formula.where), *present]
    shape = static_shape(formula.type)
    present += printer.landing(formula.index, shape)
    present = list(dict.fromkeys(present))
    where = () if formula.where is None else (formula.where,)
    faults = [fault for part in (*where, *parts) for fault in printer.faults(part)]
    printer.check([*faults, *printer.index_faults(formula.index, shape)], present, scope)
    term = convert(printer.repeated(formula.value, scope), target.dtype.compute)
    place = f"{target.pointer}[{printer.offset(Read('', formula.index), target, scope)}]"
    condition = printer.conjunction(present, scope)
    if formula.op == "+=":
        before = Term(place, target.dtype.compute)
        term = apply("add", [before, term], printer.used)
    text = stored(term, target.dtype, printer.used)
    guard = f"if ({condition.text}) " if present else ""
    scope.add(f"{guard}{place} = {text};")
