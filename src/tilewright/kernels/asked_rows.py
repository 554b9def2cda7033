"""Rows that an index chooses are asked for before their turn.

The idea: no processor foresees where an index that is read points to, and a row of a large table
takes as long to come as to add a hundred of them; but the indices lie in order, so those of later
turns are read now, and their rows asked for.

This module does not know when a loop over indices is made.
"""

from math import prod
from typing import TYPE_CHECKING

from tilewright.base import algebra
from tilewright.base.dtypes import I64
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names
from tilewright.kernels.conditions import without_exact
from tilewright.kernels.text import SECOND, Scope, Term, unsigned

if TYPE_CHECKING:
    from tilewright.kernels.expression import Memory, Printer

TURNS = 16
"""Indices that are read before their turn."""
LINE, MOST_LINES = 64, 8
"""Bytes of a line of cache; lines of a row that are asked for: what follows is foreseen."""
LARGE = 1 << 18
"""Bytes of a table whose rows are worth it: smaller ones stay in the second cache."""


def ask_ahead(printer: "Printer", read: Read, memory: "Memory", scope: Scope) -> None:
    """Add the lines that ask for rows of a tensor in memory, where an index that is loaded in a
    loop around chooses the row that is read at `scope`."""
    if not printer.asks or _varies(memory) or prod(memory.shape) * memory.dtype.bytes < LARGE:
        return
    for entry, stride in zip(read.index, memory.strides, strict=True):
        index, row = without_exact(entry), stride * memory.dtype.bytes
        if not isinstance(index, Read) or row < LINE or not printer.is_loaded(index):
            continue
        home, ids = scope.home(names(entry)), printer.memory[index.tensor]
        if _varies(ids) or 0 in ids.shape or index.default is not None:
            continue
        if printer.inside(printer.normal(index)):  # not every turn has an index
            continue
        mark = Read("@ahead", (entry, Sym(read.tensor)))
        if home is scope or home.find(mark) is not None or not _is_in_order(printer, index, ids):
            continue
        last = sum((size - 1) * step for size, step in zip(ids.shape, ids.strides, strict=True))
        later, chosen = printer.fresh("later"), printer.fresh("chosen")
        home.add(f"const long {later} = {printer.offset(index, ids, home)} + {TURNS};")
        home.add(f"const unsigned long {chosen} = (unsigned long){memory.pointer} +")
        at = f"{later} < {last} ? {later} : {last}"
        home.add(f"    (unsigned long){ids.pointer}[{at}] * {unsigned(row)};")
        for line in range(min(MOST_LINES, -(-row // LINE))):
            home.add(f"__builtin_prefetch((const void *)({chosen} + {line * LINE}), 0{SECOND});")
        home.known[mark] = Term(later, I64)


def _varies(memory: "Memory") -> bool:
    return any(type(number) is not int for number in (*memory.shape, *memory.strides))


def _is_in_order(printer: "Printer", index: Read, ids: "Memory") -> bool:
    """Say whether the next index lies behind this one."""
    if min(ids.strides, default=0) < 0:
        return False
    place: Expr = Const(0)
    for entry, step in zip(index.index, ids.strides, strict=True):
        place = Call("add", (place, Call("mul", (entry, Const(step)))))
    _, terms = algebra.affine(printer.simplify(place))
    return any(factor == 1 for factor in terms.values())
