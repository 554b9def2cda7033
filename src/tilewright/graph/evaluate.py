"""The oracle: run a graph with NumPy, by the operators' meaning.

The idea: a node that carries a formula is its formula, a fused node is its body, control flow runs
its sub-graphs one step after another, a composite operator is what `expand` says it is, and a
library call is what `library` computes; nothing else has a meaning here.
`wide` computes all floats in float64 and rounds nothing.

A run is a generator: it stops where its rank meets others (`Meeting`), and goes on with what came
of it.  This module does not know who meets (`ranks`), the operator table nor torch: these come in
as arguments.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilewright.base import algebra
from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, DTypeError, GraphError, Origin, ShapeError
from tilewright.base.expr import Const, Expr, Sym, substitute
from tilewright.graph.control import scan_of, while_of
from tilewright.graph.evaluate_contraction import evaluate_contraction
from tilewright.graph.evaluate_grid import evaluate_grid
from tilewright.graph.evaluate_scalar import Array, held
from tilewright.graph.ir import (
    COND,
    CONSTANT,
    CUSTOM,
    FUSED,
    LIBRARY,
    SCAN,
    WHILE,
    Dim,
    Formula,
    Graph,
    Loop,
    Node,
    TensorType,
    Value,
)

Library = Callable[[Node, Sequence[Array]], Sequence[Array]]
Expand = Callable[[Node], Graph | None]
Watch = Callable[[Node, Sequence[Array]], None]
Across = Callable[[Node], Formula | None]
Sizes = Mapping[str, int]


class EvaluateFormula(Protocol):
    """A way of evaluating formulas: the fast one here, or `evaluate_naive`."""

    def __call__(
        self,
        formula: Formula,
        arrays: Sequence[Array],
        *,
        wide: bool = False,
        origin: Origin = UNKNOWN,
    ) -> Array: ...


def evaluate_formula(
    formula: Formula, arrays: Sequence[Array], *, wide: bool = False, origin: Origin = UNKNOWN
) -> Array:
    """Return a formula's result for operands in its order; all its extents are plain numbers."""
    result = evaluate_contraction(formula, arrays, wide=wide)
    if result is None:
        result = evaluate_grid(formula, arrays, wide=wide, origin=origin)
    return result


@dataclass(frozen=True, slots=True)
class Meaning:
    """What nodes without loops of their own mean, and how loops are evaluated.

    across: gives a collective's loops over the values of all ranks of its group.
    """

    library: Library | None = None
    expand: Expand | None = None
    formula: EvaluateFormula = evaluate_formula
    watch: Watch | None = None
    wide: bool = False
    across: Across | None = None


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective that a run has come to: its node, its loops, and what this rank brings."""

    node: Node
    loops: Formula
    array: Array


Run = Generator[Meeting, Array, tuple[Array, ...]]


def evaluate(
    graph: Graph,
    inputs: Sequence[Array] | Mapping[str, Array],
    *,
    library: Library | None = None,
    expand: Expand | None = None,
    formula: EvaluateFormula = evaluate_formula,
    watch: Watch | None = None,
    wide: bool = False,
) -> tuple[Array, ...]:
    """Return the graph's outputs.

    inputs: arrays in the order of the graph's inputs, or by name.  library: computes a library
    node from its operands.  expand: gives a composite node's graph.  watch: sees every node with
    its results.  Raises ShapeError or DTypeError for inputs that do not fit, IndexRangeError for
    an index outside its tensor, GraphError for a node without a meaning.
    """
    alone = begin(graph, inputs, Meaning(library, expand, formula, watch, wide))
    try:
        next(alone)
    except StopIteration as end:
        found: tuple[Array, ...] = end.value
        return found
    raise AssertionError("a graph without `across` meets nobody")


def begin(graph: Graph, inputs: Sequence[Array] | Mapping[str, Array], meaning: Meaning) -> Run:
    """Return the run of a graph; its inputs are checked, and nothing is computed yet."""
    if isinstance(inputs, Mapping):
        missing = [value.name for value in graph.inputs if value.name not in inputs]
        if missing:
            raise GraphError(f"{graph.name} has no value for its input {missing[0]!r}")
        inputs = [inputs[value.name] for value in graph.inputs]
    arrays = [np.asarray(array) for array in inputs]
    sizes = _bind_sizes(graph, arrays)
    checked = [
        _checked(value, array, sizes, wide=meaning.wide)
        for value, array in zip(graph.inputs, arrays, strict=True)
    ]
    return _run(graph, checked, sizes, meaning)


def _run(graph: Graph, inputs: Sequence[Array], sizes: Sizes, meaning: Meaning) -> Run:
    values = dict(zip((value.name for value in graph.inputs), inputs, strict=True))
    kept = {value.name for value in graph.outputs}
    last = {value.name: node for node in graph.nodes for value in node.inputs}
    for node in graph.nodes:
        arrays = [values[value.name] for value in node.inputs]
        results = yield from _node(node, arrays, sizes, meaning)
        if meaning.watch is not None:
            meaning.watch(node, results)
        values.update(zip((value.name for value in node.outputs), results, strict=True))
        for name in {value.name for value in node.inputs} - kept:
            if last[name] is node:
                del values[name]
    return tuple(values[value.name] for value in graph.outputs)


def _node(node: Node, arrays: list[Array], sizes: Sizes, meaning: Meaning) -> Run:
    wide = meaning.wide
    types = [_static_type(value.type, sizes) for value in node.outputs]
    if node.op == CONSTANT:
        dtype = held(types[0].dtype, wide=True) if wide else types[0].dtype.numpy
        made: Sequence[Array] = [np.array(node.attr("value"), dtype=dtype)]
    elif node.op in (FUSED, CUSTOM):
        made = yield from _run(node.graphs[0], arrays, sizes, meaning)
    elif node.op in _CONTROL:
        made = yield from _CONTROL[node.op](node, arrays, sizes, meaning)
    elif node.formula is not None:
        formula = static_formula(node.formula, sizes)
        made = [meaning.formula(formula, arrays, wide=wide, origin=node.origin)]
    elif node.op == LIBRARY:
        made = _library(node, arrays, meaning)
    elif meaning.across is not None and (loops := meaning.across(node)) is not None:
        made = [(yield Meeting(node, loops, arrays[0]))]
    else:
        made = yield from _run(_expansion(node, meaning), arrays, sizes, meaning)
    return tuple(
        _fitting(node, np.asarray(array), type_, wide=wide)
        for array, type_ in zip(made, types, strict=True)
    )


def _scan(node: Node, arrays: list[Array], sizes: Sizes, meaning: Meaning) -> Run:
    scan = scan_of(node)
    parts = scan.part(arrays)
    carries = list(parts.carries)
    made: list[list[Array]] = [[] for _ in node.outputs[scan.carries :]]
    for at in scan.order():
        elements = [sequence[at] for sequence in parts.sequences]
        found = yield from _run(scan.body, [*carries, *elements, *parts.closed], sizes, meaning)
        carries = list(found[: scan.carries])
        for results, result in zip(made, found[scan.carries :], strict=True):
            results.append(result)
    stacked = []
    for value, results in zip(node.outputs[scan.carries :], made, strict=True):
        shape = [extent(dim, sizes) for dim in value.type.shape]
        array = np.empty(shape, dtype=_kept(value.type.dtype, wide=meaning.wide))
        for at, result in zip(scan.order(), results, strict=True):
            array[at] = result
        stacked.append(array)
    return (*carries, *stacked)


def _cond(node: Node, arrays: list[Array], sizes: Sizes, meaning: Meaning) -> Run:
    branch = node.graphs[0 if arrays[0] else 1]
    return (yield from _run(branch, arrays[1:], sizes, meaning))


def _while(node: Node, arrays: list[Array], sizes: Sizes, meaning: Meaning) -> Run:
    loop = while_of(node)
    carries, closed = arrays[: loop.carries], arrays[loop.carries :]
    while (yield from _run(loop.test, [*carries, *closed], sizes, meaning))[0]:
        carries = list((yield from _run(loop.body, [*carries, *closed], sizes, meaning)))
    return tuple(carries)


_CONTROL = {SCAN: _scan, COND: _cond, WHILE: _while}


def _library(node: Node, arrays: list[Array], meaning: Meaning) -> Sequence[Array]:
    if meaning.library is None:
        raise GraphError(
            f"the library call {node.attr('target')} cannot be evaluated here",
            expected="a graph without library calls",
            found=str(node.attr("target")),
            where=node.origin,
            mend="give `evaluate` a `library` that computes it",
        )
    return meaning.library(node, arrays)


def _expansion(node: Node, meaning: Meaning) -> Graph:
    graph = None if meaning.expand is None else meaning.expand(node)
    if graph is None:
        raise GraphError(
            f"{node.op!r} has no meaning that can be evaluated",
            expected="a formula, a fused body, a constant, a library call or an expansion",
            found=node.op,
            where=node.origin,
            mend="give `evaluate` an `expand` that knows the operator",
        )
    return graph


def _fitting(node: Node, array: Array, type_: TensorType, *, wide: bool) -> Array:
    assert array.shape == type_.shape, f"{node.op} made {array.shape} where {type_} was said"
    return array.astype(_kept(type_.dtype, wide=wide), copy=False)


def _kept(dtype: DType, *, wide: bool) -> np.dtype:
    return held(dtype, wide=True) if wide else dtype.numpy


# ------------------------------------------------------------------------------------- named sizes


def extent(dim: Dim, sizes: Sizes) -> int:
    """Return an extent whose named sizes have the given values."""
    if isinstance(dim, int):
        return dim
    found = algebra.simplify(_bound(dim, sizes), {})
    match found:
        case Const(int(number)):
            return number
    raise GraphError(f"the extent {dim} has a size without a value", known=f"{dict(sizes)}")


def static_formula(formula: Formula, sizes: Sizes) -> Formula:
    """Return a formula with numbers for its named sizes."""
    if not sizes:
        return formula
    return replace(
        formula,
        loops=tuple(Loop(loop.name, extent(loop.extent, sizes)) for loop in formula.loops),
        index=tuple(_bound(entry, sizes) for entry in formula.index),
        value=_bound(formula.value, sizes),
        type=_static_type(formula.type, sizes),
        where=None if formula.where is None else _bound(formula.where, sizes),
        at=None if formula.at is None else _bound(formula.at, sizes),
        fill=_bound(formula.fill, sizes),
    )


def _static_type(type_: TensorType, sizes: Sizes) -> TensorType:
    return TensorType(tuple(extent(dim, sizes) for dim in type_.shape), type_.dtype)


def _bound(expr: Expr, sizes: Sizes) -> Expr:
    return substitute(expr, {name: Const(size) for name, size in sizes.items()})


def _bind_sizes(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """Read the named sizes off the inputs whose dims they are."""
    if len(arrays) != len(graph.inputs):
        raise ShapeError(
            f"{graph.name} takes {len(graph.inputs)} inputs",
            expected=f"{len(graph.inputs)} arrays",
            found=f"{len(arrays)} arrays",
        )
    sizes: dict[str, int] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        if array.ndim != value.type.rank:
            raise _misfit(value, array)
        for dim, size in zip(value.type.shape, array.shape, strict=True):
            if isinstance(dim, Sym) and sizes.setdefault(dim.name, size) != size:
                raise _misfit(value, array, f"{dim.name} = {sizes[dim.name]}")
    return sizes


def _checked(value: Value, array: Array, sizes: Sizes, *, wide: bool) -> Array:
    expected = _static_type(value.type, sizes)
    if array.shape != expected.shape:
        raise _misfit(value, array)
    kept = _kept(expected.dtype, wide=wide)
    if wide and expected.dtype.kind == "float" and array.dtype.kind not in "biu":
        return array.astype(kept, copy=False)
    if array.dtype != kept:
        raise DTypeError(
            f"input {value.name!r} has the wrong element type",
            expected=str(value.type),
            found=str(array.dtype),
        )
    return array


def _misfit(value: Value, array: Array, known: str = "") -> ShapeError:
    return ShapeError(
        f"input {value.name!r} has the wrong shape",
        expected=str(value.type),
        found=f"{array.dtype}{list(array.shape)}",
        known=known,
    )
