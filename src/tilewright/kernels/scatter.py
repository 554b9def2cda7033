"""The recipe for results that land where a read index says: `y[ids[r], d] += dy[r, d]`.

The idea: terms that land on one element must be met in order, by one thread.  A loop that the
target names bare (`d`) keeps its elements apart.  Where elements of the last dim are, that loop
runs innermost, and threads share the rows of the result: each part fills its own, then passes over
the terms that land in those of others.  Where no index says which, they share the loop: each part
fills its slice of the result, then goes through all the terms.  Else all such loops run outermost,
and each of their iterations fills its piece of the result, then goes through the terms that land
there: `y[c, t[c, r]] += dy[c, r]`.

This recipe does not know products, nor sums that need a wider type, nor extremes that are filled
where no term lands.
"""

from collections.abc import Sequence

from tilewright.base.expr import Call, Const, Expr, Read, Sym, names
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
from tilewright.kernels.conversion import convert, load, stored
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.functions import apply
from tilewright.kernels.reduce import combined
from tilewright.kernels.text import ATOM, Scope, Term

SLICE = 16  # elements of the apart loop that a part has at least: one cache line
SHARES = 14
"""Parts that rows are cut into, where there are as many: each reads the indices of all terms, and a
thread takes up to seven parts in one call."""


def scattered(body: Body) -> Formula | str:
    """Return the formula that scatters, or why this recipe cannot print the body."""
    *before, (name, formula) = body.formulas
    if not any(has_read(entry) for entry in formula.index):
        return f"{name} is no scatter"
    if body.outputs != (name,) or not all(is_pointwise(other) for _, other in before):
        return f"other results are made beside {name}"
    dtype = formula.type.dtype
    over = isinstance(formula.fill, Read)
    simple = {"=": True, "+=": dtype.compute == dtype, "max=": over, "min=": over}
    if not simple.get(formula.op):
        return f"{name} needs to note more than its elements while terms are met"
    empty = over or formula.fill in (Const(0), Const(0.0))
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
        inner = apart[0]
        dim = _shared_dim(formula, inner)
        length = extents[inner] if dim is None else static_shape(formula.type)[dim]
        root.add(f"const long low = {length} * part / parts, high = {length} * end / parts;")
        first, last = ("low", "high") if dim is None else ("0", str(extents[inner]))
        head = f"for (long {inner} = {first}; {inner} < {last}; {inner}++)"
        _print_fill(printer, formula, target, apart, root, head, dim)
        _print_terms(printer, formula, target, apart, root, head, dim)
        units: int = larger(1, length // SLICE) if dim is None else SHARES
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


def _shared_dim(formula: Formula, inner: str) -> int | None:
    """Return the target's dim whose range threads share: that of an index which is read once for
    all of the innermost loop, where that has rows enough and no size varies."""
    shape, loops = static_shape(formula.type), {loop.name for loop in formula.loops}
    if any(type(size) is not int for size in (*shape, *static_extents(formula).values())):
        return None
    for dim, entry in enumerate(formula.index):
        once = has_read(entry) and inner not in names(entry) and names(entry) & loops
        if once and shape[dim] >= SHARES:
            return dim
    return None


def _factor(size: int) -> str:
    return str(size) if type(size) is int else f"({size})"


def _print_terms(
    printer: Printer,
    formula: Formula,
    target: Memory,
    apart: Sequence[str],
    root: Scope,
    innermost: str,
    dim: int | None = None,
) -> None:
    """Print the loops over all terms; `innermost`: the head of the loop that keeps them apart; dim:
    of which terms that land from `low` to `high` are met."""
    extents = static_extents(formula)
    scope, opened = root, []
    for loop in formula.loops:
        if loop.name not in apart:
            inner = scope.inner(loop.name)
            head = f"for (long {loop.name} = 0; {loop.name} < {extents[loop.name]}; {loop.name}++)"
            opened.append((scope, inner, head))
            scope = inner
    body = scope.inner(*apart)
    _print_term(printer, formula, target, body, dim)
    if innermost:
        scope.add("#pragma omp simd")
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
    dim: int | None = None,
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
    printer.check(printer.faults(value), (), inner)
    term = printer.value(value, inner)
    place = printer.offset(printer.normal(Read("", tuple(index))), target, inner)
    inner.add(f"{target.pointer}[{place}] = {stored(term, target.dtype, printer.used)};")
    outer.attach(inner, innermost)
    if dim is None:
        root.attach(outer, f"for (long n = 0; n < {count}; n++)")
        return
    size, step = shape[dim], steps[others.index(dim)]
    every = root.inner()
    by = "" if same(step, 1) else f" * {step}"
    every.attach(outer, f"for (long n = (o + low){by}; n < (o + high){by}; n++)")
    root.attach(every, f"for (long o = 0; o < {count // step}; o += {size})")


def _print_term(
    printer: Printer, formula: Formula, target: Memory, scope: Scope, dim: int | None
) -> None:
    """Print one term's way into its element, unless `dim` says that it lands in rows of others."""
    parts = [formula.value, *formula.index]
    present = [c for part in parts for c in printer.presence(part)]
    if formula.where is not None:
        present = [*printer.presence_where(formula.value, formula.where), *present]
    shape = static_shape(formula.type)
    present += printer.landing(formula.index, shape)
    present = list(dict.fromkeys(present))
    if dim is not None:
        _pass_over(printer, formula.index[dim], shape[dim], scope)
    where = () if formula.where is None else (formula.where,)
    faults = [fault for part in (*where, *parts) for fault in printer.faults(part)]
    printer.check([*faults, *printer.index_faults(formula.index, shape)], present, scope)
    term = convert(printer.repeated(formula.value, scope), target.dtype.compute)
    place = f"{target.pointer}[{printer.offset(Read('', formula.index), target, scope)}]"
    condition = printer.conjunction(present, scope)
    if formula.op == "+=":
        before = Term(place, target.dtype.compute)
        term = apply("add", [before, term], printer.used)
    elif formula.op != "=":
        before = load(target.dtype, place, ATOM, printer.used)
        text = combined(formula.op, before.text, term.text, before.dtype, printer.used)
        term = Term(text, before.dtype)
    text = stored(term, target.dtype, printer.used)
    guard = f"if ({condition.text}) " if present else ""
    scope.add(f"{guard}{place} = {text};")


def _pass_over(printer: Printer, entry: Expr, extent: int, scope: Scope) -> None:
    """Print that terms are for others which do not land from `low` to `high`; one that lands
    nowhere is for who has the first row, and noted there."""
    home = scope.home(names(entry))
    place = printer.value(printer.clamped(entry, extent, home), home).at(ATOM)
    home.add(f"if ((unsigned long)({place} - low) >= (unsigned long)(high - low)) continue;")
