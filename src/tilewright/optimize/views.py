"""Look through views: a view of a view is one view, a view of nothing is the tensor itself.

The idea: a view is a formula that only indexes, so composing it into its readers' formulas turns
`permute`, `expand`, `slice` and `reshape` into index arithmetic, which normal forms then shorten.

This module does not know memory: whether a view needs a copy is decided with the strides at hand.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.base.expr import Expr
from tilewright.graph.build import replace_values
from tilewright.graph.classify import classify_contraction
from tilewright.graph.compose import compose, over_values, types_of
from tilewright.graph.convolution import classify_convolution
from tilewright.graph.ir import Formula, Graph, Node, TensorType, Value
from tilewright.graph.total import Types
from tilewright.graph.views import view_of
from tilewright.optimize.rewriting import with_formula


@dataclass(frozen=True, slots=True)
class SimplifyViews:
    """Compose views into what reads them; drop views that change nothing.

    ::

        %a = {y[j<8, i<4] = x[i, j]}(%x)            -->   %b = {y[i<4, j<8] = x[i, j] * 2}(%x)
        %b = {y[i<4, j<8] = a[j, i] * 2}(%a)              %c = {y[n<32] = b[n//8, n%8]}(%b)
        %c = {y[n<32] = b[n//8, n%8]}(%b)                 return %b
        %d = {y[i<4, j<8] = c[i*8 + j]}(%c)
        return %d

    Contractions and convolutions read views as they are: libraries take strides.  (But not vectors
    in pairs of terms; and dead views are left for `DeadCode`.)
    """

    name: str = "simplify_views"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("views composed",)

    def __call__(self, graph: Graph) -> Graph:
        types = types_of(graph)
        views: dict[str, Formula] = {}
        same: dict[str, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(same.get(value.name, value) for value in node.inputs)
            node = replace(node, inputs=inputs)
            if node.formula is not None:
                node = _composed(node, views, types)
                formula = over_values(node)
                view = view_of(formula, types)
                if view is not None:
                    views[node.output.name] = formula
                    if view.is_identity(_shape(types[view.operand].shape)):
                        same[node.output.name] = Value(view.operand, types[view.operand])
            nodes.append(node)
        return replace_values(replace(graph, nodes=tuple(nodes)), same)


def _composed(node: Node, views: dict[str, Formula], types: Types) -> Node:
    formula = over_values(node)
    if not any(name in views for name in formula.operands) or _takes_views(formula, types):
        return node
    changed = False
    for name in formula.operands:
        made = compose(formula, name, views[name], types) if name in views else None
        if made is not None:
            formula, changed = made, True
    return with_formula(node, formula, types) if changed else node


def _takes_views(formula: Formula, types: Types) -> bool:
    """Say whether what computes a formula takes any strides; a vector goes by rows of a matrix
    along both, and whether it does is seen behind the views."""
    found = classify_contraction(formula, types)
    in_pairs = found is not None and found.in_pairs
    return not in_pairs and is_for_library(formula, types)


def is_for_library(formula: Formula, types: Types) -> bool:
    """Say whether a formula is a matrix product or a convolution."""
    return _is_for_library(formula, tuple(types[name] for name in formula.operands))


@lru_cache(maxsize=1 << 12)
def _is_for_library(formula: Formula, operands: tuple[TensorType, ...]) -> bool:
    types = dict(zip(formula.operands, operands, strict=True))
    contraction = classify_contraction(formula, types)
    if contraction is not None and contraction.is_matrix:
        return True
    return classify_convolution(formula, types) is not None


def _shape(shape: tuple[int | Expr, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if isinstance(dim, int))
