"""Loop nests as C: a loop is a loop, a definition a constant, a statement what `expression` prints.

The idea: the nest says where everything stands, so that this is one walk.  The outermost loop is
the parallel one: its iterations are the units of work that a kernel's parts share.

This module does not know which loops are good ones.
"""

from collections.abc import Mapping

from tilewright.base.expr import Call, Const, Expr, Read
from tilewright.base.sizes import same
from tilewright.kernels.conversion import stored
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.loops import Do, Item, Let, Loop, LoopNest, ranges
from tilewright.kernels.statement import Statement
from tilewright.kernels.text import SUM, Scope, Term


def print_nest(printer: Printer, nest: LoopNest, targets: dict[str, Memory], root: Scope) -> int:
    """Print a nest into the kernel's body; returns how many equal units of work it has."""
    (outer,) = nest.items
    assert isinstance(outer, Loop) and outer.kind == "parallel", "threads share the outermost loop"
    assert outer.low == Const(0) and outer.step == 1, "its iterations are numbered"
    assert isinstance(outer.high, Const) and isinstance(outer.high.value, int), "units are counted"
    printer.enter(ranges(nest.items))
    count, name = outer.high.value, outer.name
    unit = _open(root, outer)
    _print_items(printer, nest, targets, outer.items, unit)
    if same(count, 1):
        root.attach(unit, "if (part == 0)")
    else:
        bounds = f"{name} = {count} * part / parts; {name} < {count} * end / parts; {name}++"
        root.attach(unit, f"for (long {bounds})")
    return count


def _open(scope: Scope, loop: Loop) -> Scope:
    """Return the scope inside of a loop, where its name and those defined at its top are known."""
    lets = (item.name for item in loop.items if isinstance(item, Let))
    return scope.inner(loop.name, *lets)


def _print_items(
    printer: Printer,
    nest: LoopNest,
    targets: dict[str, Memory],
    items: tuple[Item, ...],
    scope: Scope,
) -> None:
    for item in items:
        match item:
            case Let(name, value):
                scope.add(f"const long {name} = {_index(printer, value, scope)};")
            case Loop():
                inner = _open(scope, item)
                _print_items(printer, nest, targets, item.items, inner)
                head = _head(printer, item, scope)
                if item.kind == "lanes":
                    scope.add("#pragma GCC ivdep")
                scope.attach(inner, head)
            case Do():
                store(printer, nest.statement(item), targets, scope)


def _head(printer: Printer, loop: Loop, scope: Scope) -> str:
    low, high = (_bound(printer, bound, scope) for bound in (loop.low, loop.high))
    if loop.kind == "lanes" and "?" in high:  # the compiler makes no vectors up to a choice
        end = printer.fresh("end")
        scope.add(f"const long {end} = {high};")
        high = end
    step = f"{loop.name}++" if loop.step == 1 else f"{loop.name} += {loop.step}"
    return f"for (long {loop.name} = {low}; {loop.name} < {high}; {step})"


def _bound(printer: Printer, bound: Expr, scope: Scope) -> str:
    match bound:
        case Call("min" | "max" as fn, (a, b)):
            one, other = _index(printer, a, scope), _index(printer, b, scope)
            return f"({one} {'<' if fn == 'min' else '>'} {other} ? {one} : {other})"
    return _index(printer, bound, scope)


def _index(printer: Printer, index: Expr, scope: Scope) -> str:
    return printer.value(printer.simplify(index), scope).at(SUM)


def store(
    printer: Printer, statement: Statement, targets: Mapping[str, Memory], scope: Scope
) -> Read:
    """Print the computing and storing of one element of a pointwise statement; return it."""
    index = (printer.simplify(statement.bound(entry)) for entry in statement.formula.index)
    read = Read(statement.name, tuple(index))
    faults = printer.faults(read)
    if faults:
        printer.check(faults, (), scope)
    write(printer, read, printer.value(read, scope), targets, scope)
    return read


def write(
    printer: Printer, read: Read, term: Term, targets: Mapping[str, Memory], scope: Scope
) -> None:
    """Print the storing of an element of a result."""
    memory = targets[read.tensor]
    offset = printer.offset(read, memory, scope)
    scope.add(f"{memory.pointer}[{offset}] = {stored(term, memory.dtype, printer.used)};")
