"""Reverse mode of a graph: from a function to the function that also gives its gradients.

The idea: walk the nodes backwards with the tangent of every value (its cotangent, properly); each
node adds terms to the tangents of its operands::

    y = matmul(a, b)      -->   da += {y[m, k] += dy[m, n] * b[k, n]}(dy, b), db likewise

A formula's terms are derived (`formula`).  A composite operator uses its override, or is expanded
first and differentiated node by node.  A library call is paired with a call to its own derivative
(`through`).  Control flow has a module of its own (`control`).  Where nothing that is asked for
depends on a value, nothing is computed for it.

This module does not know which values a backward pass keeps (`split`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.autodiff.formula import (
    COUNT,
    OTHERS,
    OWN,
    RESULT,
    TANGENT,
    differentiable,
    other_terms,
    reverse_formula,
    tie_count,
)
from tilewright.base.errors import UNKNOWN, CaptureError, Origin
from tilewright.base.expr import Const, Expr, Read, Sym, call, transform
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import (
    CONTROL,
    CUSTOM,
    LIBRARY,
    Formula,
    Graph,
    Loop,
    Node,
    Role,
    TensorType,
    Value,
)
from tilewright.graph.notation import normal
from tilewright.ops import TABLE, expand_where, is_composite

if TYPE_CHECKING:
    from tilewright.autodiff.halves import Pull

# Library calls whose derivative torch itself gets wrong.
_UNTRUSTED = ("aten.as_strided_scatter.default",)
# Draws, whose derivative by what they are drawn from is zero everywhere, but not absent.
DRAWN = (
    "aten.bernoulli.default",
    "aten.bernoulli.Tensor",
    "aten.binomial.default",
    "aten.cauchy.default",
    "aten.exponential.default",
    "aten.geometric.default",
    "aten.log_normal.default",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
    "aten.poisson.default",
    "aten.uniform.default",
)
_DETACHED = ("aten.detach.default", "tilewright.stop_gradient.default")


@dataclass(frozen=True, slots=True)
class Joint:
    """A graph that computes its outputs and their gradients.

    graph: inputs are the original ones, then one "tangent" input per entry of `tangents`; outputs
    are the original ones (updates and all), then the gradients.  tangents: (output position, input
    name).  gradients: for each value differentiated for, its position among the outputs, or None
    where the outputs do not depend on it.  depends: for each of them, which of the differentiated
    outputs (by their order, that of `tangents`) depend on it.
    """

    graph: Graph
    wrt: tuple[str, ...]
    tangents: tuple[tuple[int, str], ...]
    gradients: tuple[int | None, ...]
    depends: tuple[frozenset[int], ...]


def reverse(
    graph: Graph, wrt: Sequence[str], *, of: Sequence[int] | None = None, ones: bool = False
) -> Joint:
    """Differentiate outputs of a graph with respect to inputs.

    wrt: names of floating inputs.  of: positions of the outputs that have tangents (all floating
    ones that depend on `wrt` where None; outputs that are updates never).  ones: the tangents are 1
    (for a loss) instead of inputs.  Raises CaptureError for an operator without a derivative.
    """
    while chosen := _asked(graph, wrt):  # an expansion may hold composites again
        graph = expand_where(graph, chosen)
    graph, pulls = _prepared(graph, wrt)
    active = active_values(graph, wrt)
    updated = {position for _, position in graph.updates}
    if of is None:
        of = [k for k in range(len(graph.outputs)) if k not in updated]
    of = [k for k in of if graph.outputs[k].name in active]
    walk = _Walk(Builder.extending(graph), active, pulls)
    tangents = []
    for position in of:
        output = graph.outputs[position]
        tangent = _seed(walk.builder, output, ones=ones)
        if not ones:
            tangents.append((position, tangent.name))
        walk.add(output, tangent)
    for node in reversed(graph.nodes):
        walk.visit(node)
    values = {value.name: value for value in graph.inputs}
    outputs, positions = list(graph.outputs), []
    depends = _dependence(graph, wrt, active, [graph.outputs[k].name for k in of])
    for name, reaching in zip(wrt, depends, strict=True):
        gradient = walk.total(values[name])
        if gradient is None and reaching:  # of steps (floor): zero everywhere, but not absent
            zero = full(values[name].type, 0.0)
            gradient = walk.builder.formula(zero, name=f"d_{name}")
        positions.append(None if gradient is None else len(outputs))
        if gradient is not None:
            outputs.append(gradient)
    made = _without_backwards(prune(walk.builder.finish(outputs, graph.updates)))
    return Joint(made, tuple(wrt), tuple(tangents), tuple(positions), depends)


def _without_backwards(graph: Graph) -> Graph:
    """Expand the nodes that hold a backward: it has been taken, and they are identities."""
    chosen = {n.outputs[0].name for n in graph.nodes if n.graphs and is_composite(n)}
    return expand_where(graph, chosen)


def _prepared(graph: Graph, wrt: Sequence[str]) -> "tuple[Graph, Mapping[str, Pull]]":
    """Let control flow keep what its gradient needs."""
    if not any(node.op in CONTROL for node in graph.nodes):
        return graph, {}
    # A body is differentiated as a graph is, and a graph holds bodies: each needs the other.
    from tilewright.autodiff.control import keep_residuals

    return keep_residuals(graph, wrt)


def _dependence(
    graph: Graph, wrt: Sequence[str], active: frozenset[str], outputs: Sequence[str]
) -> tuple[frozenset[int], ...]:
    """Return for each of `wrt` which of the outputs depend on it through active values."""
    # A set of `wrt` is the bits of one integer: there are many values, and as many parameters.
    reached = {name: 1 << k for k, name in enumerate(wrt)}
    for node in graph.nodes:
        bits = 0
        for value in node.inputs:
            bits |= reached.get(value.name, 0)
        if bits and not blocks(node):
            reached.update((v.name, bits) for v in node.outputs if v.name in active)
    return tuple(
        frozenset(at for at, name in enumerate(outputs) if reached.get(name, 0) >> k & 1)
        for k in range(len(wrt))
    )


def active_values(graph: Graph, wrt: Sequence[str]) -> frozenset[str]:
    """Return the floating values that depend on `wrt` through floating values."""
    active = set(wrt)
    for node in graph.nodes:
        if not blocks(node) and any(value.name in active for value in node.inputs):
            active.update(v.name for v in node.outputs if v.type.dtype.kind == "float")
    return frozenset(active)


def active_carries(body: Graph, carries: int, flags: Sequence[bool]) -> list[bool]:
    """Return which inputs of a loop's body are active, where `flags` are at first: a carry is if it
    ever becomes so."""
    flags = list(flags)
    while True:
        chosen = [v.name for v, on in zip(body.inputs, flags, strict=True) if on]
        active = active_values(body, chosen)
        grown = [
            on or (at < carries and body.outputs[at].name in active) for at, on in enumerate(flags)
        ]
        if grown == flags:
            return flags
        flags = grown


def blocks(node: Node) -> bool:
    """Say whether no derivative passes a node, as it was written for."""
    if node.op == LIBRARY:
        return node.attr("target") in _DETACHED
    return node.op == "stop_gradient"


def _asked(graph: Graph, wrt: Sequence[str]) -> frozenset[str]:
    """The composite nodes to expand before differentiating: active ones without an override."""
    active = active_values(graph, wrt)
    chosen = set()
    for node in graph.nodes:
        operator = TABLE.get(node.op)
        brings = node.op == CUSTOM or (operator is not None and operator.vjp is not None)
        if brings or not is_composite(node):
            continue
        if any(value.name in active for value in node.inputs):
            chosen.add(node.outputs[0].name)
    return frozenset(chosen)


def _seed(builder: Builder, output: Value, *, ones: bool) -> Value:
    if not ones:
        return builder.input(f"d_{output.name}", output.type, Role("tangent", output.name))
    return builder.formula(full(output.type, 1.0), name=f"d_{output.name}")


def full(type_: TensorType, value: bool | int | float) -> Formula:
    """Return the formula of a tensor that is one number everywhere."""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    return normal(Formula((), loops, index, "=", Const(value), type_))


def add_formula(type_: TensorType, count: int) -> Formula:
    """Return the formula that adds `count` tensors of one type."""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(type_.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    names = tuple(f"a{k}" for k in range(count))
    value: Expr = Read(names[0], index)
    for name in names[1:]:
        value = call("add", value, Read(name, index))
    return normal(Formula(names, loops, index, "=", value, type_))


class _Walk:
    """The backward walk: a builder that extends the graph, and the terms found so far; final."""

    def __init__(
        self, builder: Builder, active: frozenset[str], pulls: "Mapping[str, Pull]"
    ) -> None:
        self.builder = builder
        self.active = active
        self.pulls = pulls
        self.terms: defaultdict[str, list[Value]] = defaultdict(list)

    def add(self, value: Value, term: Value) -> None:
        """Add a term to the tangent of `value`."""
        assert term.type == value.type, f"tangent of {value.name}: {term.type}, not {value.type}"
        self.terms[value.name].append(term)

    def total(self, value: Value, origin: Origin = UNKNOWN) -> Value | None:
        """Return the whole tangent of a value; None where it has none."""
        terms = self.terms[value.name]
        if len(terms) > 1:
            formula = add_formula(value.type, len(terms))
            made = self.builder.formula(formula, *terms, origin=origin, name=f"d_{value.name}")
            self.terms[value.name] = [made]
        return self.terms[value.name][0] if terms else None

    def visit(self, node: Node) -> None:
        """Send the tangents of a node's outputs to its inputs."""
        wanted = [v.name in self.active for v in node.inputs]
        if blocks(node) or not any(wanted):
            return
        tangents = tuple(self.total(value, node.origin) for value in node.outputs)
        if all(tangent is None for tangent in tangents):
            return
        operator = TABLE.get(node.op)
        own = None if operator is None else operator.vjp
        pull = self.pulls.get(node.outputs[0].name, own)
        if pull is not None:
            found = pull(self.builder, node, tangents)
            for value, term, want in zip(node.inputs, found, wanted, strict=True):
                if term is not None and want:
                    self.add(value, term)
        elif node.op == CUSTOM:
            self._custom(node, tangents)
        elif node.formula is not None:
            self._formula(node, tangents[0], wanted)
        elif node.op == LIBRARY:
            self._library(node, tangents, wanted)
        else:
            raise CaptureError(
                f"{node.op} has no derivative",
                where=node.origin,
                mend="compute it under torch.no_grad(), or detach its result",
            )

    def _formula(self, node: Node, tangent: Value | None, wanted: list[bool]) -> None:
        formula = node.formula
        assert formula is not None and tangent is not None, "visit has looked"
        if not differentiable(formula):
            if formula.type.dtype.kind == "float":
                raise CaptureError(f"{node.op} has no derivative", where=node.origin)
            return
        operands = dict(zip(formula.operands, node.inputs, strict=True))
        if set(operands) & set(OWN):
            formula, operands = renamed(formula, node)
        known = {TANGENT: tangent, RESULT: node.output}
        known |= companions(self.builder, formula, node)
        types = [value.type for value in node.inputs]
        for adjoint in reverse_formula(formula, types, wanted):
            sources = [operands.get(name) or known[name] for name in adjoint.formula.operands]
            target = operands[adjoint.operand]
            term = self.builder.formula(
                adjoint.formula, *sources, origin=node.origin, name=f"d_{target.name}"
            )
            self.add(target, term)

    def _custom(self, node: Node, tangents: tuple[Value | None, ...]) -> None:
        of, wrt = node.attr("of"), node.attr("wrt")
        assert isinstance(of, tuple) and isinstance(wrt, tuple), "positions are tuples"
        seeds = []
        for at in of:
            assert isinstance(at, int), "a position is a number"
            tangent, name = tangents[at], f"d_{node.outputs[at].name}"
            zero = full(node.outputs[at].type, 0.0)
            seeds.append(tangent or self.builder.formula(zero, origin=node.origin, name=name))
        operands = (*node.inputs, *node.outputs, *seeds)
        terms = self.builder.inline(node.graphs[1], operands, origin=node.origin)
        for at, term in zip(wrt, terms, strict=True):
            assert isinstance(at, int), "a position is a number"
            if node.inputs[at].name in self.active:
                self.add(node.inputs[at], term)

    def _library(self, node: Node, tangents: tuple[Value | None, ...], wanted: list[bool]) -> None:
        if node.attr("target") in _UNTRUSTED:
            raise CaptureError(
                f"{node.attr('target')} has no derivative that can be trusted",
                expected="operators whose derivative torch computes right",
                found="one whose derivative by torch is wrong",
                where=node.origin,
                mend="write to the tensor by slices or indices in place of strides",
            )
        if node.attr("target") in DRAWN:
            return
        present = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)
        asked = tuple(k for k, want in enumerate(wanted) if want)
        types = [node.inputs[k].type for k in asked]
        attrs = dict(node.attrs)
        through = attrs.pop("through", ())
        assert isinstance(through, tuple), "derivatives taken so far are a tuple"
        attrs["through"] = (*through, ("gradient", asked, present))
        terms = self.builder.multi(
            LIBRARY,
            (*node.inputs, *(tangent for tangent in tangents if tangent is not None)),
            types,
            attrs=attrs,
            origin=node.origin,
            names=[f"d_{node.inputs[k].name}" for k in asked],
        )
        for k, term in zip(asked, terms, strict=True):
            self.add(node.inputs[k], term)


def companions(builder: Builder, formula: Formula, node: Node) -> dict[str, Value]:
    """Add what the derivatives of a formula read beside operands and result, by its name there."""
    found = {}
    counts, others = tie_count(formula), other_terms(formula)
    known = {**dict(zip(formula.operands, node.inputs, strict=True)), RESULT: node.output}
    for name, made, wish in ((COUNT, counts, "ties"), (OTHERS, others, "others")):
        if made is not None:
            operands = [known[operand] for operand in made.operands]
            wish = f"{node.output.name}_{wish}"
            found[name] = builder.formula(made, *operands, origin=node.origin, name=wish)
    return found


def renamed(formula: Formula, node: Node) -> tuple[Formula, dict[str, Value]]:
    """Give operands names that no derivative uses for itself."""
    fresh = {name: f"x{k}_" for k, name in enumerate(formula.operands)}

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Read):
            return Read(fresh.get(expr.tensor, expr.tensor), expr.index, expr.default)
        return expr

    def moved(expr: Expr | None) -> Expr | None:
        return None if expr is None else transform(expr, visit)

    value, fill = moved(formula.value), moved(formula.fill)
    assert value is not None and fill is not None, "a formula has a value and a fill"
    index = tuple(transform(entry, visit) for entry in formula.index)
    made = replace(
        formula,
        operands=tuple(fresh[name] for name in formula.operands),
        value=value,
        fill=fill,
        index=index,
        where=moved(formula.where),
    )
    return made, dict(zip(made.operands, node.inputs, strict=True))
