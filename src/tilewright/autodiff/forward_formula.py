"""Forward mode of one formula: the formulas whose sum is the change of its result.

The idea: a term's change is linear in the changes of what it reads::

    y[o(l)] += body(x[f(l)])   -->   dy[o(l)] += sum over reads: d body / d x[f(l)] * dx[f(l)]

over the same loops, with the same terms present; nothing has to be solved, as nothing is turned
around.

- A sum has one formula per operand, so that the change of a product of matrices is two such
  products; everything else is one formula.
- Where the value is read again by the derivative (exp, tanh), the result y is read instead.
- `max=` and `min=` give the mean of the changes of what is tied; `*=` the sum of the changes of
  its terms, each times the product of the others.
- `from t` starts from the change of t.

This module does not know graphs: operands are names, and the caller connects them.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.autodiff import scalar
from tilewright.autodiff.formula import (
    COUNT,
    OTHERS,
    OWN,
    RESULT,
    conjunction,
    differentiable,
    dropped_guards,
    finish,
    without_defaults,
)
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, transform
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.notation import normal


def change_names(formula: Formula, wanted: Sequence[bool]) -> dict[str, str]:
    """Return, for each operand that changes, the name by which formulas read its change."""
    taken = {*formula.operands, *OWN}
    found: dict[str, str] = {}
    for operand, want in zip(formula.operands, wanted, strict=True):
        if want:
            name = f"d{operand}"
            while name in taken:
                name += "_"
            taken.add(name)
            found[operand] = name
    return found


def forward_formula(
    formula: Formula, types: Sequence[TensorType], wanted: Sequence[bool]
) -> tuple[Formula, ...]:
    """Return the terms of the result's change, to be added; none where it does not change.

    types: the operands' types (extents must be numbers).  wanted: which operands change; one that
    is not floating never does.  A term's operands are names of the original's operands, their
    `change_names`, or RESULT, COUNT and OTHERS (see `tie_count`, `other_terms`).
    """
    assert differentiable(formula), f"{formula.op!r} has no derived forward mode"
    kinds = dict(zip(formula.operands, types, strict=True))
    changes = {
        name: change
        for name, change in change_names(formula, wanted).items()
        if kinds[name].dtype.kind == "float"
    }
    base = formula.fill.tensor if isinstance(formula.fill, Read) else ""
    plain = replace(formula, value=without_defaults(formula.value, kinds, set(changes)))
    if formula.op == "=":
        return _assigned(plain, kinds, changes, base)
    assert base not in changes or formula.op == "+=", f"`{formula.op} ... from` has no derivative"
    groups: list[Collection[str]] = [(name,) for name in changes] if _sums(formula) else [changes]
    terms = [_term(plain, kinds, {name: changes[name] for name in group}) for group in groups]
    if base in changes:
        terms.append(_copy(changes[base], formula.type))
    return tuple(term for term in terms if term is not None)


def _sums(formula: Formula) -> bool:
    """Whether terms are added up over a loop that the target does not have."""
    moved = {name for entry in formula.index for name in names(entry)}
    return formula.op == "+=" and any(loop.name not in moved for loop in formula.loops)


def _assigned(
    formula: Formula, kinds: dict[str, TensorType], changes: dict[str, str], base: str
) -> tuple[Formula, ...]:
    """`y = body from t`: where the body is written, t's change is overwritten too."""
    made = _term(formula, kinds, changes)
    if base not in changes:
        return () if made is None else (made,)
    fill = Read(changes[base], ())
    if made is None:  # what is written does not change: 0 in its place
        made = _finished(formula, kinds, Const(0.0), {})
    return (finish(replace(made, fill=fill), (*made.operands, changes[base])),)


def _term(
    formula: Formula, kinds: dict[str, TensorType], changes: dict[str, str]
) -> Formula | None:
    def along(read: Read) -> Expr | None:
        change = changes.get(read.tensor)
        default = None if read.default is None else Const(0.0)
        return None if change is None else Read(change, read.index, default)

    root = None
    if formula.op == "=" and formula.type.dtype == formula.type.dtype.compute:
        root = Read(RESULT, formula.index)
    total = scalar.tangent(formula.value, along, root)
    if total is None:
        return None
    if formula.op in ("max=", "min="):
        tied = Call("eq", (formula.value, Read(RESULT, formula.index)))
        shared = scalar.select(tied, total, Const(0.0))
        total = Call("div", (shared, Read(COUNT, formula.index)))
    if formula.op == "*=":
        others = Read(OTHERS, tuple(Sym(loop.name) for loop in formula.loops))
        total = scalar.multiply(total, others)
    return _finished(formula, kinds, total, changes)


def _finished(
    formula: Formula, kinds: dict[str, TensorType], value: Expr, changes: dict[str, str]
) -> Formula:
    """Give the value the original's loops, target and guards."""
    back = {change: name for name, change in changes.items()}

    def original(expr: Expr) -> Expr:
        if isinstance(expr, Read):
            return Read(back.get(expr.tensor, expr.tensor), expr.index, expr.default)
        return expr

    # A change is absent just where what changes is.
    guards = dropped_guards(formula, kinds, transform(value, original), None)
    if formula.where is not None:
        guards.insert(0, formula.where)
    made = replace(
        formula,
        op="=" if formula.op == "=" else "+=",
        value=value,
        where=conjunction(list(dict.fromkeys(guards))),
        fill=Const(0),
        operands=(),
    )
    return finish(made, (*formula.operands, *changes.values(), *OWN))


def _copy(name: str, type_: TensorType) -> Formula:
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    index: tuple[Expr, ...] = tuple(Sym(loop.name) for loop in loops)
    return normal(Formula((name,), loops, index, "=", Read(name, index), type_))
