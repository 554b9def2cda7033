"""Say in values what direct indices leave to be absent, where indices are read from a tensor.

The idea: a read beside its tensor by an index of loops is absent, or its default; by an index that
is itself read it is an error.  A value without memory is computed where it is read: at `v1[a1[i]]`
the loops of v1 are values of a1, and what v1 says of its loops must be said in a select.

This module does not know how a value is printed.
"""

from collections.abc import Iterator, Set
from dataclasses import replace

from tilewright.base.expr import Call, Expr, Read, Sym, names, transform, walk
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.total import TRUE, conjunction, inside, total
from tilewright.kernels.body import Body, has_read, is_pointwise, rename, static_extents


def spelled(body: Body) -> Body:
    """Rewrite the formulas that are read by indices that are read, through others too.

    ::

        v1: y[i<6] = v0[i-1] ?? 0    -->    v1: y[i<6] = v0[i-1] if 0 <= i-1 < 3 else 0
        v2: y[i<4] = v1[a1[i]]              v2: y[i<4] = v1[a1[i]]
    """
    types = {tensor.name: tensor.type for tensor in body.inputs}
    types |= {name: formula.type for name, formula in body.formulas}
    asked: set[tuple[str, int]] = set()  # which dims of what are read by indices that are read
    made: list[tuple[str, Formula]] = []
    for name, formula in reversed(body.formulas):
        loops = frozenset(
            entry.name
            for dim, entry in enumerate(formula.index)
            if isinstance(entry, Sym) and (name, dim) in asked
        )
        if loops and is_pointwise(formula):
            formula = _without_absence(formula, loops, types)
        else:
            loops = frozenset()
        asked |= set(_asked(formula, loops))
        made.append((name, formula))
    return replace(body, formulas=tuple(reversed(made)))


def _asked(formula: Formula, loops: Set[str]) -> Iterator[tuple[str, int]]:
    rest = (formula.where, formula.at, formula.fill)
    for part in (formula.value, *formula.index, *(part for part in rest if part is not None)):
        for node in walk(part):
            if isinstance(node, Read):
                for dim, entry in enumerate(node.index):
                    if has_read(entry) or loops & names(entry):
                        yield node.tensor, dim


def _without_absence(formula: Formula, loops: Set[str], types: dict[str, TensorType]) -> Formula:
    extents = static_extents(formula)

    def visit(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.default is None:
            return node
        if not any(loops & names(entry) for entry in node.index):
            return node
        plain = Read(node.tensor, node.index)
        guard = conjunction(inside(plain, types, extents), extents)
        return plain if guard == TRUE else Call("select", (guard, plain, node.default))

    where = None if formula.where is None else transform(formula.where, visit)
    made = total(replace(formula, value=transform(formula.value, visit), where=where), types)
    return formula if made is None else rename(made, made.operands)
