"""What a kernel is made from: the formulas of a body under canonical names, each target solved.

The idea: names say nothing about what is computed, so they are replaced (inputs `a0 a1 ...`, values
`v0 v1 ...`), and two bodies that compute the same give the same text.  A target such as
`y[i + 5] = x[i]` is turned around into `y[t] = x[t - 5] where 5 <= t`, so that every result
element is computed at one place; only targets that are read (`y[ids[r], d] +=`) stay as they are.

This module does not know C, nor how a body is cut into loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL, I64, DType, promote
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
from tilewright.base.sizes import nominal, same
from tilewright.graph.build import prune
from tilewright.graph.ir import FORMULA, Formula, Graph, Loop, TensorType


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor in memory that the kernel reads: its type, and how far apart its elements lie."""

    name: str
    type: TensorType
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """Formulas in order, whose operands are inputs or earlier formulas, under canonical names.

    spread: the outputs that are not contiguous, each with its strides in elements.
    """

    inputs: tuple[Input, ...]
    formulas: tuple[tuple[str, Formula], ...]
    outputs: tuple[str, ...]
    spread: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def formula(self, name: str) -> Formula | None:
        """Return the formula that makes the value of that name; None for an input."""
        for known, formula in self.formulas:
            if known == name:
                return formula
        return None

    def type(self, name: str) -> TensorType:
        """Return the type of an input or a value."""
        formula = self.formula(name)
        if formula is not None:
            return formula.type
        return next(tensor.type for tensor in self.inputs if tensor.name == name)

    def strides(self, name: str) -> tuple[int, ...]:
        """Return how far apart the elements of an input or a value lie."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor.strides
        return dict(self.spread).get(name) or contiguous(static_shape(self.type(name)))


# --------------------------------------------------------------------------------- making a body


def canonical(graph: Graph, strides: Mapping[str, tuple[int, ...]]) -> Body:
    """Rename everything in a graph of formula nodes; `strides` are of inputs and of outputs that
    are no inputs, in elements."""
    renamed: dict[str, str] = {}
    inputs: list[Input] = []
    for value in graph.inputs:
        shape = static_shape(value.type)
        steps = strides.get(value.name, contiguous(shape))
        assert len(steps) == len(shape), f"{value.name}: {len(steps)} strides for {shape}"
        renamed[value.name] = f"a{len(inputs)}"
        inputs.append(Input(renamed[value.name], value.type, steps))
    formulas: list[tuple[str, Formula]] = []
    for node in prune(graph).nodes:
        assert node.op == FORMULA and node.formula is not None, f"a body holds formulas: {node.op}"
        name = f"v{len(formulas)}"
        operands = tuple(renamed[value.name] for value in node.inputs)
        formulas.append((name, rename(node.formula, operands)))
        renamed[node.output.name] = name
    outputs: list[str] = []
    spread: list[tuple[str, tuple[int, ...]]] = []
    for value in graph.outputs:
        name = renamed[value.name]
        if name.startswith("v") and value.name in strides:
            assert name not in outputs, f"{value.name} is two results: which one lies apart?"
            spread.append((name, strides[value.name]))
        if name in outputs or name.startswith("a"):  # a result of its own, in memory of its own
            copy = f"v{len(formulas)}"
            formulas.append((copy, copy_of(name, value.type)))
            name = copy
        outputs.append(name)
    return Body(tuple(inputs), tuple(formulas), tuple(outputs), tuple(spread))


def rename(formula: Formula, operands: tuple[str, ...]) -> Formula:
    """Give a formula the operands named and loops `i0 i1 ...`; loops of extent 1 become index 0."""
    extents = static_extents(formula)
    tensors = dict(zip(formula.operands, operands, strict=True))
    loops: dict[str, Expr] = {}
    kept: list[Loop] = []
    for loop in formula.loops:
        if same(extents[loop.name], 1):
            loops[loop.name] = Const(0)
        else:
            loops[loop.name] = Sym(f"i{len(kept)}")
            kept.append(Loop(f"i{len(kept)}", loop.extent))
    fresh = {loop.name: size for loop, size in ((k, _int(k.extent)) for k in kept)}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Read):
            index = tuple(algebra.simplify(entry, fresh) for entry in node.index)
            return Read(tensors[node.tensor], index, node.default)
        return node

    def moved(part: Expr) -> Expr:
        return transform(substitute(part, loops), visit)

    return replace(
        formula,
        operands=tuple(dict.fromkeys(operands)),
        loops=tuple(kept),
        index=tuple(algebra.simplify(moved(entry), fresh) for entry in formula.index),
        value=moved(formula.value),
        where=None if formula.where is None else moved(formula.where),
        at=None if formula.at is None else moved(formula.at),
        fill=Read(tensors[formula.fill.tensor], ())
        if isinstance(formula.fill, Read)
        else moved(formula.fill),
    )


def copy_of(tensor: str, type_: TensorType) -> Formula:
    """Return `y[...] = tensor[...]`."""
    loops = tuple(Loop(f"i{k}", n) for k, n in enumerate(n for n in static_shape(type_) if n != 1))
    index = _identity(static_shape(type_))
    return Formula((tensor,), loops, index, "=", Read(tensor, index), type_)


def _identity(shape: tuple[int, ...]) -> tuple[Expr, ...]:
    count = iter(range(len(shape)))
    return tuple(Const(0) if n == 1 else Sym(f"i{next(count)}") for n in shape)


def _int(dim: object) -> int:
    assert isinstance(dim, int), f"a kernel is made for static extents, not {dim}"
    return dim


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """Return the shape, every entry of which must be a number."""
    return tuple(_int(dim) for dim in type_.shape)


def static_extents(formula: Formula) -> dict[str, int]:
    """Return the loops' extents, all of which must be numbers."""
    return {loop.name: _int(loop.extent) for loop in formula.loops}


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def volume(extents: tuple[int, ...] | list[int]) -> int:
    """Return the product."""
    total = 1
    for extent in extents:
        total *= extent
    return total


# -------------------------------------------------------------------------------- facts and forms


@lru_cache(KEPT)
def has_read(expr: Expr) -> bool:
    """Say whether an expression reads a tensor."""
    return any(isinstance(node, Read) for node in walk(expr))


def is_gather(formula: Formula) -> bool:
    """Say whether each result element is one assignment of the loops that the target names bare."""
    extents = static_extents(formula)
    seen: set[str] = set()
    for entry, dim in zip(formula.index, static_shape(formula.type), strict=True):
        match entry:
            case Const(0) if dim == 1:
                continue
            case Sym(name) if name not in seen and extents.get(name) == dim:
                seen.add(name)
            case _:
                return False
    return True


def parallel(formula: Formula) -> tuple[str, ...]:
    """Return the loops that the target names, in the order of the formula's loops."""
    used = frozenset(name for entry in formula.index for name in names(entry))
    return tuple(loop.name for loop in formula.loops if loop.name in used)


def reductions(formula: Formula) -> tuple[str, ...]:
    """Return the loops that the target does not name."""
    used = parallel(formula)
    return tuple(loop.name for loop in formula.loops if loop.name not in used)


def is_pointwise(formula: Formula) -> bool:
    """Say whether each result element is one term, so that it may be computed where it is read."""
    return formula.op == "=" and is_gather(formula) and not reductions(formula)


def may_choose(formula: Formula) -> bool:
    """Say whether some of what it reads may be needed for some of its elements only."""
    chosen = any(
        node.fn == "select" if isinstance(node, Call) else isinstance(node, Read) and node.default
        for node in walk(formula.value)
    )
    return formula.op != "=" or formula.where is not None or chosen


_MOST = 8  # times as many terms as there are may be asked for, to have no scatter


def solved(formula: Formula) -> Formula:
    """Turn the target around, entry by entry, where that can be done.

    ::

        y[i + 5] = x[i]              -->  y[t] = x[t - 5] where t - 5 >= 0 and t - 5 < extent
        y[2*i] += x[i]               -->  y[t] += x[t // 2] where t % 2 == 0 and ...
        y[4*i + j] = x[i, j]         -->  y[t] = x[t // 4, t % 4]
        y[h + k] += x[h] * w[k]      -->  y[t] += x[t - k] * w[k] where t - k >= 0 and ...
    """
    if any(extent == 0 for extent in static_extents(formula).values()):
        return _only_fill(formula)
    if is_gather(formula):
        return _single_term(formula) if formula.op != "=" and not reductions(formula) else formula
    if any(has_read(entry) for entry in formula.index):
        return formula
    binding: dict[str, Expr] = {}
    loops = list(formula.loops)
    conditions: list[Expr] = []
    targets: list[Loop] = []
    for dim, (entry, extent) in enumerate(
        zip(formula.index, static_shape(formula.type), strict=True)
    ):
        others = [name for at, e in enumerate(formula.index) if at != dim for name in names(e)]
        targets.append(Loop(f"t{dim}", extent))
        # An entry whose loops other entries use as well (a diagonal) stays a condition.
        found, needs = _solve(entry, Sym(f"t{dim}"), static_extents(formula), frozenset(others))
        binding |= found
        conditions += needs
        loops = [loop for loop in loops if loop.name not in found]
    where = None if formula.where is None else substitute(formula.where, binding)
    for condition in conditions:
        where = condition if where is None else Call("and", (where, condition))
    made = replace(
        formula,
        loops=(*targets, *loops),
        index=tuple(Sym(loop.name) for loop in targets),
        value=substitute(formula.value, binding),
        where=where,
        at=None if formula.at is None else substitute(formula.at, binding),
    )
    # A target that cannot be solved (a quotient) would have every element ask for every term.
    if _terms(made) > _MOST * _terms(formula):
        return formula
    return solved(rename(made, made.operands))


def _terms(formula: Formula) -> int:
    return nominal(volume(tuple(static_extents(formula).values())))


def _single_term(formula: Formula) -> Formula:
    """Write a reduction over no loops as an assignment.

    ::

        y[i] += x[i] from t   -->   y[i] = t[i] + x[i] from t
        y[i] max= x[i]        -->   y[i] = x[i]
    """
    dtype = formula.type.dtype
    if formula.op in ("argmax=", "argmin="):
        assert formula.at is not None, f"{formula.op} says what index to keep"
        guard = Call("ne", (formula.value, Const(0)))  # the value is asked for only if it is there
        value: Expr = Call("select", (Call("or", (guard, Const(True))), formula.at, formula.at))
        return replace(formula, op="=", value=value, at=None)
    name = "bool" if formula.op in ("any=", "all=") else dtype.compute.name
    value = Call(name, (formula.value,))
    if isinstance(formula.fill, Read):
        fn = {"+=": "add", "*=": "mul", "any=": "or", "all=": "and"}.get(
            formula.op, formula.op[:-1]
        )
        fn = {"add": "or", "mul": "and"}.get(fn, fn) if dtype == BOOL else fn
        value = Call(fn, (Read(formula.fill.tensor, formula.index), value))
    return replace(formula, op="=", value=value)


def _solve(
    entry: Expr, target: Expr, extents: Mapping[str, int], taken: frozenset[str]
) -> tuple[dict[str, Expr], list[Expr]]:
    """Find what loops that only this entry uses are where it is `target`, and when they exist."""
    constant, terms = algebra.affine(entry)
    free = sorted(
        (abs(factor), extents[atom.name], atom.name)
        for atom, factor in terms.items()
        if isinstance(atom, Sym)
        and atom.name in extents
        and atom.name not in taken
        and not any(atom.name in names(other) for other in terms if other != atom)
    )
    if not free:
        return {}, [Call("eq", (target, entry))]
    if len(free) == len(terms) and min(terms.values()) > 0 and _nested(free):
        chosen = free  # digits of a mixed radix: all at once
    else:
        # One loop, the longest of those with the smallest step; the others become reductions.
        chosen = [min(free, key=lambda item: (item[0], -item[1]))]
    bound = {Sym(name) for _, _, name in chosen}
    rest = algebra.from_affine(constant, {a: f for a, f in terms.items() if a not in bound})
    sign = terms[Sym(chosen[0][2])]
    distance = Call("sub", (target, rest) if sign > 0 else (rest, target))
    needs: list[Expr] = []
    if chosen[0][0] > 1:
        needs.append(Call("eq", (Call("mod", (distance, Const(chosen[0][0]))), Const(0))))
    found: dict[str, Expr] = {}
    for at, (factor, extent, name) in enumerate(chosen):
        value: Expr = Call("floordiv", (distance, Const(factor)))
        if at + 1 < len(chosen):
            value = Call("mod", (value, Const(chosen[at + 1][0] // factor)))
        else:
            needs.append(Call("ge", (value, Const(0))))
        found[name] = value
        needs.append(Call("lt", (value, Const(extent))))
    return found, needs


def _nested(digits: list[tuple[int, int, str]]) -> bool:
    """Say whether no two assignments of the loops, each (step, extent, name), give the same sum."""
    pairs = pairwise(digits)
    return all(b[0] % a[0] == 0 and a[0] * a[1] <= b[0] for a, b in pairs)


def _only_fill(formula: Formula) -> Formula:
    """Return what a formula without a single term is: its fill everywhere."""
    shape = static_shape(formula.type)
    index = _identity(shape)
    loops = tuple(Loop(f"i{k}", n) for k, n in enumerate(n for n in shape if n != 1))
    value = formula.fill
    operands: tuple[str, ...] = ()
    if isinstance(value, Read):
        operands, value = (value.tensor,), Read(value.tensor, index)
    return Formula(operands, loops, index, "=", value, formula.type)


def accumulator(formula: Formula, value: DType) -> DType:
    """Return the type that terms of type `value` are combined in."""
    if formula.op in ("any=", "all="):
        return BOOL
    if formula.op in ("+=", "*="):
        wide = promote(value.compute, formula.type.dtype.compute)
        return wide if wide.kind == "float" else I64
    return value.compute
