"""Compute values in the order in which what they are made from lies in memory.

The idea: a tensor may be dense in another order of its dims than theirs (images whose channels lie
innermost, a transposed matrix).  Then what a formula makes of it is written in that order as well,
for the loops of a formula may be in any: nothing walks through memory with long strides, and
nothing is copied where a graph begins and ends.  An order lists the dims, the outermost first.

This module does not know addresses, nor who asks for an order.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.base.expr import Expr, Read, names, reads, transform
from tilewright.graph import build
from tilewright.graph.classify import multiplies
from tilewright.graph.compose import over_values
from tilewright.graph.ir import FORMULA, Formula, Graph, Node, TensorType, Value
from tilewright.graph.orders import Order, canonical, is_row_major
from tilewright.graph.total import map_parts, parts
from tilewright.graph.views import reduced, size_of
from tilewright.optimize.rewriting import moved, with_formula

Kernels = Callable[[Node], str | None]
"""Says which value of a node are kernels that stay row by row, though its images may have their
channels last; None of nodes that do no such thing."""


def no_kernels(_: Node) -> None:
    """Say that no node has such kernels."""


def followed(
    graph: Graph, orders: Mapping[str, Order], kernels: Kernels = no_kernels
) -> dict[str, Order]:
    """Return in which order values will lie, where that is not row by row, if inputs do so.

    Before operators are expanded this is a guess, right for those that keep their operand's dims.
    """
    found = dict(orders)
    for node in graph.nodes if orders else ():
        value = node.outputs[0]
        if (apart := kernels(node)) is not None:
            order = channels_last(node, apart, found)
            order = None if apart == value.name else order
        elif node.formula is not None:
            order = _order_for(over_values(node), _types(node), found)
        else:
            largest = max(node.inputs, key=lambda each: size_of(each.type), default=value)
            alike = largest.type.rank == value.type.rank and not node.graphs
            order = found.get(largest.name) if alike and "conv" not in node.op else None
        if order is not None and not is_row_major(canonical(order, value.type.shape)):
            found[value.name] = canonical(order, value.type.shape)
    return found


def follow_memory(
    graph: Graph,
    inputs: Mapping[str, Order],
    outputs: Mapping[int, Order],
    kernels: Kernels = no_kernels,
) -> Graph:
    """Take inputs and give results that lie in other orders, and compute between them in these.

    ::

        %y = {y[i<2, j<3] = exp(x[i, j])}(%x)   -->   %y_lain = {y[j<3, i<2] = exp(x[j, i])}(%x)
        return %y                                     return %y_lain

    inputs: the orders, by name.  outputs: by position.  These inputs and outputs are afterwards of
    the types that they have in memory.  What multiplies matrices or is no formula reads and makes
    what it did before.
    """
    if not inputs and not outputs:
        return graph
    read = {value.name for node in graph.nodes for value in node.inputs}
    ends = {graph.outputs[k].name: order for k, order in outputs.items()}
    alone = {name: order for name, order in ends.items() if name not in read}
    return _Following(graph, inputs, alone, kernels).followed(outputs)


def channels_last(node: Node, kernels: str, orders: Mapping[str, Order]) -> Order | None:
    """Return that order, where the largest image lies so, and all images can be said to."""
    images = [value for value in (*node.inputs, node.output) if value.name != kernels]
    rank = images[0].type.rank
    order = (0, *range(2, rank), 1)
    lead = max(node.inputs, key=lambda v: (v.name != kernels, size_of(v.type), v.name in orders))
    alike = all(canonical(order, value.type.shape) == order for value in images)
    return order if alike and orders.get(lead.name) == order else None


class _Following:
    """The graph in the making; mutable, owned by `follow_memory`.

    lain: for each value that lies in another order, what holds it, and that order.  wanted: the
    order of results that nothing else reads, which are made in it.
    """

    def __init__(
        self,
        graph: Graph,
        orders: Mapping[str, Order],
        wanted: Mapping[str, Order],
        kernels: Kernels,
    ) -> None:
        self.graph = graph
        self.wanted = wanted
        self.kernels = kernels
        self.nodes: list[Node] = []
        self.chooser = build.Builder()
        self.chooser.reserve(build.names(graph))
        self.lain: dict[str, tuple[Value, Order]] = {}
        self.plain: dict[tuple[str, Order], Value] = {}
        self.inputs: list[Value] = []
        for value in graph.inputs:
            order = orders.get(value.name)
            if order is not None and not is_row_major(order):
                self.lain[value.name] = Value(value.name, _lain(value.type, order)), order
            self.inputs.append(self.lain.get(value.name, (value, order))[0])

    def followed(self, outputs: Mapping[int, Order]) -> Graph:
        """Go through the nodes; give results in the orders asked for, others row by row."""
        for node in self.graph.nodes:
            self._node(node)
        made = []
        for position, value in enumerate(self.graph.outputs):
            row_major = tuple(range(value.type.rank))
            made.append(self._in(value, outputs.get(position, row_major)))
        graph = replace(self.graph, inputs=tuple(self.inputs), nodes=tuple(self.nodes))
        return build.prune(replace(graph, outputs=tuple(made)))

    def _node(self, node: Node) -> None:
        formula = None if node.formula is None else over_values(node)
        held = [value for value in node.inputs if value.name in self.lain]
        apart = self.kernels(node) if held else None
        order = apart and channels_last(node, apart, {v.name: self.lain[v.name][1] for v in held})
        if not held and not any(value.name in self.wanted for value in node.outputs):
            self.nodes.append(node)
        elif formula is not None and apart and order:
            self._channelwise(node, formula, apart, order)
        elif formula is None or _is_product(formula):
            plain = tuple(self._in(v, tuple(range(v.type.rank))) for v in node.inputs)
            self.nodes.append(replace(node, inputs=plain))
        else:
            self._formula(node, formula)

    def _formula(self, node: Node, formula: Formula) -> None:
        """Add a formula that reads what lies otherwise as it lies, and writes in that order."""
        value, types = node.output, _types(node)
        orders = {name: self.lain[name][1] for name in formula.operands if name in self.lain}
        order = self.wanted.get(value.name) or _order_for(formula, types, orders)
        order = canonical(order or range(value.type.rank), value.type.shape)
        if isinstance(formula.fill, Read):
            base = next(each for each in node.inputs if each.name == formula.fill.tensor)
            held = self._in(base, order)
            formula = replace(formula, fill=Read(held.name, ()))
            types[held.name] = held.type
        for name in orders:
            types[self.lain[name][0].name] = self.lain[name][0].type

        def lie(part: Expr) -> Expr:
            if not isinstance(part, Read) or part.tensor not in orders:
                return part
            index = tuple(part.index[dim] for dim in orders[part.tensor])
            return Read(self.lain[part.tensor][0].name, index, part.default)

        formula = map_parts(formula, lambda whole: transform(whole, lie))
        self._written(node, formula, types, order)

    def _channelwise(self, node: Node, formula: Formula, apart: str, order: Order) -> None:
        """Add a sum over windows whose images all have their channels last, and kernels not."""
        own = {v.name: tuple(range(v.type.rank)) if v.name == apart else order for v in node.inputs}
        held = {v.name: self._in(v, own[v.name]) for v in node.inputs}

        def lie(part: Expr) -> Expr:
            if not isinstance(part, Read):
                return part
            index = tuple(part.index[dim] for dim in own[part.tensor])
            return Read(held[part.tensor].name, index, part.default)

        formula = map_parts(formula, lambda whole: transform(whole, lie))
        types = {value.name: value.type for value in held.values()}
        kept = node.output.name == apart
        self._written(node, formula, types, tuple(range(node.output.type.rank)) if kept else order)

    def _written(
        self, node: Node, formula: Formula, types: dict[str, TensorType], order: Order
    ) -> None:
        """Add a formula, its result in an order."""
        value = made = node.output
        if not is_row_major(order):
            made = Value(self.chooser.fresh(f"{value.name}_lain"), _lain(value.type, order))
            self.lain[value.name] = made, order
            formula = _written_in(formula, order)
        self.nodes.append(with_formula(replace(node, outputs=(made,)), formula, types))

    def _in(self, value: Value, order: Order) -> Value:
        """Return what holds a value in an order, rearranged if need be."""
        order = canonical(order, value.type.shape)
        held, has = self.lain.get(value.name, (value, tuple(range(value.type.rank))))
        if has == order:
            return held
        key = value.name, order
        if key not in self.plain:
            type_ = _lain(value.type, order)
            made = self.plain[key] = Value(self.chooser.fresh(f"{value.name}_turned"), type_)
            loops = moved(type_, ()).index
            index = tuple(loops[order.index(dim)] for dim in has)
            self.nodes.append(Node(FORMULA, (held,), (made,), formula=moved(type_, index)))
        return self.plain[key]


def _lain(type_: TensorType, order: Order) -> TensorType:
    return TensorType(tuple(type_.shape[dim] for dim in order), type_.dtype)


def _types(node: Node) -> dict[str, TensorType]:
    return {value.name: value.type for value in node.inputs}


def _is_product(formula: Formula) -> bool:
    """Say whether matrices or windows are multiplied, by what knows strides; a sum over elements
    that another tensor picks is loops like others."""
    picked = any(reads(entry) for read in reads(formula.value) for entry in read.index)
    return multiplies(formula) and not picked


def _written_in(formula: Formula, order: Order) -> Formula:
    """Return a formula whose result lies in an order, its loops likewise."""
    index = tuple(formula.index[dim] for dim in order)
    ranks = {name: at for at, entry in enumerate(index) for name in names(entry)}
    last = {loop.name for loop in reduced(formula)}
    loops = sorted(formula.loops, key=lambda x: (x.name in last, ranks.get(x.name, 0)))
    return replace(formula, loops=tuple(loops), index=index, type=_lain(formula.type, order))


def _order_for(
    formula: Formula, types: Mapping[str, TensorType], orders: Mapping[str, Order]
) -> Order | None:
    """Return the order in which the largest operand that lies otherwise is walked by the result;
    None where a larger one lies row by row, or matrices are multiplied.

    A dim that the operand is not walked along (a window's place, a repetition) stands where the
    operand's own dim of that number lies, or, where that is none, after the dim before it.
    """
    if not orders or _is_product(formula):
        return None
    found = [
        read
        for part in parts(formula)
        for read in reads(part)
        if len(read.index) == types[read.tensor].rank
    ]
    if not found:
        return None
    lead = max(found, key=lambda r: (size_of(types[r.tensor]), r.tensor in orders))
    if lead.tensor not in orders:
        return None
    walked = [names(lead.index[dim]) for dim in orders[lead.tensor]]

    shape = types[lead.tensor].shape
    alike = len(shape) == len(formula.index)

    def place(dim: int) -> int:
        mine = names(formula.index[dim])
        found = next((at for at, theirs in enumerate(walked) if mine & theirs), None)
        if found is not None:
            return found
        if alike and shape[dim] != 1:
            return orders[lead.tensor].index(dim)
        return place(dim - 1) if dim else -1

    return tuple(sorted(range(len(formula.index)), key=lambda dim: (place(dim), dim)))
