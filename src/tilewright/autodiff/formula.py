"""Reverse mode of one formula: for each operand, the formulas whose sum is its gradient.

The idea::

    y[o(l)] += body(x[f(l)])   -->   dx[f(l)] += dy[o(l)] * d body / d x[f(l)]

over the same loops, then solved for the element of x (`solve`).  Reads of one operand at one index
are put together, so that a pointwise operator has one gradient formula per operand.

- `=` and `+=` need dy alone; where the value is read again by the derivative (exp, tanh), the
  result y is read instead.
- `max=` and `min=` split evenly over ties: dy is divided by the count of elements that equal y.
- `from t` passes dy on to t, except where `=` overwrote it.
- `*=` multiplies dy by the product of the other terms, made by the square of the work: exact where
  a term is 0, but an operator that runs long overrides it.
- `any=`, `all=`, `argmax=`, `argmin=` have no derivative.

This module does not know graphs: operands are names, and the caller connects them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff import scalar
from tilewright.autodiff.solve import Solution, solve
from tilewright.base import algebra
from tilewright.base.expr import (
    Call,
    Const,
    Expr,
    Read,
    Sym,
    names,
    reads,
    substitute,
    transform,
    walk,
)
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.notation import normal, operand_order, simplify_indices
from tilewright.graph.total import decided, implied, negation, presence

TANGENT, RESULT, COUNT, OTHERS = "dy", "y", "count", "others"
OWN = (TANGENT, RESULT, COUNT, OTHERS)


@dataclass(frozen=True, slots=True)
class Adjoint:
    """One term of an operand's gradient.

    formula: its operands are names of the original formula's operands, or TANGENT (the gradient of
    the result), RESULT (the result itself), COUNT (see `tie_count`) or OTHERS (`other_terms`).
    """

    operand: str
    formula: Formula


def differentiable(formula: Formula) -> bool:
    """Say whether reverse mode of this formula is derived.

    An `=` that writes one element several times is not: which term stays depends on the order.
    """
    if formula.op == "=" and not _writes_once(formula):
        return False
    if formula.op == "*=" and not _separate(formula):
        return False
    return formula.op in ("=", "+=", "*=", "max=", "min=") and formula.type.dtype.kind == "float"


def _separate(formula: Formula) -> bool:
    """Whether the terms that meet in one element are those of the loops that the target lacks."""
    return all(isinstance(e, Sym | Const) for e in formula.index) and not isinstance(
        formula.fill, Read
    )


def _writes_once(formula: Formula) -> bool:
    """Whether every loop of more than one iteration moves the target.  An indirect target may still
    repeat itself; as in torch, the gradient is then that of indices that do not."""
    moved = {name for entry in formula.index for name in names(entry)}
    return all(loop.name in moved or loop.extent == 1 for loop in formula.loops)


def tie_count(formula: Formula) -> Formula | None:
    """Return the formula that counts, per element of a `max=`, how many terms equal it."""
    if formula.op not in ("max=", "min="):
        return None
    equal = Call("eq", (formula.value, Read(RESULT, formula.index)))
    value = Call("select", (equal, Const(1.0), Const(0.0)))
    made = replace(
        formula, op="+=", value=value, operands=(*formula.operands, RESULT), fill=Const(0)
    )
    return normal(made)


def other_terms(formula: Formula) -> Formula | None:
    """Return the formula that gives, for each term of a `*=`, the product of those it meets::

    y[i<4] *= x[i, j<3]   -->   y[i<4, j<3] *= 1 if j == j_ else x[i, j_<3] else 1
    """
    if formula.op != "*=":
        return None
    taken = {loop.name for loop in formula.loops}
    target = {name for entry in formula.index for name in names(entry)}
    twins: dict[str, str] = {}
    for loop in formula.loops:
        if loop.name not in target:
            twin = f"{loop.name}_"
            while twin in taken:
                twin += "_"
            taken.add(twin)
            twins[loop.name] = twin
    moved: dict[str, Expr] = {name: Sym(twin) for name, twin in twins.items()}
    value, where = substitute(formula.value, moved), formula.where
    same = conjunction([Call("eq", (Sym(name), Sym(twin))) for name, twin in twins.items()])
    value = Const(1.0) if same is None else Call("select", (same, Const(1.0), value))
    extra = tuple(Loop(twin, formula.extent(name)) for name, twin in twins.items())
    shape = tuple(loop.extent for loop in formula.loops)
    made = replace(
        formula,
        loops=(*formula.loops, *extra),
        index=tuple(Sym(loop.name) for loop in formula.loops),
        value=value,
        type=TensorType(shape, formula.type.dtype),
        where=None if where is None else substitute(where, moved),
        fill=Const(1),
        operands=(),
    )
    return finish(made, formula.operands)


def reverse_formula(
    formula: Formula, types: Sequence[TensorType], wanted: Sequence[bool]
) -> tuple[Adjoint, ...]:
    """Return the terms of every wanted operand's gradient, in the order of the operands.

    types: the operands' types (extents must be numbers).  wanted: which operands to differentiate
    for; one that is not floating is never.  The terms of one operand are to be added.
    """
    assert differentiable(formula), f"{formula.op!r} has no derived reverse mode"
    kinds = dict(zip(formula.operands, types, strict=True))
    asked = {
        name
        for name, want in zip(formula.operands, wanted, strict=True)
        if want and kinds[name].dtype.kind == "float"
    }
    plain = replace(formula, value=without_defaults(formula.value, kinds, asked))
    terms = _base_terms(formula, kinds, asked) + _value_terms(plain, kinds, asked)
    return tuple(sorted(terms, key=lambda term: formula.operands.index(term.operand)))


def without_defaults(value: Expr, kinds: dict[str, TensorType], asked: set[str]) -> Expr:
    """x[i] ?? w[j]  -->  x[i] if i is inside else w[j], where w is differentiated for."""

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Read) or expr.default is None:
            return expr
        if not any(read.tensor in asked for read in reads(expr.default)):
            return expr
        guards: list[Expr] = []
        for entry, dim in zip(expr.index, kinds[expr.tensor].shape, strict=True):
            guards += [*_division_guards(entry), _inside(entry, _static(dim))]
        cond = conjunction(guards)
        inside = Read(expr.tensor, expr.index)
        return inside if cond is None else Call("select", (cond, inside, expr.default))

    return transform(value, visit)


def _base_terms(formula: Formula, kinds: dict[str, TensorType], asked: set[str]) -> list[Adjoint]:
    """The gradient of t in `... from t`."""
    if not isinstance(formula.fill, Read) or formula.fill.tensor not in asked:
        return []
    base, type_ = formula.fill.tensor, formula.type
    if formula.op == "=":
        # d t = dy, and 0 where the formula wrote: that is, where its reads were all inside.
        conditions = dropped_guards(formula, kinds, Const(0.0), None)
        if formula.where is not None:
            conditions.insert(0, formula.where)
        made = replace(
            formula,
            value=Const(0.0),
            where=conjunction(conditions),
            fill=Read(TANGENT, ()),
            operands=(),
        )
        return [Adjoint(base, finish(made, (*formula.operands, TANGENT)))]
    assert formula.op == "+=", f"`{formula.op} ... from` has no derived reverse mode"
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    index: tuple[Expr, ...] = tuple(Sym(loop.name) for loop in loops)
    copy = Formula((TANGENT,), loops, index, "=", Read(TANGENT, index), type_)
    return [Adjoint(base, normal(copy))]


def _value_terms(formula: Formula, kinds: dict[str, TensorType], asked: set[str]) -> list[Adjoint]:
    seed: Expr = Read(TANGENT, formula.index)
    root: Expr | None = None
    result = Read(RESULT, formula.index)
    if formula.op in ("max=", "min="):
        equal = Call("eq", (formula.value, result))
        share = Call("select", (equal, seed, Const(0.0)))
        seed = Call("div", (share, Read(COUNT, formula.index)))
    elif formula.op == "*=":
        seed = Call("mul", (seed, Read(OTHERS, tuple(Sym(loop.name) for loop in formula.loops))))
    elif formula.op == "=" and formula.type.dtype == formula.type.dtype.compute:
        root = result
    found = scalar.adjoints(formula.value, seed, lambda read: read.tensor in asked, root)
    merged: dict[tuple[str, tuple[Expr, ...]], list[tuple[Read, Expr]]] = {}
    for read, adjoint in found:
        merged.setdefault((read.tensor, read.index), []).append((read, adjoint))
    terms = []
    for (tensor, _), group in merged.items():
        total = group[0][1]
        for _, adjoint in group[1:]:
            total = scalar.add(total, adjoint)
        made = _term(formula, kinds, group[0][0], total)
        terms.append(Adjoint(tensor, made))
    return terms


def _term(formula: Formula, kinds: dict[str, TensorType], read: Read, value: Expr) -> Formula:
    """Turn `dx[f(l)] += value` into a formula over dx's own elements where that can be solved."""
    loops = {loop.name: _static(loop.extent) for loop in formula.loops}
    type_ = kinds[read.tensor]
    shape = tuple(_static(dim) for dim in type_.shape)
    parallel = frozenset(name for entry in formula.index for name in names(entry))
    solution = solve(read.index, shape, loops, parallel)
    guards = dropped_guards(formula, kinds, value, read)
    if formula.where is not None:
        guards.insert(0, formula.where)
    extents = {**loops, **solution.extents}
    for loop in solution.bindings:
        if solution.bindings[loop] != Sym(loop):
            extents.pop(loop, None)
    bind = {name: expr for name, expr in solution.bindings.items() if expr != Sym(name)}
    value = simplify_indices(substitute(value, bind), extents)
    conditions = [substitute(guard, bind) for guard in guards] + list(solution.guards)
    if any(reads(entry) for entry in solution.index):
        value, lifted = _lifted(value)
        conditions += lifted
    conditions += _range_guards(formula, solution, value, extents, kinds)
    conditions += _through_guards(solution, shape, extents)
    remaining = set(extents) - {name for entry in solution.index for name in names(entry)}
    op = "=" if not remaining and solution.injective else "+="
    made = Formula(
        (),
        tuple(Loop(name, extent) for name, extent in extents.items()),
        solution.index,
        op,
        value,
        TensorType(type_.shape, type_.dtype),
        conjunction([simplify_indices(c, extents) for c in dict.fromkeys(conditions)]),
    )
    return finish(made, (*formula.operands, *OWN))


def _lifted(value: Expr) -> tuple[Expr, list[Expr]]:
    """Let a select that gives 0 be a guard: what it guarded may be no place to write to."""
    match value:
        case Call("select", (cond, yes, Const(0 | 0.0))):
            inner, more = _lifted(yes)
            return inner, [cond, *more]
        case Call("select", (cond, Const(0 | 0.0), no)):
            inner, more = _lifted(no)
            return inner, [Call("not", (cond,)), *more]
    return value, []


def _static(dim: "int | Expr") -> int:
    assert isinstance(dim, int), "reverse mode of a formula needs extents that are numbers"
    return dim


def dropped_guards(
    formula: Formula, kinds: dict[str, TensorType], value: Expr, own: Read | None
) -> list[Expr]:
    """Reads that could make a term absent, and that the derivative no longer makes."""
    extents = {loop.name: _static(loop.extent) for loop in formula.loops}
    kept = {(read.tensor, read.index) for read in reads(value)}
    if own is not None:
        kept.add((own.tensor, own.index))
    guards = []
    for read in _unconditional(formula.value):
        if read.default is not None or (read.tensor, read.index) in kept:
            continue
        for entry, dim in zip(read.index, kinds[read.tensor].shape, strict=True):
            extent = _static(dim)
            guards += _division_guards(entry)
            if not reads(entry) and not algebra.within(entry, extent, extents):
                guards.append(_inside(entry, extent))

    def without_kept(expr: Expr) -> Expr:
        match expr:
            case Read(tensor, index, _):
                return Const(0.0) if (tensor, index) in kept else expr
            case Call(fn, args):
                return Call(fn, tuple(without_kept(arg) for arg in args))
        return expr

    return guards + _guarded_presence(without_kept(formula.value), kinds, extents)


def _guarded_presence(
    value: Expr, kinds: dict[str, TensorType], extents: dict[str, int]
) -> list[Expr]:
    """Conditions for the reads in a select's branches to be there, where the branch is taken."""
    match value:
        case Call("select", (cond, yes, no)):
            found = _guarded_presence(cond, kinds, extents)
            for given, branch in ((cond, yes), (negation(cond), no)):
                for part in presence(branch, kinds, extents):
                    if not _proved(given, part, extents):
                        found.append(implied([given], part))
            return found
        case Call(_, args):
            return [part for arg in args for part in _guarded_presence(arg, kinds, extents)]
    return []


def _proved(given: Expr, then: Expr, extents: dict[str, int]) -> bool:
    """Whether a bound of one loop proves a condition: `i >= 3` does prove `i - 3 >= 0`."""
    match then:
        case Call("or", (cond, rest)) if _proved(negation(cond), rest, extents):
            return True
    match given:
        case Call("lt", (Sym(name), Const(int(bound)))) if name in extents:
            return decided(then, {**extents, name: min(extents[name], bound)}) is True
        case Call("ge", (Sym(name), Const(int(bound)))) if 0 <= bound < extents.get(name, 0):
            moved = substitute(then, {name: Call("add", (Sym(name), Const(bound)))})
            known = {**extents, name: extents[name] - bound}
            return decided(algebra.simplify(moved, known), known) is True
    return decided(then, extents) is True


def _unconditional(value: Expr) -> list[Read]:
    """Reads made whatever a select decides (those in its branches are guarded by it)."""
    match value:
        case Read():
            return [value]
        case Call("select", (cond, _, _)):
            return _unconditional(cond)
        case Call(_, args):
            return [read for arg in args for read in _unconditional(arg)]
    return []


def _inside(entry: Expr, extent: int) -> Expr:
    low, high = Call("ge", (entry, Const(0))), Call("lt", (entry, Const(extent)))
    return Call("and", (low, high))


def _range_guards(
    formula: Formula,
    solution: Solution,
    value: Expr,
    extents: dict[str, int],
    kinds: dict[str, TensorType],
) -> list[Expr]:
    """Guard solved loops that may leave their range, unless a direct read is absent there."""
    guards: list[Expr] = []
    direct = {
        (read.tensor, dim): entry
        for read in _unconditional(value)
        for dim, entry in enumerate(read.index)
        if read.default is None
    }
    for loop in solution.ranges:
        solved = algebra.simplify(solution.bindings[loop], extents)
        extent = _static(formula.extent(loop))
        if any(
            entry == solved and _extent_of(formula, kinds, tensor, dim) == extent
            for (tensor, dim), entry in direct.items()
        ):
            continue
        guards += _division_guards(solved)
        guards.append(_inside(solved, extent))
    return guards


def _extent_of(formula: Formula, kinds: dict[str, TensorType], tensor: str, dim: int) -> int:
    if tensor == OTHERS:
        return _static(formula.loops[dim].extent)
    shape = formula.type.shape if tensor in OWN else kinds[tensor].shape
    return _static(shape[dim])


def _division_guards(solved: Expr) -> list[Expr]:
    """Exact divisions make a term absent unless they divide: said as conditions."""
    return [
        Call("eq", (Call("mod", node.args), Const(0)))
        for node in walk(solved)
        if isinstance(node, Call) and node.fn == "exactdiv"
    ]


def _through_guards(
    solution: Solution, shape: tuple[int, ...], extents: dict[str, int]
) -> list[Expr]:
    """Guard a target index that is written through and may lie outside the operand."""
    return [
        _inside(entry, extent)
        for entry, extent in zip(solution.index, shape, strict=True)
        if not reads(entry) and not algebra.within(entry, extent, extents)
    ]


def conjunction(conditions: list[Expr]) -> Expr | None:
    """Return all conditions as one; None where there are none."""
    if not conditions:
        return None
    result = conditions[0]
    for condition in conditions[1:]:
        result = Call("and", (result, condition))
    return result


def finish(formula: Formula, order: Sequence[str]) -> Formula:
    """Return the formula in normal form, with the operands that it reads; all are of `order`."""
    used = set(operand_order(formula))
    assert used <= set(order), f"unknown operands {used - set(order)}"
    return normal(replace(formula, operands=operand_order(formula)))
