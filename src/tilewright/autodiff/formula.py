"""Reverse mode of one formula: for each operand, the formulas whose sum is its gradient.

The idea::

    y[o(l)] += body(x[f(l)])   -->   dx[f(l)] += dy[o(l)] * d body / d x[f(l)]

over the same loops, then solved for the element of x (`solve`).  Reads of one operand at one index
are put together, so that a pointwise operator has one gradient formula per operand.

- `=` and `+=` need dy alone; where the value is read again by the derivative (exp, tanh), the
  result y is read instead.
- `max=` and `min=` split evenly over ties: dy is divided by the count of elements that equal y.
- `from t` passes dy on to t, except where `=` overwrote it.
- `*=`, `any=`, `all=`, `argmax=`, `argmin=` have no derivative here: an operator that needs one
  overrides it.

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

TANGENT, RESULT, COUNT = "dy", "y", "count"


@dataclass(frozen=True, slots=True)
class Adjoint:
    """One term of an operand's gradient.

    formula: its operands are names of the original formula's operands, or TANGENT (the gradient of
    the result), RESULT (the result itself) or COUNT (see `tie_count`).
    """

    operand: str
    formula: Formula


def differentiable(formula: Formula) -> bool:
    """Say whether reverse mode of this formula is derived.

    An `=` that writes one element several times is not: which term stays depends on the order.
    """
    if formula.op == "=" and not _writes_once(formula):
        return False
    return formula.op in ("=", "+=", "max=", "min=") and formula.type.dtype.kind == "float"


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
    plain = replace(formula, value=_without_defaults(formula.value, kinds, asked))
    terms = _base_terms(formula, kinds, asked) + _value_terms(plain, kinds, asked)
    return tuple(sorted(terms, key=lambda term: formula.operands.index(term.operand)))


def _without_defaults(value: Expr, kinds: dict[str, TensorType], asked: set[str]) -> Expr:
    """x[i] ?? w[j]  -->  x[i] if i is inside else w[j], where w is differentiated for."""

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Read) or expr.default is None:
            return expr
        if not any(read.tensor in asked for read in reads(expr.default)):
            return expr
        guards: list[Expr] = []
        for entry, dim in zip(expr.index, kinds[expr.tensor].shape, strict=True):
            guards += [*_division_guards(entry), _inside(entry, _static(dim))]
        cond = _conjunction(guards)
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
        conditions = _dropped_guards(formula, kinds, Const(0.0), None)
        if formula.where is not None:
            conditions.insert(0, formula.where)
        made = replace(
            formula,
            value=Const(0.0),
            where=_conjunction(conditions),
            fill=Read(TANGENT, ()),
            operands=(),
        )
        return [Adjoint(base, _finish(made, (*formula.operands, TANGENT)))]
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
    guards = _dropped_guards(formula, kinds, value, read)
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
        _conjunction([simplify_indices(c, extents) for c in dict.fromkeys(conditions)]),
    )
    return _finish(made, (*formula.operands, TANGENT, RESULT, COUNT))


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


def _dropped_guards(
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
    return guards


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
    shape = formula.type.shape if tensor in (TANGENT, RESULT, COUNT) else kinds[tensor].shape
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


def _conjunction(conditions: list[Expr]) -> Expr | None:
    if not conditions:
        return None
    result = conditions[0]
    for condition in conditions[1:]:
        result = Call("and", (result, condition))
    return result


def _finish(formula: Formula, order: Sequence[str]) -> Formula:
    used = set(operand_order(formula))
    assert used <= set(order), f"unknown operands {used - set(order)}"
    return normal(replace(formula, operands=operand_order(formula)))
