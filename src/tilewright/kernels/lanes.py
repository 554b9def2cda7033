"""Loops of lanes as C: one after another, or what takes long in them by steps, for many at a time.

The idea: a function that takes long is a chain, of which a processor sees but one or two vectors at
a time.  Where a loop's values are such functions of what is cheap, blocks of lanes go through
the steps of each function together (`cmath_snippet`), and what is cheap is computed again.

This module does not know nests: what a lane computes is printed by its caller.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.base.dtypes import F32
from tilewright.base.expr import Call, Expr, Read, children, names, walk
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.kernels.body import Body, has_read
from tilewright.kernels.cmath_snippet import LANES
from tilewright.kernels.conversion import convert
from tilewright.kernels.expression import Printer, bound_to
from tilewright.kernels.text import ATOM, Scope, Term

LONG = 8
"""Operations from which a function takes so long that others are worth computing meanwhile."""
STEPPED = ("tanh",)
"""Functions that are written in steps."""
IVDEP = "#pragma GCC ivdep"


@dataclass(frozen=True, slots=True)
class Lanes:
    """A loop of lanes: its name, the C text of its bounds, and how one of its turns is printed.

    opened: returns the scope of a turn inside of the scope given.  turn: prints into it.
    """

    name: str
    low: str
    high: str
    opened: Callable[[Scope], Scope]
    turn: Callable[[Scope], None]


def has_steps(body: Body) -> bool:
    """Say whether anything in a body may be computed by steps."""
    values = (formula.value for _, formula in body.formulas)
    return any(isinstance(n, Call) and n.fn in STEPPED for value in values for n in walk(value))


def stepped(printer: Printer, targets: Iterable[Read], name: str, scope: Scope) -> tuple[Call, ...]:
    """Return the calls in values of a loop's lanes that can be computed by steps, each after those
    it is made of; none where anything else takes long, as it would be computed twice, or where one
    is chosen by a condition: what the compiler sees never chosen is not computed.

    targets: what the lanes store, in normal form.
    """
    dear: dict[Read, bool] = {}  # values, and whether anything in them takes long
    found: dict[Call, None] = {}
    for target in targets:
        made = printer.from_the_ground(
            target, lambda read: read in dear or scope.find(read) is not None
        )
        for read in made:
            formula = printer.body.formula(read.tensor)
            assert formula is not None, f"{read.tensor} is computed"
            value, where, fill = bound_to(formula, read.index)
            always = set[Expr]()
            if where is None and not printer.presence(value):
                always.update(_always(value))
            parts = (value, fill) if where is None else (value, where, fill)
            nodes = [node for part in parts for node in walk(part)]
            calls = [node for node in nodes if isinstance(node, Call) and _is_long(node, name)]
            reads = [node for node in nodes if isinstance(node, Read)]
            long = [one for one in reads if dear.get(printer.normal(Read(one.tensor, one.index)))]
            if not all(_takes_steps(printer, call) for call in calls):
                return ()
            if not always.issuperset((*calls, *long)):
                return ()
            dear[read] = bool(calls or long)
            found.update(dict.fromkeys(sorted(calls, key=lambda call: sum(1 for _ in walk(call)))))
    return tuple(found)


def _always(expr: Expr) -> Iterator[Expr]:
    """Yield what an expression is made of whatever conditions say."""
    yield expr
    parts = children(expr)
    if isinstance(expr, Read):
        parts = expr.index
    elif isinstance(expr, Call) and expr.fn == "select":
        parts = expr.args[:1]
    for part in parts:
        yield from _always(part)


def _is_long(call: Call, name: str) -> bool:
    return FUNCTIONS[call.fn].flops >= LONG and name in names(call)


def _takes_steps(printer: Printer, call: Call) -> bool:
    return call.fn in STEPPED and has_read(call) and printer.held(call.args[0]) == F32


def print_stepped(
    printer: Printer, lanes: Lanes, calls: tuple[Call, ...], scope: Scope, *, even: bool
) -> None:
    """Print the loop with these calls by steps; the last lanes, which fill no block, as they are.

    even: there are none of these.
    """
    begin, end, rest, at = (printer.fresh(name) for name in ("begin", "end", "rest", "at"))
    block = scope.inner(at)
    row = f"{lanes.name} - {at}"
    known: dict[Expr, Term] = {}
    for call in calls:
        inner = _knowing(lanes.opened(block), known)
        term = convert(printer.value(call.args[0], inner), F32)
        array, function = printer.fresh("lanes"), f"{call.fn}_f32_lanes"
        printer.used.add(function)
        block.add(f"float {array}[{LANES}];")
        inner.add(f"{array}[{row}] = {term.text};")
        _attach(lanes, inner, block, at, f"{at} + {LANES}")
        block.add(f"{function}({array});")
        known[call] = Term(f"{array}[{row}]", F32, ATOM)
    inner = _knowing(lanes.opened(block), known)
    lanes.turn(inner)
    _attach(lanes, inner, block, at, f"{at} + {LANES}")
    scope.add(f"const long {begin} = {lanes.low}, {end} = {lanes.high};")
    scope.add(f"const long {rest} = {begin} + ({end} - {begin}) / {LANES} * {LANES};")
    scope.attach(block, f"for (long {at} = {begin}; {at} < {rest}; {at} += {LANES})")
    if not even:
        inner = lanes.opened(scope)
        lanes.turn(inner)
        _attach(lanes, inner, scope, rest, end)


def _knowing(scope: Scope, known: Mapping[Expr, Term]) -> Scope:
    scope.known.update(known)
    return scope


def _attach(lanes: Lanes, inner: Scope, scope: Scope, low: str, high: str) -> None:
    name = lanes.name
    scope.add(IVDEP)
    scope.attach(inner, f"for (long {name} = {low}; {name} < {high}; {name}++)")
