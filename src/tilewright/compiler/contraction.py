"""Contractions as matrix multiplications of strided views: by which kernel, on which views.

The idea: `graph.classify` tells what part each loop plays; walked group by group, a contraction is
`bmm(A[batch, m, k], B[batch, k, n])` whatever the order of the dims was: transposes are strides,
not copies.  Small products are a kernel of ours: a call to the library costs more than they do, and
ends the region that threads share.  Tiny ones in a large batch stay plain loops, as setting up
tiles of sums costs more than they do.  Ours takes loops of any strides; for the library, a group
that memory does not walk with one stride is copied first.

This module does not know how a product is computed; copies are asked for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.base.dtypes import DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.base.sizes import least_of, same
from tilewright.compiler.choices import alone, ask_product, usual_knobs
from tilewright.compiler.faster import (
    is_along,
    is_better_sliced,
    is_faster,
    is_packed,
    is_spread,
    is_tiny,
    volume,
)
from tilewright.compiler.slices import Hoist, cut, laid_somewhere, nowhere, over, sliced
from tilewright.compiler.strided import (
    Place,
    arranged,
    dense_view,
    is_contiguous,
    laid,
    placed,
    row_major,
)
from tilewright.graph.classify import Contraction, classify_contraction
from tilewright.graph.ir import Formula, Loop, Node, TensorType, Value
from tilewright.graph.notation import normal
from tilewright.graph.total import fixed
from tilewright.graph.views import place
from tilewright.kernels import (
    LOOPS,
    PRODUCT_DTYPES,
    SPAN,
    Emitted,
    Product,
    Role,
    Tiling,
    emit_product,
    is_rounded,
    merged,
    tiles,
)
from tilewright.program import KEPT, LibraryCall, View, contiguous, reach, whole
from tilewright.tune import LIBRARY, read_tiling

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

Groups = tuple[tuple[Loop, ...], ...]
Gather = Callable[[View, Sequence[Expr], Sequence[Loop]], View]
"""gather(view, index, loops) -> a dense tensor over the loops that holds view[index]."""


@dataclass(frozen=True, slots=True)
class MatrixCall:
    """`output = inputs[0] @ inputs[1]`, by a call to `by` or by our kernel of the product `by`.

    direct: whether the output is the result's own memory.  turned: whether the product's rows are
    the contraction's columns.
    """

    by: str | Product
    inputs: tuple[View, View]
    output: View
    direct: bool
    turned: bool = False


Follow = Callable[[Contraction, tuple[View, View], Tiling, Hoist, str], bool]
"""follow(product, operands, tiling, hoist, why) -> whether one kernel computes it and more."""


def place_contraction(assembly: "Assembly", node: Node, follow: Follow | None = None) -> bool:
    """Add what computes a node if it is a matrix product, by a kernel of ours or the library's.

    follow: is asked, if ours is to compute it, to add a kernel of it and of what follows it.
    """
    found = product_in(node)
    if found is None or 0 in node.output.type.shape or is_tiny(found):
        return False
    dtype, sources = node.output.type.dtype, operands_of(node)
    left, right = (assembly.places[sources[r.tensor].name] for r in (found.left, found.right))
    there = assembly.targets.get(node.output.name) or dense_view(node.output.type)
    decided = _decided(assembly, node, found, (left, right, there))
    if decided is None:
        return False
    tiling, hoist, why = decided
    if follow and tiling and follow(found, (left, right), tiling, hoist, why):
        return True
    if found.onto:
        return False
    if tiling and is_rounded(dtype):  # nothing would round the sums
        if not assembly.options.library:
            return False
        tiling = None
    result = assembly.place(node.output)
    views = (left, right, result)

    def scratch(loops: Sequence[Loop]) -> View:
        return assembly.scratch(f"{node.output.name}_product", over(loops, dtype))

    if tiling is not None:
        call = as_product(found, dtype, *views, assembly.gathered, hoist)
    else:
        call = as_matrices(found, *views, assembly.gathered, scratch)
    name = _add(assembly, node, call, tiling or Tiling(), why)
    if not call.direct:
        loops = (*found.batch, *found.m, *found.n)
        dense = whole(assembly.buffers[call.output.buffer])
        spread = _spread(loops, found.target, found.scale, node.output.type)
        assembly.launch(spread, dense, result, f"{name} result put in its place")
    return True


def _decided(
    assembly: "Assembly", node: Node, found: Contraction, views: tuple[View, View, View]
) -> tuple[Tiling | None, Hoist, str] | None:
    """Return the knobs of our kernel, None for the library; what gathers once for many runs of it;
    and why.  None where neither can, or loops of their own are faster."""
    (left, right, _), dtype = views, node.output.type.dtype
    library, target = assembly.options.library, assembly.options.target
    able = ours = is_ours(found, dtype) and _is_small(left) and _is_small(right)
    before, _ = assembly.before(right)
    lasts = able and before is not assembly and _is_laid_once(found, dtype, views)
    along = is_rounded(dtype) and is_along(found, dtype, left, right, target)
    lasts = lasts and not along
    carried = operands_of(node)[found.left.tensor].name in assembly.carried
    sliced = lasts and assembly.depth > 0 and is_better_sliced(found, carried=carried)
    if library and ours and not (sliced or _is_copied(found, left, right)):
        once = before is not assembly
        ours = is_faster(found, dtype, (left, right), target, once=once)
    of_loops = found.in_pairs and not (ours and along)
    if of_loops or not (ours or library):
        return None
    if lasts and before.kind == KEPT and (is_packed(found, right) or is_spread(found, right)):
        return usual_knobs(assembly.options), assembly.hoisted, "packed once"
    tiling = usual_knobs(assembly.options) if ours else None
    able = able and not is_rounded(dtype)
    tiling, why = _chosen(assembly, node, found, views, tiling) if able else (tiling, "")
    return tiling, assembly.hoisted if sliced else nowhere, why


def _chosen(
    assembly: "Assembly",
    node: Node,
    found: Contraction,
    views: tuple[View, View, View],
    usual: Tiling | None,
) -> tuple[Tiling | None, str]:
    """Return the knobs of our kernel, None for the library, as measured if it was; and why.

    usual: what is taken where nothing was measured.
    """
    if (assembly.depth and usual is not None) or not is_contiguous(views[2]):
        return usual, ""  # in a loop a small product is part of a region that a call would end
    copied = set[str]()

    def copy(view: View, index: Sequence[Expr], loops: Sequence[Loop]) -> View:
        copied.add(view.buffer)
        return row_major(view, index, loops)

    product = as_product(found, node.output.type.dtype, *views, copy, nowhere).by
    assert isinstance(product, Product), "it was asked for"
    sources = operands_of(node)
    names = (sources[read.tensor].name for read in (found.left, found.right))
    lying = tuple(zip(names, views, strict=False))
    asked = ask_product(product, alone(node), lying, usual, copies=len(copied))
    allowed = assembly.options.library
    verdict = assembly.choices.take(asked, lambda way: allowed or way != LIBRARY)
    if verdict.choice == LIBRARY:
        return None, verdict.reason
    return read_tiling(verdict.choice) or usual, verdict.reason


def _add(assembly: "Assembly", node: Node, call: MatrixCall, tiling: Tiling, why: str) -> str:
    """Add the step of a product, and the decision; returns the name of what computes it."""
    why = f"; {why}" if why else ""
    if isinstance(call.by, Product):
        kernel = emit_product(call.by, tiling)
        function = tiles(call.by.dtype)
        assembly.call(kernel, function, call.inputs, (call.output,), node.origin)
        reason = f"{kernel.recipe}: {kernel.name}{why}"
        assembly.decide(node, "kernel", reason, kernel.flops, kernel.bytes)
        return kernel.name
    slots = (("%", 0), ("%", 1))
    step = LibraryCall(call.by, slots, (), call.inputs, (call.output,), origin=node.origin)
    assembly.steps.append(step)
    assembly.decide(node, "library", f"contraction by {call.by}{why}")
    return call.by


RUN = 8
"""Elements of a result that lie together and are worth a vector."""


def product_in(node: Node) -> Contraction | None:
    """Return what each loop of a node does, if it is a matrix product."""
    assert node.formula is not None, "a node with loops"
    types = {name: value.type for name, value in operands_of(node).items()}
    found = classify_contraction(node.formula, types)
    return found if found is not None and found.is_matrix else None


def operands_of(node: Node) -> dict[str, Value]:
    """Return what the names in a node's loops stand for."""
    assert node.formula is not None, "a node with loops"
    return dict(zip(node.formula.operands, node.inputs, strict=True))


def is_ours(found: Contraction, dtype: DType) -> bool:
    """Say whether a kernel of ours can compute a matrix product."""
    loops = (*found.batch, *found.m, *found.n, *found.k)
    if dtype not in PRODUCT_DTYPES or any(type(fixed(loop.extent)) is not int for loop in loops):
        return False
    if volume(found.k) == 0 or not math.isfinite(found.scale):
        return False  # nothing would write the zeros of an empty sum; C has no literal for infinity
    return max(map(len, (found.m, found.n, found.k))) <= LOOPS and _span(found) < SPAN


def _is_copied(found: Contraction, left: View, right: View) -> bool:
    """Say whether the library would be given a copy of an operand, as of windows that overlap."""
    batch, m, n, k = found.batch, found.m, found.n, found.k
    a = arranged(left, found.left.index, (batch, m, k))
    return a is None or arranged(right, found.right.index, (batch, k, n)) is None


def _is_small(view: View) -> bool:
    """Say whether no stride of a view varies, and it has no more elements than kernels count."""
    numbers = (*view.shape, *view.strides, view.offset)
    if any(type(n) is not int for n in numbers):
        return False
    low, high = reach(view.shape, view.strides)
    return high - low < SPAN


def _is_laid_once(found: Contraction, dtype: DType, views: tuple[View, View, View]) -> bool:
    """Say whether our kernel can read a copy of the right operand, made once for many runs."""
    plain = as_product(found, dtype, *views, row_major, nowhere)
    return as_product(found, dtype, *views, row_major, laid_somewhere) != plain


def kernel_of(node: Node) -> Emitted | None:
    """Return our kernel of a matrix product of contiguous operands; None if it is none of ours."""
    found, dtype = product_in(node), node.output.type.dtype
    if found is None or is_rounded(dtype) or not is_ours(found, dtype):
        return None
    types = {name: value.type for name, value in operands_of(node).items()}
    left, right = (dense_view(types[r.tensor], r.tensor) for r in (found.left, found.right))
    result = dense_view(node.output.type, "y")
    call = as_product(found, dtype, left, right, result, row_major, nowhere)
    assert isinstance(call.by, Product), "it was asked for"
    return emit_product(call.by)


def as_product(
    found: Contraction,
    dtype: DType,
    left: View,
    right: View,
    result: View,
    gather: Gather,
    hoist: Hoist,
) -> MatrixCall:
    """Return how our kernel computes a contraction.

    left, right, result: where the operands and the result lie.  hoist: gathers once for all steps
    of the loop around, if it can.
    """
    batch, m, n, k = found.batch, found.m, found.n, found.k

    def operand(view: View, read: Read, loops: tuple[Loop, ...]) -> Place:
        return placed(view, read.index, loops) or laid(gather(view, read.index, loops), loops)

    c = placed(result, found.target, (*batch, *m, *n))
    assert c is not None, "the target of a contraction is affine"
    a, b = (
        operand(left, found.left, (*batch, *m, *k)),
        operand(right, found.right, (*batch, *k, *n)),
    )
    # What rounds sums goes along a row of them.
    turned = _is_better_turned(_role(m, a, c), _role(n, b, c), 2 if is_rounded(dtype) else RUN)
    if turned:
        # The transpose of the product is that of its operands' transposes, the other way round.
        a, b, m, n = b, a, n, m
    else:
        found_b = sliced(found, right, hoist, dtype)
        if found_b is not None:
            b, slices, terms = found_b
            c, n = cut(c, n[-1], slices), slices
            a, k = cut(a, k[-1], terms), (*k[:-1], *terms)
    outer = tuple(
        (fixed(x.extent), a.strides[x.name], b.strides[x.name], c.strides[x.name]) for x in batch
    )
    roles = _role(m, a, c), _role(n, b, c), _role(k, a, b)
    product = Product(dtype, outer, *roles, found.scale)
    return MatrixCall(product, (a.view, b.view), c.view, direct=True, turned=turned)


def _role(loops: Sequence[Loop], one: Place, two: Place) -> Role:
    return merged(tuple((fixed(x.extent), one.strides[x.name], two.strides[x.name]) for x in loops))


def _is_better_turned(rows: Role, columns: Role, least: int) -> bool:
    """Say whether columns should be rows: results that lie together are those of a vector, if they
    are `least`; where there are few either way, so are elements of the operand."""

    def value(role: Role) -> tuple[bool, int]:
        extent, operand, _ = role[-1]
        run = 1
        for many, _, result in reversed(role):
            run *= many if result == run else 1
        return run >= least, extent if operand == 1 else 0

    return value(rows) > value(columns)


def as_matrices(
    found: Contraction,
    left: View,
    right: View,
    result: View,
    gather: Gather,
    scratch: Callable[[Sequence[Loop]], View],
) -> MatrixCall:
    """Return the call that computes a contraction.

    left, right, result: where the operands and the result lie.  scratch: gives a dense tensor over
    loops, for a result that the library cannot write in its place.
    """
    batch, m, n, k = found.batch, found.m, found.n, found.k
    a = _operand(left, found.left.index, (batch, m, k), gather)
    b = _operand(right, found.right.index, (batch, k, n), gather)
    out = arranged(result, found.target, (batch, m, n)) if found.scale == 1.0 else None
    direct = out is not None
    if out is None:
        shape = tuple(volume(group) for group in (batch, m, n))
        out = View(scratch((*batch, *m, *n)).buffer, shape, contiguous(shape), 0)
    if batch:
        return MatrixCall("aten.bmm.out", (a, b), out, direct)
    return MatrixCall("aten.mm.out", (drop(a), drop(b)), drop(out), direct)


def _operand(view: View, index: Sequence[Expr], groups: Groups, gather: Gather) -> View:
    found = arranged(view, index, groups)
    if found is not None and _usable(found):
        return found
    return _dense(view, index, groups, gather)


def _dense(view: View, index: Sequence[Expr], groups: Groups, gather: Gather) -> View:
    dense = gather(view, index, [loop for group in groups for loop in group])
    shape = tuple(volume(group) for group in groups)
    return View(dense.buffer, shape, contiguous(shape), dense.offset)


def _usable(view: View) -> bool:
    """BLAS wants one of the two matrix dims dense; otherwise the library would copy by itself."""
    rows, columns = view.shape[-2:]
    row, column = view.strides[-2:]
    dense_rows = (same(column, 1) or same(columns, 1)) and (
        least_of(row - columns) >= 0 or same(rows, 1)
    )
    dense_columns = (same(row, 1) or same(rows, 1)) and (
        least_of(column - rows) >= 0 or same(columns, 1)
    )
    return dense_rows or dense_columns


def _span(found: Contraction) -> int:
    """Return how many elements the result has, or a copy of an operand that no strides say."""
    extents = {x.name: fixed(x.extent) for x in (*found.batch, *found.m, *found.n, *found.k)}
    spans = [volume((*found.batch, *found.m, *found.n))]
    for read, loops in ((found.left, found.m), (found.right, found.n)):
        if place(read.index, (1,) * len(read.index), list(extents), extents) is None:
            spans.append(volume((*found.batch, *loops, *found.k)))
    return max(spans)


def drop(view: View) -> View:
    """Return a view without its first dim."""
    return replace(view, shape=view.shape[1:], strides=view.strides[1:])


def _spread(
    loops: Sequence[Loop], target: tuple[Expr, ...], scale: float, type_: TensorType
) -> Formula:
    """y[target] = scale * x[loops]"""
    value: Expr = Read("x", tuple(Sym(loop.name) for loop in loops))
    if scale != 1.0:
        value = Call("mul", (value, Const(scale)))
    return normal(Formula(("x",), tuple(loops), target, "=", value, type_))
