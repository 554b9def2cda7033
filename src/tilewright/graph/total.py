"""Formulas as functions of the element: nothing absent, nothing filled in, the target bare.

The idea: what a formula `=` leaves unsaid (reads outside, `where`, the fill, targets written
through) can be said in its value.  `total` says it, so that composing is substitution::

    y[i*2+1 | 8] = x[i<3] else 7     -->     y[t<8] = x[t//2] if t%2 == 1 and t < 7 else 7
    y[i<4] = x[i-1] * w[i]           -->     y[i<4] = x[i-1] * w[i] if i >= 1 else 0

This module does not know graphs, nor who composes what.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.base import algebra
from tilewright.base.dtypes import BY_NAME, DType
from tilewright.base.expr import (
    KEPT,
    Call,
    Const,
    Expr,
    Read,
    Sym,
    children,
    names,
    reads,
    rebuild,
    substitute,
)
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import greatest_of, least_of, same
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.notation import infer, operand_order

Types = Mapping[str, TensorType]
Extents = Mapping[str, int]

_OF_INDICES = frozenset(("add", "sub", "mul", "neg", "floordiv", "mod", "exactdiv"))
# Functions that give one of their arguments, or its negative: rounding their result does nothing.
_CHOOSING = frozenset(("neg", "abs", "max", "min", "select"))
TRUE, FALSE = Const(True), Const(False)


def fixed(dim: int | Expr) -> int:
    """Return an extent that must be a plain number by now."""
    assert isinstance(dim, int), f"extents must be numbers here, not {dim}"
    return dim


def extents_of(formula: Formula) -> dict[str, int]:
    """Return the extents of a formula's loops."""
    return {loop.name: fixed(loop.extent) for loop in formula.loops}


def map_parts(formula: Formula, rewrite: Callable[[Expr], Expr]) -> Formula:
    """Apply `rewrite` to each of the formula's expressions but a `from`, which is no read."""
    return replace(
        formula,
        index=tuple(rewrite(entry) for entry in formula.index),
        value=rewrite(formula.value),
        where=None if formula.where is None else rewrite(formula.where),
        at=None if formula.at is None else rewrite(formula.at),
    )


def parts(formula: Formula) -> tuple[Expr, ...]:
    """Return the expressions that hold a formula's reads and loops, the fill left out."""
    rest = (formula.where, formula.at)
    return (*formula.index, formula.value, *(part for part in rest if part is not None))


def total(formula: Formula, types: Types) -> Formula | None:
    """Say absence, `where` and fill in the value, over a target of bare loops; None if impossible.

    types: of the operands, by name.  The result writes every element exactly once.
    """
    known = fixed_types(formula, types)
    return _total(formula, types) if known is None else _kept_total(formula, known)


def fixed_types(formula: Formula, types: Types) -> tuple[TensorType, ...] | None:
    """Return the types of a formula's operands, by which an answer about it can be kept; None where
    a size varies: what is found out of such is noted each time."""
    found = tuple([types[name] for name in formula.operands])
    for type_ in (formula.type, *found):
        for dim in type_.shape:
            if type(dim) is not int:
                return None
    for loop in formula.loops:
        if type(loop.extent) is not int:
            return None
    return None if any(map(algebra.varies, parts(formula))) else found


@lru_cache(KEPT)
def _kept_total(formula: Formula, operands: tuple[TensorType, ...]) -> Formula | None:
    return _total(formula, dict(zip(formula.operands, operands, strict=True)))


def _total(formula: Formula, types: Types) -> Formula | None:
    solved = solve_target(formula)
    if formula.op != "=" or solved is None:
        return None
    loops, bindings, guards = solved
    for loop in formula.loops:
        if loop.name in bindings or loop in loops:
            continue
        if not same(fixed(loop.extent), 1):
            return None
        bindings[loop.name] = Const(0)
    extents = {loop.name: fixed(loop.extent) for loop in loops}
    value = tidy(substitute(formula.value, bindings), extents)
    if formula.where is not None:
        where = tidy(substitute(formula.where, bindings), extents)
        guards = [*guards, where]
    guards += presence(value, types, extents)
    guards = [safe(guard, types, extents) for guard in guards]
    index = tuple(Sym(loop.name) for loop in loops)
    guard = conjunction(guards, extents)
    if guard != TRUE:
        fill = formula.fill
        if isinstance(fill, Read):
            fill = Read(fill.tensor, index)
        value = stored(value, formula.type.dtype, types)
        value = fill if guard == FALSE else Call("select", (guard, floored(value), fill))
    made = Formula((), loops, index, "=", value, formula.type)
    return replace(made, operands=operand_order(made))


# -------------------------------------------------------------------- the target, solved for loops


def solve_target(formula: Formula) -> tuple[tuple[Loop, ...], dict[str, Expr], list[Expr]] | None:
    """Return one loop per dim of the result, the old loops in terms of those, and guards.

    Loops that the target does not name stay as they are; None where elements cannot be told apart.
    """
    extents = extents_of(formula)
    taken = set(extents)
    loops: list[Loop] = []
    bindings: dict[str, Expr] = {}
    guards: list[Expr] = []
    for dim, entry in zip(formula.index, formula.type.shape, strict=True):
        size = fixed(entry)
        if isinstance(dim, Sym) and extents.get(dim.name) == size and dim.name not in bindings:
            loops.append(Loop(dim.name, size))
            bindings[dim.name] = dim
            continue
        name = f"t{len(loops)}"
        while name in taken:
            name += "_"
        taken.add(name)
        loops.append(Loop(name, size))
        found = _digits(dim, Sym(name), extents)
        if found is None or set(found[0]) & set(bindings):
            return None
        bindings.update(found[0])
        guards += found[1]
    return tuple(loops), {k: v for k, v in bindings.items() if v != Sym(k)}, guards


def _digits(entry: Expr, t: Sym, extents: Extents) -> tuple[dict[str, Expr], list[Expr]] | None:
    """Solve entry = t for the loops of a mixed-radix sum; None where two iterations may meet."""
    constant, terms = algebra.affine(entry)
    digits: list[tuple[int, str, bool]] = []
    for atom, factor in terms.items():
        if not isinstance(atom, Sym) or atom.name not in extents:
            return None
        if factor < 0:
            constant += factor * (extents[atom.name] - 1)
        digits.append((abs(factor), atom.name, factor < 0))
    digits.sort(reverse=True)
    rest: Expr = Call("sub", (t, Const(constant)))
    bindings: dict[str, Expr] = {}
    guards: list[Expr] = [Call("ge", (rest, Const(0)))]
    for at, (factor, name, backward) in enumerate(digits):
        if sum(own * (extents[other] - 1) for own, other, _ in digits[at + 1 :]) >= factor:
            return None
        digit: Expr = Call("floordiv", (rest, Const(factor)))
        guards.append(Call("lt", (digit, Const(extents[name]))))
        rest = Call("mod", (rest, Const(factor)))
        bindings[name] = Call("sub", (Const(extents[name] - 1), digit)) if backward else digit
    guards.append(Call("eq", (rest, Const(0))))
    return bindings, guards


# ----------------------------------------------------------------------------- when reads are there


def presence(value: Expr, types: Types, extents: Extents) -> list[Expr]:
    """Return conditions that hold exactly where the value is present, none where it always is."""
    match value:
        case Read(_, _, None):
            return inside(value, types, extents)
        case Read(_, _, default):
            assert default is not None, "the case above has no default"
            outside = [negation(conjunction(inside(value, types, extents), extents))]
            return [implied(outside, part) for part in presence(default, types, extents)]
        case Call("select", (cond, yes, no)):
            found = presence(cond, types, extents)
            found += [implied([cond], part) for part in presence(yes, types, extents)]
            found += [implied([negation(cond)], part) for part in presence(no, types, extents)]
            return found
        case Call("exactdiv", (a, q)):
            whole = Call("eq", (Call("mod", (floored(a), q)), Const(0)))
            return [*presence(a, types, extents), whole]
        case Call(_, args):
            return [part for arg in args for part in presence(arg, types, extents)]
    return []


def inside(read: Read, types: Types, extents: Extents) -> list[Expr]:
    """Return the conditions for a read to be inside its tensor, those proved left out."""
    found: list[Expr] = []
    for entry, dim in zip(read.index, types[read.tensor].shape, strict=True):
        found += presence(entry, types, extents)
        # An indirect index is never absent: out of range it is an error.
        if reads(entry):
            continue
        limits = algebra.bounds(entry, extents)
        low, high = (-1, fixed(dim)) if limits is None else limits
        if least_of(low) < 0:
            found.append(Call("ge", (floored(entry), Const(0))))
        if least_of(fixed(dim) - high) <= 0:
            found.append(Call("lt", (floored(entry), Const(fixed(dim)))))
    return found


def safe(condition: Expr, types: Types, extents: Extents) -> Expr:
    """Return a condition that is false where the given one is absent."""
    present = conjunction(presence(condition, types, extents), extents)
    if present == TRUE:
        return condition
    return Call("select", (safe(present, types, extents), floored(condition), FALSE))


def floored(expr: Expr) -> Expr:
    """Write exact divisions as floor divisions; for where they are known to be exact.

    Those in the index of a read with a default stay: they say where the default is taken.
    """
    match expr:
        case Read(tensor, index, default) if default is not None:
            return Read(tensor, index, floored(default))
        case Call("exactdiv", (a, q)):
            return Call("floordiv", (floored(a), q))
    fresh = tuple(floored(part) for part in children(expr))
    return rebuild(expr, fresh) if fresh else expr


def negation(cond: Expr) -> Expr:
    """Return the opposite of a condition."""
    opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
    match cond:
        case Const(value):
            return Const(not value)
        case Call("not", (inner,)):
            return inner
        case Call(fn, args) if fn in opposite and not any(reads(arg) for arg in args):
            return Call(opposite[fn], args)  # of integers: nothing is unordered
    return Call("not", (cond,))


def implied(given: Sequence[Expr], then: Expr) -> Expr:
    """Return `then`, or true where one of `given` fails."""
    result = then
    for cond in reversed(given):
        opposite = negation(cond)
        if opposite == TRUE or result == TRUE:
            return TRUE
        if opposite == FALSE:
            continue
        # Reads in what follows are made only where what was given holds.
        lazy = bool(reads(result))
        result = Call("select", (cond, result, TRUE)) if lazy else Call("or", (opposite, result))
    return result


def conjunction(conditions: Iterable[Expr], extents: Extents) -> Expr:
    """Join conditions by `and`: the proved ones left out, each once, the constant ones decided."""
    kept: list[Expr] = []
    for condition in conditions:
        for part in conjuncts(tidy(condition, extents)):
            match decided(part, extents):
                case True:
                    continue
                case False:
                    return FALSE
            if part not in kept:
                kept.append(part)
    if not kept:
        return TRUE
    result = kept[0]
    for part in kept[1:]:
        result = Call("and", (result, part))
    return result


def conjuncts(condition: Expr) -> list[Expr]:
    """Return the parts of `a and b and c`."""
    match condition:
        case Call("and", (a, b)):
            return [*conjuncts(a), *conjuncts(b)]
    return [condition]


def decided(condition: Expr, extents: Extents) -> bool | None:
    """Say whether a condition on loops always holds (True), never (False), or depends."""
    match condition:
        case Const(value):
            return bool(value)
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn, (a, b)):
            if not (of_indices(a) and of_indices(b)):
                return None
            limits = algebra.bounds(algebra.simplify(Call("sub", (a, b)), extents), extents)
            return None if limits is None else _compared(fn, *limits)
    return None


def _compared(fn: str, low: int, high: int) -> bool | None:
    """Decide `d fn 0` for every d in [low, high]."""
    low, high = least_of(low), greatest_of(high)
    always, never = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[fn]
    return True if always else False if never else None


def of_indices(expr: Expr) -> bool:
    """Say whether an expression is integer arithmetic on loops and constants alone."""
    match expr:
        case Const(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Sym():
            return True
        case Call(fn, args):
            return fn in _OF_INDICES and all(of_indices(arg) for arg in args)
    return False


def tidy(expr: Expr, extents: Extents) -> Expr:
    """Bring indices, and integer arithmetic on loops elsewhere, to their normal form."""
    if isinstance(expr, Call) and of_indices(expr):
        return algebra.simplify(expr, extents)
    fresh = tuple(tidy(part, extents) for part in children(expr))
    if fresh:
        expr = rebuild(expr, fresh)
    if isinstance(expr, Read):
        index = tuple(algebra.simplify(_uncast(entry), extents) for entry in expr.index)
        return Read(expr.tensor, index, expr.default)
    return expr


def _uncast(entry: Expr) -> Expr:
    """Drop the cast of an index to int64: an index is one."""
    match entry:
        case Call("i64", (inner,)) if of_indices(inner):
            return inner
    return entry


# ------------------------------------------------------------------------------------ stored values


def stored(value: Expr, dtype: DType, types: Types) -> Expr:
    """Return the value as a tensor of `dtype` gives it back: cast where storing would round it."""
    if _is_stored(value, dtype, types):
        return value
    match value:
        case Const(number) if dtype.kind == "bool":
            value = Const(bool(number))
    return Call(dtype.name, (value,))


def _is_stored(value: Expr, dtype: DType, types: Types) -> bool:
    match value:
        case Read(tensor, _, default):
            same = types[tensor].dtype == dtype
            return same and (default is None or _fits(default, dtype, types))
        case Call(fn, _) if fn in BY_NAME:
            return fn == dtype.name
        case Call("select", (_, yes, no)):
            pair = (yes, no)
            strong = any(_is_stored(part, dtype, types) for part in pair)
            return strong and all(_fits(part, dtype, types) for part in pair)
        case Call(fn, args) if fn in _CHOOSING and dtype.compute != dtype:
            return all(_is_stored(arg, dtype, types) for arg in args)
    if dtype.compute != dtype or is_weak(value):
        return False
    return infer(value, {name: type_.dtype for name, type_ in types.items()}) == dtype


def _fits(value: Expr, dtype: DType, types: Types) -> bool:
    """Say whether a branch beside a stored value is stored too: itself, or a small number."""
    match value:
        case Const(number):
            return number in (0, 1, -1) or (dtype.compute == dtype and isinstance(number, int))
    return _is_stored(value, dtype, types)


def is_weak(value: Expr) -> bool:
    """Say whether a value is made of Python numbers and loops alone, and so takes others' types."""
    match value:
        case Const() | Sym():
            return True
        case Read():
            return False
        case Call(fn, args):
            result = FUNCTIONS[fn].result
            if result == "bool" or result in BY_NAME:
                return False
            return all(is_weak(arg) for arg in (args[1:] if fn == "select" else args))


def used_loops(formula: Formula) -> frozenset[str]:
    """Return the names of the loops that occur anywhere in a formula."""
    return frozenset(name for part in parts(formula) for name in names(part))


def flops(value: Expr) -> int:
    """Return the operations that one evaluation of a value takes, indices not counted."""
    match value:
        case Read(_, _, default):
            return 0 if default is None else flops(default)
        case Call(fn, args):
            if of_indices(value):
                return 0
            return FUNCTIONS[fn].flops + sum(flops(arg) for arg in args)
    return 0
