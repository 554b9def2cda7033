"""What the recipes of regions share: the state of a row, units of work, computing and storing.

The idea: a region's work is cut into equal units, numbered by `u`; the outer rows follow from it.

This module does not know how the loops inside a unit are ordered.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.dtypes import DType
from tilewright.base.expr import Expr, Read
from tilewright.base.sizes import same
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.reduce import BEST
from tilewright.kernels.regions import Region
from tilewright.kernels.statement import Statement
from tilewright.kernels.text import Scope, Term


@dataclass(frozen=True, slots=True)
class Sum:
    """One reduction while it is being made: its accumulator arrays and their type.

    mark: the array that notes whether a term came ("" where one always does).  at: the array of
    the indices that `argmax=` keeps.
    """

    statement: Statement
    name: str
    dtype: DType
    mark: str
    at: str
    lanes: int


class Row:
    """What printing one region needs.  Mutable: it remembers what is kept for later phases.

    slot: the C text of the accumulator's index in the innermost loop.
    kept: reads whose values are in memory, with the C text that loads them; pending: those that
    will be after the nest being printed.  stored_here: the results that this nest has stored.
    buffers: declarations of row buffers.
    """

    def __init__(self, printer: Printer, region: Region, targets: Mapping[str, Memory]) -> None:
        self.printer = printer
        self.region = region
        self.targets = targets
        self.slot = "0"
        self.kept: dict[Expr, Term] = {}
        self.pending: dict[Expr, Term] = {}
        self.stored_here: set[Read] = set()
        self.buffers: list[str] = []
        self.kept_bytes = 0
        self.sums: dict[str, Sum] = {}

    @property
    def extents(self) -> dict[str, int]:
        return self.printer.extents

    def phase(self, depth: int) -> list[Statement]:
        """Return the statements that come after `depth` reductions."""
        pairs = zip(self.region.statements, self.region.depths, strict=True)
        return [statement for statement, own in pairs if own == depth]

    def columns(self, statement: Statement) -> tuple[str, ...]:
        """Return the columns that a statement runs over, in the region's order."""
        own = statement.loops()
        return tuple(loop for loop in self.region.columns if loop in own)

    def target(self, statement: Statement) -> Read:
        """Return the statement's result element as a read of it."""
        index = tuple(
            algebra.simplify(statement.bound(entry), self.extents)
            for entry in statement.formula.index
        )
        return Read(statement.name, index)


def decode(unit: Scope, outer: list[tuple[str, int]], blocks: int) -> None:
    """Define the outer rows from the number of the unit, `u`."""
    step = blocks
    lines = []
    for at, (name, extent) in reversed(list(enumerate(outer))):
        text = "u" if same(step, 1) else f"u / {step}"
        lines.append(f"const long {name} = {text if at == 0 else f'{text} % {extent}'};")
        step *= extent
    for line in reversed(lines):
        unit.add(line)


def attach_units(root: Scope, unit: Scope, count: int) -> None:
    if same(count, 1):
        root.attach(unit, "if (part == 0)")
    else:
        root.attach(unit, f"for (long u = {count} * part / parts; u < {count} * end / parts; u++)")


def counting(name: str, low: str, high: str) -> str:
    return f"for (long {name} = {low}; {name} < {high}; {name}++)"


def groups(row: Row, depth: int) -> list[list[Statement]]:
    """Return the statements of a phase that share one nest; `argmax=` has one of its own."""
    groups: dict[tuple[object, ...], list[Statement]] = {}
    for statement in row.phase(depth):
        columns = row.columns(statement)
        if columns or statement.is_reduction:
            key = (columns, statement.name if statement.formula.op in BEST else "")
            groups.setdefault(key, []).append(statement)
    return list(groups.values())
