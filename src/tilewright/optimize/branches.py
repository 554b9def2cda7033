"""Put the branch that is always taken in the place of a cond.

The idea: once constants are folded, a predicate is a truth value or it is not known before it runs;
where it is known, the other branch is dead code.  A branch in which ranks meet stays where it is:
other ranks may not know the truth, and what a collective gives may be used by them alone.

This module does not know how predicates become known (`constants`).
"""

from dataclasses import dataclass, replace

from tilewright.base.expr import Const
from tilewright.graph.build import Builder, names, producers
from tilewright.graph.ir import COND, CONSTANT, Graph, Node, Value
from tilewright.ops import meets_ranks


@dataclass(frozen=True, slots=True)
class PruneBranches:
    """Inline the branch of a cond whose predicate is a constant.

    ::

        %p = {y[] = true}()                   -->   %e = {y[i<4] = exp(x[i])}(%x)
        %y = cond(%p, %x) exp, sin
    """

    name: str = "prune_branches"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        if not any(node.op == COND for node in graph.nodes):
            return graph
        made_by = producers(graph)
        builder = Builder.signature_of(graph)
        builder.reserve(names(graph))
        known = {value.name: value for value in graph.inputs}
        for node in graph.nodes:
            inputs = tuple(known[value.name] for value in node.inputs)
            decided = node.op == COND and not meets_ranks(node)
            truth = _truth(made_by.get(node.inputs[0].name)) if decided else None
            if truth is None:
                builder.nodes.append(replace(node, inputs=inputs))
                results: tuple[Value, ...] = node.outputs
            else:
                results = builder.inline(node.graphs[0 if truth else 1], inputs[1:])
            known.update(zip((v.name for v in node.outputs), results, strict=True))
        return builder.finish([known[value.name] for value in graph.outputs], graph.updates)


def _truth(node: Node | None) -> bool | None:
    """Return what a node gives, if it is one truth value that is known."""
    if node is None:
        return None
    if node.op == CONSTANT:
        return bool(node.attr("value"))
    formula = node.formula
    if formula is None or formula.loops or formula.where is not None or formula.op != "=":
        return None
    return bool(formula.value.value) if isinstance(formula.value, Const) else None
