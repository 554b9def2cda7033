"""Recognise running results: each is that of its neighbour and one term more.

The idea: `y[u] += x[i] where i <= u` says of each result which terms it has; that these are the
terms of the result before and one more follows from the condition, so that one pass makes all.

This module does not know how the pass is made.
"""

from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names
from tilewright.base.sizes import same
from tilewright.graph.ir import Formula
from tilewright.graph.total import extents_of
from tilewright.graph.views import is_reduction, reduced


@dataclass(frozen=True, slots=True)
class Running:
    """How the results follow from each other.

    loop: the target's loop that they run along.  up: whether it is gone through from 0.  term: the
    loop of the terms; at: which of them comes with each result, as an expression of `loop`.
    ascending: whether the terms come in the order of their loop.
    """

    loop: str
    up: bool
    term: str
    at: Expr
    ascending: bool


def running(formula: Formula) -> Running | None:
    """Return how a formula's results run, None where they do not.

    ::

        y[r, u] += x[r, i] where i <= u      u from 0, the term u
        y[i] += dy[u] where i <= u           i from the end, the term i
        y[u] argmax= x[7-i] at i where 7 - i <= u      u from 0, the term 7 - u
    """
    loops = reduced(formula)
    if not is_reduction(formula) or len(loops) != 1 or isinstance(formula.fill, Read):
        return None
    extents, (term,) = extents_of(formula), loops
    at_most = _at_most_zero(formula.where)
    if at_most is None:
        return None
    constant, factors = algebra.affine(algebra.simplify(at_most, extents))
    others = [atom for atom in factors if atom != Sym(term.name)]
    if len(factors) != 2 or len(others) != 1 or not isinstance(others[0], Sym):
        return None
    loop, own, other = others[0].name, factors[Sym(term.name)], factors[others[0]]
    if not same(abs(own), 1) or not same(abs(other), 1):
        return None
    last = extents[term.name] - 1
    if loop not in extents or not same(extents[loop] - 1, last):
        return None
    mirrored = own == other
    if not same(constant, -own * last if mirrored else 0):
        return None
    parts = [formula.value, *([] if formula.at is None else [formula.at])]
    if any(loop in names(part) for part in parts):
        return None
    at = Call("sub", (Const(last), Sym(loop))) if mirrored else Sym(loop)
    return Running(loop, other < 0, term.name, at, own > 0)


def _at_most_zero(where: Expr | None) -> Expr | None:
    """Return what is at most 0 where a comparison of integers holds."""
    match where:
        case Call("le", (a, b)) | Call("ge", (b, a)):
            return Call("sub", (a, b))
        case Call("lt", (a, b)) | Call("gt", (b, a)):
            return Call("add", (Call("sub", (a, b)), Const(1)))
    return None
