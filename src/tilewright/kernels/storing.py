"""Storing what a statement computes: the last line of each loop that makes a result.

This module does not know loops.
"""

from collections.abc import Mapping

from tilewright.base.expr import Read
from tilewright.kernels.conversion import stored
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.statement import Statement
from tilewright.kernels.text import Scope, Term


def store(
    printer: Printer,
    statement: Statement,
    targets: Mapping[str, Memory],
    scope: Scope,
    place: str = "",
) -> None:
    """Print the computing and storing of one element of a pointwise statement; place: the C text of
    where it goes, if that is not the result yet."""
    read = printer.normal(target_of(statement))
    faults = printer.faults(read)
    if faults:
        printer.check(faults, (), scope)
    write(printer, read, printer.value(read, scope), targets, scope, place)


def target_of(statement: Statement) -> Read:
    """Return the element that a statement computes."""
    index = (statement.bound(entry) for entry in statement.formula.index)
    return Read(statement.name, tuple(index))


def write(
    printer: Printer,
    read: Read,
    term: Term,
    targets: Mapping[str, Memory],
    scope: Scope,
    place: str = "",
) -> None:
    """Print the storing of an element of a result."""
    memory = targets[read.tensor]
    place = place or f"{memory.pointer}[{printer.offset(read, memory, scope)}]"
    scope.add(f"{place} = {stored(term, memory.dtype, printer.used)};")
