"""Batching: from a function of one sample to the function of a batch of them.

The idea: a batch is one more parallel loop, in front, on the operands that have it; nothing else
changes::

    y[m, n] += a[m, k] * b[k, n]   -->   y[z<8, m, n] += a[z, m, k] * b[k, n]     (a is batched)

- An operator whose loops on the batched operands are just these keeps its name, and a composite
  whose row says how to take a leading dim (`lead`); other composites are expanded first.
- One that brings a gradient of its own, and cannot keep its name, becomes a `custom` node: its
  batched loops, and its batched gradient.
- A library call is made once for the whole batch, by torch's own batching of that call (`through`).
- Control flow has a module of its own (`batch_control`).
- What draws random numbers is told apart by `randomness`, as torch.func has it.

A value that no batched value reaches is computed once.  This module does not know in which dim of
an operand the batch lies: it is the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.pullback import has_pullback, pullback
from tilewright.base.errors import UNKNOWN, CaptureError, MutationError, Origin, TilewrightError
from tilewright.base.expr import Call, Expr, Read, Sym, call, substitute, transform, walk
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import (
    CONTROL,
    CUSTOM,
    FORMULA,
    LIBRARY,
    Dim,
    Formula,
    Graph,
    Loop,
    Node,
    TensorType,
    Value,
)
from tilewright.graph.notation import normal
from tilewright.ops import TABLE, expand_where, is_composite
from tilewright.ops.operator import Attrs, formula_for, result_types

RANDOMNESS = ("error", "same", "different")


@dataclass(frozen=True, slots=True)
class Batched:
    """A batched graph.  outputs: which of its outputs have the batch, as their first dim."""

    graph: Graph
    outputs: tuple[bool, ...]


def batch(
    graph: Graph, batched: Sequence[bool], size: int, *, randomness: str = "error"
) -> Batched:
    """Batch a graph.

    batched: which of its inputs have the batch as a first dim.  size: how many samples.
    randomness: what a draw of random numbers is ("error": refused; "same" or "different" for the
    samples).  Raises CaptureError for what cannot be batched, MutationError where a batched value
    would be written into an input without a batch.
    """
    assert randomness in RANDOMNESS, f"randomness is one of {', '.join(RANDOMNESS)}"
    flags = dict(zip((value.name for value in graph.inputs), batched, strict=True))
    while chosen := _asked(graph, {name for name, has in flags.items() if has}):
        graph = expand_where(graph, chosen)
    walk = _Walk(Builder(graph.name), size, randomness)
    walk.builder.reserve(value.name for node in graph.nodes for value in node.outputs)
    for value in graph.inputs:
        type_ = lead(value.type, size) if flags[value.name] else value.type
        made = walk.builder.input(value.name, type_, graph.role(value.name))
        walk.known[value.name] = (made, flags[value.name])
    for node in graph.nodes:
        walk.visit(node)
    for name, position in graph.updates:
        if walk.known[graph.outputs[position].name][1] and not flags[name]:
            raise _written_by_all(graph, name)
    found = [walk.known[value.name] for value in graph.outputs]
    for name, position in graph.updates:
        if flags[name] and not found[position][1]:
            found[position] = (spread(walk.builder, found[position][0], size), True)
    finished = prune(walk.builder.finish([value for value, _ in found], graph.updates))
    return Batched(finished, tuple(has for _, has in found))


def batch_formula(
    formula: Formula, batched: Sequence[bool], size: Dim, *, apart: bool = False
) -> Formula:
    """Return the formula with one more parallel loop, in front, on the operands that are batched.

    A tensor that the formula starts `from` must be batched.  apart: random numbers differ from
    sample to sample; they are then those of the batched result's own elements.
    """
    taken = {loop.name for loop in formula.loops}
    name = next(n for n in ("z", "z_", *(f"z{k}" for k in range(len(taken)))) if n not in taken)
    with_batch = {n for n, has in zip(formula.operands, batched, strict=True) if has}
    fill = formula.fill
    assert not isinstance(fill, Read) or fill.tensor in with_batch, "a base is batched"
    count = 1
    for dim in formula.type.shape if apart else ():
        assert isinstance(dim, int), "sizes are numbers by now"
        count *= dim

    def visit(expr: Expr) -> Expr:
        match expr:
            case Read(tensor, index, default) if tensor in with_batch:
                return Read(tensor, (Sym(name), *index), default)
            case Call("uniform", (seed, place)) if apart:
                return Call("uniform", (seed, call("add", place, call("mul", Sym(name), count))))
        return expr

    def moved(part: Expr | None) -> Expr | None:
        return None if part is None else transform(part, visit)

    value = moved(formula.value)
    assert value is not None, "a formula has a value"
    return normal(
        replace(
            formula,
            loops=(Loop(name, size), *formula.loops),
            index=(Sym(name), *(transform(entry, visit) for entry in formula.index)),
            value=value,
            where=moved(formula.where),
            at=moved(formula.at),
            type=lead(formula.type, size),
        )
    )


def lead(type_: TensorType, size: Dim) -> TensorType:
    """Return a type with one more dim, in front."""
    return TensorType((size, *type_.shape), type_.dtype)


def spread(builder: Builder, value: Value, size: Dim, origin: Origin = UNKNOWN) -> Value:
    """Give every sample a value that was computed once."""
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(value.type.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    one = normal(Formula(("x",), loops, index, "=", Read("x", index), value.type))
    made = replace(
        one,
        loops=(Loop("z", size), *one.loops),
        index=(Sym("z"), *one.index),
        type=lead(value.type, size),
    )
    return builder.formula(normal(made), value, origin=origin, name=value.name)


def _asked(graph: Graph, reached: set[str]) -> frozenset[str]:
    """The composite nodes to expand first: those that a batch reaches, and that cannot keep their
    name.  One with a gradient of its own is kept: its gradient is batched, too."""
    reached = set(reached)
    chosen = set()
    for node in graph.nodes:
        flags = tuple(value.name in reached for value in node.inputs)
        if not (any(flags) or _draws(node)):
            continue
        reached.update(value.name for value in node.outputs)
        operator = TABLE.get(node.op)
        if has_pullback(node) or not is_composite(node) or operator is None:
            continue
        types = tuple(value.type for value in node.inputs)
        if operator.lead is None or operator.lead(types, dict(node.attrs), flags) is None:
            chosen.add(node.outputs[0].name)
    return frozenset(chosen)


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    if node.formula is not None:
        return any(isinstance(n, Call) and n.fn == "uniform" for n in walk(node.formula.value))
    if node.op in CONTROL:
        return any(_draws(inner) for body in node.graphs for inner in body.nodes)
    return bool(dict(node.attrs).get("random"))


class _Walk:
    """The walk: the batched graph in the making, and what each value has become in it, with whether
    it has the batch."""

    def __init__(self, builder: Builder, size: int, randomness: str) -> None:
        self.builder = builder
        self.size = size
        self.randomness = randomness
        self.known: dict[str, tuple[Value, bool]] = {}
        self.before: dict[str, TensorType] = {}

    def visit(self, node: Node) -> None:
        """Add what a node becomes."""
        self.before.update((v.name, v.type) for v in (*node.inputs, *node.outputs))
        found = [self.known[value.name] for value in node.inputs]
        inputs = tuple(value for value, _ in found)
        flags = tuple(has for _, has in found)
        draws = _draws(node)
        if draws and self.randomness == "error":
            raise _random(node)
        if not any(flags) and not (draws and self.randomness == "different"):
            self.builder.nodes.append(replace(node, inputs=inputs))
            self.known.update((value.name, (value, False)) for value in node.outputs)
            return
        if node.op in CONTROL:
            self._control(node, found)
            return
        kept = self._by_name(node, inputs, flags)
        if kept is not None:
            made = kept
        elif has_pullback(node):
            made = self._custom(node, inputs, flags)
        elif node.formula is not None:
            made = self._formula(node, inputs, flags, apart=draws and not self._same())
        elif node.op == LIBRARY:
            made = self._library(node, inputs, flags)
        else:
            raise CaptureError(
                f"{node.op} cannot be batched",
                where=node.origin,
                mend="call it outside of vmap, in a loop over the samples",
            )
        for value in node.outputs:
            assert Value(value.name, lead(value.type, self.size)) in made, f"{node.op} is batched"
            self.known[value.name] = (Value(value.name, lead(value.type, self.size)), True)

    def _same(self) -> bool:
        return self.randomness == "same"

    def _control(self, node: Node, operands: Sequence[tuple[Value, bool]]) -> None:
        # A body is batched as a graph is, and a graph holds bodies: each needs the other.
        from tilewright.autodiff.batch_control import Samples, batch_control

        samples = Samples(self.size, self.randomness)
        made = batch_control(self.builder, node, operands, samples)
        self.known.update(zip((value.name for value in node.outputs), made, strict=True))

    def _by_name(
        self, node: Node, inputs: tuple[Value, ...], flags: tuple[bool, ...]
    ) -> tuple[Value, ...] | None:
        """Add the same operator on the batched operands, if it is the batched operator."""
        operator = TABLE.get(node.op)
        if operator is None or _draws(node):
            return None
        types = tuple(value.type for value in inputs)
        wanted = tuple(lead(value.type, self.size) for value in node.outputs)
        attrs: Attrs = dict(node.attrs)
        if node.formula is not None:
            if not _can_lead(node.formula, flags):
                return None
            try:
                formula = formula_for(operator, types, node.attrs)
            except (TilewrightError, AssertionError, ValueError, IndexError):
                return None  # a row for one rank alone fails on another in a way of its own
            batched = batch_formula(node.formula, flags, self.size)
            if formula is None or _numbered(formula) != _numbered(batched):
                return None
        else:
            before = tuple(self.before[value.name] for value in node.inputs)
            found = None if operator.lead is None else operator.lead(before, attrs, flags)
            if found is None or result_types(operator, types, tuple(found.items())) != wanted:
                return None
            attrs, formula = found, None
        outputs = tuple(Value(v.name, type_) for v, type_ in zip(node.outputs, wanted, strict=True))
        named = Node(node.op, inputs, outputs, tuple(attrs.items()), formula, (), node.origin)
        self.builder.nodes.append(named)
        return outputs

    def _formula(
        self, node: Node, inputs: tuple[Value, ...], flags: tuple[bool, ...], *, apart: bool
    ) -> tuple[Value, ...]:
        formula = node.formula
        assert formula is not None, "visit has looked"
        given, has = list(inputs), list(flags)
        if isinstance(formula.fill, Read):
            base = formula.operands.index(formula.fill.tensor)
            if not has[base]:
                given[base], has[base] = (
                    spread(self.builder, given[base], self.size, node.origin),
                    True,
                )
        made = batch_formula(formula, has, self.size, apart=apart)
        self.builder.nodes.append(
            Node(
                FORMULA,
                tuple(given),
                (Value(node.output.name, made.type),),
                formula=made,
                origin=node.origin,
            )
        )
        return self.builder.nodes[-1].outputs

    def _library(
        self, node: Node, inputs: tuple[Value, ...], flags: tuple[bool, ...]
    ) -> tuple[Value, ...]:
        attrs = dict(node.attrs)
        through = attrs.pop("through", ())
        assert isinstance(through, tuple), "derivatives and batches so far are a tuple"
        moved = tuple(k for k, has in enumerate(flags) if has)
        layer = ("batch", moved, self.size, self.randomness)
        attrs["through"] = (*through, layer)
        outputs = tuple(Value(v.name, lead(v.type, self.size)) for v in node.outputs)
        self.builder.nodes.append(
            Node(LIBRARY, inputs, outputs, tuple(attrs.items()), origin=node.origin)
        )
        return outputs

    def _custom(
        self, node: Node, inputs: tuple[Value, ...], flags: tuple[bool, ...]
    ) -> tuple[Value, ...]:
        body = self._body(node, flags)
        found = pullback(node)
        tangents = len(found.of)
        seen = (*flags, *(True for _ in node.outputs), *(True for _ in range(tangents)))
        gradient = batch(found.graph, seen, self.size, randomness=self.randomness)
        walk = _Walk(Builder.extending(gradient.graph), self.size, self.randomness)
        outputs = []
        for at, value, has in zip(found.wrt, gradient.graph.outputs, gradient.outputs, strict=True):
            each = value if has else spread(walk.builder, value, self.size)
            outputs.append(each if flags[at] else walk.summed(each))
        made = Node(
            CUSTOM,
            inputs,
            tuple(Value(v.name, lead(v.type, self.size)) for v in node.outputs),
            (("of", found.of), ("wrt", found.wrt)),
            graphs=(body, walk.builder.finish(outputs)),
            origin=node.origin,
        )
        self.builder.nodes.append(made)
        return made.outputs

    def _body(self, node: Node, flags: tuple[bool, ...]) -> Graph:
        """The batched loops of a node with a gradient of its own."""
        builder = Builder(node.op)
        operands = tuple(builder.input(f"x{k}", v.type) for k, v in enumerate(node.inputs))
        if node.formula is not None:
            results: tuple[Value, ...] = (
                builder.formula(node.formula, *operands, origin=node.origin, name="y"),
            )
        else:
            inner = replace(node, inputs=operands)
            graph = Graph(node.op, tuple(operands), (inner,), inner.outputs)
            graph = expand_where(graph, frozenset((inner.outputs[0].name,)))
            results = builder.inline(graph, operands, origin=node.origin)
        made = batch(builder.finish(results), flags, self.size, randomness=self.randomness)
        walk = _Walk(Builder.extending(made.graph), self.size, self.randomness)
        pairs = zip(made.graph.outputs, made.outputs, strict=True)
        return walk.builder.finish(
            [v if has else spread(walk.builder, v, self.size) for v, has in pairs]
        )

    def summed(self, value: Value) -> Value:
        """Add up what the samples give."""
        loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(value.type.shape))
        index = tuple(Sym(loop.name) for loop in loops)
        type_ = TensorType(value.type.shape[1:], value.type.dtype)
        made = normal(Formula(("x",), loops, index[1:], "+=", Read("x", index), type_))
        return self.builder.formula(made, value, name=value.name)


def _can_lead(formula: Formula, flags: Sequence[bool]) -> bool:
    if not isinstance(formula.fill, Read):
        return True
    return flags[formula.operands.index(formula.fill.tensor)]


def _numbered(formula: Formula) -> Formula:
    """Name loops by their order, so that formulas can be compared."""
    order = {loop.name: f"@{at}" for at, loop in enumerate(formula.loops)}
    bound: dict[str, Expr] = {name: Sym(number) for name, number in order.items()}
    return replace(
        formula,
        loops=tuple(Loop(order[loop.name], loop.extent) for loop in formula.loops),
        index=tuple(substitute(entry, bound) for entry in formula.index),
        value=substitute(formula.value, bound),
        where=None if formula.where is None else substitute(formula.where, bound),
        at=None if formula.at is None else substitute(formula.at, bound),
    )


def _random(node: Node) -> CaptureError:
    return CaptureError(
        "random numbers are drawn inside of vmap",
        expected='vmap(..., randomness="same") or "different", where a function draws them',
        found=str(dict(node.attrs).get("target", node.op)),
        where=node.origin,
        mend='say what the samples shall draw: randomness="different"',
    )


def _written_by_all(graph: Graph, name: str) -> MutationError:
    return MutationError(
        f"{graph.role(name).source or name} is changed in place inside of vmap",
        expected="in-place changes of tensors that have the batch",
        found="one tensor that every sample would write to",
        mend="return the new value in place of writing it",
    )
