"""The last lanes of a row, fewer than accumulators: all lanes run, of which some have terms.

The idea: where part of a vector that was written whole is read again, a processor waits until it is
in the cache.  So the others take what changes nothing, and whole vectors are read and written.  For
the same reason bytes that lanes read are made words first, where functions by steps read them.

This module does not know nests: what a loop holds is told by its caller.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.base.expr import Const, Expr, Read, Sym, substitute, walk
from tilewright.kernels.cmath_snippet import LANES
from tilewright.kernels.expression import Printer, bound_to
from tilewright.kernels.lanes import TAKEN, WORD, are_words, filled
from tilewright.kernels.loops import Do, Keep, Let, Loop, LoopNest
from tilewright.kernels.reduce import identity
from tilewright.kernels.square_loops import place_of, step_of
from tilewright.kernels.sums import Held, is_plain, taken_into, term_of
from tilewright.kernels.text import Scope, Term, c_type

BESIDE = (Const(0), Const(1))


def takes(loop: Loop) -> list[Do]:
    """Return the terms that a loop takes into accumulators."""
    return [item for item in loop.items if isinstance(item, Do) and item.into]


@dataclass(frozen=True, slots=True)
class LastLanes:
    """What is known where loops are printed: accumulators, kept values, words that were made of
    bytes for the loop that is printed, and how indices are."""

    printer: Printer
    nest: LoopNest
    held: Mapping[str, Held]
    kept: dict[Expr, Term]
    words: dict[Expr, Term]
    index: Callable[[Expr, Scope], str]

    def whole(self, loop: Loop, count: int | None) -> int:
        """Return how many accumulators a loop of `count` lanes is to fill: all that there are; 0
        where that is what it does, or cannot be."""
        length = min((self.held[do.into].length for do in takes(loop)), default=0)
        fewer = count is not None and count < length <= LANES
        return length if fewer and self.takes_only(loop, count) else 0

    def takes_only(self, loop: Loop, count: int | None) -> bool:
        """Say whether all that `count` lanes do is to take terms, whatever they hold, and to keep
        values, of elements side by side: so that more lanes may run than have terms."""
        return (
            self.reads_words(loop)
            and self._is_plain(loop, count)
            and all(self._apart(read, loop) in BESIDE for read in self._reads(loop))
        )

    def reads_words(self, loop: Loop) -> bool:
        """Say whether every processor with such vectors reads what lanes read under a condition."""
        memory, words = self.printer.memory, self.words
        return are_words(memory.values()) or (
            bool(words)
            and all(
                memory[read.tensor].dtype.bytes >= WORD or self.printer.normal(read) in words
                for read in self._reads(loop)
            )
        )

    def _is_plain(self, loop: Loop, count: int | None) -> bool:
        """Say whether all that `count` lanes do is to take terms, whatever they hold, and to keep
        values."""
        does, kept = takes(loop), [item for item in loop.items if isinstance(item, Keep)]
        lets = [item for item in loop.items if isinstance(item, Let)]
        sums = [(self.nest.statement(item), self.held[item.into]) for item in does]
        return (
            count is not None
            and loop.kind == "lanes"
            and loop.low == Const(0)
            and len(does) + len(kept) + len(lets) == len(loop.items)
            and all(item.slot == Sym(loop.name) for item in does)
            and all(item.buffer for item in kept)
            and all(filled(count) <= held.length for _, held in sums)
            and all(is_plain(self.printer, *one) for one in sums)
        )

    def widened(self, loop: Loop, count: int | None, scope: Scope) -> dict[Expr, Term]:
        """Print words that are made of the bytes that lanes read side by side, if all that these do
        is to take terms of floats and keep values; return what stands for each read.

        A compiler that is given bytes and floats takes vectors of as many lanes as fill one of
        bytes, or shorter vectors of all.
        """
        printer = self.printer
        floats = all(self.held[do.into].dtype.kind == "float" for do in takes(loop))
        if count is None or count > TAKEN[-1] or not floats or not self._is_plain(loop, count):
            return {}
        every = filled(count)
        known: dict[Expr, Term] = {}
        for read in {printer.normal(read): None for read in self._reads(loop)}:
            memory = printer.memory[read.tensor]
            beside = memory.dtype.bytes == 1 and self._apart(read, loop) == Const(1)
            if not beside or printer.inside(read):
                continue
            name, function = printer.fresh("words"), f"words_of_{memory.dtype.name}"
            index = (substitute(entry, _lets(loop)) for entry in read.index)
            first = tuple(substitute(entry, {loop.name: loop.low}) for entry in index)
            offset = printer.offset(printer.normal(Read(read.tensor, first)), memory, scope)
            printer.used.add(function)
            scope.add(f"int {name}[{every}];")
            scope.add(f"{function}({name}, {memory.pointer} + {offset}, {count}, {every});")
            known[read] = Term(f"{name}[{loop.name}]", memory.dtype)
        return known

    def take_some(self, loop: Loop, present: str, scope: Scope) -> None:
        """Print a turn of lanes of which those that are present have terms; the definitions of the
        loop stand in `scope`."""
        printer, some = self.printer, scope.inner()
        some.pinned = True
        lines = []
        for item in loop.items:
            match item:
                case Do(_, _, into, slot):
                    name, held = printer.fresh("t"), self.held[into]
                    statement = self.nest.statement(item)
                    nothing = identity(statement.formula.op, held.dtype).text
                    scope.add(f"{c_type(held.dtype)} {name} = {nothing};")
                    term = term_of(printer, statement, held, some)
                    some.add(f"{name} = {term.text};")
                    lines.append(taken_into(printer, held, self.index(slot, scope), name))
                case Keep(read, buffer, place):
                    term = printer.value(printer.normal(read), some)
                    at = f"{buffer}[{self.index(place, some)}]"
                    some.add(f"{at} = {term.text};")
                    self.kept[printer.normal(read)] = Term(at, term.dtype)
        scope.attach(some, f"if ({present})")
        for line in lines:
            scope.add(line)

    def _reads(self, loop: Loop) -> Iterator[Read]:
        """Yield what lanes that take terms and keep values read from memory."""
        made = [item.read for item in loop.items if isinstance(item, Keep)]
        kept = self.kept.keys() - {self.printer.normal(read) for read in made}
        values: list[Expr] = [*made]
        for do in takes(loop):
            statement = self.nest.statement(do)
            values.append(statement.bound(statement.formula.value))
        seen: set[Expr] = set()
        while values:
            for node in walk(values.pop()):
                if not isinstance(node, Read) or node in seen:
                    continue
                seen.add(node)
                formula = self.nest.body.formula(node.tensor)
                if node.tensor in self.printer.memory:
                    yield node
                elif formula is None or formula.op != "=":
                    continue  # what comes out of a reduction is the same for all lanes of a row
                elif self.printer.normal(node) not in kept:
                    values += [part for part in bound_to(formula, node.index) if part is not None]

    def _apart(self, read: Read, loop: Loop) -> Expr:
        """Return how far what lanes beside each other read lies apart."""
        place = place_of(read, self.printer.memory[read.tensor])
        return step_of(self.printer, place, loop.name, _lets(loop))


def _lets(loop: Loop) -> dict[str, Expr]:
    return {item.name: item.value for item in loop.items if isinstance(item, Let)}
