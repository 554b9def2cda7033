"""Put what follows a matrix product element by element into the product's node.

The idea: a product's elements are in cache when they have all their terms; what alone reads them,
element by element, and costs little (a bias, a scale, relu, a cast), is computed there, and the
product itself need not go through memory.

This module does not know kernels: whoever places the node may still compute the two apart (`parted`
says what they are).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.expr import Const, Expr, Read, reads
from tilewright.graph.build import users
from tilewright.graph.classify import classify_contraction
from tilewright.graph.compose import over_values, types_of
from tilewright.graph.ir import FORMULA, FUSED, Formula, Graph, Node, Value
from tilewright.graph.total import Types, flops, parts
from tilewright.graph.views import is_pointwise, size_of, view_of
from tilewright.optimize.rewriting import with_formula

RECIPE = "product"
"""What the attribute `recipe` of a fused node says that begins with a matrix product."""
CHEAP = 7
"""Operations an element up to which a pass of its own takes as long as its memory."""


@dataclass(frozen=True, slots=True)
class FuseEpilogues:
    """Let a product's node compute what follows it, where nothing else reads the product.

    ::

        %c = {y[i<8, j<4] += a[i, k<6] * b[k, j]}(%a, %b)   -->   %d = fused(%a, %b, %e) with
        %d = {y[i<8, j<4] = max(c[i, j] + e[j], 0)}(%c, %e)         graph d(a, b, e) { c = ...
                                                                    d = ...  return d }

    What computes for long stays as it is, for in a pass of its own it hides the way to memory; so
    does what reads another operand as large as the product, which is streamed better alone.
    """

    name: str = "fuse_epilogues"
    needs: tuple[str, ...] = ("fused",)
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        types = types_of(graph)
        made = {value.name: at for at, node in enumerate(graph.nodes) for value in node.outputs}
        readers = users(graph)
        results = {value.name for value in graph.outputs}
        nodes: list[Node | None] = list(graph.nodes)
        for at, node in enumerate(graph.nodes):
            for source in sorted(
                {made[v.name] for v in node.inputs if v.name in made}, reverse=True
            ):
                product, name = graph.nodes[source], graph.nodes[source].outputs[0].name
                alone = len(readers[name]) == 1 and name not in results
                if nodes[source] is not product or not alone or not _is_product(product, types):
                    continue
                found = _joined(product, node, types)
                if found is not None and all(made.get(v.name, -1) < source for v in found.inputs):
                    nodes[source], nodes[at] = found, None
                    break
        return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def parted(node: Node) -> tuple[Node, Node] | None:
    """Return the product that a fused node begins with, and the fused node of what follows it.

    The product is the first input of the second.  None where it begins with none.
    """
    if node.op != FUSED or node.attr("recipe") != RECIPE:
        return None
    body = node.graphs[0]
    outer = dict(zip((value.name for value in body.inputs), node.inputs, strict=True))
    product, *rest = body.nodes
    inputs = tuple(outer[value.name] for value in product.inputs)
    read = dict.fromkeys((product.output, *(value for item in rest for value in item.inputs)))
    made = {item.output.name for item in rest}
    inner = tuple(value for value in read if value.name not in made)
    after = Graph(body.name, inner, tuple(rest), body.outputs)
    values = tuple(outer.get(value.name, value) for value in inner)
    return (
        replace(product, inputs=inputs),
        replace(node, inputs=values, attrs=(("recipe", "pointwise"),), graphs=(after,)),
    )


def _is_product(node: Node, types: Types) -> bool:
    """Say whether a node is a matrix product of fixed size, and of half types what it is added to.

    There the kernel rounds after that; of other types the sum is one more formula that follows.
    """
    if node.formula is None:
        return False
    extents = [loop.extent for loop in node.formula.loops]
    if not all(type(extent) is int and extent > 0 for extent in extents):
        return False
    found = classify_contraction(over_values(node), types)
    if found is None or not found.is_matrix:
        return False
    dtype = node.output.type.dtype
    return not found.onto or dtype != dtype.compute


def _joined(product: Node, reader: Node, types: Types) -> Node | None:
    """Return the fused node of a product and what follows it; None where something else does."""
    formulas = _formulas(reader, types)
    follows = _following(product.output, formulas)
    pointwise = all(node.formula is not None and is_pointwise(node.formula) for node in formulas)
    if not formulas or not pointwise or not follows.issuperset(v.name for v in reader.outputs):
        return None
    others = tuple(value for value in reader.inputs if value != product.output)
    large = any(size_of(value.type) >= size_of(product.output.type) for value in others)
    if large or sum(flops(part) for node in formulas for part in _values(node)) > CHEAP:
        return None
    blank = Node(FORMULA, (), product.outputs, origin=product.origin)
    first = with_formula(blank, over_values(product), types)
    inputs = tuple(dict.fromkeys((*first.inputs, *others)))
    body = Graph(formulas[-1].output.name, inputs, (first, *formulas), reader.outputs)
    attrs = (("recipe", RECIPE),)
    return Node(FUSED, inputs, reader.outputs, attrs, graphs=(body,), origin=reader.origin)


def _values(node: Node) -> tuple[Expr, ...]:
    assert node.formula is not None, "a formula of a kernel"
    where = node.formula.where
    return (node.formula.value,) if where is None else (node.formula.value, where)


def _formulas(reader: Node, types: Types) -> list[Node]:
    """Return the formulas of a kernel that reads a product, over values; none of a view."""
    if reader.op == FUSED:
        body = reader.graphs[0]
        assert body.inputs == reader.inputs, "fusion gives a body the names of the values around it"
        return [] if reader.attr("recipe") == RECIPE else list(reader.graphs[0].nodes)
    if reader.formula is None or view_of(over_values(reader), types) is not None:
        return []
    blank = Node(FORMULA, (), reader.outputs, origin=reader.origin)
    return [with_formula(blank, over_values(reader), types)]


def _following(product: Value, formulas: Sequence[Node]) -> frozenset[str]:
    """Return the values whose every element follows from the product's element at its place."""
    found = {product.name}
    for node in formulas:
        formula = over_values(node)
        of = [value.name for value in node.inputs if value.name in found]
        shaped = is_pointwise(formula) and node.output.type.shape == product.type.shape
        if of and shaped and all(_at_own_place(formula, name) for name in of):
            found.add(node.output.name)
    return frozenset(found - {product.name})


def _at_own_place(formula: Formula, operand: str) -> bool:
    """Say whether an operand of the result's shape is read at the index of the result alone."""
    if isinstance(formula.fill, Read) and formula.fill.tensor == operand:
        return False
    return all(
        own == target or (size == 1 and own == Const(0))
        for part in parts(formula)
        for read in reads(part)
        if read.tensor == operand
        for own, target, size in zip(read.index, formula.index, formula.type.shape, strict=True)
    )
