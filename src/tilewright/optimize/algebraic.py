"""Simplify the values of formulas by rules that keep every bit.

The idea: rules (`rules.RULES`) are tried on every part of a value, innermost first, until none
applies; a rewrite that would change the type something is computed in is not made.

This module does not know the rules.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.base.dtypes import BY_NAME
from tilewright.base.expr import KEPT, Call, Const, Expr, Read, children, rebuild, substitute
from tilewright.base.sizes import same
from tilewright.graph.compose import over_values, types_of
from tilewright.graph.ir import Formula, Graph, Node, TensorType
from tilewright.graph.total import (
    Types,
    decided,
    extents_of,
    fixed_types,
    is_weak,
    map_parts,
    of_indices,
    presence,
    tidy,
)
from tilewright.graph.views import is_reduction, reduced
from tilewright.optimize.rewriting import with_formula
from tilewright.optimize.rules import RULES, Context, known_value

_ROUNDS = 32  # more than any chain of rules takes: a circle is an error


@dataclass(frozen=True, slots=True)
class Algebraic:
    """Apply the rules to every formula, and drop conditions and reductions that do nothing.

    ::

        %a = {y[i<4] = -(-x[i]) * 1}(%x)                -->   %a = {y[i<4] = x[i]}(%x)
        %b = {y[i<4] = x[i] where i >= 0}(%x)           -->   %b = {y[i<4] = x[i]}(%x)
        %c = {y[i<4] += x[i, k] * 2 for k<1}(%x)        -->   %c = {y[i<4] = x[i, 0] * 2}(%x)
    """

    name: str = "algebraic"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        types = types_of(graph)
        return replace(graph, nodes=tuple(_simplified(node, types) for node in graph.nodes))


def _simplified(node: Node, types: Types) -> Node:
    if node.formula is None:
        return node
    before = over_values(node)
    after = simplified(before, types)
    return node if after == before else with_formula(node, after, types)


def simplified(formula: Formula, types: Types) -> Formula:
    """Return an equal formula to whose parts no rule applies; operands are named by values."""
    known = fixed_types(formula, types)
    return _simpler(formula, types) if known is None else _kept_simpler(formula, known)


@lru_cache(KEPT)
def _kept_simpler(formula: Formula, operands: tuple[TensorType, ...]) -> Formula:
    return _simpler(formula, dict(zip(formula.operands, operands, strict=True)))


def _simpler(formula: Formula, types: Types) -> Formula:
    extents = extents_of(formula)
    dtypes = {name: types[name].dtype for name in formula.operands}
    context = Context(dtypes, extents)
    made = map_parts(formula, lambda part: rewritten(part, context))
    if made.where is not None and decided(made.where, extents) is True:
        made = replace(made, where=None)
    return _assigned(made, types)


def rewritten(value: Expr, context: Context) -> Expr:
    """Apply the rules to a value and everything below it."""
    parts = tuple(rewritten(part, context) for part in children(value))
    if parts:
        value = rebuild(value, parts)
    if isinstance(value, Read) or of_indices(value):
        return tidy(value, context.extents)
    for _ in range(_ROUNDS):
        found = _step(value, context)
        if found is None:
            return value
        value = found
    raise AssertionError(f"the rules go in a circle at {value}")


def _step(value: Expr, context: Context) -> Expr | None:
    if not isinstance(value, Call):
        return None
    loose = _with_loose_numbers(value, context)
    if loose is not None:
        return loose
    for rule in RULES:
        found = rule(value, context)
        if found is None or found == value:
            continue
        if context.dtype(found) == context.dtype(value) and (
            is_weak(found) == is_weak(value) or context.dtype(value).kind == "bool"
        ):
            return found
    return None


def _with_loose_numbers(value: Call, context: Context) -> Expr | None:
    """f(x, f32(2.0)) --> f(x, 2.0) where x alone gives the type that both are computed in."""
    if len(value.args) < 2:
        return None
    kinds = [context.exact(arg) for arg in value.args]
    if any(kind.compute != kind for kind in kinds):
        return None  # a number beside a half type is rounded to it
    for at, arg in enumerate(value.args):
        match arg:
            case Call(fn, (Const(),)) if fn in BY_NAME:
                number = known_value(arg, context)
                if number is None:
                    continue
                made = Call(value.fn, (*value.args[:at], number, *value.args[at + 1 :]))
                if _common(made, context) == _common(value, context):
                    return made
    return None


def _common(value: Call, context: Context) -> tuple[object, bool, object]:
    """Return the type that the arguments meet in, whether it is weak, and the result's type."""
    args = value.args[-2:]
    met = Call("max", args)
    return context.dtype(met), is_weak(met), context.dtype(value)


def _assigned(formula: Formula, types: Types) -> Formula:
    """Write a reduction over single iterations as an assignment: the term is the result."""
    if formula.op not in ("+=", "*=", "max=", "min=") or not is_reduction(formula):
        return formula
    extents = extents_of(formula)
    ones = {loop.name: Const(0) for loop in reduced(formula)}
    if any(not same(extents[name], 1) for name in ones) or isinstance(formula.fill, Read):
        return formula
    if formula.where is not None or presence(formula.value, types, extents):
        return formula
    loops = tuple(loop for loop in formula.loops if loop.name not in ones)
    value = tidy(substitute(formula.value, ones), extents)
    return replace(formula, op="=", loops=loops, value=value)
