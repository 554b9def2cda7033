"""What a kernel asks of the integers that it reads: that indices point into their tensors, and that
divisors are not 0.

The idea: the printer says of each term when it is an error.  Said over the names of the tensors,
two kernels that ask the same of the same tensor can be told to: after the first, the second does
not refuse.

This module does not know what is done with the answer.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import I64
from tilewright.base.expr import (
    KEPT,
    Call,
    Const,
    Expr,
    Read,
    Sym,
    names,
    substitute,
    transform,
    walk,
)
from tilewright.base.syntax import show
from tilewright.graph.ir import Formula, Graph
from tilewright.kernels.body import (
    Body,
    canonical,
    contiguous,
    has_read,
    is_pointwise,
    static_extents,
    static_shape,
    volume,
)
from tilewright.kernels.emit import choose, memory_of, solved_body
from tilewright.kernels.expression import Fault, Memory, Printer, bound_to


@dataclass(frozen=True, slots=True)
class Demand:
    """That for no values of the loops `wrong` holds where all of `where` do.

    wrong, where: over loops and reads of the graph's inputs, by name.  loops: (name, extent).
    """

    wrong: Expr
    where: tuple[Expr, ...]
    loops: tuple[tuple[str, int], ...]

    @property
    def entry(self) -> tuple[Expr, int] | None:
        """What must be an index, and of how many; None where it is a divisor that must not be 0."""
        match self.wrong:
            case Call("or", (Call("lt", (entry, Const(0))), Call("ge", (_, Const(extent))))):
                assert isinstance(extent, int), "an extent"
                return entry, extent
        return None

    @property
    def said(self) -> tuple[str, frozenset[str]]:
        """It as text: what is wrong, and where; loops have names that their order gives them."""
        order = dict.fromkeys(name for part in (self.wrong, *self.where) for name in _loops(part))
        extents = dict(self.loops)
        mapping: dict[str, Expr] = {name: Sym(f"l{at}") for at, name in enumerate(order)}

        def text(part: Expr) -> str:
            over = (f"{show(mapping[name])}<{extents[name]}" for name in _loops(part))
            return f"{show(substitute(part, mapping))} for {', '.join(over)}"

        return text(self.wrong), frozenset(map(text, self.where))


@dataclass(frozen=True, slots=True)
class Demands:
    """All that a kernel asks.

    sure: what it asks of every value of the loops.  others: what it may ask besides, of values that
    have no place in memory; `unknown`: whether some of that cannot be said.
    """

    sure: tuple[Demand, ...] = ()
    others: tuple[Demand, ...] = ()
    unknown: bool = False


def demands(graph: Graph, names: Sequence[str]) -> Demands:
    """Return what the kernel of a body asks; names: what its inputs are called in the answer."""
    formulas = (node.formula for node in graph.nodes)
    if not any(formula is None or _may_ask(formula) for formula in formulas):
        return Demands()  # as of most, whose canonical form is not needed to say so
    found = _demands(canonical(graph, {}))
    if found == Demands():
        return found
    mapping = {f"a{at}": name for at, name in enumerate(names)}

    def named(made: Demand) -> Demand:
        where = tuple(_renamed(part, mapping) for part in made.where)
        return Demand(_renamed(made.wrong, mapping), where, made.loops)

    return Demands(tuple(map(named, found.sure)), tuple(map(named, found.others)), found.unknown)


@functools.lru_cache(maxsize=1024)
def _demands(plain: Body) -> Demands:
    if not any(_may_ask(formula) for _, formula in plain.formulas):
        return Demands()
    body = solved_body(plain)
    choice = choose(body)
    plainly = choice.plan is None and choice.scatter is None
    body = plain if plainly else body
    memory = memory_of(body)
    for name, formula in body.formulas if plainly else ():  # each in memory, computed as a whole
        shape = static_shape(formula.type)
        memory.setdefault(name, Memory(name, formula.type.dtype, shape, contiguous(shape)))
    known = memory if plainly else {t.name: memory[t.name] for t in body.inputs}
    sure: list[Demand] = []
    others: list[Demand] = []
    unknown = False
    for name, formula in body.formulas:
        if not (plainly or name in body.outputs or not is_pointwise(formula)):
            continue  # asked where it is read
        printer = Printer(body, known)
        printer.enter(static_extents(formula))
        if volume(list(printer.extents.values())) == 0 or volume(static_shape(formula.type)) == 0:
            continue
        for fault in _faults(printer, formula):
            made = _demand(body, fault, printer.extents)
            if made is None:
                unknown = True
            else:
                (sure if plainly or name in body.outputs else others).append(made)
    return Demands(tuple(dict.fromkeys(sure)), tuple(dict.fromkeys(others)), unknown)


def _may_ask(formula: Formula) -> bool:
    parts = (formula.value, formula.where, formula.at, *formula.index)
    asks = any(part is not None and _part_may_ask(part) for part in parts)
    return asks or any(map(has_read, formula.index))


@functools.lru_cache(KEPT)
def _part_may_ask(part: Expr) -> bool:
    nodes = list(walk(part))
    indirect = any(isinstance(n, Read) and any(map(has_read, n.index)) for n in nodes)
    return indirect or any(
        isinstance(n, Call) and n.fn in ("floordiv", "mod", "fmod") for n in nodes
    )


def _faults(printer: Printer, formula: Formula) -> Iterator[Fault]:
    """Yield when a formula's terms are errors, as the recipes check it."""
    index = [entry for entry in formula.index if has_read(entry)]
    parts = [formula.value, *([] if formula.at is None else [formula.at]), *index]
    present = [c for part in parts for c in printer.presence(part)]
    found = [fault for part in parts for fault in printer.faults(part)]
    if formula.where is not None:
        present += printer.presence_where(formula.value, formula.where)
        yield from printer.faults(formula.where)
    if index:
        shape = static_shape(formula.type)
        present += printer.landing(formula.index, shape)
        found += printer.index_faults(formula.index, shape)
    for fault in found:
        yield Fault((*dict.fromkeys(present), *fault.conditions), fault.code)


def _demand(body: Body, fault: Fault, extents: Mapping[str, int]) -> Demand | None:
    """Say a fault over the inputs alone, if that can be."""
    *where, wrong = (_over_inputs(body, part) for part in fault.conditions)
    stated = [part for part in where if part is not None]
    if wrong is None or len(stated) < len(where):
        return None
    used = {name for part in (wrong, *stated) for name in names(part)}
    loops = tuple((name, extent) for name, extent in extents.items() if name in used)
    return Demand(wrong, tuple(stated), loops)


def _over_inputs(body: Body, part: Expr) -> Expr | None:
    """Put integers that are computed on the way in the place of their names."""
    formulas = dict(body.formulas)
    fits = True

    def visit(node: Expr) -> Expr:
        nonlocal fits
        formula = formulas.get(node.tensor) if isinstance(node, Read) else None
        if formula is None or not isinstance(node, Read):
            return node
        plain = is_pointwise(formula) and formula.where is None and node.default is None
        if (
            not plain
            or formula.type.dtype != I64
            or Printer(body, {}).type_of(formula.value) != I64
        ):
            fits = False
            return node
        return transform(bound_to(formula, node.index)[0], visit)

    made = transform(part, visit)
    return made if fits else None


def _renamed(part: Expr, mapping: Mapping[str, str]) -> Expr:
    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            return Read(mapping[node.tensor], node.index, node.default)
        return node

    return transform(part, visit)


def _loops(part: Expr) -> list[str]:
    """Return the loops that an expression names, in their order."""
    return list(dict.fromkeys(node.name for node in walk(part) if isinstance(node, Sym)))
