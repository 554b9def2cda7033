"""One form for formulas that differ in names alone, or in the order of what commutes.

The idea: loops are named by where they first appear, the target first; the arguments of functions
that commute bit for bit are sorted.  Equal canonical forms compute equal bits::

    y[a<4, b<3] = w[b] + x[a, b]   and   y[i<4, j<3] = x[i, j] + w[j]
        -->   y[l0<4, l1<3] = w[l1] + x[l0, l1]

Sums are not re-associated: that would change bits.

This module does not know graphs.
"""

from dataclasses import replace

from tilewright.base.expr import Call, Expr, Sym, names, substitute, transform, walk
from tilewright.base.syntax import show
from tilewright.graph.ir import Formula, Loop
from tilewright.graph.total import map_parts, parts

_COMMUTING = frozenset(
    ("add", "mul", "max", "min", "eq", "ne", "and", "or", "bitand", "bitor", "bitxor")
)
# Where the order in which terms are met shows in the result.
_ORDERED = ("=", "argmax=", "argmin=")


def canonical(formula: Formula) -> Formula:
    """Return the canonical form; operands keep their names, which must say what they are."""
    named = _named(formula)
    return _named(map_parts(named, lambda part: transform(part, _sorted)))


def _sorted(node: Expr) -> Expr:
    match node:
        case Call(fn, (a, b)) if fn in _COMMUTING and show(b) < show(a):
            return Call(fn, (b, a))
    return node


def _named(formula: Formula) -> Formula:
    order: list[str] = []
    for part in parts(formula):
        order += [node.name for node in walk(part) if isinstance(node, Sym)]
    known = [loop.name for loop in formula.loops]
    seen = [name for name in dict.fromkeys(order) if name in known]
    seen += [name for name in known if name not in seen]
    fresh = {name: f"l{at}" for at, name in enumerate(seen)}
    mapping: dict[str, Expr] = {old: Sym(new) for old, new in fresh.items()}
    made = map_parts(formula, lambda part: substitute(part, mapping))
    loops = tuple(Loop(fresh[loop.name], loop.extent) for loop in formula.loops)
    if not _order_matters(formula):
        loops = tuple(sorted(loops, key=lambda loop: int(loop.name[1:])))
    return replace(made, loops=loops, operands=tuple(sorted(formula.operands)))


def _order_matters(formula: Formula) -> bool:
    """Say whether the order of the loops shows: the first of equals wins, the last write stays."""
    used = frozenset(name for entry in formula.index for name in names(entry))
    every = {loop.name for loop in formula.loops}
    bare = all(isinstance(entry, Sym) for entry in formula.index)
    return formula.op in _ORDERED and not (formula.op == "=" and bare and used == every)
