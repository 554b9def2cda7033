"""Reverse mode of a scan: a scan the other way.

The idea: the backward scan runs the backward half of the body on what each step kept::

    c, y = scan(c0, x, w) with body      -->   c, y, k = scan(c0, x, w) with body, keeping k
                                               dc0, dw, dx = scan(dc, 0, k, x, dy, w) the other way

The tangents of carries are carries; those of the elements of sequences are stacked.  The gradient
of a closed-over value is a sum over the steps: it accumulates in a carry, or, where a step's term
is itself a sum (the product of matrices that a weight's gradient is), one sum over all steps at
once follows the loop.

This module does not know how a body is differentiated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.halves import Halves, Pull, Tangents, halves, with_results
from tilewright.autodiff.reverse import active_carries, add_formula, full
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.expr import Const, Expr, Read, Sym, transform
from tilewright.graph.build import Builder, producers, prune
from tilewright.graph.control import Parts, Scan, add_scan, scan_of
from tilewright.graph.ir import Formula, Loop, Node, TensorType, Value
from tilewright.graph.notation import normal


def keep_of_scan(builder: Builder, node: Node, flags: Sequence[bool]) -> tuple[Node, Pull]:
    scan = scan_of(node)
    flags = [
        on and value.type.dtype.kind == "float"
        for on, value in zip(
            active_carries(scan.body, scan.carries, flags), node.inputs, strict=True
        )
    ]
    wrt = [at for at, on in enumerate(flags) if on]
    parted = halves(scan.body, wrt, scan.body.inputs[: scan.carries])
    carried = [at for at in parted.kept_inputs(scan.body.inputs) if at < scan.carries]
    kept = (*(scan.body.inputs[at] for at in carried), *parted.made)
    results = parted.results[scan.carries :]
    more = tuple(value for value in kept if value not in results)
    outputs = (*parted.results, *more)
    body = replace(parted.cut.forward, name=scan.body.name, outputs=outputs)
    types = [TensorType((scan.length, *v.type.shape), v.type.dtype) for v in more]
    names = [f"{node.outputs[0].name}_{value.name}" for value in more]
    made = with_results(builder, node, (body,), types, names)
    first = len(node.outputs)
    stacks = dict(
        zip((v.name for v in (*results, *more)), made.outputs[scan.carries :], strict=True)
    )
    return made, lambda builder, node, tangents: _ScanGradient(
        builder, node, scan, parted, stacks, Builder(f"{scan.body.name}_gradient")
    ).pull(tangents[:first])


@dataclass(slots=True)
class _ScanGradient:
    """The backward scan of one node in the making.

    builder: of the graph.  inner: of the backward's body.  stacks: what was kept of each step, by
    its name in the body.  sources: by the name of a value of the backward's body, what holds it for
    all steps.
    """

    builder: Builder
    node: Node
    scan: Scan
    halves: Halves
    stacks: Mapping[str, Value]
    inner: Builder

    def pull(self, tangents: Tangents) -> Tangents:
        """Add the backward scan, and return the gradients of the node's operands."""
        scan, cut = self.scan, self.halves.cut
        active = [at for at in self.halves.wrt if at < scan.carries]
        carries = [self.inner.input(f"d_{scan.body.inputs[k].name}", self._type(k)) for k in active]
        sequences, closed, known = self._operands(tangents, dict(zip(active, carries, strict=True)))
        args = [known[value.name] for value in cut.backward.inputs]
        found = self.inner.inline(cut.backward, args, origin=self.node.origin)
        new = [self._or_zero(self.halves.gradient(found, k), k) for k in active]
        start = [self._start(k, tangents[k]) for k in active]
        elements = range(scan.carries, scan.carries + scan.sequences)
        stacked = [(at, self.halves.gradient(found, at)) for at in elements]
        results = [(at, value) for at, value in stacked if value is not None]
        sums = self._sums(found, sequences, closed)
        for at, term in sums.carried:
            value = self.inner.input(f"sum_{self.node.inputs[at].name}", term.type)
            # It stands among the carries: inputs are put in order below.
            carries.append(value)
            formula = add_formula(value.type, 2)
            new.append(self.inner.formula(formula, value, term, origin=self.node.origin))
            start.append(self._zero(value.type))
        self.inner.inputs = [*carries, *sequences, *closed]
        body = prune(self.inner.finish([*new, *(v for _, v in results), *sums.operands.values()]))
        made = add_scan(
            self.builder,
            body,
            Parts(tuple(start), tuple(sequences.values()), tuple(closed.values())),
            length=scan.length,
            reverse=not scan.reverse,
            origin=self.node.origin,
            names=[f"d_{self.node.inputs[k].name}" for k in active]
            + [f"d_{self.node.inputs[k].name}" for k, _ in sums.carried]
            + [f"d_{self.node.inputs[k].name}" for k, _ in results]
            + [f"{self.node.outputs[0].name}_d" for _ in sums.operands],
        )
        return self._gradients(made, active, sums, [at for at, _ in results], sequences, closed)

    def _type(self, position: int) -> TensorType:
        return self.scan.body.inputs[position].type

    def _zero(self, type_: TensorType) -> Value:
        return self.builder.formula(full(type_, 0.0), origin=self.node.origin, name="zero")

    def _start(self, carry: int, tangent: Value | None) -> Value:
        return self._zero(self._type(carry)) if tangent is None else tangent

    def _or_zero(self, value: Value | None, position: int) -> Value:
        if value is not None:
            return value
        return self.inner.formula(full(self._type(position), 0.0), name="zero")

    def _operands(
        self, tangents: Tangents, carries: Mapping[int, Value]
    ) -> tuple[dict[Value, Value], dict[Value, Value], dict[str, Value]]:
        """Give the backward's body an input for all it reads.

        Returns sequences and closed-over values, each by its input, and the inputs by the names
        that the backward half knows them by.
        """
        scan, cut = self.scan, self.halves.cut
        sequences: dict[Value, Value] = {}
        closed: dict[Value, Value] = {}
        known: dict[str, Value] = {}
        inputs = {value.name: at for at, value in enumerate(scan.body.inputs)}
        for inside, name in cut.kept:
            at = inputs.get(name, -1)
            type_ = next(v.type for v in cut.backward.inputs if v.name == inside)
            value = known[inside] = self.inner.input(inside, type_)
            if at >= scan.carries + scan.sequences:
                closed[value] = self.node.inputs[at]
            elif at >= scan.carries:
                sequences[value] = self.node.inputs[at]
            else:
                sequences[value] = self.stacks[name]
        for position, name in cut.tangents:
            type_ = scan.body.outputs[position].type
            tangent = tangents[position]
            if position < scan.carries:
                known[name] = carries[position]
            elif tangent is None:
                known[name] = self.inner.formula(full(type_, 0.0), name="zero")
            else:
                value = known[name] = self.inner.input(name, type_)
                sequences[value] = tangent
        return sequences, closed, known

    # --- closed-over values: sums over the steps

    def _sums(
        self,
        found: Sequence[Value],
        sequences: Mapping[Value, Value],
        closed: Mapping[Value, Value],
    ) -> "_Sums":
        """Part the terms of closed-over values' gradients by how they are summed over the steps."""
        made_by = producers(self.inner.finish(()))
        sums = _Sums([], [], {})
        at_hand = {value.name for value in (*sequences, *closed)}
        for at in self.halves.wrt:
            if at < self.scan.carries + self.scan.sequences:
                continue
            gradient = self.halves.gradient(found, at)
            rest: list[Value] = []
            for term in () if gradient is None else _terms(gradient, made_by):
                maker = made_by.get(term.name)
                if maker is None or not _is_sum(maker):
                    rest.append(term)
                    continue
                sums.lifted.append((at, maker))
                for value in maker.inputs:
                    if value.name not in at_hand:
                        sums.operands[value.name] = value
            if rest:
                term = _added(self.inner, rest, self.node.origin)
                sums.carried.append((at, term))
        return sums

    def _gradients(
        self,
        made: Sequence[Value],
        active: Sequence[int],
        sums: "_Sums",
        elements: Sequence[int],
        sequences: Mapping[Value, Value],
        closed: Mapping[Value, Value],
    ) -> Tangents:
        """Collect the gradients of the operands, by position; None where there is none."""
        terms: dict[int, list[Value]] = {}
        results = iter(made)
        for at in (*active, *(at for at, _ in sums.carried), *elements):
            terms.setdefault(at, []).append(next(results))
        stacked = {value.name: source for value, source in sequences.items()}
        stacked |= dict(zip(sums.operands, results, strict=True))
        fixed = {value.name: source for value, source in closed.items()}
        for at, maker in sums.lifted:
            lifted = _lifted(self.builder, maker, self.scan.length, stacked, fixed)
            terms.setdefault(at, []).append(lifted)
        found: list[Value | None] = [None] * len(self.node.inputs)
        for at, values in terms.items():
            found[at] = _added(self.builder, values, self.node.origin)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Sums:
    """What one step adds to the gradients of closed-over operands, which stand by position.

    carried: values that a carry sums up.  lifted: nodes that are sums, made for all steps at once
    afterwards.  operands: values of the body, by name, that these need stacked.
    """

    carried: list[tuple[int, Value]]
    lifted: list[tuple[int, Node]]
    operands: dict[str, Value]


def _terms(value: Value, made_by: Mapping[str, Node]) -> list[Value]:
    """Open sums of values: a, b and c for (a + b) + c."""
    node = made_by.get(value.name)
    count = 0 if node is None else len(node.inputs)
    if node is None or count < 2 or node.formula != add_formula(value.type, count):
        return [value]
    return [term for operand in node.inputs for term in _terms(operand, made_by)]


def _is_sum(node: Node) -> bool:
    """Say whether a node is a sum over loops that one more loop can join."""
    formula = node.formula
    return formula is not None and formula.op == "+=" and formula.fill == Const(0)


def _lifted(
    builder: Builder,
    node: Node,
    length: int,
    stacked: Mapping[str, Value],
    fixed: Mapping[str, Value],
) -> Value:
    """y[i] += f(x[j])   -->   y[i] += f(x[t, j]) over the stacked operands, t reduced"""
    formula = node.formula
    assert formula is not None, "only sums are lifted"
    loop, count = "t", 0
    while loop in {item.name for item in formula.loops}:
        count += 1
        loop = f"t{count}"
    values = dict(zip(formula.operands, node.inputs, strict=True))
    moving = {name for name, value in values.items() if value.name in stacked}

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Read) and expr.tensor in moving:
            return replace(expr, index=(Sym(loop), *expr.index))
        return expr

    made = Formula(
        formula.operands,
        (Loop(loop, length), *formula.loops),
        tuple(transform(entry, visit) for entry in formula.index),
        "+=",
        transform(formula.value, visit),
        formula.type,
        None if formula.where is None else transform(formula.where, visit),
    )
    made = normal(made)
    sources = [stacked.get(values[n].name) or fixed[values[n].name] for n in made.operands]
    return builder.formula(made, *sources, origin=node.origin, name=node.output.name)


def _added(builder: Builder, values: Sequence[Value], origin: Origin = UNKNOWN) -> Value:
    if len(values) == 1:
        return values[0]
    return builder.formula(add_formula(values[0].type, len(values)), *values, origin=origin)
