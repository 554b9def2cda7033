"""Products whose kernel computes what follows them as well: which do, and where all of it lies.

The idea: the product lies where one of the results goes, if one is of its type and replaces
nothing that is still read; so it needs no memory, and what follows finds it in cache.

This module does not know how a product or what follows is computed (`kernels`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.compiler.contraction import as_product, operands_of, place_contraction
from tilewright.compiler.slices import Hoist, nowhere
from tilewright.compiler.strided import dense_view, is_contiguous, row_major
from tilewright.compiler.winograd import place_winograd
from tilewright.graph.classify import Contraction
from tilewright.graph.ir import FORMULA, FUSED, Formula, Graph, Loop, Node, Value
from tilewright.graph.notation import normal
from tilewright.kernels import (
    Epilogue,
    Product,
    Tiling,
    emit_product,
    is_rounded,
    keeps,
    print_epilogue,
    tiles,
)
from tilewright.optimize import parted
from tilewright.program import View

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly


def place_product(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a node if it is a matrix product; half types are rounded after it."""
    type_ = node.output.type
    if not is_rounded(type_.dtype) or any(type(extent) is not int for extent in type_.shape):
        return place_contraction(assembly, node)
    body = Graph("alone", (node.output,), (), (node.output,))
    after = Node(FUSED, (node.output,), node.outputs, graphs=(body,), origin=node.origin)
    return place_contraction(assembly, node, partial(_place_both, assembly, node, after))


def place_followed(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a product and what follows it; False where a node is not these two.

    It is one kernel where ours computes the product, tile by tile.
    """
    found = parted(node)
    if found is None:
        return False
    product, after = found
    follow = partial(_place_both, assembly, product, after)
    if not (place_winograd(assembly, product) or place_contraction(assembly, product, follow)):
        assembly.node(product)
    if after.outputs[0].name not in assembly.places:
        assembly.node(after)
    return True


def _place_both(
    assembly: "Assembly",
    node: Node,
    after: Node,
    product: Contraction,
    operands: tuple[View, View],
    tiling: Tiling,
    hoist: Hoist,
    why: str,
) -> bool:
    """Add one kernel that computes a product and what follows it; False where that is not done.

    node, after: the product, and the fused node of what follows, whose first input it is.
    operands: where the product's lie.  tiling, hoist, why: of its kernel.
    """
    dtype = node.output.type.dtype
    if is_rounded(dtype):
        after = _after_sums(assembly, node, after, product.onto)
    trial = as_product(product, dtype, *operands, dense_view(node.output.type), row_major, nowhere)
    others = tuple(assembly.places[value.name] for value in after.inputs[1:])
    epilogue = _epilogue(product, after, others, turned=trial.turned)
    following = None if epilogue is None else print_epilogue(epilogue)
    if following is None:
        return False
    assert isinstance(trial.by, Product), "a kernel of ours was asked for"
    outputs = [assembly.place(value) for value in after.outputs]
    home = None if is_rounded(dtype) else _home(assembly, node, after)
    if home is None and keeps(trial.by, tiling):
        home = len(outputs)
        sums = replace(node.output.type, dtype=dtype.compute)
        outputs.append(assembly.scratch(node.output.name, sums))
    result = dense_view(node.output.type) if home is None else outputs[home]
    call = as_product(product, dtype, *operands, result, assembly.gathered, hoist)
    assert isinstance(call.by, Product) and call.turned == trial.turned, "it was tried"
    made = emit_product(
        call.by, tiling, following, None if home is None else 2 + len(others) + home
    )
    assembly.call(made, tiles(dtype), (*call.inputs, *others), tuple(outputs), after.origin)
    names = ", ".join(value.name for value in after.outputs)
    why = f"; {why}" if why else ""
    reason = f"{made.recipe}, and {names} of blocks in cache: {made.name}{why}"
    assembly.decide(after, "kernel", reason, made.flops, made.bytes)
    return True


def _after_sums(assembly: "Assembly", node: Node, after: Node, onto: str) -> Node:
    """Return what follows the sums of a product in a half type: what they are added to is added,
    they are rounded, and that is what `after` reads.

    onto: the operand of the product's formula that its sums are added to, "" if there is none.
    """
    body = after.graphs[0]
    rounded = body.inputs[0]
    type_ = rounded.type
    sums = Value(assembly.fresh("sums"), replace(type_, dtype=type_.dtype.compute))
    loops = tuple(Loop(f"i{dim}", extent) for dim, extent in enumerate(type_.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    read: tuple[str, ...] = ("s",)
    inner: tuple[Value, ...] = (sums,)
    outer: tuple[Value, ...] = (node.output,)
    value: Expr = Read("s", index)
    if onto:
        addend = operands_of(node)[onto]
        read, outer = (*read, "e"), (*outer, addend)
        inner = (*inner, Value(assembly.fresh("addend"), addend.type))
        value = Call("add", (value, Read("e", index)))
    formula = normal(Formula(read, loops, index, "=", value, type_))
    first = Node(FORMULA, inner, (rounded,), formula=formula)
    inputs = (*inner, *body.inputs[1:])
    made = replace(body, inputs=inputs, nodes=(first, *body.nodes))
    return replace(after, inputs=(*outer, *after.inputs[1:]), graphs=(made,))


def _home(assembly: "Assembly", node: Node, after: Node) -> int | None:
    """Return the result in whose memory the product may lie."""
    for at, value in enumerate(after.outputs):
        free = value.name not in assembly.in_place and value.name not in assembly.targets
        if value.type == node.output.type and free:
            return at
    return None


def _epilogue(
    found: Contraction, after: Node, others: Sequence[View], *, turned: bool
) -> Epilogue | None:
    """Return what follows a product, over the rows and columns of its kernel."""
    dims = {entry.name: dim for dim, entry in enumerate(found.target) if isinstance(entry, Sym)}
    if any(not isinstance(entry, Sym) and entry != Const(0) for entry in found.target):
        return None
    rows, columns = (found.n, found.m) if turned else (found.m, found.n)
    body = after.graphs[0]
    strides = {
        value.name: view.strides
        for value, view in zip(body.inputs[1:], others, strict=True)
        if not is_contiguous(view)
    }
    down = tuple(dims[loop.name] for loop in (*found.batch, *rows))
    return Epilogue(body, strides, down, tuple(dims[loop.name] for loop in columns))
