"""Reductions in C: what an accumulator starts from, and how a term is taken into it.

The idea: `max=` and `min=` let NaN win, `argmax=` and `argmin=` keep the first of equals, sums of
half types are formed in float32; one table for all recipes.

This module does not know loops.
"""

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL, DType
from tilewright.base.expr import Const, Sym, names
from tilewright.base.sizes import greatest_of
from tilewright.graph.ir import Formula
from tilewright.kernels.body import static_extents
from tilewright.kernels.conversion import convert, literal
from tilewright.kernels.text import Term

BEST = ("argmax=", "argmin=")
_TRUTH = {"+=": "|", "*=": "&", "max=": "|", "min=": "&", "any=": "|", "all=": "&"}


def accumulator(formula: Formula, value: DType) -> DType:
    """Return the type that terms of type `value` are combined in."""
    if formula.op in ("any=", "all="):
        return BOOL
    return value.compute if formula.op in BEST else formula.type.dtype.compute


def identity(op: str, dtype: DType) -> Term:
    """Return what an accumulator starts from: combined with any term, it gives the term."""
    if op in ("+=", "any="):
        return convert(literal(0), dtype)
    if op in ("*=", "all="):
        return convert(literal(1), dtype)
    largest = op in ("min=", "argmin=")
    if dtype == BOOL:
        return convert(literal(largest), dtype)
    if dtype.kind == "float":
        return convert(literal(float("inf") if largest else float("-inf")), dtype)
    if dtype.name == "u8":
        return convert(literal(255 if largest else 0), dtype)
    bound = 1 << (8 * dtype.bytes - 1)
    return convert(literal(bound - 1 if largest else -bound), dtype)


def combined(op: str, before: str, term: str, dtype: DType, used: set[str]) -> str:
    """Return the text of an accumulator `before` with a `term` (both names) taken into it."""
    if dtype == BOOL:
        return f"{before} {_TRUTH[op]} {term}"
    if op in ("+=", "*="):
        if dtype.kind == "float":
            return f"{before} {op[0]} {term}"
        name = f"{'add' if op == '+=' else 'mul'}_{dtype.name}"
    else:
        # A NaN met is kept: of (term, before) the first wins where it is one.
        name = f"{op[:-1]}_{dtype.name}"
        used.add(name)
        return f"{name}({term}, {before})"
    used.add(name)
    return f"{name}({before}, {term})"


def wins(op: str, term: str, best: str, dtype: DType) -> str:
    """Return the condition that `term` replaces `best`: strictly better, or the first NaN."""
    if dtype.kind != "float":
        return f"{term} {'>' if op == 'argmax=' else '<'} {best}"
    # A NaN is no more and no less than any number, and a comparison less than to ask for one.
    return f"!({term} {'<=' if op == 'argmax=' else '>='} {best}) & ({best} == {best})"


def goes_up(formula: Formula) -> bool:
    """Say whether each term of `argmax=` has a larger index than those before it: then of equal
    terms the first is the one with the least index, wherever they were taken."""
    assert formula.at is not None, f"{formula.op} says what index to keep"
    extents = static_extents(formula)
    _, terms = algebra.affine(algebra.simplify(formula.at, extents))
    if not all(isinstance(entry, Sym | Const) for entry in formula.index):
        return False  # several turns of one loop may go to one element
    kept = {name for entry in formula.index for name in names(entry)}
    columns = [name for name in extents if name not in kept]
    others = (atom for atom in terms if not (isinstance(atom, Sym) and atom.name in columns))
    if any(names(atom) & set(columns) for atom in others):
        return False
    inside = 0  # how much the loops inside of one add at most
    for column in reversed(columns):
        factor = terms.get(Sym(column), 0)
        if type(factor) is not int or factor <= inside:
            return False
        inside += factor * (greatest_of(extents[column]) - 1)
    return True


def needs_mark(formula: Formula, *, always: bool) -> bool:
    """Say whether it must be noted that a term was met, to know where the fill goes.

    always: every result element is known to have a term.
    """
    if always:
        return False
    start = identity(formula.op, accumulator(formula, formula.type.dtype))
    fill = convert(literal(_fill_number(formula)), formula.type.dtype.compute)
    same = start.literal == fill.literal and formula.op not in BEST
    return not same


def _fill_number(formula: Formula) -> float:
    value = getattr(formula.fill, "value", None)
    return float("nan") if value is None else value
