"""Conditions of terms: which hold whatever the loops are, and what one says of a loop.

The idea: a condition compares integer arithmetic of loops, so that the bounds of the loops may
prove it; or it is itself a bound of one loop, given those around it.

This module does not know C.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Sym, names, transform, walk
from tilewright.base.sizes import greatest_of, least_of


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a loop begins at the earliest (fn "max"), or before what it ends at the latest."""

    fn: str
    bound: Expr


def is_index(expr: Expr) -> bool:
    """Say whether an expression is integer arithmetic of loops alone."""
    allowed = ("add", "sub", "mul", "neg", "floordiv", "mod", "exactdiv")
    return all(
        isinstance(node, Sym)
        or (
            isinstance(node, Const)
            and isinstance(node.value, int)
            and not isinstance(node.value, bool)
        )
        or (isinstance(node, Call) and node.fn in allowed)
        for node in walk(expr)
    )


def proved(condition: Expr, extents: Mapping[str, int]) -> bool:
    """Say whether a condition holds whatever the loops are."""
    match condition:
        case Const(value):
            return bool(value)
        case Call("or", (a, b)):
            return proved(a, extents) or proved(b, extents) or _opposite(a, b, extents)
        case Call("ge" | "lt" | "le" | "gt" as fn, (a, b)) if is_index(a) and is_index(b):
            difference = algebra.simplify(Call("sub", (a, b)), extents)
            limits = algebra.bounds(difference, extents)
            if limits is None:
                return False
            low, high = limits
            least, most = least_of(low), greatest_of(high)
            return {"ge": least >= 0, "gt": least > 0, "le": most <= 0, "lt": most < 0}[fn]
        case Call("eq", (a, b)) if is_index(a) and is_index(b):
            return algebra.simplify(Call("sub", (a, b)), extents) == Const(0)
    return False


def _opposite(a: Expr, b: Expr, extents: Mapping[str, int]) -> bool:
    """Say whether one of two conditions is that the other does not hold."""
    if Call("not", (a,)) == b or Call("not", (b,)) == a:
        return True
    match a, b:
        case Call(one, (c, d)), Call(other, (e, f)) if {one, other} in ({"lt", "ge"}, {"gt", "le"}):
            if not all(map(is_index, (c, d, e, f))):  # a NaN is neither
                return False
            apart = Call("sub", (Call("sub", (c, d)), Call("sub", (e, f))))
            return algebra.simplify(apart, extents) == Const(0)
    return False


def limit_of(condition: Expr, name: str, extents: Mapping[str, int]) -> Limit | None:
    """Return what a condition says of a loop, or None where it is not as much as that.

    ::

        2 * r + c - 1 >= 0  -->  r from -((c - 1) // 2)
        r + c - 1 < 60      -->  r to before 61 - c
        c >= r * 3 // 2     -->  r to before (c * 2 + 1) // 3 + 1
    """
    match condition:
        case Call("ge" | "gt" as fn, (a, b)) | Call("lt" | "le" as fn, (b, a)):
            pass
        case _:
            return None
    if not is_index(a) or not is_index(b):
        return None
    strict = fn in ("gt", "lt")
    difference = Call("sub", (Call("sub", (a, b)), Const(int(strict))))
    constant, terms = algebra.affine(algebra.simplify(difference, extents))
    for atom, sign in terms.items():
        match atom:
            case Call("floordiv", (whole, Const(int(q)))) if name in names(atom):
                if sign not in (1, -1) or type(q) is not int or q <= 0:
                    return None
                others = {other: factor for other, factor in terms.items() if other is not atom}
                scaled = Call("mul", (algebra.from_affine(constant, others), Const(q)))
                if sign == 1:  # a // q + c >= 0: a + c * q >= 0
                    scaled = Call("add", (scaled, whole))
                else:  # c - a // q >= 0: a < (c + 1) * q
                    scaled = Call("sub", (Call("add", (scaled, Const(q - 1))), whole))
                constant, terms = algebra.affine(algebra.simplify(scaled, extents))
                break
    terms = dict(terms)
    factor = terms.pop(Sym(name), 0)
    if factor == 0 or any(name in names(atom) for atom in terms):
        return None
    if any(type(number) is not int for number in (constant, factor, *terms.values())):
        return None
    rest = algebra.from_affine(constant, terms)
    whole = Call("floordiv", (rest, Const(abs(factor))))
    bound = Call("neg", (whole,)) if factor > 0 else Call("add", (whole, Const(1)))
    return Limit("max" if factor > 0 else "min", algebra.simplify(bound, extents))


def without_exact(expr: Expr) -> Expr:
    """Replace exact divisions by floor divisions: their condition is asked for elsewhere."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Call) and node.fn == "exactdiv":
            return Call("floordiv", node.args)
        return node

    return transform(expr, visit)


def exactness_of(expr: Expr) -> list[Expr]:
    """Return the condition that this node, if an exact division, has no remainder."""
    match expr:
        case Call("exactdiv", (a, q)):
            return [Call("eq", (Call("mod", (without_exact(a), q)), Const(0)))]
    return []


def exactness(entry: Expr) -> list[Expr]:
    """Return the conditions that the exact divisions in an index have no remainder."""
    return [condition for node in walk(entry) for condition in exactness_of(node)]


def unturned(place: Expr, extents: Mapping[str, int], one: Callable[[], str]) -> Expr:
    """Hide that a loop goes backwards through elements that only some of its turns may read.

    GCC 12.2 turns such elements round where it reads them by vectors, but not the mask that says
    which.  one: defines a 1 that the compiler takes for any number, and returns its name.
    """
    for loop, factor in algebra.affine(place)[1].items():
        if isinstance(loop, Sym) and factor == -1:
            rest = algebra.simplify(Call("add", (place, loop)), extents)
            place = Call("sub", (rest, Call("mul", (loop, Sym(one())))))
    return place
