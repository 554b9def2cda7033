"""Loops of lanes as C: one after another, or what takes long in them by steps, for many at a time.

The idea: a function that takes long is a chain, of which a processor sees but one or two vectors at
a time.  Where a loop's values are such functions of what is cheap, blocks of lanes go through
the steps of each function together (`cmath_snippet`), and what is cheap is computed again.  What
hangs on a condition that all lanes share is stepped through where that holds.

This module does not know nests: what a lane computes is printed by its caller.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tilewright.base.dtypes import BOOL, F32, F64
from tilewright.base.expr import Call, Const, Expr, Read, Sym, children, names, walk
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.graph.ir import TensorType
from tilewright.kernels.body import Body, has_read
from tilewright.kernels.cmath_tables import BY_TABLE
from tilewright.kernels.conversion import convert
from tilewright.kernels.expression import Memory, Printer, bound_to
from tilewright.kernels.text import ATOM, Scope, Term, c_type

LONG = 8
"""Operations from which a function takes so long that others are worth computing meanwhile."""
STEPPED = {
    **dict.fromkeys(("atan", "erf", "exp", "log", "log10", "log1p", "log2"), (F32,)),
    **dict.fromkeys(("normal_cdf", "pow", "sigmoid", "tanh"), (F32,)),
    **dict.fromkeys(("sin", "cos", "tan", "fmod", "mod", "floordiv"), (F32, F64)),
}
"""Functions of lanes, written in steps or with a shorter road where no lane is far off, and the
types that they are written for."""
TAKEN = (16, 32, 64)
"""How many lanes functions of them are computed of: of these, vectors of any length make whole
blocks."""
WORD = 4
"""Bytes, at least, of an element that is read under a condition by a vector's operation."""
IVDEP = "#pragma GCC ivdep"
FEW, MANY = 4, 16  # turns: the compiler writes out loops of so `MANY` before it looks for vectors


def vectors_of(count: int | None) -> str:
    """Return what the compiler is told before a loop of so many lanes, whose turns do not meet.

    Few are to stay a loop until it looks for vectors: of what it has written out it finds few, and
    where what is read hangs on a condition, GCC 12.2 reads all of them under the mask of the first.
    """
    few = FEW < (count or 0) <= MANY
    return f"#pragma GCC unroll {FEW}\n{IVDEP}" if few else IVDEP


@dataclass(frozen=True, slots=True)
class Made:
    """What a turn of a loop of lanes makes: values that it stores or keeps, in normal form; and
    terms of reductions, each with the condition that it is taken under."""

    stored: tuple[Read, ...] = ()
    added: tuple[tuple[Expr, Expr | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """A call that is computed by steps, where conditions hold that all lanes have in common."""

    call: Call
    given: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A loop of lanes: its name, the C text of its bounds, and how one of its turns is printed.

    opened: returns the scope of a turn inside of the scope given, which begins with a line if one
    is given.  turn: prints into it.  block: how many are taken by steps at a time.  words: whether
    they read no shorter elements.  some: prints a turn of which only what meets a condition has
    terms, where that can be.
    """

    name: str
    block: int
    low: str
    high: str
    opened: Callable[[Scope, str], Scope]
    turn: Callable[[Scope], None]
    words: bool
    some: Callable[[Scope, str], None] | None = None


def has_steps(body: Body) -> bool:
    """Say whether anything in a body may be computed by steps: not where an element lies."""
    values = (formula.value for _, formula in body.formulas)
    nodes = (node for value in values for node in walk(value))
    return any(isinstance(n, Call) and n.fn in STEPPED and has_read(n) for n in nodes)


def has_choices(body: Body) -> bool:
    """Say whether anything in a body hangs on a condition."""
    formulas = [formula for _, formula in body.formulas]
    nodes = (n for formula in formulas for n in walk(formula.value))
    return any(formula.where is not None for formula in formulas) or any(
        n.default is not None if isinstance(n, Read) else isinstance(n, Call) and n.fn == "select"
        for n in nodes
    )


def stepped(
    printer: Printer, made: Made, lanes: frozenset[str], scope: Scope
) -> tuple[Stepped, ...]:
    """Return the calls in values of a loop's lanes that can be computed by steps, each after those
    it is made of; none where anything else takes long, as it would be computed twice, or where one
    is chosen lane by lane: what the compiler sees never chosen is not computed.

    lanes: the names that differ from lane to lane.  What values choose may be chosen anywhere: both
    sides are computed in all lanes, as the compiler would, unless they may be at fault.
    """
    dear: dict[Read, bool] = {}  # values, and whether anything in them takes long
    found: dict[Expr, tuple[Expr, ...]] = {}

    def takes_long(value: Expr, where: Expr | None, fill: Expr) -> bool | None:
        """Note the calls in a value; None where one of them is not to be computed by steps."""
        chosen: dict[Expr, tuple[Expr, ...]] = {}
        if where is None and not printer.presence(value):
            _note(chosen, _chosen(printer, value, lanes, ()))
        nodes = [node for part in (value, where, fill) if part is not None for node in walk(part)]
        calls = [
            node for node in nodes if isinstance(node, Call) and _is_long(printer, node, lanes)
        ]
        reads = [node for node in nodes if isinstance(node, Read)]
        long = [one for one in reads if dear.get(printer.normal(Read(one.tensor, one.index)))]
        if not all(_takes_steps(printer, call) for call in calls):
            return None
        if not chosen.keys() >= {*calls, *long}:
            return None
        inner_first = sorted(calls, key=lambda call: sum(1 for _ in walk(call)))
        _note(found, ((call, chosen[call]) for call in inner_first))
        return bool(calls or long)

    def is_known(read: Read) -> bool:
        return read in dear or scope.find(read) is not None

    every = (*made.stored, *printer.computed(part for term in made.added for part in term))
    for target in itertools.filterfalse(is_known, every):
        for read in printer.from_the_ground(target, is_known):
            formula = printer.body.formula(read.tensor)
            assert formula is not None, f"{read.tensor} is computed"
            long = takes_long(*bound_to(formula, read.index))
            if long is None:
                return ()
            dear[read] = long
    added = [takes_long(value, where, Const(0)) for value, where in made.added]
    steps = (Stepped(call, found[call]) for call in found if isinstance(call, Call))
    return () if None in added else tuple(steps)


def _note(
    known: dict[Expr, tuple[Expr, ...]], found: Iterable[tuple[Expr, tuple[Expr, ...]]]
) -> None:
    """Note under which conditions each is computed: always, where they differ."""
    for node, given in found:
        known[node] = given if known.get(node, given) == given else ()


def _chosen(
    printer: Printer, expr: Expr, lanes: frozenset[str], given: tuple[Expr, ...]
) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """Yield what an expression is made of in all lanes or none, and the conditions of that."""
    yield expr, given
    parts = children(expr)
    if isinstance(expr, Read):
        parts = expr.index
    elif isinstance(expr, Call) and expr.fn == "select":
        parts = expr.args[:1]
        cond, *sides = expr.args
        if lanes.isdisjoint(names(cond)):
            for side, holds in zip(sides, (cond, Call("not", (cond,))), strict=True):
                yield from _chosen(printer, side, lanes, (*given, holds))
        elif _is_by_values(cond) and not any(map(printer.faults, sides)):
            parts = expr.args
    for part in parts:
        yield from _chosen(printer, part, lanes, given)


def _is_by_values(cond: Expr) -> bool:
    """Say whether a condition asks for values alone, and not for where a lane is."""
    if isinstance(cond, Read):
        return True
    return not isinstance(cond, Sym) and all(map(_is_by_values, children(cond)))


def _is_long(printer: Printer, call: Call, lanes: frozenset[str]) -> bool:
    if lanes.isdisjoint(names(call)):
        return False
    return FUNCTIONS[call.fn].flops >= LONG or _is_rest(printer, call)


def _is_rest(printer: Printer, call: Call) -> bool:
    """Say whether a call is a division of floats with a rest, which counts as one operation."""
    return call.fn in ("fmod", "mod", "floordiv") and printer.held(call).kind == "float"


def _takes_steps(printer: Printer, call: Call) -> bool:
    if call.fn not in STEPPED or not has_read(call):
        return False
    held = printer.held(call)
    if call.fn == "pow" and all(memory.dtype == held for memory in printer.memory.values()):
        return False  # the compiler finds its vectors, unless other types are beside them
    alike = all(isinstance(arg, Const) or printer.held(arg) == held for arg in call.args)
    return alike and held in STEPPED[call.fn]


def print_stepped(
    printer: Printer, lanes: Lanes, calls: tuple[Stepped, ...], scope: Scope, *, count: int | None
) -> None:
    """Print the loop with these calls by steps: blocks of lanes, then the last, which fill none.

    count: how many lanes there are, if that is known.
    """
    begin, end, rest, at = (printer.fresh(name) for name in ("begin", "end", "rest", "at"))
    scope.add(f"const long {begin} = {lanes.low}, {end} = {lanes.high};")
    scope.add(f"const long {rest} = {begin} + ({end} - {begin}) / {lanes.block} * {lanes.block};")
    if count is None or count >= lanes.block:
        block = scope.inner(at)
        _print_block(printer, lanes, calls, block, at, str(lanes.block), lanes.block)
        head = f"for (long {at} = {begin}; {at} < {rest}; {at} += {lanes.block})"
        scope.attach(block, head)
    last = None if count is None else count % lanes.block
    if last == 0:
        return
    whole = lanes.block if last is None else filled(last)
    one_by_one = not lanes.words or (last is not None and last <= FEW and not lanes.some)
    tables = any(_goes_by_table(printer, step.call) for step in calls)
    if one_by_one and tables:  # of which the function of one element has other last bits
        scope.add("#ifdef __AVX512F__")
    if tables or not one_by_one:
        inner = scope.inner()
        _print_block(printer, lanes, calls, inner, rest, str(last or f"{end} - {rest}"), whole)
        scope.attach(inner, f"if ({rest} < {end})")
    if one_by_one and tables:
        scope.add("#else")
    if one_by_one:
        inner = lanes.opened(scope, "")
        lanes.turn(inner)
        for line in vectors_of(last).splitlines():
            scope.add(line)
        head = f"for (long {lanes.name} = {rest}; {lanes.name} < {end}; {lanes.name}++)"
        scope.attach(inner, head)
    if one_by_one and tables:
        scope.add("#endif")


def _goes_by_table(printer: Printer, call: Call) -> bool:
    return f"{call.fn}_{printer.held(call).name}_lanes" in BY_TABLE


def are_words(tensors: Iterable[Memory | TensorType]) -> bool:
    """Say whether every processor with such vectors reads elements of all under a condition."""
    return all(tensor.dtype.bytes >= WORD for tensor in tensors)


def filled(count: int) -> int:
    """Return how many lanes functions are computed of where there are `count`, 64 at most."""
    return next((size for size in TAKEN if count <= size), TAKEN[-1])


def running(printer: Printer, lane: str, some: str, every: int) -> tuple[str, str]:
    """Return what C text bounds lanes of which `some` are present, of `every` at most, and the
    condition that one is."""
    printer.used.add("is_present")
    return f"running({some}, {every})", f"is_present({lane}, {some})"


def _or(around: Scope, condition: str, inner: Scope, otherwise: str) -> Scope:
    """Return a scope in which one is chosen."""
    both = around.inner()
    both.attach(inner, f"if ({condition})")
    both.add(f"else {otherwise}")
    return both


def _print_block(
    printer: Printer,
    lanes: Lanes,
    calls: tuple[Stepped, ...],
    block: Scope,
    at: str,
    count: str,
    whole: int,
) -> None:
    """Print what is done for `count` lanes from `at` on; functions are computed of `whole`, of
    which the others are 1, of which none of them is slow.

    All words are filled under a condition: vectors that are read as they were written need not
    wait until they are in the cache.  Beside shorter elements lanes are filled with 1 before.
    """
    turn = printer.fresh("turn")
    bound, present = count, ""
    if count != str(whole):
        bound, present = running(printer, turn, count, whole)
    known: dict[Expr, Term] = {}

    def opened() -> Scope:
        inner = lanes.opened(block, f"const long {lanes.name} = {at} + {turn};")
        inner.known.update(known)
        return inner

    def attach(inner: Scope, around: Scope, below: str) -> None:
        for line in vectors_of(int(below) if below.isdecimal() else whole).splitlines():
            around.add(line)
        around.attach(inner, f"for (long {turn} = 0; {turn} < {below}; {turn}++)")

    filled_before = bool(present) and not lanes.words
    for step in calls:
        call, inner, held = step.call, opened(), printer.held(step.call)
        arrays = [printer.fresh("lanes") for _ in call.args]
        function = f"{call.fn}_{held.name}_lanes"
        printer.used.add(function)
        for array, arg in zip(arrays, call.args, strict=True):
            term = convert(printer.value(arg, inner), held)
            block.add(f"{c_type(held)} {array}[{whole}];")
            inner.add(f"{array}[{turn}] = {term.text};")
        holds = [convert(printer.value(cond, block), BOOL).at(ATOM) for cond in step.given]
        around = block.inner() if holds else block
        ones = f"{' = '.join(f'{array}[{turn}]' for array in arrays)} = 1;"
        if filled_before:
            around.add(f"for (long {turn} = 0; {turn} < {whole}; {turn}++) {ones}")
            attach(inner, around, count)
        else:
            attach(_or(block, present, inner, ones) if present else inner, around, bound)
        around.add(f"{function}({', '.join(arrays)}, {bound});")
        if holds:
            block.attach(around, f"if ({' & '.join(holds)})")
        known[call] = Term(f"{arrays[0]}[{turn}]", held, ATOM)
    inner = opened()
    if lanes.some and present and not filled_before:
        lanes.some(inner, present)
        attach(inner, block, bound)
    else:
        lanes.turn(inner)
        attach(inner, block, count)
