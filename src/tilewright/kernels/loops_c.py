"""Loop nests as C: a loop is a loop, a definition a constant, a statement what `expression` prints.

The idea: the nest says where everything stands, so that this is one walk.  The outermost loop is
the parallel one: its iterations are the units of work that a kernel's parts share.

This module does not know which loops are good ones.
"""

from collections.abc import Mapping
from itertools import takewhile

from tilewright.base.dtypes import BOOL, I64
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute
from tilewright.base.expr import walk as expressions
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import Size, greatest_of, same
from tilewright.kernels.body import has_read
from tilewright.kernels.cmath_snippet import LANES
from tilewright.kernels.conditions import Limit
from tilewright.kernels.conversion import literal, load, stored
from tilewright.kernels.expression import Memory, Printer, bound_to
from tilewright.kernels.functions import apply
from tilewright.kernels.lanes import (
    FEW,
    LONG,
    Lanes,
    Made,
    Stepped,
    filled,
    has_choices,
    has_steps,
    print_stepped,
    running,
    stepped,
    vectors_of,
)
from tilewright.kernels.last_lanes import LastLanes, takes
from tilewright.kernels.loops import (
    Buffer,
    Do,
    Fetch,
    Fold,
    Item,
    Keep,
    Let,
    Loop,
    LoopNest,
    Merge,
    Sums,
    parts,
    ranges,
    walk,
)
from tilewright.kernels.reduce import BEST
from tilewright.kernels.square_loops import print_square, square_of
from tilewright.kernels.storing import store, target_of, write
from tilewright.kernels.sums import Held, declare, halve, merge, result_of, take
from tilewright.kernels.text import (
    ATOM,
    NO_VECTORS,
    ONE_BY_ONE,
    PRODUCT,
    SECOND,
    SUM,
    Scope,
    Term,
    c_type,
)


def print_nest(printer: Printer, nest: LoopNest, targets: Mapping[str, Memory], root: Scope) -> int:
    """Print a nest into the kernel's body; returns how many equal units of work it has."""
    (outer,) = nest.items
    assert isinstance(outer, Loop) and outer.kind == "parallel", "threads share the outermost loop"
    assert outer.low == Const(0) and outer.step == 1, "its iterations are numbered"
    assert isinstance(outer.high, Const) and isinstance(outer.high.value, int), "units are counted"
    # A loop that never runs proves nothing: not that each result has a term.
    found = ranges(nest.items).items()
    fetches = (item.element for item in walk(nest.items) if isinstance(item, Fetch))
    printer.asks = not any(has_read(entry) for element in fetches for entry in element.index)
    printer.enter({loop: below if greatest_of(below) > 0 else 1 for loop, below in found})
    count, name = outer.high.value, outer.name
    walker = _Walk(printer, nest, targets)
    unit = walker.opened(root, outer)
    # What is reduced over everything is no loop's: only its place says when it is there.
    folds = (item.index for item in walk(nest.items) if isinstance(item, Fold))
    unit.pinned = any(not any(map(names, index)) for index in folds)
    walker.items(outer.items, unit)
    if same(count, 1):
        root.attach(unit, "if (part == 0)")
    else:
        bounds = f"{name} = {count} * part / parts; {name} < {count} * end / parts; {name}++"
        root.attach(unit, f"for (long {bounds})")
    return count


class _Walk:
    """One walk over a nest.  Mutable: it remembers accumulators, and what is kept for later loops.

    held: the accumulators by name.  kept: values that are in memory, with the C text that loads
    them.  blocks: of results that are streamed here, with the C text of an element.  far: all that
    are streamed.
    """

    def __init__(self, printer: Printer, nest: LoopNest, targets: Mapping[str, Memory]) -> None:
        self.printer = printer
        self.nest = nest
        self.targets = targets
        self.held: dict[str, Held] = {}
        self.kept: dict[Expr, Term] = {}
        self.blocks: dict[str, str] = {}
        self.words: dict[Expr, Term] = {}
        self.last = LastLanes(printer, nest, self.held, self.kept, self.words, self.index)
        does = (item for item in walk(nest.items) if isinstance(item, Do))
        self.far = frozenset(item.formula for item in does if item.streamed)
        self.has_steps = has_steps(nest.body)
        self.has_choices = has_choices(nest.body)

    def opened(self, scope: Scope, loop: Loop) -> Scope:
        """Return the scope inside of a loop, where its name and those defined at its top are known,
        and what loops before it have kept."""
        lets = (item.name for item in loop.items if isinstance(item, Let))
        inner = scope.inner(loop.name, *lets)
        here = {
            self.printer.normal(item.read) for item in walk(loop.items) if isinstance(item, Keep)
        }
        inner.known.update({read: term for read, term in self.kept.items() if read not in here})
        inner.known.update(self.words)
        return inner

    def items(self, items: tuple[Item, ...], scope: Scope) -> None:
        for item in items:
            self.item(item, scope)

    def item(self, item: Item, scope: Scope) -> None:  # noqa: C901 - a flat match
        printer = self.printer
        match item:
            case Let(name, value):
                scope.add(f"const long {name} = {self.index(value, scope)};")
            case Loop() if not self.words and (words := self.widened(item, scope)):
                self.words.update(words)
                self.item(item, scope)
                self.words.clear()
            case Loop() if square := square_of(printer, item):
                print_square(printer, square, lambda loop: self.length(loop, scope), scope)
                self.kept_in(square.keep, scope)
            case Loop() if (streams := _streamed(item)) and not self.blocks:
                self.streamed(item, streams, scope)
            case Loop() if calls := self.stepped(item, scope):
                self.by_steps(item, calls, scope)
            case Loop() if whole := self.last.whole(item, self.count(item.low, item.high)):
                self.run_whole(item, whole, scope)
            case Loop():
                pragma = self.pragma(item)
                head = self.head(item, scope, told=bool(pragma))
                inner = self.opened(scope, item)
                outside, kept = printer.limits, dict(self.kept)
                printer.bounded((*outside, *_limits(item)))
                lets = tuple(takewhile(lambda each: isinstance(each, Let), item.items))
                self.items(lets, inner)
                self.begin(item, inner)
                self.items(item.items[len(lets) :], inner)
                printer.bounded(outside)
                if any(isinstance(each, Buffer) for each in item.items):  # it ends here
                    self.kept.clear()
                    self.kept.update(kept)
                if pragma == ONE_BY_ONE and self.count(item.low, item.high) == 1:
                    inner.add(NO_VECTORS)
                for line in pragma.splitlines():
                    scope.add(line)
                scope.attach(inner, head)
            case Do(_, _, "", _):
                statement = self.nest.statement(item)
                assert not statement.is_reduction, f"{item.formula} has no accumulators"
                store(printer, statement, self.targets, scope, self.blocks.get(item.formula, ""))
            case Do(_, _, into, slot):
                at = self.index(slot, scope)
                take(printer, self.nest.statement(item), self.held[into], at, scope)
            case Sums(name, formula, length, dtype):
                does = (one for one in walk(self.nest.items) if isinstance(one, Do))
                statement = self.nest.statement(next(do for do in does if do.formula == formula))
                self.held[name] = declare(printer, statement, name, length, dtype, scope)
            case Merge(name, into):
                merge(printer, self.held[name], self.held[into], scope)
            case Fold():
                self.fold(item, scope)
            case Buffer(name, formula, length):
                scope.add(f"{self.c_type(formula)} {name}[{length}];")
            case Keep():
                self.keep(item, scope)
            case Fetch():
                self.fetch(item, scope)

    def widened(self, loop: Loop, scope: Scope) -> dict[Expr, Term]:
        """Print words of the bytes that lanes read, where functions by steps wait for them."""
        count = self.count(loop.low, loop.high) if self.has_steps else None
        return self.last.widened(loop, count, scope)

    def run_whole(self, loop: Loop, whole: int, scope: Scope) -> None:
        """Print the last lanes of a row, of which `whole` run."""
        name, inner = loop.name, self.opened(scope, loop)
        self.items(tuple(item for item in loop.items if isinstance(item, Let)), inner)
        bound, present = running(self.printer, name, self.index(loop.high, scope), whole)
        self.last.take_some(loop, present, inner)
        for line in vectors_of(whole).splitlines():
            scope.add(line)
        scope.attach(inner, f"for (long {name} = 0; {name} < {bound}; {name}++)")

    def streamed(self, loop: Loop, does: list[Do], scope: Scope) -> None:
        """Print lanes that collect what they make near, and then write it past the caches."""
        printer, count = self.printer, self.count(loop.low, loop.high)
        assert count is not None, "lanes that stream are so many"
        first: dict[str, Expr] = {loop.name: loop.low}
        for let in (item for item in loop.items if isinstance(item, Let)):
            first[let.name] = substitute(let.value, first)
        place = self.index(Call("sub", (Sym(loop.name), loop.low)), scope)
        printer.used.add("stream")
        after: list[str] = []
        for do in does:
            memory, near = self.targets[do.formula], printer.fresh("near")
            scope.add(f"{memory.dtype.c} {near}[{count}];")
            self.blocks[do.formula] = f"{near}[{place}]"
            index = target_of(self.nest.statement(do)).index
            begin = printer.normal(Read(do.formula, tuple(substitute(e, first) for e in index)))
            offset = printer.offset(begin, memory, scope)
            to = f"(char *)({memory.pointer} + {offset})"
            after.append(f"stream({to}, (const char *){near}, {count * memory.dtype.bytes});")
        self.item(loop, scope)
        self.blocks.clear()
        for line in after:
            scope.add(line)

    def stepped(self, loop: Loop, scope: Scope) -> tuple[Stepped, ...]:
        """Return what in a loop is computed by steps: nothing where it fills no block of lanes."""
        if not self.has_steps or loop.kind != "lanes" or not self.block(loop):
            return ()
        lets = (item.name for item in loop.items if isinstance(item, Let))
        lanes = frozenset((loop.name, *lets))
        return stepped(self.printer, self.made(loop), lanes, self.opened(scope, loop))

    def block(self, loop: Loop) -> int:
        """Return how many lanes are taken by steps at a time, 0 where there are too few."""
        counts = (self.count(loop.low, high) for high in parts(loop.high, "min"))
        most = min((count for count in counts if count is not None), default=LANES)
        if not self.last.reads_words(loop):  # those that fill no block are not
            return most if most == LANES // 2 else LANES if most >= LANES else 0
        count = self.count(loop.low, loop.high)
        few = most <= FEW and not (takes(loop) and self.last.takes_only(loop, count))
        return 0 if few else min(LANES, filled(most))

    def made(self, loop: Loop) -> Made:
        """Return what a turn of a loop makes; nothing where it does more than that."""
        stored, added = [], []
        for item in loop.items:
            match item:
                case Let():
                    continue
                case Keep(Read(name)) if name in self.printer.memory:
                    continue  # of an input, as it is
                case Keep():
                    stored.append(self.printer.normal(item.read))
                case Do(into=""):
                    stored.append(self.printer.normal(target_of(self.nest.statement(item))))
                case Do() if (formula := self.nest.statement(item).formula).op not in BEST:
                    bound, where = self.nest.statement(item).bound, formula.where
                    added.append((bound(formula.value), None if where is None else bound(where)))
                case _:
                    return Made()
        return Made(tuple(stored), tuple(added))

    def by_steps(self, loop: Loop, calls: tuple[Stepped, ...], scope: Scope) -> None:
        lets = tuple(item for item in loop.items if isinstance(item, Let))

        def opened(outer: Scope, first: str) -> Scope:
            inner = self.opened(outer, loop)
            if first:
                inner.add(first)
            self.items(lets, inner)
            return inner

        def turn(inner: Scope) -> None:
            self.begin(loop, inner)
            self.items(loop.items[len(lets) :], inner)

        def some(inner: Scope, present: str) -> None:
            self.last.take_some(loop, present, inner)

        low, high = (self.bound(bound, scope) for bound in (loop.low, loop.high))
        count = self.count(loop.low, loop.high)
        takes_some = some if self.last.takes_only(loop, count) else None
        words = self.last.reads_words(loop)
        lanes = Lanes(loop.name, self.block(loop), low, high, opened, turn, words, takes_some)
        outside = self.printer.limits
        self.printer.bounded((*outside, *_limits(loop)))
        print_stepped(self.printer, lanes, calls, scope, count=count)
        self.printer.bounded(outside)

    def count(self, low: Expr, high: Expr) -> int | None:
        """Return how many turns a loop has, where that is a number."""
        match self.printer.simplify(Call("sub", (high, low))):
            case Const(int(count)) if type(count) is int:
                return count
        return None

    def stored(self, loop: Loop) -> list[Read]:
        """Return what lanes store, if that is all they do."""
        items = [item for item in loop.items if not isinstance(item, Let)]
        stores = [item for item in items if isinstance(item, Do) and not item.into]
        if loop.kind != "lanes" or len(stores) < len(items):
            return []
        return [self.printer.normal(target_of(self.nest.statement(item))) for item in stores]

    def begin(self, loop: Loop, scope: Scope) -> None:
        """Print those values of lanes first that take long and wait for nothing that does, where
        something else that takes long waits for one.

        A processor looks a few hundred instructions ahead: what stands behind a chain of functions
        that take long is not computed beside it.
        """
        chains: dict[Read, int] = {}  # how many that take long, one after another, a value takes
        first: list[Read] = []
        for target in self.stored(loop):
            made = self.printer.from_the_ground(
                target, lambda read: read in chains or scope.find(read) is not None
            )
            for read in made:
                nodes = self.nodes(read)
                waits = max(
                    (chains.get(node, 0) for node in nodes if isinstance(node, Read)), default=0
                )
                long = any(isinstance(n, Call) and FUNCTIONS[n.fn].flops >= LONG for n in nodes)
                chains[read] = waits + long
                first += [read] if long and not waits else []
        if len(first) > 1 and max(chains.values()) > 1:
            for read in first:
                self.printer.value(read, scope)

    def nodes(self, read: Read) -> list[Expr]:
        """Return all that the formula of a computed value consists of, reads in normal form."""
        formula = self.nest.body.formula(read.tensor)
        assert formula is not None, f"{read.tensor} is computed"
        parts = (part for part in bound_to(formula, read.index) if part is not None)
        found = [node for part in parts for node in expressions(part)]
        return [
            self.printer.normal(Read(node.tensor, node.index)) if isinstance(node, Read) else node
            for node in found
        ]

    def pragma(self, loop: Loop) -> str:
        """Return what the compiler is told of a loop: its turns do not meet, or all meet in one
        sum."""
        if loop.kind == "lanes":
            row = not names(loop.low) and bool(self.stored(loop))
            # The last lanes of short elements read a part of a vector.
            told = self.last.reads_words(loop) or row or self.has_choices
            return vectors_of(self.count(loop.low, loop.high) if told else None)
        every = (item for item in walk(self.nest.items) if isinstance(item, Loop))
        moving = {loop.name, *(one.name for one in every if one.kind == "lanes")}
        chained = any(
            self.nest.statement(item).formula.op == "+=" and moving.isdisjoint(names(item.slot))
            for item in walk(loop.items)
            if isinstance(item, Do) and item.into
        )
        return ONE_BY_ONE if chained else ""

    def fold(self, fold: Fold, scope: Scope) -> None:
        """Make the result of accumulators: a variable, stored if it is an output."""
        printer, held = self.printer, self.held[fold.sums]
        if fold.slot is None and held.length > 1:
            halve(printer, held, scope)
        read = printer.normal(Read(fold.formula, fold.index))
        slot = "0" if fold.slot is None else self.index(fold.slot, scope)
        term = result_of(printer, held, read, slot, scope)
        made = printer.define(read, term, scope, f"{read.tensor}_")
        if read.tensor in self.targets:
            write(printer, read, made, self.targets, scope)

    def keep(self, item: Keep, scope: Scope) -> None:
        printer = self.printer
        read = printer.normal(item.read)
        if not item.buffer:
            memory = self.targets[read.tensor]
            element = f"{memory.pointer}[{printer.offset(read, memory, scope)}]"
            self.kept[read] = load(memory.dtype, element, ATOM, printer.used)
            return
        term = printer.value(read, scope)
        source = printer.memory.get(read.tensor)
        text = stored(term, source.dtype, printer.used) if source else term.text
        scope.add(f"{self.kept_in(item, scope)} = {text};")

    def kept_in(self, item: Keep, scope: Scope) -> str:
        """Remember where a value is kept: an input's as it is, others to compute with."""
        read, printer = self.printer.normal(item.read), self.printer
        place = f"{item.buffer}[{self.index(item.place, scope)}]"
        memory = printer.memory.get(read.tensor)
        compute = self.nest.body.type(read.tensor).dtype.compute
        kept = load(memory.dtype, place, ATOM, printer.used) if memory else Term(place, compute)
        self.kept[read] = kept
        return place

    def c_type(self, tensor: str) -> str:
        """Return the C type of what a buffer holds of a tensor."""
        if tensor in self.printer.memory:
            return self.printer.memory[tensor].dtype.c
        dtype = self.nest.body.type(tensor).dtype.compute
        return "unsigned char" if dtype == BOOL else c_type(dtype)

    def length(self, loop: Loop, scope: Scope) -> str:
        """Return the C text of how many iterations a loop has, one apart."""
        count = self.count(loop.low, loop.high)
        low, high = (self.bound(bound, scope) for bound in (loop.low, loop.high))
        return f"({high}) - ({low})" if count is None else str(count)

    def fetch(self, fetch: Fetch, scope: Scope) -> None:
        element = fetch.element
        written = element.tensor in self.targets
        memory = (self.targets if written else self.printer.memory)[element.tensor]
        place = f"{memory.pointer} + ({self.printer.offset(element, memory, scope)})"
        if element.tensor in self.far:
            self.printer.used.add("next_page")
            scope.add(f"next_page({place});")
        else:
            nearness = SECOND if fetch.cache > 1 else ""
            scope.add(f"__builtin_prefetch({place}, {int(written)}{nearness});")

    def head(self, loop: Loop, scope: Scope, *, told: bool) -> str:
        """Return the head of a loop.  told: a pragma stands before it, which wants plain bounds."""
        low, high = (self.bound(bound, scope) for bound in (loop.low, loop.high))
        if told:
            low, high = self.plain(low, "begin", scope), self.plain(high, "end", scope)
        step = f"{loop.name}++" if loop.step == 1 else f"{loop.name} += {loop.step}"
        return f"for (long {loop.name} = {low}; {loop.name} < {high}; {step})"

    def bound(self, bound: Expr, scope: Scope) -> str:
        match bound:
            case Call("min" | "max" as fn, (a, b)):
                one = self.plain(self.bound(a, scope), "end", scope)
                other = self.plain(self.bound(b, scope), "end", scope)
                return f"({one} {'<' if fn == 'min' else '>'} {other} ? {one} : {other})"
        return self.index(bound, scope)

    def plain(self, text: str, prefix: str, scope: Scope) -> str:
        """Give a choice a name: the compiler makes no vectors up to one, nor unrolls as told."""
        if "?" not in text:
            return text
        name = self.printer.fresh(prefix)
        scope.add(f"const long {name} = {text};")
        return name

    def index(self, index: Expr, scope: Scope) -> str:
        constants = (one.value for one in expressions(index) if isinstance(one, Const))
        if any(isinstance(value, Size) for value in constants):
            return _as_it_stands(index).at(SUM)  # the normal form would ask which terms vanish
        return self.printer.value(self.printer.simplify(index), scope).at(SUM)


def _limits(loop: Loop) -> list[tuple[str, frozenset[Limit]]]:
    """Return what is known of a loop from its bounds, where these are more than its range."""
    found = [Limit("max", part) for part in parts(loop.low, "max") if names(part)]
    found += [Limit("min", part) for part in parts(loop.high, "min") if names(part)]
    return [(loop.name, frozenset(found))] if found else []


def _as_it_stands(index: Expr) -> Term:
    """Print an index that cannot be negative without bringing it to its normal form."""
    match index:
        case Const(value):
            return literal(value)
        case Call("floordiv" | "mod" as fn, (a, b)):
            one, other = _as_it_stands(a), _as_it_stands(b)
            text = f"{one.at(PRODUCT)} {'/' if fn == 'floordiv' else '%'} {other.at(PRODUCT + 1)}"
            return Term(text, I64, PRODUCT, weak=True)
        case Call(fn, args):
            return apply(fn, [_as_it_stands(arg) for arg in args], set())
        case Sym(name):
            return Term(name, I64, weak=True)
    raise AssertionError("an index of loops reads nothing")


def _streamed(loop: Loop) -> list[Do]:
    return [item for item in loop.items if isinstance(item, Do) and item.streamed]
