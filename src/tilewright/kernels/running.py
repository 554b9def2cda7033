"""The recipe for running results (`y[u] += x[i] where i <= u`): one pass, a term for each result.

The idea: the accumulator of a row is stored after each term.  What makes a term wait for the one
before is the accumulator alone, so that rows go side by side: those beside each other in memory in
vectors, else a few of them.

This recipe does not know other reductions; what it reads may be computed where it is read.
"""

from dataclasses import dataclass

from tilewright.base.dtypes import BOOL, F32, F64, I64, DType
from tilewright.base.expr import Expr, Read, Sym, substitute
from tilewright.base.sizes import Size
from tilewright.graph.ir import Formula
from tilewright.graph.running import Running, running
from tilewright.kernels.body import Body, is_pointwise, parallel, static_extents, volume
from tilewright.kernels.conversion import convert, stored
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.functions import apply
from tilewright.kernels.lanes import IVDEP
from tilewright.kernels.reduce import BEST, accumulator, combined, identity, needs_mark, wins
from tilewright.kernels.text import UNARY, Scope, Term, c_type

BESIDE, APART = 64, 4  # rows at a time that lie beside each other in memory, and that do not


@dataclass(frozen=True, slots=True)
class Pass:
    """A formula whose results run, and how."""

    formula: Formula
    running: Running

    @property
    def rows(self) -> tuple[str, ...]:
        """The loops of the target that the results do not run along."""
        return tuple(name for name in parallel(self.formula) if name != self.running.loop)


def running_pass(body: Body) -> Pass | str:
    """Return the pass that makes a body's only result, or why this recipe cannot print it."""
    *before, (name, formula) = body.formulas
    found = running(formula)
    if found is None:
        return f"{name} is no running result"
    if body.outputs != (name,) or not all(is_pointwise(other) for _, other in before):
        return f"other results are made beside {name}"
    printer = Printer(body, {})
    printer.enter(static_extents(formula))
    if needs_mark(formula, always=not printer.presence(formula.value)):
        return f"{name} may be filled with something else than what it starts from"
    return Pass(formula, found)


def describe(made: Pass) -> str:
    """Return the recipe, in a line."""
    extents = static_extents(made.formula)
    rows = "x".join(str(extents[name]) for name in made.rows) or "1"
    return f"running: {rows} rows of {extents[made.running.loop]}"


def print_running(printer: Printer, made: Pass, target: Memory, root: Scope) -> int:
    """Print the kernel's body; returns how many equal units its work can be cut into."""
    extents = static_extents(made.formula)
    printer.enter(extents)
    lane = _lane(made, target)
    others = [name for name in made.rows if name != lane]
    length = extents[lane] if lane else 1
    beside = bool(lane) and _steps(made, target)[lane] == 1
    tile = BESIDE if beside else APART
    if type(length) is int:
        tile = min(tile, length)
    unit = root.inner(*others, "m")
    tiles = -(-length // tile)
    below: int = tiles
    for name in reversed(others):
        unit.add(f"const long {name} = u / {_factor(below)} % {_factor(extents[name])};")
        below = below * extents[name]
    unit.add(f"const long m = u % {_factor(tiles)} * {tile}, rest = {_factor(length)} - m;")
    walk = _Walk(printer, made, target, lane, beside, _wide(printer, made.formula))
    walk.declare(unit, tile)
    full = unit.inner()
    walk.pass_over(full, str(tile))
    unit.attach(full, f"if (rest >= {tile})")
    if not (type(length) is int and length % tile == 0):
        some = unit.inner()
        walk.pass_over(some, "rest")
        unit.attach(some, "else")
    units = volume([extents[name] for name in others]) * tiles
    root.attach(unit, f"for (long u = {units} * part / parts; u < {units} * end / parts; u++)")
    return units


def _factor(size: int) -> str:
    return f"({size})" if isinstance(size, Size) else str(size)


def _steps(made: Pass, target: Memory) -> dict[str, int]:
    """Return how far apart the results of each row loop lie."""
    entries = zip(made.formula.index, target.strides, strict=True)
    return {entry.name: step for entry, step in entries if isinstance(entry, Sym)}


def _lane(made: Pass, target: Memory) -> str:
    """Return the loop of rows that go side by side: those beside each other in memory, else the
    longest; "" where there is one row alone."""
    steps, extents = _steps(made, target), static_extents(made.formula)
    beside = [name for name in made.rows if steps[name] == 1 and extents[name] >= APART]
    longest = sorted(made.rows, key=lambda name: extents[name])[-1:]
    return next(iter(beside or longest), "")


def _wide(printer: Printer, formula: Formula) -> DType:
    """Return the type of an accumulator: sums and products of floats are formed in double."""
    dtype = accumulator(formula, printer.type_of(formula.value))
    return F64 if formula.op in ("+=", "*=") and dtype == F32 else dtype


@dataclass(frozen=True, slots=True)
class _Walk:
    """What the pass over some rows needs.  beside: whether they are so in memory.  dtype: of the
    accumulators."""

    printer: Printer
    made: Pass
    target: Memory
    lane: str
    beside: bool
    dtype: DType

    def declare(self, scope: Scope, count: int) -> None:
        """Declare the accumulators, and the indices that `argmax=` keeps."""
        op = self.made.formula.op
        scope.add(f"{c_type(self.dtype)} so_far[{count}];")
        lines = [f"so_far[l] = {identity(op, self.dtype).text};"]
        if op in BEST:
            scope.add(f"long place[{count}];")
            lines.append("place[l] = 0;")
        loop = scope.inner()
        for line in lines:
            loop.add(line)
        scope.attach(loop, f"for (long l = 0; l < {count}; l++)")

    def pass_over(self, scope: Scope, count: str) -> None:
        """Print the pass over so many rows."""
        found = self.made.running
        extent = static_extents(self.made.formula)[found.loop]
        along = scope.inner(found.loop)
        lanes = along.inner(*([self.lane] if self.lane else []), "l")
        if self.lane:
            lanes.add(f"const long {self.lane} = m + l;")
        self._take(lanes)
        self._store(lanes)
        along.add(IVDEP)
        along.attach(lanes, f"for (long l = 0; l < {count}; l++)")
        name, size = found.loop, _factor(extent)
        up, down = f"0; {name} < {size}; {name}++", f"{size} - 1; {name} >= 0; {name}--"
        scope.attach(along, f"for (long {name} = {up if found.up else down})")

    def _take(self, scope: Scope) -> None:
        """Print the taking of the term that comes with a result."""
        printer, formula = self.printer, self.made.formula
        value = self._bound(formula.value)
        places = [] if formula.at is None else [self._bound(formula.at)]
        present = [c for part in (value, *places) for c in printer.presence(part)]
        present = list(printer.open_conditions(present))
        faults = [fault for part in (value, *places) for fault in printer.faults(part)]
        printer.check(faults, present, scope)
        base = accumulator(formula, printer.type_of(value))
        term = convert(convert(printer.repeated(value, scope), base), self.dtype)
        if formula.op in BEST:
            mark = convert(printer.value(places[0], scope), formula.type.dtype.compute)
            self._take_best(term, mark, scope)
            return
        if present:
            condition = convert(printer.conjunction(present, scope), BOOL)
            start = identity(formula.op, self.dtype)
            term = apply("select", [condition, term, start], printer.used)
        scope.add(f"const {c_type(self.dtype)} term = {term.text};")
        text = combined(formula.op, "so_far[l]", "term", self.dtype, printer.used)
        scope.add(f"so_far[l] = {text};")

    def _take_best(self, term: Term, mark: Term, scope: Scope) -> None:
        """Keep the first of equals in the order of the terms' loop, in which they may not come."""
        found, op = self.made.running, self.made.formula.op
        extent = static_extents(self.made.formula)[found.loop]
        scope.add(f"const {c_type(self.dtype)} term = {term.text};")
        first = f"{found.loop} == {'0' if found.up else f'{_factor(extent)} - 1'}"
        better = f"({wins(op, 'term', 'so_far[l]', self.dtype)})"
        if not found.ascending:
            better = f"!({wins(op, 'so_far[l]', 'term', self.dtype)})"
        won, index = f"({first}) | {better}", f"(long){mark.at(UNARY)}"
        if self.beside:
            scope.add(f"const int won = {won};")
            scope.add("so_far[l] = won ? term : so_far[l];")
            scope.add(f"place[l] = won ? {index} : place[l];")
            return
        inner = scope.inner()  # records are rare, so that a branch waits for nothing
        inner.add("so_far[l] = term;")
        inner.add(f"place[l] = {index};")
        scope.attach(inner, f"if ({won})")

    def _store(self, scope: Scope) -> None:
        formula = self.made.formula
        result = Term("so_far[l]", self.dtype)
        if formula.op in BEST:
            result = Term("place[l]", I64)
        index = self.printer.normal(Read("", formula.index))
        text = stored(result, formula.type.dtype, self.printer.used)
        place = self.printer.offset(index, self.target, scope)
        scope.add(f"{self.target.pointer}[{place}] = {text};")

    def _bound(self, expr: Expr) -> Expr:
        return substitute(expr, {self.made.running.term: self.made.running.at})
