"""Full values that a later phase of a row needs again: kept in row buffers where they are dear.

The idea: a value known in this phase that a later one would have to compute again is stored beside
the row if computing it costs more than a load, and read back if it was stored to an output anyway.

This module does not know reductions.
"""

from collections.abc import Iterable, Set

from tilewright.base.expr import Call, Expr, Read, children, names
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.kernels.body import Body, is_pointwise
from tilewright.kernels.expression import bound_to
from tilewright.kernels.statement import State, Statement

KEEP_FLOPS = 8  # what a value must cost to be kept for a later phase
KEEP_BYTES = 256 << 10  # of row buffers, all together


def wanted_later(
    state: State,
    group: Iterable[Statement],
    later: Iterable[Statement],
    loops: Set[str],
    kept: Set[Read],
) -> list[Read]:
    """Return the full values, one for each iteration of `loops`, that a group of statements
    computes, that later ones would have to compute again, and that are dear."""
    here = set[Read]()
    for statement in group:
        here |= {Read(r.tensor[1:], r.index) for r in state.all_reads(statement) if _is_place(r)}
        if not statement.is_reduction:
            here.add(element_of(state, statement))
    here = {read for read in here if names(read) == loops and _made_of(state.body, read)}
    found: dict[Read, None] = {}
    seen: set[Read] = set()
    waiting: list[Expr] = []
    for statement in later:
        parts = (statement.formula.value, statement.formula.where)
        waiting += [statement.bound(part) for part in parts if part is not None]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Read):
            waiting += children(node)
            continue
        read = _normal(state, node)
        if read in seen or read in kept:
            continue
        seen.add(read)
        waiting += read.index
        if read in here and _price(state, read, kept) >= KEEP_FLOPS:
            found[read] = None
        else:
            waiting += _made_of(state.body, read)
    return sorted(found, key=lambda read: read.tensor)


def element_of(state: State, statement: Statement) -> Read:
    """Return the element that a statement computes."""
    index = (state.simplify(statement.bound(entry)) for entry in statement.formula.index)
    return Read(statement.name, tuple(index))


def _is_place(read: Read) -> bool:
    return read.tensor.startswith("@")


def _normal(state: State, read: Read) -> Read:
    return Read(read.tensor, tuple(state.simplify(entry) for entry in read.index))


def _made_of(body: Body, read: Read) -> list[Expr]:
    """Return the expressions that a value without memory is computed from; none for others."""
    formula = body.formula(read.tensor)
    if formula is None or not is_pointwise(formula):
        return []
    return [part for part in bound_to(formula, read.index) if part is not None]


def _price(state: State, read: Read, kept: Set[Read]) -> int:
    """Return the operations that computing a value again would take."""
    total = 0
    seen: set[Read] = {read}
    waiting = _made_of(state.body, read)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Read):
            inner = _normal(state, node)
            if inner not in seen and inner not in kept:
                seen.add(inner)
                waiting += _made_of(state.body, inner)
        else:
            total += FUNCTIONS[node.fn].flops if isinstance(node, Call) else 0
            waiting += children(node)
    return total
