"""Full values that a later phase of a row needs again: kept in row buffers where they are dear.

The idea: a value known in this phase that a later one would have to compute again is stored beside
the row if computing it costs more than a load, and read back if it was stored to an output anyway.

This module does not know reductions.
"""

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL
from tilewright.base.expr import Call, Const, Expr, Read, Sym, children, names
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import greatest_of
from tilewright.kernels.body import is_pointwise, volume
from tilewright.kernels.conversion import load
from tilewright.kernels.expression import bound_to
from tilewright.kernels.row import Row
from tilewright.kernels.text import ATOM, Scope, Term, c_type

KEEP_FLOPS = 8  # what a value must cost to be kept for a later phase
KEEP_BYTES = 256 << 10  # of row buffers, all together


def keep(row: Row, depth: int, scope: Scope) -> None:
    """Store in row buffers what is dear and needed again; know again what an output holds."""
    columns = [name for name in row.region.columns if name in scope.loops]
    for read in _wanted_later(row, depth, scope):
        if read in row.stored_here:
            memory = row.targets[read.tensor]
            element = f"{memory.pointer}[{row.printer.offset(read, memory, scope)}]"
            row.pending[read] = load(memory.dtype, element, ATOM, row.printer.used)
            continue
        known = scope.find(read)
        assert known is not None, f"{read.tensor} has been computed here"
        if read not in row.pending:
            c = "unsigned char" if known.dtype == BOOL else c_type(known.dtype)
            size = greatest_of(volume([row.extents[name] for name in columns]))
            taken = size * known.dtype.compute.bytes
            if row.kept_bytes + taken > KEEP_BYTES:
                continue
            row.kept_bytes += taken
            name = row.printer.fresh("k")
            row.buffers.append(f"{c} {name}[{size}];")
            place = row.printer.value(_position(row, columns), scope).text
            row.pending[read] = Term(f"{name}[{place}]", known.dtype)
        scope.add(f"{row.pending[read].text} = {known.text};")


def _position(row: Row, columns: list[str]) -> Expr:
    """Return a column's place in a row buffer."""
    total: Expr = Const(0)
    for name in columns:
        total = Call("add", (Call("mul", (total, Const(row.extents[name]))), Sym(name)))
    return algebra.simplify(total, row.extents)


def _wanted_later(row: Row, depth: int, scope: Scope) -> list[Read]:
    """Return the full values known in this nest that later phases would have to compute again."""
    found: dict[Read, None] = {}
    seen: set[Read] = set()
    waiting: list[Expr] = []
    for statement, own in zip(row.region.statements, row.region.depths, strict=True):
        if own > depth:
            parts = (statement.formula.value, statement.formula.where)
            waiting += [statement.bound(part) for part in parts if part is not None]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Read):
            waiting += children(node)
            continue
        read = row.printer.normal(Read(node.tensor, node.index))
        if read in seen or read in row.kept:
            continue
        seen.add(read)
        waiting += read.index
        if _is_worth_keeping(row, read, scope):
            found[read] = None
        else:
            waiting += _made_of(row, read)
    return sorted(found, key=lambda read: read.tensor)


def _is_worth_keeping(row: Row, read: Read, scope: Scope) -> bool:
    """Say whether a value is known here for every column, and dear."""
    here = scope.find(read)
    if here is None or here.literal is not None or not _made_of(row, read):
        return False
    return names_of(read) == scope.loops and _price(row, read) >= KEEP_FLOPS


def _made_of(row: Row, read: Read) -> list[Expr]:
    """Return the expressions that a value without memory is computed from; none for others."""
    formula = row.printer.body.formula(read.tensor)
    if formula is None or not is_pointwise(formula):
        return []
    return [part for part in bound_to(formula, read.index) if part is not None]


def names_of(read: Read) -> frozenset[str]:
    """Return the loops that an element's place depends on."""
    return frozenset(name for entry in read.index for name in names(entry))


def _price(row: Row, read: Read) -> int:
    """Return the operations that computing a value again would take."""
    total = 0
    seen: set[Read] = {read}
    waiting = _made_of(row, read)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Read):
            inner = row.printer.normal(Read(node.tensor, node.index))
            if inner not in seen and inner not in row.kept:
                seen.add(inner)
                waiting += _made_of(row, inner)
        else:
            total += FUNCTIONS[node.fn].flops if isinstance(node, Call) else 0
            waiting += children(node)
    return total
