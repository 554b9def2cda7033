"""Forward mode of a graph: from a function to the function that also says how its results change.

The idea: walk the nodes in their order with the change of every value that has one; each node adds
the change of its results::

    y = matmul(a, b)      -->   dy = {y[m, n] += da[m, k] * b[k, n]}(da, b)
                                   + {y[m, n] += a[m, k] * db[k, n]}(a, db)

A formula's terms are derived (`forward_formula`).  An operator that brings a gradient of its own
pushes by that, turned around (`pullback`), so that both modes agree at kinks and infinities, but
where torch's two modes differ (`forward_derived`).  Other composites are expanded first.  A
library call is paired with a call to its own forward derivative.  Control flow has a module of its
own (`forward_control`).

This module does not know reverse mode's walk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.autodiff.formula import OWN, RESULT, differentiable
from tilewright.autodiff.forward_formula import change_names, forward_formula
from tilewright.autodiff.pullback import has_pullback, push
from tilewright.autodiff.reverse import (
    DRAWN,
    active_values,
    add_formula,
    blocks,
    companions,
    renamed,
)
from tilewright.base.errors import CaptureError
from tilewright.graph.build import Builder, prune, sort
from tilewright.graph.ir import CONTROL, LIBRARY, Graph, Node, Role, Value
from tilewright.ops import TABLE, expand_where, is_composite


@dataclass(frozen=True, slots=True)
class Pushed:
    """A graph that computes its outputs and how they change.

    graph: inputs are the original ones, then a "tangent" input for each of `wrt`; outputs are the
    original ones (updates and all), then their changes.  tangents: the names of these inputs.
    changes: for each original output, the position of its change among the outputs, or None where
    it does not change.
    """

    graph: Graph
    wrt: tuple[str, ...]
    tangents: tuple[str, ...]
    changes: tuple[int | None, ...]


def forward(graph: Graph, wrt: Sequence[str]) -> Pushed:
    """Differentiate a graph along changes of inputs.

    wrt: names of floating inputs.  Raises CaptureError for an operator without a derivative.
    """
    while chosen := _asked(graph, wrt):  # an expansion may hold composites again
        graph = expand_where(graph, chosen)
    walk = _Walk(Builder.extending(graph))
    types = {value.name: value.type for value in graph.inputs}
    for name in wrt:
        change = walk.builder.input(f"t_{name}", types[name], Role("tangent", name))
        walk.changes[name] = change
    for node in graph.nodes:
        walk.visit(node)
    outputs, positions = list(graph.outputs), []
    for value in graph.outputs:
        found = walk.changes.get(value.name)
        positions.append(None if found is None else len(outputs))
        if found is not None:
            outputs.append(found)
    made = walk.builder.finish(outputs, graph.updates)
    if any(node.op in CONTROL for node in graph.nodes):
        made = sort(made)  # control flow has been put anew, behind the changes that it takes
    made = prune(made)
    tangents = tuple(value.name for value in made.inputs[len(graph.inputs) :])
    return Pushed(made, tuple(wrt), tangents, tuple(positions))


def _asked(graph: Graph, wrt: Sequence[str]) -> frozenset[str]:
    """The composite nodes to expand first: active ones that bring no derivative of their own."""
    active = active_values(graph, wrt)
    return frozenset(
        node.outputs[0].name
        for node in graph.nodes
        if is_composite(node)
        and not _pushes(node)
        and any(value.name in active for value in node.inputs)
    )


def _pushes(node: Node) -> bool:
    """Whether forward mode is the gradient that the node brings, turned around."""
    operator = TABLE.get(node.op)
    return has_pullback(node) and not (operator is not None and operator.forward_derived)


class _Walk:
    """The walk: a builder that extends the graph, and the change of each value that has one."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.changes: dict[str, Value] = {}

    def visit(self, node: Node) -> None:
        """Add the changes of a node's results."""
        changes = tuple(self.changes.get(value.name) for value in node.inputs)
        if blocks(node) or all(change is None for change in changes):
            return
        if all(value.type.dtype.kind != "float" for value in node.outputs):
            return
        if _pushes(node):
            found = push(self.builder, node, changes)
        elif node.formula is not None:
            found = (self._formula(node, changes),)
        elif node.op == LIBRARY:
            found = self._library(node, changes)
        elif node.op in CONTROL:
            # A body is differentiated as a graph is, which holds bodies: each needs the other.
            from tilewright.autodiff.forward_control import push_control

            found = push_control(self.builder, node, changes)
        else:
            raise _without_derivative(node)
        for value, change in zip(node.outputs, found, strict=True):
            if change is not None:
                self.changes[value.name] = change

    def _formula(self, node: Node, changes: Sequence[Value | None]) -> Value | None:
        formula = node.formula
        assert formula is not None, "visit has looked"
        if not differentiable(formula):
            raise _without_derivative(node)
        if set(formula.operands) & set(OWN):
            formula, _ = renamed(formula, node)
        known = dict(zip(formula.operands, node.inputs, strict=True))
        known[RESULT] = node.output
        wanted = [change is not None for change in changes]
        names = change_names(formula, wanted)
        for operand, change in zip(formula.operands, changes, strict=True):
            if change is not None:
                known[names[operand]] = change
        known |= companions(self.builder, formula, node)
        types = [value.type for value in node.inputs]
        wish = f"t_{node.output.name}"
        terms = [
            self.builder.formula(
                term, *(known[name] for name in term.operands), origin=node.origin, name=wish
            )
            for term in forward_formula(formula, types, wanted)
        ]
        if len(terms) < 2:
            return terms[0] if terms else None
        total = add_formula(node.output.type, len(terms))
        return self.builder.formula(total, *terms, origin=node.origin, name=wish)

    def _library(self, node: Node, changes: Sequence[Value | None]) -> tuple[Value | None, ...]:
        if node.attr("target") in DRAWN:
            return (None,)
        moved = tuple(k for k, change in enumerate(changes) if change is not None)
        floating = tuple(k for k, v in enumerate(node.outputs) if v.type.dtype.kind == "float")
        attrs = dict(node.attrs)
        through = attrs.pop("through", ())
        assert isinstance(through, tuple), "derivatives taken so far are a tuple"
        attrs["through"] = (*through, ("tangent", moved, floating))
        made = self.builder.multi(
            LIBRARY,
            (*node.inputs, *(change for change in changes if change is not None)),
            [node.outputs[k].type for k in floating],
            attrs=attrs,
            origin=node.origin,
            names=[f"t_{node.outputs[k].name}" for k in floating],
        )
        found: list[Value | None] = [None] * len(node.outputs)
        for k, value in zip(floating, made, strict=True):
            found[k] = value
        return tuple(found)


def _without_derivative(node: Node) -> CaptureError:
    return CaptureError(
        f"{node.op} has no forward derivative",
        where=node.origin,
        mend="compute it under torch.no_grad(), or detach its operand",
    )
