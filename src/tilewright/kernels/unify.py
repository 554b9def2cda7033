"""Give one name to loops that are the same loop: of readers and what they read.

The idea: a statement that reads another's result by bare loops runs over the same loops.  Loops
that occur divided (`j // 4`, `j % 4`) are split in two, so that more of them can be the same.

This module does not know rows, columns or memory.
"""

from itertools import pairwise

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, walk
from tilewright.base.sizes import divides, least_of, nominal, same
from tilewright.kernels.body import (
    has_read,
)
from tilewright.kernels.statement import State


def unify(state: State, *, required: bool) -> bool:
    """Let statements that read each other run over the same loops; returns whether any changed.

    required: look at reads of reductions only; a row's variable has to be there for its readers.
    """
    for statement in list(state.statements.values()):
        for read in state.reads(statement):
            other = state.statements.get(read.tensor)
            if other is None or other.is_reduction != required:
                continue
            for entry, at in zip(other.formula.index, read.index, strict=True):
                target = state.simplify(other.bound(entry))
                if match_entries(state, target, at):
                    return True
    return False


def match_entries(state: State, a: Expr, b: Expr) -> bool:
    """Make one more loop of two index entries common; returns whether something changed."""
    if a == b or has_read(a) or has_read(b):
        return False
    if isinstance(b, Sym) and not isinstance(a, Sym):
        a, b = b, a
    if isinstance(a, Sym) and isinstance(b, Sym):
        return same_loop(state, a.name, b.name)
    left, right = _digits(state, a), _digits(state, b)
    if left is None or right is None:
        return False
    if isinstance(a, Sym):
        if not same(left[0][1], right[-1][0] * right[-1][1]) or not same(right[0][0], 1):
            return False
        return _split_loop(state, a.name, right[1][0]) if len(right) > 1 else False
    if [d[:2] for d in left] != [d[:2] for d in right]:
        return False
    return any(
        same_loop(state, x[2], y[2]) for x, y in zip(left, right, strict=True) if x[2] != y[2]
    )


def _digits(state: State, expr: Expr) -> list[tuple[int, int, str]] | None:
    """Return (step, extent, loop) of a mixed-radix index without gaps, smallest step first."""
    constant, terms = algebra.affine(expr)
    if constant or not all(isinstance(atom, Sym) for atom in terms):
        return None
    found = sorted(
        (
            (factor, state.extents[atom.name], atom.name)
            for atom, factor in terms.items()
            if isinstance(atom, Sym)
        ),
        key=lambda digit: (nominal(digit[0]), nominal(digit[1]), digit[2]),
    )
    if any(not same(b[0], a[0] * a[1]) for a, b in pairwise(found)):
        return None
    return found if found and same(found[0][0], 1) else None


def same_loop(state: State, a: str, b: str) -> bool:
    """Call two loops by one name, unless they differ in extent or one statement has both."""
    if a == b or not same(state.extents[a], state.extents[b]):
        return False
    if any({a, b} <= set(statement.loops()) for statement in state.statements.values()):
        return False
    state.substitute({b: Sym(a)})
    return True


def split_divided(state: State) -> bool:
    """Split a loop that occurs divided by a divisor of its extent; returns whether one was.

    ::

        x[j // 4, j % 4]  for j < 12   -->   x[k, l]  for k < 3, l < 4
    """
    for statement in state.statements.values():
        for read in state.reads(statement):
            for entry in read.index:
                for node in walk(entry):
                    match node:
                        case Call("floordiv" | "mod", (Sym(name), Const(int(q)))):
                            if name in state.extents and _split_loop(state, name, q):
                                return True
    return False


def _split_loop(state: State, name: str, q: int) -> bool:
    extent = state.extents[name]
    if least_of(q) <= 1 or least_of(extent - q) <= 0 or not divides(q, extent):
        return False
    high, low = state.fresh(extent // q), state.fresh(q)
    state.substitute({name: Call("add", (Call("mul", (Sym(high), Const(q))), Sym(low)))})
    return True


def share_column(state: State, group: tuple[str, ...]) -> bool:
    """Let two statements that read the same elements share one more column; returns whether so."""
    statements = [state.statements[name] for name in group]
    rows = next((frozenset(s.parallel()) for s in statements if s.is_reduction), None)
    if rows is None:
        return False
    for at, statement in enumerate(statements):
        mine = {read.tensor: read for read in state.all_reads(statement)}
        mine["@" + statement.name] = Read(
            statement.name,
            tuple(state.simplify(statement.bound(entry)) for entry in statement.formula.index),
        )
        for other in statements[at + 1 :]:
            for read in state.all_reads(other):
                known = mine.get(read.tensor)
                if known is None:
                    continue
                for a, b in zip(known.index, read.index, strict=True):
                    if rows & names(a) == rows & names(b) and match_entries(state, a, b):
                        return True
    return False
