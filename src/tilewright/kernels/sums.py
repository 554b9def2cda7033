"""Reductions inside a region: their accumulators, the taking of terms, and what comes out.

The idea: a reduction has as many accumulators as elements are taken side by side, each of which
meets its terms in order; long sums are formed in double.  `row.slot` says which one is meant.

This module does not know loops.
"""

from tilewright.base.dtypes import BOOL, F32, F64
from tilewright.base.expr import Expr, Read
from tilewright.base.sizes import greatest_of
from tilewright.kernels.conversion import convert, rounded
from tilewright.kernels.functions import apply
from tilewright.kernels.loops_c import store, write
from tilewright.kernels.reduce import BEST, accumulator, combined, identity, needs_mark, wins
from tilewright.kernels.row import Row, Sum, counting
from tilewright.kernels.statement import Statement
from tilewright.kernels.text import COMPARE, SUM, UNARY, Scope, Term, c_type

LONG_SUM = 64  # terms that one accumulator takes before it is made a double


def declare(row: Row, statement: Statement, lanes: int, count: int, scope: Scope) -> None:
    """Declare the accumulators of a reduction, and remember them; `count` terms go into each."""
    formula, printer = statement.formula, row.printer
    dtype = accumulator(formula, printer.type_of(formula.value))
    if dtype == F32 and formula.op == "+=" and greatest_of(count) > LONG_SUM:
        dtype = F64
    always = not _present(row, statement)
    name = printer.fresh("s")
    from_operand = isinstance(formula.fill, Read) and formula.op not in BEST
    mark = f"{name}_has" if not from_operand and needs_mark(formula, always=always) else ""
    at = f"{name}_at" if formula.op in BEST else ""
    if at:
        mark = f"{name}_has"
    row.sums[statement.name] = Sum(statement, name, dtype, mark, at, lanes)
    start = identity(formula.op, dtype).text
    scope.add(f"{c_type(dtype)} {name}[{lanes}];")
    inits = [f"{name}[l] = {start};"]
    for array, c in ((mark, "int"), (at, "long")):
        if array:
            scope.add(f"{c} {array}[{lanes}];")
            inits.append(f"{array}[l] = 0;")
    loop = scope.inner()
    for line in inits:
        loop.add(line)
    scope.attach(loop, counting("l", "0", str(lanes)))


def _present(row: Row, statement: Statement) -> tuple[Expr, ...]:
    """Return the conditions under which a term of a reduction is present."""
    formula, printer = statement.formula, row.printer
    value = statement.bound(formula.value)
    parts: list[Expr] = []
    if formula.where is not None:
        parts += printer.presence_where(value, statement.bound(formula.where))
    else:
        parts += printer.presence(value)
    if formula.at is not None:
        parts += printer.presence(statement.bound(formula.at))
    return printer.open_conditions(parts)


def meet(row: Row, group: list[Statement], scope: Scope) -> None:
    """Print one iteration of a nest: terms into their accumulators, results into memory."""
    for statement in group:
        if statement.is_reduction:
            take(row, row.sums[statement.name], scope)
        else:
            row.stored_here.add(store(row.printer, statement, row.targets, scope))


def take(row: Row, sum_: Sum, scope: Scope) -> None:
    """Print the taking of one term into its accumulator."""
    printer, formula = row.printer, sum_.statement.formula
    bound = sum_.statement.bound
    present = _present(row, sum_.statement)
    faults = [
        fault
        for part in (formula.where, formula.value, formula.at)
        if part is not None
        for fault in printer.faults(bound(part))
    ]
    if faults:
        printer.check(faults, present, scope)
    condition = convert(printer.conjunction(present, scope), BOOL)
    value = printer.repeated(bound(formula.value), scope)
    base = accumulator(formula, printer.type_of(formula.value))
    term = convert(convert(value, base), sum_.dtype)
    into = f"{sum_.name}[{row.slot}]"
    if formula.op in BEST:
        _take_best(row, sum_, condition, term, scope)
        return
    if present:
        term = apply("select", [condition, term, identity(formula.op, sum_.dtype)], printer.used)
        if sum_.mark:
            here = f"{sum_.mark}[{row.slot}]"
            scope.add(f"{here} = {here} | {condition.at(SUM)};")
    text = combined(formula.op, into, term.at(UNARY), sum_.dtype, printer.used)
    scope.add(f"{into} = {text};")


def _take_best(row: Row, sum_: Sum, condition: Term, term: Term, scope: Scope) -> None:
    formula, printer = sum_.statement.formula, row.printer
    assert formula.at is not None, f"{formula.op} says what index to keep"
    name = printer.fresh("t")
    scope.add(f"const {c_type(sum_.dtype)} {name} = {term.text};")
    mark = convert(
        printer.value(sum_.statement.bound(formula.at), scope), formula.type.dtype.compute
    )
    best = f"{sum_.name}[{row.slot}]"
    better = wins(formula.op, name, best, sum_.dtype)
    inner = scope.inner()
    inner.add(f"{best} = {name};")
    inner.add(f"{sum_.at}[{row.slot}] = {mark.text};")
    inner.add(f"{sum_.mark}[{row.slot}] = 1;")
    scope.attach(inner, f"if ({condition.at(COMPARE)} && (!{sum_.mark}[{row.slot}] || ({better})))")


def finish(row: Row, sum_: Sum, unit: Scope) -> None:
    """Combine the lanes pairwise; the result is a variable of the row, stored if an output."""
    printer, formula = row.printer, sum_.statement.formula
    if sum_.lanes > 1:
        halves = unit.inner()
        for array, op, dtype in ((sum_.name, formula.op, sum_.dtype), (sum_.mark, "any=", BOOL)):
            if array:
                text = combined(op, f"{array}[l]", f"{array}[l + w]", dtype, printer.used)
                halves.add(f"for (long l = 0; l < w; l++) {array}[l] = {text};")
        unit.attach(halves, f"for (long w = {sum_.lanes // 2}; w > 0; w /= 2)")
    read = row.target(sum_.statement)
    term = result_of(row, sum_, read, "0", unit)
    made = printer.define(read, term, unit, f"{read.tensor}_")
    if read.tensor in row.targets:
        write(printer, read, made, row.targets, unit)


def result_of(row: Row, sum_: Sum, read: Read, slot: str, scope: Scope) -> Term:
    """Return the term for a finished reduction: with its fill, rounded to its type."""
    printer, formula = row.printer, sum_.statement.formula
    type_ = formula.type.dtype
    term = Term(f"{sum_.name}[{slot}]", sum_.dtype)
    if sum_.at:
        term = Term(f"{sum_.at}[{slot}]", type_.compute)
    fill = formula.fill
    if isinstance(fill, Read):
        fill = Read(fill.tensor, read.index)
    term = convert(term, type_.compute)
    if isinstance(fill, Read) and not sum_.at:
        before = convert(printer.value(fill, scope), type_.compute)
        text = combined(formula.op, before.at(8), term.at(8), type_.compute, printer.used)
        term = Term(text, type_.compute, 6)
    elif sum_.mark:
        before = rounded(printer.value(fill, scope), type_, printer.used)
        term = apply("select", [Term(f"{sum_.mark}[{slot}]", BOOL), term, before], printer.used)
    return rounded(term, type_, printer.used)
