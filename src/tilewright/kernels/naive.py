"""The recipe that always works: each formula as its plain loops, one after another.

The idea: exactly what the notation says, in the order it says it.  A formula whose target is bare
loops is computed element by element; any other fills its result, then meets its terms in the order
of the loops and combines each with what is there.  Values that are not outputs get memory.

This recipe does not know caches, vectors or threads beyond the first loop.
"""

from dataclasses import dataclass

from tilewright.base.dtypes import F32, F64, I64, DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.graph.ir import Formula
from tilewright.kernels.body import (
    contiguous,
    is_gather,
    parallel,
    static_extents,
    static_shape,
    volume,
)
from tilewright.kernels.conversion import convert, stored
from tilewright.kernels.expression import OUT_OF_MEMORY, Memory, Printer
from tilewright.kernels.reduce import BEST, accumulator, combined, identity, wins
from tilewright.kernels.text import ONE_BY_ONE, Scope, Term, c_type, unsigned


def print_naive(printer: Printer, root: Scope, *, sliced: bool) -> None:
    """Print all formulas of the body; `sliced` cuts the first loop of the only one into parts."""
    for name, formula in printer.body.formulas:
        if name not in printer.memory:
            _allocate(printer, name, formula, root)
        printer.enter(static_extents(formula))
        if volume(static_shape(formula.type)) == 0:
            continue
        scope = root.inner()
        if is_gather(formula):
            _gather(printer, name, formula, scope, sliced=sliced)
        else:
            _scatter(printer, name, formula, scope)
        root.attach(scope, "")
    for name in printer.memory:
        if name not in printer.body.outputs and name.startswith("v"):
            root.add(f"free({name});")


def can_slice(formula: Formula) -> bool:
    """Say whether the first parallel loop may be cut: each element is computed by one iteration."""
    return is_gather(formula) and bool(parallel(formula))


def _allocate(printer: Printer, name: str, formula: Formula, scope: Scope) -> None:
    shape, dtype = static_shape(formula.type), formula.type.dtype
    _claim(printer, name, dtype.c, volume(shape), scope)
    printer.memory[name] = Memory(name, dtype, shape, contiguous(shape))


def _claim(printer: Printer, name: str, c: str, count: int, scope: Scope) -> None:
    printer.used.add("malloc")
    scope.add(f"{c} *{name} = malloc({unsigned(max(count, 1))} * sizeof({c}));")
    scope.add(f"if (!{name}) return {OUT_OF_MEMORY};")


def _count(name: str, extent: int) -> str:
    return f"for (long {name} = 0; {name} < {extent}; {name}++)"


def _nest(scope: Scope, loops: list[tuple[str, int]]) -> list[tuple[Scope, Scope, str]]:
    """Open loops inside each other; they are attached from the innermost outwards."""
    opened = []
    for name, extent in loops:
        inner = scope.inner(name)
        opened.append((scope, inner, _count(name, extent)))
        scope = inner
    return opened


def _close(opened: list[tuple[Scope, Scope, str]], *, chained: bool = False) -> None:
    """Attach loops.  chained: they add to one variable."""
    for outer, inner, head in reversed(opened):
        if chained:
            outer.add(ONE_BY_ONE)
        outer.attach(inner, head)


@dataclass(frozen=True, slots=True)
class _Cell:
    """The names of what is being made at one place: value so far, whether any term came, index."""

    value: str
    has: str
    mark: str
    dtype: DType


def _take(
    printer: Printer, formula: Formula, cell: _Cell, scope: Scope, places: tuple[Expr, ...] = ()
) -> None:
    """Print the meeting of one term with its cell."""
    parts = (formula.value, *((formula.at,) if formula.at is not None else ()), *places)
    present = [c for part in parts for c in printer.presence(part)]
    if formula.where is not None:
        present = [*printer.presence_where(formula.value, formula.where), *present]
    if places:
        present += printer.landing(places, static_shape(formula.type))
    present = list(dict.fromkeys(present))
    where = () if formula.where is None else (formula.where,)
    faults = [fault for part in (*where, *parts) for fault in printer.faults(part)]
    faults += printer.index_faults(places, static_shape(formula.type)) if places else []
    if faults:
        printer.check(faults, present, scope)
    test = printer.conjunction(present, scope).text if present else ""
    base = accumulator(formula, printer.type_of(formula.value))
    term = convert(convert(printer.repeated(formula.value, scope), base), cell.dtype)
    met = scope.inner()
    name = printer.fresh("term")
    met.add(f"const {c_type(cell.dtype)} {name} = {term.text};")
    if formula.op in BEST:
        assert formula.at is not None, f"{formula.op} says what index to keep"
        mark = convert(printer.value(formula.at, scope), formula.type.dtype.compute)
        better = wins(formula.op, name, cell.value, cell.dtype)
        best = met.inner()
        best.add(f"{cell.value} = {name};")
        best.add(f"{cell.mark} = {mark.text};")
        met.attach(best, f"if (!{cell.has} || ({better}))")
    elif formula.op == "=":
        met.add(f"{cell.value} = {name};")
    else:
        text = combined(formula.op, cell.value, name, cell.dtype, printer.used)
        met.add(f"{cell.value} = {text};")
    met.add(f"{cell.has} = 1;")
    scope.attach(met, f"if ({test})" if test else "")


def _wide(formula: Formula, printer: Printer) -> DType:
    """Return the type of a cell: the accumulator's, but sums of floats are formed in double."""
    dtype = accumulator(formula, printer.type_of(formula.value))
    return F64 if formula.op == "+=" and dtype == F32 else dtype


def _gather(printer: Printer, name: str, formula: Formula, scope: Scope, *, sliced: bool) -> None:
    """Print: for all result elements, for all other loops."""
    extents = static_extents(formula)
    outer = parallel(formula)
    opened: list[tuple[Scope, Scope, str]] = []
    inner = scope
    for at, loop in enumerate(outer):
        child = inner.inner(loop)
        head = _count(loop, extents[loop])
        if sliced and at == 0:
            n = extents[loop]
            head = f"for (long {loop} = {n} * part / parts; "
            head += f"{loop} < {n} * end / parts; {loop}++)"
        opened.append((inner, child, head))
        inner = child
    dtype = _wide(formula, printer)
    cell = _Cell("sum", "has", "mark", dtype)
    fill = formula.fill
    from_operand = isinstance(fill, Read)
    if isinstance(fill, Read):
        fill = Read(fill.tensor, formula.index)
    before = printer.value(fill, inner)
    start = identity(formula.op, dtype) if formula.op != "=" else convert(before, dtype)
    if from_operand and formula.op not in BEST:
        start = convert(before, dtype)
    inner.add(f"{c_type(dtype)} sum = {start.text};")
    inner.add(f"int has = {int(from_operand and formula.op not in BEST)};")
    if formula.op in BEST:
        inner.add("long mark = 0;")
    rest = [(loop.name, extents[loop.name]) for loop in formula.loops if loop.name not in outer]
    nest = _nest(inner, rest)
    deepest = nest[-1][1] if nest else inner
    _take(printer, formula, cell, deepest)
    _close(nest, chained=formula.op == "+=")
    kept = Term("mark", I64) if formula.op in BEST else Term("sum", dtype)
    target = printer.offset(Read(name, formula.index), printer.memory[name], inner)
    made = stored(kept, formula.type.dtype, printer.used)
    other = stored(before, formula.type.dtype, printer.used)
    inner.add(f"{name}[{target}] = has ? {made} : {other};")
    _close(opened)


def _scatter(printer: Printer, name: str, formula: Formula, scope: Scope) -> None:
    """Print: start all cells, meet the terms in the order of the loops, store all cells."""
    shape, extents = static_shape(formula.type), static_extents(formula)
    dtype = _wide(formula, printer)
    arrays = {f"{name}_sum": c_type(dtype), f"{name}_has": "unsigned char"}
    if formula.op in BEST:
        arrays[f"{name}_mark"] = "long"
    for array, c in arrays.items():
        _claim(printer, array, c, volume(shape), scope)
    _each_cell(printer, name, formula, dtype, scope, after=False)
    nest = _nest(scope, [(loop.name, extents[loop.name]) for loop in formula.loops])
    deepest = nest[-1][1] if nest else scope.inner()
    place = Memory(name, formula.type.dtype, shape, contiguous(shape))
    deepest.add(f"const long at = {printer.offset(Read(name, formula.index), place, deepest)};")
    cell = _Cell(f"{name}_sum[at]", f"{name}_has[at]", f"{name}_mark[at]", dtype)
    _take(printer, formula, cell, deepest, formula.index)
    _close(nest)
    if not nest:
        scope.attach(deepest, "")
    _each_cell(printer, name, formula, dtype, scope, after=True)
    for array in arrays:
        scope.add(f"free({array});")


def _each_cell(
    printer: Printer, name: str, formula: Formula, dtype: DType, scope: Scope, *, after: bool
) -> None:
    """Print the loop over all cells that starts them, or that stores what they hold."""
    shape, best = static_shape(formula.type), formula.op in BEST
    count = volume(shape)
    printer.extents["n"] = count
    fill = formula.fill
    if isinstance(fill, Read):
        steps = zip(contiguous(shape), shape, strict=True)
        index = (Call("mod", (Call("floordiv", (Sym("n"), Const(s))), Const(d))) for s, d in steps)
        fill = Read(fill.tensor, tuple(index))
    every = scope.inner("n")
    before = printer.value(fill, every)
    if after:
        kept = Term(f"{name}_mark[n]", I64) if best else Term(f"{name}_sum[n]", dtype)
        made = stored(kept, formula.type.dtype, printer.used)
        other = stored(before, formula.type.dtype, printer.used)
        every.add(f"{name}[n] = {name}_has[n] ? {made} : {other};")
    else:
        held = isinstance(fill, Read) and not best
        start = convert(before, dtype) if held or formula.op == "=" else identity(formula.op, dtype)
        every.add(f"{name}_sum[n] = {start.text};")
        every.add(f"{name}_has[n] = {int(held)};")
    scope.attach(every, _count("n", count))
