"""Read rows of a table's product where rows of the table were multiplied, if that can be prepared.

The idea: a product that takes rows of a table, as an embedding's, makes rows of one product, that
of the whole table.  Where table and factor are weights that stay, this one is computed once for all
runs (`staying`), and each run reads rows of it.

This module does not know layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.base.expr import Const, Expr, Read, Sym, names, reads, transform
from tilewright.graph import build
from tilewright.graph.classify import classify_contraction, product_of
from tilewright.graph.compose import compose, over_values, rename_operands, types_of
from tilewright.graph.ir import FORMULA, Formula, Graph, Loop, Node, TensorType, Value
from tilewright.graph.total import Types
from tilewright.graph.views import bytes_of, is_pointwise, is_reduction, reduced
from tilewright.optimize.rewriting import moved, with_formula
from tilewright.optimize.staying import is_worth_keeping, staying

MOST = 64 << 20
"""Bytes of a table's product that are kept, at most."""


@dataclass(frozen=True, slots=True)
class TabulateProducts:
    """Multiply a whole table by a weight, and read rows of that.

    ::

        %x = {y[t<9, d<4] = e[n[t], d]}(%e, %n)             -->   %p = {y[row<7, j<8] += e[row, k<4]
        %y = {y[t<9, j<8] += x[t, k<4] * w[j, k]}(%x, %w)             * w[j, k]}(%e, %w)
                                                                  %y = {y[t<9, j<8] = p[n[t], j]}

    Table and weight are parameters or buffers that no run updates, and the table's product is worth
    keeping (`staying`) and no larger than MOST.  What the sums are added to, if anything, is a
    bias, which every row has, and stays too.  Each sum has the same terms, in the same order.
    """

    name: str = "tabulate_products"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        types, stay, made = types_of(graph), staying(graph), build.producers(graph)
        chooser = build.Builder()
        chooser.reserve(build.names(graph))
        nodes: list[Node] = []
        for node in graph.nodes:
            found = _tabulated(node, made, types, stay)
            if found is None:
                nodes.append(node)
                continue
            whole, base, rows = found
            if base is not None:
                spread = Value(chooser.fresh(f"{node.output.name}_base"), base.type)
                blank = Node(FORMULA, (), (spread,), origin=node.origin)
                nodes.append(with_formula(blank, base, types))
                types = {**types, spread.name: spread.type}
                whole = replace(whole, fill=Read(spread.name, ()))
            table = Value(chooser.fresh(f"{node.output.name}_table"), whole.type)
            blank = Node(FORMULA, (), (table,), origin=node.origin)
            nodes.append(with_formula(blank, whole, types))
            nodes.append(with_formula(node, rows(table.name), {**types, table.name: table.type}))
        return build.prune(replace(graph, nodes=tuple(nodes)))


def _tabulated(
    node: Node, made: Mapping[str, Node], types: Types, stay: frozenset[str]
) -> tuple[Formula, Formula | None, Callable[[str], Formula]] | None:
    """Return the product of the table that a product takes rows of, what that is added to, and what
    reads rows of it, by its name; None where it takes none, or where the product of the whole is
    not worth keeping."""
    formula = node.formula
    if formula is None or formula.op != "+=" or not is_reduction(formula):
        return None
    product = over_values(node)
    for value in node.inputs:
        product = _through(product, value.name, made, types)
    factors = product_of(product.value)
    if factors is None or len(factors[1]) != 2:
        return None
    table, factor = sorted(factors[1], key=lambda read: not any(map(reads, read.index)))
    if table.tensor not in stay or factor.tensor not in stay:
        return None
    whole = _of_all_rows(product, table, factor, types)
    sources = [types[name] for name in dict.fromkeys((table.tensor, factor.tensor))]
    if whole is None or not is_worth_keeping(whole.type, sources, sums=True):
        return None
    if bytes_of(whole.type) > MOST:
        return None
    base = None
    if whole.fill != Const(0):
        base = _base(product, whole, made, stay)
        if base is None:
            return None
    return whole, base, lambda name: _rows(product, table, Read(name, whole.index))


def _base(
    product: Formula, whole: Formula, made: Mapping[str, Node], stay: frozenset[str]
) -> Formula | None:
    """Return what the product of a table is added to; None where a row has an addend of its own.

    Every row has the same where it is a bias, spread over the rows.
    """
    assert isinstance(product.fill, Read), "it is added to an operand"
    maker = made.get(product.fill.tensor)
    if maker is None or maker.formula is None or not is_pointwise(maker.formula):
        return None
    spread = over_values(maker)
    if not isinstance(spread.value, Read) or spread.value.tensor not in stay:
        return None
    places = dict(zip(spread.index, product.index, strict=True))
    columns = {entry: Sym(f"i{dim}") for dim, entry in enumerate(whole.index) if dim}
    index: list[Expr] = []
    for entry in spread.value.index:
        place = columns.get(places.get(entry, entry))
        if place is None and entry != Const(0):
            return None
        index.append(Const(0) if place is None else place)
    made_of = moved(whole.type, tuple(index))
    return rename_operands(made_of, {"x": spread.value.tensor})


def _through(product: Formula, operand: str, made: Mapping[str, Node], types: Types) -> Formula:
    """Put what only picks elements in the place of an operand, as far as that goes."""
    while operand in made:
        node = made[operand]
        if node.formula is None or not is_pointwise(node.formula):
            break
        picked = over_values(node)
        composed = compose(product, operand, picked, types)
        if composed is None or not isinstance(picked.value, Read):
            break
        product, operand = composed, picked.value.tensor
    return product


def _of_all_rows(product: Formula, table: Read, factor: Read, types: Types) -> Formula | None:
    """Return the product with a loop over all rows in the place of the one index that another
    tensor gives; None where that is no matrix product, or the factor knows the index.

    What is summed must be summed in both factors, past the index: a sum of rows is more than a row,
    and a sum that neither knows multiplies.
    """
    given = [at for at, entry in enumerate(table.index) if reads(entry)]
    used = frozenset[str]().union(*map(names, factor.index))
    if len(given) != 1 or names(table.index[given[0]]) & used or any(map(reads, factor.index)):
        return None
    (at,) = given
    past = frozenset[str]().union(*map(names, (*table.index[:at], *table.index[at + 1 :])))
    if any(each.name not in used & past for each in reduced(product)):
        return None
    loop = "row"
    while any(loop == each.name for each in product.loops):
        loop += "s"
    index = (*table.index[:at], Sym(loop), *table.index[at + 1 :])
    known = used.union(*map(names, index))
    extents = {each.name: each.extent for each in product.loops}
    columns = tuple(entry for entry in product.index if names(entry) & known)
    rows = types[table.tensor].shape[at]
    shape = (rows, *(extents[name] for entry in columns for name in names(entry)))
    whole = replace(
        product,
        loops=(Loop(loop, rows), *(each for each in product.loops if each.name in known)),
        index=(Sym(loop), *columns),
        value=_replaced(product.value, table, replace(table, index=index)),
        type=TensorType(shape, product.type.dtype),
    )
    found = classify_contraction(whole, types)
    return whole if found is not None and found.is_matrix and not found.batch else None


def _rows(product: Formula, table: Read, whole: Read) -> Formula:
    """Return what reads rows of the product of the whole table."""
    (row,) = (entry for entry in table.index if reads(entry))
    gone = {loop.name for loop in reduced(product)}
    loops = tuple(loop for loop in product.loops if loop.name not in gone)
    value = Read(whole.tensor, (row, *whole.index[1:]))
    return replace(product, loops=loops, op="=", value=value, fill=Const(0))


def _replaced(value: Expr, old: Read, new: Read) -> Expr:
    return transform(value, lambda part: new if part == old else part)
