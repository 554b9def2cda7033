"""Both modes through one scalar expression: the adjoint of every read in a formula's value, and the
value's tangent from those of its reads.

The idea: walk the value from the root down (adjoints) or from the reads up (a tangent), multiplying
by the derivative texts of `base.scalar.FUNCTIONS`.  Zeros are structural (an adjoint that is not
there), never a product with 0, and a select guards what its branches contribute::

    d/dx  (f(x) if c else g(x)) * h   -->   (df * h) if c else (dg * h)

so that an infinity or a NaN in the branch not taken cannot leak.  This module does not know loops.
"""

from collections.abc import Callable, Sequence
from functools import cache

from tilewright.base.expr import Call, Const, Expr, Read, names, reads, substitute
from tilewright.base.scalar import BY_NAME
from tilewright.base.syntax import parse

Adjoint = tuple[Read, Expr]
_ARGUMENTS = ("a", "b", "c")
_CONSTANT_FOLDS: dict[str, Callable[..., bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}


def adjoints(
    value: Expr, seed: Expr, wanted: Callable[[Read], bool], root: Expr | None
) -> Sequence[Adjoint]:
    """Return `(read, seed * d value / d read)` for every wanted read, in order of appearance.

    root: an expression that stands for the whole value (the formula's own result) where it may be
    read instead of computed again; None where it may not.
    """
    found: list[Adjoint] = []
    _descend(value, seed, wanted, root, found)
    return found


def _descend(
    expr: Expr,
    adjoint: Expr,
    wanted: Callable[[Read], bool],
    result: Expr | None,
    found: list[Adjoint],
) -> None:
    match expr:
        case Read(_, _, default):
            if wanted(expr):
                found.append((expr, adjoint))
            if default is not None and any(wanted(read) for read in reads(default)):
                raise AssertionError("a read's default is a constant or an integer expression")
        case Call("select", (cond, yes, no)):
            cond = _asked_of(result, cond, yes, no)
            _descend(yes, select(cond, adjoint, Const(0)), wanted, None, found)
            _descend(no, select(cond, Const(0), adjoint), wanted, None, found)
        case Call(fn, args):
            for position, arg in enumerate(args):
                if not any(wanted(read) for read in reads(arg)):
                    continue
                partial = derivative(fn, args, position, result)
                if partial is not None:
                    _descend(arg, multiply(adjoint, partial), wanted, None, found)


def _asked_of(result: Expr | None, cond: Expr, yes: Expr, no: Expr) -> Expr:
    """Return the condition between two values, asked of the result where that says as much.

    ::

        0 if x <= 0 else x   -->   y <= 0 exactly where x <= 0, as NaN is in neither

    What follows relu reads its result in any case, so that what it was given need not be kept.
    """
    zero = Const(0)
    if result is None or yes != zero or cond != Call("le", (no, zero)):
        return cond
    return Call("le", (result, zero))


def tangent(value: Expr, along: Callable[[Read], Expr | None], root: Expr | None) -> Expr | None:
    """Return the change of a value when its reads change by what `along` says; None: not at all.

    root: what stands for the whole value, as in `adjoints`.
    """
    match value:
        case Read():
            return along(value)
        case Call("select", (cond, yes, no)):
            up, down = (tangent(branch, along, None) for branch in (yes, no))
            if up is None and down is None:
                return None
            return select(cond, up or Const(0), down or Const(0))
        case Call(fn, args):
            changes = [tangent(arg, along, None) for arg in args]
            given = [change for change in changes if change is not None]
            if BY_NAME[fn].change and len(given) == len(args):
                return _joint(fn, args, given, root)
            return _summed(fn, args, changes, root)
    return None


def _summed(
    fn: str, args: tuple[Expr, ...], changes: Sequence[Expr | None], root: Expr | None
) -> Expr | None:
    total: Expr | None = None
    for position, change in enumerate(changes):
        partial = None if change is None else derivative(fn, args, position, root)
        if change is not None and partial is not None:
            term = multiply(change, partial)
            total = term if total is None else add(total, term)
    return total


def _joint(fn: str, args: tuple[Expr, ...], changes: Sequence[Expr], root: Expr | None) -> Expr:
    bindings = dict(zip(_ARGUMENTS, args, strict=False))
    bindings |= {f"d{name}": change for name, change in zip(_ARGUMENTS, changes, strict=False)}
    bindings["r"] = root if root is not None else Call(fn, args)
    return fold(substitute(_parsed(BY_NAME[fn].change), bindings))


def derivative(fn: str, args: tuple[Expr, ...], position: int, result: Expr | None) -> Expr | None:
    """Return the partial derivative of `fn(*args)` by one argument; None where it is zero."""
    text = BY_NAME[fn].derivative[position]
    if not text:
        return None
    template = _parsed(text)
    bindings = dict(zip(_ARGUMENTS, args, strict=False))
    bindings["r"] = result if result is not None else Call(fn, args)
    return fold(substitute(template, bindings))


@cache
def _parsed(text: str) -> Expr:
    expr = parse(text)
    known = {*_ARGUMENTS, *(f"d{name}" for name in _ARGUMENTS), "r"}
    assert names(expr) <= known, f"unknown name in the derivative {text!r}"
    return expr


def multiply(a: Expr, b: Expr) -> Expr:
    """Return a * b, with units dropped and selects kept outermost (zeros there stay zeros)."""
    if _is_one(a):
        return b
    if _is_one(b):
        return a
    if b == Const(-1) or b == Const(-1.0):
        return negate(a)
    match a, b:
        case Call("select", (cond, yes, no)), _:
            return select(cond, _times(yes, b), _times(no, b))
        case _, Call("select", (cond, yes, no)):
            return select(cond, _times(a, yes), _times(a, no))
        case _, Call("neg", (inner,)):
            return negate(multiply(a, inner))
        case Call("neg", (inner,)), _:
            return negate(multiply(inner, b))
        case _, Call("div", (Const(one), divisor)) if one == 1 and not isinstance(one, bool):
            return Call("div", (a, divisor))
    return Call("mul", (a, b))


def _times(a: Expr, b: Expr) -> Expr:
    return Const(0) if _is_zero(a) or _is_zero(b) else multiply(a, b)


def negate(a: Expr) -> Expr:
    """Return -a; a select keeps outermost."""
    match a:
        case Call("neg", (inner,)):
            return inner
        case Call("select", (cond, yes, no)):
            return select(
                cond,
                Const(0) if _is_zero(yes) else negate(yes),
                Const(0) if _is_zero(no) else negate(no),
            )
        case Const(value) if not isinstance(value, bool):
            return Const(-value)
    return Call("neg", (a,))


def select(cond: Expr, yes: Expr, no: Expr) -> Expr:
    """Return `yes if cond else no`, decided where the condition is a constant."""
    if isinstance(cond, Const):
        return yes if cond.value else no
    return yes if yes == no else Call("select", (cond, yes, no))


def add(a: Expr, b: Expr) -> Expr:
    """Return a + b; two selects on one condition are added branch by branch."""
    if _is_zero(a):
        return b
    if _is_zero(b):
        return a
    match a, b:
        case Call("select", (c1, y1, n1)), Call("select", (c2, y2, n2)) if c1 == c2:
            return select(c1, add(y1, y2), add(n1, n2))
    return Call("add", (a, b))


def fold(expr: Expr) -> Expr:
    """Decide comparisons and selects between constants, and drop units, in a derivative."""
    match expr:
        case Call("select", (cond, yes, no)):
            decided = fold(cond)
            if isinstance(decided, Const):
                return fold(yes if decided.value else no)
            return select(decided, fold(yes), fold(no))
        case Call("mul", (a, b)):
            return multiply(fold(a), fold(b))
        case Call("neg", (a,)):
            return negate(fold(a))
        case Call("pow", (a, b)):
            return _fold_pow(fold(a), fold(b))
        case Call("sub", (Const(a), Const(b))):
            return Const(a - b)
        case Call(fn, args):
            done = tuple(fold(arg) for arg in args)
            values = [arg.value for arg in done if isinstance(arg, Const)]
            if fn in _CONSTANT_FOLDS and len(values) == len(done):
                return Const(bool(_CONSTANT_FOLDS[fn](*values)))
            if fn == "and" and Const(False) in done:
                return Const(False)
            return Call(fn, done)
    return expr


def _fold_pow(base: Expr, exponent: Expr) -> Expr:
    if _is_one(exponent):
        return base
    if _is_zero(exponent):
        return Const(1)
    return Call("pow", (base, exponent))


def _is_one(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == 1


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == 0
