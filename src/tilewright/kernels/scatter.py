"""The recipe for results that land where a read index says: `y[ids[r], d] += dy[r, d]`.

The idea: terms that land on one element must be met in order, by one thread.  A loop that the
target names bare (`d`) keeps its elements apart, so it alone is cut into parts and runs innermost;
each part fills its slice of the result, then goes through all the terms.

This recipe does not know operations other than `=` and `+=`, nor sums that need a wider type.
"""

from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.base.sizes import larger
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


def apart_loop(formula: Formula) -> str:
    """Return the innermost loop that keeps target elements apart: named bare, over a whole dim."""
    extents = static_extents(formula)
    found = ""
    for entry, extent in zip(formula.index, static_shape(formula.type), strict=True):
        if isinstance(entry, Sym) and extents.get(entry.name) == extent:
            found = entry.name
    return found


def print_scatter(printer: Printer, formula: Formula, target: Memory, root: Scope) -> int:
    """Print the kernel's body; returns how many equal units its work can be cut into."""
    extents, apart = static_extents(formula), apart_loop(formula)
    printer.extents.update(extents)
    units = 1
    if apart:
        length = extents[apart]
        units = larger(1, length // SLICE)
        root.add(f"const long low = {length} * part / parts, high = {length} * end / parts;")
    _print_fill(printer, formula, target, apart, root)
    scope, opened = root, []
    for loop in formula.loops:
        if loop.name != apart:
            inner = scope.inner(loop.name)
            head = f"for (long {loop.name} = 0; {loop.name} < {extents[loop.name]}; {loop.name}++)"
            opened.append((scope, inner, head))
            scope = inner
    body = scope.inner(*([apart] if apart else []))
    _print_term(printer, formula, target, body)
    if apart:
        scope.add("#pragma GCC ivdep")
    scope.attach(body, f"for (long {apart} = low; {apart} < high; {apart}++)" if apart else "")
    for outer, inner, head in reversed(opened):
        outer.attach(inner, head)
    return units


def _print_fill(
    printer: Printer, formula: Formula, target: Memory, apart: str, root: Scope
) -> None:
    shape = static_shape(formula.type)
    at = next(
        (k for k, entry in enumerate(formula.index) if apart and entry == Sym(apart)), len(shape)
    )
    others = [extent for k, extent in enumerate(shape) if k != at]
    printer.extents["n"] = volume(others)
    outer = root.inner("n")
    inner = outer.inner(*([apart] if apart else []))
    index: list[Expr] = []
    for k in range(len(shape)):
        if k == at:
            index.append(Sym(apart))
            continue
        rest = contiguous(tuple(others))[k - (k > at)]
        digit = Call("floordiv", (Sym("n"), Const(rest)))
        index.append(Call("mod", (digit, Const(shape[k]))))
    fill = formula.fill
    value = Read(fill.tensor, tuple(index)) if isinstance(fill, Read) else fill
    term = printer.value(value, inner)
    place = printer.offset(printer.normal(Read("", tuple(index))), target, inner)
    inner.add(f"{target.pointer}[{place}] = {stored(term, target.dtype, printer.used)};")
    outer.attach(inner, f"for (long {apart} = low; {apart} < high; {apart}++)" if apart else "")
    root.attach(outer, f"for (long n = 0; n < {volume(others)}; n++)")


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
