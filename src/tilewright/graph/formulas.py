"""What the parts of a formula say: its reads, the order of its loops and operands, its extents.

The idea: a formula is in *normal form* when its loops and operands stand in the order of first
appearance in its text, so that the text gives them back.

This module does not know how a formula is written or read (`notation`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.base import algebra
from tilewright.base.expr import Const, Expr, Read, Sym, transform, walk
from tilewright.base.syntax import show as show_expr
from tilewright.graph.ir import Dim, Formula


def as_dim(dim: Dim) -> Expr:
    """Return an extent as an expression."""
    return Const(dim) if isinstance(dim, int) else dim


def show_dim(dim: Dim) -> str:
    """Return the text of an extent."""
    return str(dim) if isinstance(dim, int) else show_expr(dim)


def static_extents(extents: Mapping[str, Dim]) -> dict[str, int]:
    """Return the extents that are plain numbers."""
    return {name: extent for name, extent in extents.items() if isinstance(extent, int)}


def static(expr: Expr) -> Dim:
    simple = algebra.simplify(expr, {})
    match simple:
        case Const(int(value)):
            return value
    return simple


def reads_in(part: Expr | None) -> tuple[Read, ...]:
    return () if part is None else tuple(node for node in walk(part) if isinstance(node, Read))


def simplify_indices(expr: Expr, extents: Mapping[str, int]) -> Expr:
    """Bring every index in a value to its normal form."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            index = tuple(algebra.simplify(entry, extents) for entry in node.index)
            return Read(node.tensor, index, node.default)
        return node

    return transform(expr, visit)


def normal(formula: Formula) -> Formula:
    """Put operands and loops in the order of first appearance, so that text gives them back."""
    order = _loop_order(formula)
    loops = tuple(sorted(formula.loops, key=lambda loop: order.index(loop.name)))
    return replace(formula, loops=loops)


def _bare_entries(formula: Formula) -> Iterator[str]:
    for entry in formula.index:
        if isinstance(entry, Sym):
            yield entry.name
    for part in (formula.value, formula.at, formula.where):
        for read in reads_in(part):
            for entry in read.index:
                if isinstance(entry, Sym):
                    yield entry.name


def _loop_order(formula: Formula) -> list[str]:
    known = [loop.name for loop in formula.loops]
    bare = [name for name in _bare_entries(formula) if name in known]
    order = list(dict.fromkeys([*bare, *sorted(known)]))
    if formula.at is None:
        return order
    # Of equal values the first iteration wins: loops run so that it has the smallest index.
    _, factors = algebra.affine(formula.at)
    return sorted(order, key=lambda name: -abs(factors.get(Sym(name), 0)))


def operand_order(formula: Formula) -> tuple[str, ...]:
    """Return the operands in order of first appearance in the text."""
    fill = formula.fill if isinstance(formula.fill, Read) else None
    parts = (*formula.index, formula.value, formula.at, formula.where, fill)
    return tuple(dict.fromkeys(read.tensor for part in parts for read in reads_in(part)))
