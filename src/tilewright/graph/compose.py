"""Compose formulas: put what makes an operand in the place of the reads of it.

The idea: a formula that writes each element once is a function of the element's index (`total`), so
a read of its result is that function at the read's index::

    p[i<4] = x[i] if i < 3 else 7,  y[j<2] += p[j*2] * w[j]
        -->  y[j<2] += (x[j*2] if j*2 < 3 else 7) * w[j]

A read that may be outside the producer keeps its meaning: its term stays absent, its default is
taken.  What the producer's storing rounded stays rounded: a cast stands in its place.

Operands are named by the values they are (`over_values`), so that one name is one tensor.

This module does not decide what is worth composing.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tilewright.base import algebra
from tilewright.base.expr import KEPT, Call, Expr, Read, Sym, reads, substitute, transform, walk
from tilewright.graph.ir import Formula, Graph, Node, TensorType
from tilewright.graph.notation import operand_order
from tilewright.graph.total import (
    TRUE,
    Extents,
    Types,
    conjunction,
    extents_of,
    fixed,
    floored,
    implied,
    inside,
    map_parts,
    negation,
    safe,
    stored,
    tidy,
    total,
)


def over_values(node: Node) -> Formula:
    """Return the node's formula with each operand named by the value that it is."""
    formula = node.formula
    assert formula is not None, f"{node.op} has no loops"
    values = (value.name for value in node.inputs)
    return rename_operands(formula, dict(zip(formula.operands, values, strict=True)))


def rename_operands(formula: Formula, mapping: Mapping[str, str]) -> Formula:
    """Rename operands everywhere in a formula; two that get one name become one operand."""
    names = tuple([mapping.get(name, name) for name in formula.operands])
    return formula if names == formula.operands else _renamed(formula, names)


@lru_cache(KEPT)
def _renamed(formula: Formula, names: tuple[str, ...]) -> Formula:
    mapping = dict(zip(formula.operands, names, strict=True))

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            return Read(mapping.get(node.tensor, node.tensor), node.index, node.default)
        return node

    def rename(part: Expr) -> Expr:
        return transform(part, visit)

    return replace(
        formula,
        operands=tuple(dict.fromkeys(names)),
        index=tuple(rename(entry) for entry in formula.index),
        value=rename(formula.value),
        where=None if formula.where is None else rename(formula.where),
        at=None if formula.at is None else rename(formula.at),
        fill=rename(formula.fill),
    )


def types_of(graph: Graph) -> dict[str, TensorType]:
    """Return the types of all values of a graph, by name."""
    found = {value.name: value.type for value in graph.inputs}
    for node in graph.nodes:
        found.update((value.name, value.type) for value in node.outputs)
    return found


def compose(consumer: Formula, operand: str, producer: Formula, types: Types) -> Formula | None:
    """Return `consumer` with every read of `operand` replaced by `producer`'s value there.

    Both name their operands by values; `types` gives the types of those.  None where the producer
    is no function of the element (`total`), or the read is one that cannot be replaced: `from` the
    operand, or an indirect index that would be checked against another tensor.
    """
    made = total(producer, types)
    if made is None or (isinstance(consumer.fill, Read) and consumer.fill.tensor == operand):
        return None
    inlining = _Inlining(operand, made, types, extents_of(consumer))
    composed = map_parts(consumer, lambda part: inlining.expr(part, ()))
    if inlining.refused:
        return None
    where = composed.where
    if inlining.needed:
        present = [*([] if where is None else [where]), *inlining.needed]
        guard = conjunction(present, inlining.extents)
        where = None if guard == TRUE else guard
    composed = replace(composed, where=where)
    return replace(composed, operands=operand_order(composed))


class _Inlining:
    """One composition in the making: what it needs to be present, and whether it is refused."""

    def __init__(self, operand: str, made: Formula, types: Types, extents: Extents) -> None:
        self.operand = operand
        self.made = made
        self.types = {**types, operand: made.type}
        self.extents = extents
        self.needed: list[Expr] = []
        self.refused = False

    def expr(self, expr: Expr, path: tuple[Expr, ...]) -> Expr:
        """Rewrite an expression that is evaluated where all of `path` hold."""
        match expr:
            case Read(tensor, index, default):
                entries = tuple(self.expr(entry, path) for entry in index)
                if default is not None:
                    bounds = inside(Read(tensor, entries), self.types, self.extents)
                    outside = negation(conjunction(bounds, self.extents))
                    default = self.expr(default, (*path, outside))
                if tensor != self.operand:
                    return tidy(Read(tensor, entries, default), self.extents)
                return self._inlined(entries, default, path)
            case Call("select", (cond, yes, no)):
                test = self.expr(cond, path)
                taken = self.expr(yes, (*path, test))
                other = self.expr(no, (*path, negation(test)))
                return Call("select", (test, taken, other))
            case Call(fn, args):
                return Call(fn, tuple(self.expr(arg, path) for arg in args))
        return expr

    def _inlined(
        self, index: tuple[Expr, ...], default: Expr | None, path: tuple[Expr, ...]
    ) -> Expr:
        made = self.made
        if not all(self._checked_alike(at, entry) for at, entry in enumerate(index)):
            self.refused = True
        index = tuple(algebra.simplify(entry, self.extents) for entry in index)
        present = inside(Read(self.operand, index), self.types, self.extents)
        loops = [entry.name for entry in made.index if isinstance(entry, Sym)]
        bindings = {name: floored(entry) for name, entry in zip(loops, index, strict=True)}
        value = tidy(substitute(made.value, bindings), self.extents)
        value = stored(value, made.type.dtype, self.types)
        if not present:
            return value
        if default is not None:
            guard = conjunction(present, self.extents)
            return Call("select", (guard, value, default)) if guard != TRUE else value
        needed = (implied(path, part) for part in present)
        self.needed += [safe(part, self.types, self.extents) for part in needed]
        return value

    def _checked_alike(self, at: int, entry: Expr) -> bool:
        """Say whether an indirect index is still checked, and against the same extent."""
        if not reads(entry):
            return True
        loop, extent = self.made.index[at], fixed(self.made.type.shape[at])
        checked = False
        for read in _always_read(self.made.value):
            sizes = self.types[read.tensor].shape
            checked |= any(
                own == loop and size == extent for own, size in zip(read.index, sizes, strict=True)
            )
        # A default is for direct indices: an indirect one would be an error instead.
        defaulted = any(
            read.default is not None and any(loop in walk(own) for own in read.index)
            for read in reads(self.made.value)
        )
        return checked and not defaulted


def _always_read(value: Expr) -> list[Read]:
    """Return the reads made whatever the selects in a value decide."""
    match value:
        case Read():
            return [value, *(read for entry in value.index for read in _always_read(entry))]
        case Call("select", (cond, _, _)):
            return _always_read(cond)
        case Call(_, args):
            return [read for arg in args for read in _always_read(arg)]
    return []
