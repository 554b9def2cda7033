"""Matrix products that are added to what is there, as a scan over chunks of rows sums them.

The idea: BLAS adds a product to a matrix in one call, and in place where the sum is a carry; a
kernel of ours makes the product alone, and a pointwise one the sum; in half types one kernel makes
both, as what is rounded in between would be lost.

This module does not know why there is a sum.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.base.expr import Call, Const, Read, Sym, reads
from tilewright.compiler.contraction import as_matrices, drop, operands_of, product_in
from tilewright.compiler.epilogue import place_product
from tilewright.compiler.strided import arranged
from tilewright.graph.ir import FORMULA, Formula, Loop, Node, Value
from tilewright.graph.notation import normal
from tilewright.kernels import is_rounded
from tilewright.program import LibraryCall, View

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

_ONTO = {"aten.mm.out": "aten.addmm.out", "aten.bmm.out": "aten.baddbmm.out"}


def place_accumulated(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a node if it is a matrix product that is added to an operand: one call of
    the library where that can write the result, else the product and then the sum."""
    found = product_in(node)
    if found is None or not found.onto:
        return False
    if is_rounded(node.output.type.dtype):
        if place_product(assembly, node):
            return True
        if not assembly.options.library:
            return False  # a product apart would be rounded, then its sum: plain loops round once
    value, sources = node.output, operands_of(node)
    result, before = assembly.place(value), assembly.places[sources[found.onto].name]
    groups = (found.batch, found.m, found.n)
    if not assembly.options.library or arranged(result, found.target, groups) is None:
        del assembly.places[value.name]  # the sum is placed there
        product, total = _apart(node, sources[found.onto], assembly.fresh(f"{value.name}_terms"))
        for part in (product, total):
            assembly.node(part)
        return True
    left, right = (assembly.places[sources[r.tensor].name] for r in (found.left, found.right))
    call = as_matrices(found, left, right, result, assembly.gathered, _none)
    target = _ONTO[str(call.by)]
    onto = arranged(before, found.target, groups)
    if onto is None:
        assembly.copy(before, result, "what a product is added to")
        onto = arranged(result, found.target, groups)
        assert onto is not None, "it was asked for"
    inputs = (onto if found.batch else drop(onto), *call.inputs)
    slots = (("%", 0), ("%", 1), ("%", 2))
    step = LibraryCall(target, slots, (), inputs, (call.output,), origin=node.origin)
    assembly.steps.append(step)
    assembly.decide(node, "library", f"contraction by {target}")
    return True


def _none(loops: Sequence[Loop]) -> View:
    raise AssertionError(f"the result is written in its place, not over {loops}")


def _apart(node: Node, onto: Value, name: str) -> tuple[Node, Node]:
    """Return a product as a value of this name, and its sum with what it is added to."""
    assert node.formula is not None, "a product has loops"
    kept = [
        (word, value)
        for word, value in zip(node.formula.operands, node.inputs, strict=True)
        if any(read.tensor == word for read in reads(node.formula.value))
    ]
    terms = Value(name, node.output.type)
    formula = replace(node.formula, operands=tuple(word for word, _ in kept), fill=Const(0))
    inputs = tuple(value for _, value in kept)
    product = replace(node, inputs=inputs, outputs=(terms,), formula=normal(formula))
    loops = tuple(Loop(f"i{k}", extent) for k, extent in enumerate(terms.type.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    total = Call("add", (Read("a", index), Read("b", index)))
    added = normal(Formula(("a", "b"), loops, index, "=", total, terms.type))
    return product, replace(node, op=FORMULA, inputs=(onto, terms), attrs=(), formula=added)
