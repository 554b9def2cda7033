"""Reductions in a nest: their accumulators, the taking of terms, and what comes out.

The idea: a reduction has as many accumulators as elements are taken side by side, each of which
meets its terms in order; those of long sums are doubles.

This module does not know loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL, F32, F64, DType
from tilewright.base.expr import Expr, Read
from tilewright.base.sizes import greatest_of, least_of
from tilewright.graph.ir import Formula
from tilewright.kernels.body import Body
from tilewright.kernels.conditions import is_index
from tilewright.kernels.conversion import convert, literal, rounded
from tilewright.kernels.expression import Printer
from tilewright.kernels.functions import apply
from tilewright.kernels.reduce import BEST, accumulator, combined, identity, needs_mark, wins
from tilewright.kernels.statement import Statement
from tilewright.kernels.text import COMPARE, ONE_BY_ONE, SUM, UNARY, Scope, Term, c_type

LARGEST = 2**31 - 1
_EXTREMES = ("max=", "min=")
LONG_SUM = 64  # terms that one accumulator takes before it is made a double


@dataclass(frozen=True, slots=True)
class Held:
    """The accumulators of a reduction in C: arrays of so many elements.

    mark: the array that notes whether a term came ("" where one always does).  at: the array of
    the indices that `argmax=` keeps.
    """

    statement: Statement
    name: str
    dtype: DType
    mark: str
    at: str
    length: int


def sum_type(body: Body, formula: Formula, count: int) -> DType:
    """Return the type of accumulators that take `count` terms each."""
    dtype = accumulator(formula, Printer(body, {}).type_of(formula.value))
    long = dtype == F32 and formula.op == "+=" and greatest_of(count) > LONG_SUM
    return F64 if long else dtype


def declare(
    printer: Printer, statement: Statement, name: str, length: int, dtype: DType, scope: Scope
) -> Held:
    """Declare the accumulators of a reduction."""
    formula = statement.formula
    always = not present(printer, statement)
    from_operand = isinstance(formula.fill, Read) and formula.op not in BEST
    mark = f"{name}_has" if not from_operand and needs_mark(formula, always=always) else ""
    at = f"{name}_at" if formula.op in BEST else ""
    if at:
        mark = f"{name}_has"
    start = identity(formula.op, dtype).text
    scope.add(f"{c_type(dtype)} {name}[{length}];")
    inits = [f"{name}[l] = {start};"]
    for array, c in ((mark, "int"), (at, _place_type(printer, statement))):
        if array:
            scope.add(f"{c} {array}[{length}];")
            inits.append(f"{array}[l] = 0;")
    loop = scope.inner()
    for line in inits:
        loop.add(line)
    scope.attach(loop, f"for (long l = 0; l < {length}; l++)")
    return Held(statement, name, dtype, mark, at, length)


def _place_type(printer: Printer, statement: Statement) -> str:
    """Return the C type of the indices that `argmax=` keeps: as wide as a float where they fit."""
    at = statement.formula.at
    limits = None
    if at is not None and is_index(bound := statement.bound(at)):
        limits = algebra.bounds(printer.simplify(bound), printer.extents)
    small = (
        limits is not None and least_of(limits[0]) >= -LARGEST and greatest_of(limits[1]) <= LARGEST
    )
    return "int" if small else "long"


def present(printer: Printer, statement: Statement) -> tuple[Expr, ...]:
    """Return the conditions under which a term of a reduction is present."""
    formula = statement.formula
    value = statement.bound(formula.value)
    parts: list[Expr] = []
    if formula.where is not None:
        parts += printer.presence_where(value, statement.bound(formula.where))
    else:
        parts += printer.presence(value)
    if formula.at is not None:
        parts += printer.presence(statement.bound(formula.at))
    return printer.open_conditions(parts)


def take(printer: Printer, statement: Statement, held: Held, slot: str, scope: Scope) -> None:
    """Print the taking of one term into its accumulator, the one at `slot`."""
    formula, bound = statement.formula, statement.bound
    asked = present(printer, statement)
    faults = [
        fault
        for part in (formula.where, formula.value, formula.at)
        if part is not None
        for fault in printer.faults(bound(part))
    ]
    if faults:
        printer.check(faults, asked, scope)
    condition = convert(printer.conjunction(asked, scope), BOOL)
    term = term_of(printer, statement, held, scope)
    if formula.op in BEST:
        _take_best(printer, statement, held, slot, (condition, term), scope)
        return
    if asked:
        term = apply("select", [condition, term, identity(formula.op, held.dtype)], printer.used)
    if held.mark:
        here = f"{held.mark}[{slot}]"
        scope.add(f"{here} = {here} | {condition.at(SUM)};" if asked else f"{here} = 1;")
    scope.add(taken_into(printer, held, slot, term.at(UNARY)))


def is_plain(printer: Printer, statement: Statement, held: Held) -> bool:
    """Say whether terms are there whatever the operands hold, and no index of them is at fault."""
    value = statement.bound(statement.formula.value)
    best = statement.formula.op in BEST
    return not (best or held.mark or present(printer, statement) or printer.faults(value))


def term_of(printer: Printer, statement: Statement, held: Held, scope: Scope) -> Term:
    """Print a term of a reduction, in the type of its accumulators."""
    formula = statement.formula
    value = printer.repeated(statement.bound(formula.value), scope)
    base = accumulator(formula, printer.type_of(formula.value))
    return convert(convert(value, base), held.dtype)


def taken_into(printer: Printer, held: Held, slot: str, term: str) -> str:
    """Return the line that takes a term, as text, into the accumulator at `slot`."""
    into = f"{held.name}[{slot}]"
    return f"{into} = {combined(held.statement.formula.op, into, term, held.dtype, printer.used)};"


def _take_best(
    printer: Printer,
    statement: Statement,
    held: Held,
    slot: str,
    made: Sequence[Term],
    scope: Scope,
) -> None:
    formula, (condition, term) = statement.formula, made
    assert formula.at is not None, f"{formula.op} says what index to keep"
    name = printer.fresh("t")
    scope.add(f"const {c_type(held.dtype)} {name} = {term.text};")
    index = printer.value(statement.bound(formula.at), scope)
    mark = convert(index, formula.type.dtype.compute)
    best = f"{held.name}[{slot}]"
    better = wins(formula.op, name, best, held.dtype)
    taken = f"(!{held.mark}[{slot}]) | ({better})"
    if held.length > 1:  # side by side with others: a choice of each is a vector's, a branch is not
        if condition.literal is not True:
            taken = f"{condition.at(SUM)} & ({taken})"
        won = printer.fresh("won")
        scope.add(f"const int {won} = {taken};")
        place = f"({_place_type(printer, statement)}){mark.at(UNARY)}"
        for array, value in ((held.name, name), (held.at, place), (held.mark, "1")):
            scope.add(f"{array}[{slot}] = {won} ? {value} : {array}[{slot}];")
        return
    inner = scope.inner()
    inner.add(f"{best} = {name};")
    inner.add(f"{held.at}[{slot}] = {mark.text};")
    inner.add(f"{held.mark}[{slot}] = 1;")
    scope.attach(inner, f"if ({condition.at(COMPARE)} && ({taken}))")


def merge(printer: Printer, held: Held, into: Held, scope: Scope) -> None:
    """Take each accumulator into the one at its place."""
    assert not held.at, "the best of terms is not merged"
    head = f"for (long l = 0; l < {held.length}; l++)"
    term = convert(Term(f"{held.name}[l]", held.dtype), into.dtype)
    scope.add(f"{head} {taken_into(printer, into, 'l', term.at(UNARY))}")
    if held.mark:
        scope.add(f"{head} {into.mark}[l] = {into.mark}[l] | {held.mark}[l];")


def halve(printer: Printer, held: Held, scope: Scope) -> None:
    """Combine all accumulators pairwise; the first one holds what comes out.

    One loop for each half: with numbers for bounds the compiler makes each a vector's operation,
    and keeps all in registers; unrolled before that, they would stay one operation for each lane.
    """
    op = held.statement.formula.op
    if held.at:
        _halve_best(printer, held, scope)
        return
    once = op in _EXTREMES and held.dtype in (F32, F64) and held.length > 1
    none = _not_ordered(printer, held, scope) if once else ""
    for array, how, dtype in ((held.name, op, held.dtype), (held.mark, "any=", BOOL)):
        half = held.length // 2 if array else 0
        while half:
            low, high = f"{array}[l]", f"{array}[l + {half}]"
            if once and array == held.name:
                fold = f"folded_{op[:-1]}_{dtype.name}"
                printer.used.add(fold)
                text = f"{fold}({high}, {low})"
            else:
                text = combined(how, low, high, dtype, printer.used)
            scope.add(ONE_BY_ONE)
            scope.add(f"for (long l = 0; l < {half}; l++) {low} = {text};")
            half //= 2
    if none:
        nan = convert(literal(float("nan")), held.dtype)
        scope.add(f"if (__builtin_expect({none}, 0)) {held.name}[0] = {nan.text};")


def _halve_best(printer: Printer, held: Held, scope: Scope) -> None:
    """Combine the accumulators of `argmax=` pairwise: of equal terms that with the least index."""
    half, op = held.length // 2, held.statement.formula.op
    while half:
        low, high = (f"{held.name}[{at}]" for at in ("l", f"l + {half}"))
        same = f"({high} == {low})"
        if held.dtype.kind == "float":
            same = f"({same} | (({high} != {high}) & ({low} != {low})))"
        earlier = f"{same} & ({held.at}[l + {half}] < {held.at}[l])"
        better = f"({wins(op, high, low, held.dtype)}) | ({earlier})"
        won = printer.fresh("won")
        inner = scope.inner()
        inner.add(f"const int {won} = {held.mark}[l + {half}] & ((!{held.mark}[l]) | {better});")
        for array in (held.name, held.at, held.mark):
            inner.add(f"{array}[l] = {won} ? {array}[l + {half}] : {array}[l];")
        scope.add(ONE_BY_ONE)
        scope.attach(inner, f"for (long l = 0; l < {half}; l++)")
        half //= 2


def _not_ordered(printer: Printer, held: Held, scope: Scope) -> str:
    """Print whether an accumulator is a NaN; return its name.

    What follows waits for the halves: so each is one instruction, and this is found beside them.
    """
    none, function = printer.fresh("none"), f"not_ordered_{held.dtype.name}"
    printer.used.add(function)
    scope.add(f"int {none} = 0;")
    scope.add(ONE_BY_ONE)
    loop = f"for (long l = 0; l < {held.length}; l++)"
    scope.add(f"{loop} {none} |= {function}({held.name}[l]);")
    return none


def result_of(printer: Printer, held: Held, read: Read, slot: str, scope: Scope) -> Term:
    """Return the term for a finished reduction: with its fill, rounded to its type."""
    formula = held.statement.formula
    type_ = formula.type.dtype
    term = Term(f"{held.name}[{slot}]", held.dtype)
    if held.at:
        term = Term(f"{held.at}[{slot}]", type_.compute)
    fill = formula.fill
    if isinstance(fill, Read):
        fill = Read(fill.tensor, read.index)
        printer.check(printer.faults(fill), (), scope)
    term = convert(term, type_.compute)
    if isinstance(fill, Read) and not held.at:
        before = convert(printer.value(fill, scope), type_.compute)
        text = combined(formula.op, before.at(8), term.at(8), type_.compute, printer.used)
        term = Term(text, type_.compute, 6)
    elif held.mark:
        before = rounded(printer.value(fill, scope), type_, printer.used)
        term = apply("select", [Term(f"{held.mark}[{slot}]", BOOL), term, before], printer.used)
    return rounded(term, type_, printer.used)
