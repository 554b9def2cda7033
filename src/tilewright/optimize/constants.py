"""Compute what is known when compiling, if it is small; write what is uniform as a formula.

The idea: a value that is one number everywhere costs nothing where it is a formula
(`y[i<4] = 2.0`), since it is then part of whatever reads it.

This module does not know how formulas are evaluated: the graph's evaluator does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.errors import IndexRangeError
from tilewright.base.expr import Const, Sym, walk
from tilewright.base.sizes import Size, greatest_of
from tilewright.graph.build import nest
from tilewright.graph.compose import compose, over_values, types_of
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.ir import CONSTANT, FORMULA, Formula, Graph, Loop, Node, TensorType
from tilewright.graph.total import fixed, parts
from tilewright.graph.views import size_of
from tilewright.optimize.rewriting import with_formula

_WORK = 1 << 16  # iterations that are worth making while compiling


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Evaluate formulas of constants, and put uniform values where they are read.

    ::

        %c = constant(value=(2.0, 2.0))       -->   %c = {y[i<2] = 2.0}()
        %d = {y[i<2] = c[i] * 3}(%c)                %d = {y[i<2] = 6.0}()
        %y = {y[i<2] = x[i] + d[i]}(%x, %d)         %y = {y[i<2] = x[i] + f32(6.0)}(%x)

    limit: the most elements a result that is not uniform may have.
    """

    limit: int = 64
    name: str = "fold_constants"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        known: dict[str, Node] = {}
        types = types_of(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.formula is not None:
                node = _with_uniform(node, known, types)
                node = self._folded(node, known)
            elif node.op == CONSTANT:
                node = _uniform_formula(node) or node
            if node.op == CONSTANT or _is_uniform(node):
                known[node.output.name] = node
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes))

    def _folded(self, node: Node, known: Mapping[str, Node]) -> Node:
        formula = node.formula
        assert formula is not None, "only formulas are folded"
        work = 1
        for loop in formula.loops:
            work *= fixed(loop.extent)
        constant = all(value.name in known for value in node.inputs)
        small = greatest_of(work) <= _WORK and greatest_of(size_of(formula.type)) <= _WORK
        small = small and not any(isinstance(dim, Size) for dim in formula.type.shape)
        if not constant or not small or _is_uniform(node) or _is_random(formula):
            return node
        arrays = [_array(known[value.name]) for value in node.inputs]
        try:
            result = evaluate_formula(formula, arrays, origin=node.origin)
        except IndexRangeError:
            return node  # the error belongs to the run: the node may never be reached
        made = Node(
            CONSTANT,
            (),
            node.outputs,
            (("value", nest(result, formula.type.dtype)),),
            origin=node.origin,
        )
        uniform = _uniform_formula(made)
        if uniform is not None:
            return uniform
        return made if result.size <= self.limit else node


def _with_uniform(node: Node, known: Mapping[str, Node], types: Mapping[str, TensorType]) -> Node:
    """Put uniform operands into the formula."""
    formula = over_values(node)
    changed = False
    for name in formula.operands:
        if name not in known or known[name].formula is None:
            continue
        made = compose(formula, name, over_values(known[name]), types)
        if made is not None:
            formula, changed = made, True
    return with_formula(node, formula, types) if changed else node


def _is_uniform(node: Node) -> bool:
    formula = node.formula
    return (
        formula is not None
        and formula.op == "="
        and not formula.operands
        and isinstance(formula.value, Const)
        and formula.where is None
        and _is_whole(formula)
    )


def _is_whole(formula: Formula) -> bool:
    loops = {loop.name: loop.extent for loop in formula.loops}
    entries = [entry.name for entry in formula.index if isinstance(entry, Sym)]
    return len(set(entries)) == formula.type.rank and all(
        loops[name] == dim for name, dim in zip(entries, formula.type.shape, strict=True)
    )


def _is_random(formula: Formula) -> bool:
    return any(
        getattr(node, "fn", None) == "uniform" for part in parts(formula) for node in walk(part)
    )


def _array(node: Node) -> np.ndarray:
    type_ = node.output.type
    if node.formula is not None:
        return evaluate_formula(node.formula, [])
    shape = tuple(fixed(dim) for dim in type_.shape)
    return np.array(node.attr("value"), dtype=type_.dtype.numpy).reshape(shape)


def _uniform_formula(node: Node) -> Node | None:
    """Return a constant as `y[...] = number` if all its elements are that number, bit by bit."""
    type_ = node.output.type
    flat: object = node.attr("value")
    while isinstance(flat, tuple):
        if not flat:
            return None
        flat = flat[0]
    assert isinstance(flat, bool | int | float), "a constant holds numbers"
    array = _array(node)
    first = np.full_like(array, array.ravel()[0])
    if array.tobytes() != first.tobytes():
        return None
    loops = tuple(Loop(f"i{at}", dim) for at, dim in enumerate(type_.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    formula = Formula((), loops, index, "=", Const(flat), type_)
    return Node(FORMULA, (), node.outputs, formula=formula, origin=node.origin)
