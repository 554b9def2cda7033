"""Convolutions of 3 x 3 by Winograd's algorithm: which are, and what computes them.

The idea: a bordered convolution is a sum of products in which two loops of the image, down and
across, and two of three terms move over the same memory; strides say which, be it the forward pass
or the gradient of an image, whose taps go backwards.  In the gradient of the kernels, down and
across are terms, and the taps are columns.

This module does not know how it is computed (`kernels`).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

from tilewright.base.dtypes import DType
from tilewright.compiler.choices import usual_knobs
from tilewright.compiler.contraction import operands_of, product_in
from tilewright.compiler.strided import Place, placed
from tilewright.graph.classify import Contraction
from tilewright.graph.convolution import Convolution
from tilewright.graph.ir import Loop, Node, TensorType
from tilewright.graph.total import fixed
from tilewright.kernels import (
    FEW_SQUARES,
    WINOGRAD_DTYPES,
    Winograd,
    WinogradGradient,
    emit_gradient_of_kernels,
    emit_sums,
    emit_transformed_image,
    emit_transformed_tangent,
    emit_winograd,
    emit_winograd_at_once,
    emit_winograd_weights,
    tiles,
    winograd_gradient_text,
    winograd_text,
)
from tilewright.program import KEPT, View

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

TAPS = 3
FEWEST_SQUARES = 32
"""Squares of four outputs from which transforming kernels and image pays."""
MOST_CHANNELS = 1024
"""Channels of the image up to which that is so."""
FEWEST_CHANNELS = 16
"""Channels on either side from which transforming squares pays."""
MOST_WASTE = 1.35
"""How many times the places of an image of odd sizes those of its squares may be: with 1.44 times
(5 x 5) ours has .83 to 1.19 of the library's speed, with 1.31 1.08 to 1.57."""
FEWEST_SUMMED = 4096
"""Elements of a plane of the transformed image from which the gradient of kernels pays."""
MOST_TRANSFORMED = 1 << 24
"""Elements that a call may hold transformed: kernels, or image, tangent and sums of a gradient."""


def is_winograd(c: Convolution, dtype: DType, *, kept: bool) -> bool:
    """Say whether a convolution, or one of its gradients, is best computed so.

    kept: whether its kernels are transformed once for all runs.
    """
    if c.n != 2 or dtype not in WINOGRAD_DTYPES:
        return False
    if c.groups != 1 or {*c.stride, *c.dilation} != {1} or c.shapes[1][2:] != (TAPS, TAPS):
        return False
    if c.kind == "weight":
        x, _, y = c.shapes
        return _pays_gradient(x[0], y[1], x[1], y[2:])
    read, made = (c.shapes[0], c.shapes[2])[:: 1 if c.kind == "forward" else -1]
    if any(type(n) is not int for n in made[2:]):
        return False
    size = tuple(whole_squares(n) for n in made[2:])
    return prod(size) <= MOST_WASTE * prod(made[2:]) and _pays(
        made[0], made[1], read[1], size, kept=kept
    )


def whole_squares(size: int) -> int:
    """Return how many places in a line squares of two by two have that cover `size`."""
    return size + size % 2


def _pays(images: int, outputs: int, inputs: int, size: tuple[int, ...], *, kept: bool) -> bool:
    if any(type(n) is not int for n in (images, outputs, inputs, *size)):
        return False
    channels, squares = min(outputs, inputs), images * prod(size) // 4
    if channels < FEWEST_CHANNELS or squares < FEWEST_SQUARES or any(n % 2 for n in size):
        return False
    return inputs <= MOST_CHANNELS and (kept or 16 * inputs * outputs <= MOST_TRANSFORMED)


def _pays_gradient(images: int, outputs: int, inputs: int, size: tuple[int, ...]) -> bool:
    if not _pays(images, outputs, inputs, size, kept=True):
        return False
    squares = images * prod(size) // 4
    if squares * inputs < FEWEST_SUMMED:
        return False
    return 16 * (squares * (inputs + outputs) + inputs * outputs) <= MOST_TRANSFORMED


def winograd_functions(kind: str, dtype: DType) -> tuple[tuple[str, str], ...]:
    """Return the names and texts of what kernels of such a convolution call.

    kind: "forward", or of which operand it is the gradient, as `Convolution` says it.
    """
    return (winograd_gradient_text if kind == "weight" else winograd_text)(dtype), tiles(dtype)


def place_winograd(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a node if it is such a convolution."""
    dtype = node.output.type.dtype
    if dtype not in WINOGRAD_DTYPES or 0 in node.output.type.shape:
        return False
    if not assembly.options.winograd:
        return False
    found = product_in(node)
    if found is None or found.batch or found.onto or found.scale != 1.0:
        return False
    return _place_forward(assembly, node, found) or _place_gradient(assembly, node, found)


def _place_forward(assembly: "Assembly", node: Node, found: Contraction) -> bool:
    if len(found.k) != TAPS:
        return False
    sources = operands_of(node)
    for image, kernel, rows, outputs in (
        (found.left, found.right, found.m, found.n),
        (found.right, found.left, found.n, found.m),
    ):
        x = placed(assembly.places[sources[image.tensor].name], image.index, (*rows, *found.k))
        k = placed(assembly.places[sources[kernel.tensor].name], kernel.index, (*outputs, *found.k))
        if x is None or k is None or len(outputs) != 1:
            continue
        roles = _roles(rows, found.k, x)
        if roles is not None:
            return _place(assembly, node, found, (x, k), rows, outputs[0], roles)
    return False


def _roles(
    places: Sequence[Loop], taps: Sequence[Loop], x: Place
) -> tuple[Loop, Loop, Loop, Loop, Loop] | None:
    """Return h, w, c, i and j: of `taps`, i and j move over the image as h and w of `places` do."""
    for h, w in permutations(places, 2):
        for c, i, j in permutations(taps):
            steps = [abs(x.strides[loop.name]) for loop in (h, i, w, j)]
            windows = steps[0] == steps[1] and steps[2] == steps[3] and steps[0] > steps[2] > 0
            if windows and fixed(i.extent) == fixed(j.extent) == TAPS:
                return h, w, c, i, j
    return None


def _place(
    assembly: "Assembly",
    node: Node,
    found: Contraction,
    operands: tuple[Place, Place],
    rows: tuple[Loop, ...],
    o: Loop,
    roles: tuple[Loop, Loop, Loop, Loop, Loop],
) -> bool:
    h, w, c, i, j = roles
    images = [loop for loop in rows if loop not in (h, w)]
    sizes = fixed(h.extent), fixed(w.extent)
    count = fixed(images[0].extent) if images else 1
    x, k = operands
    kept = assembly.before(k.view)[0].kind == KEPT
    if len(images) > 1 or not _pays(count, fixed(o.extent), fixed(c.extent), sizes, kept=kept):
        return False
    start, taps = x.view.offset, k.view.offset
    steps = {loop.name: k.strides[loop.name] for loop in (o, c, i, j)}
    for loop, tap in ((h, i), (w, j)):
        if x.strides[tap.name] != x.strides[loop.name]:  # the taps go backwards
            start += (TAPS - 1) * x.strides[tap.name]
            taps += (TAPS - 1) * steps[tap.name]
            steps[tap.name] = -steps[tap.name]
    result = assembly.place(node.output)
    y = placed(result, found.target, (*rows, o))
    assert y is not None, "the target of a contraction is affine"
    first = [x.strides[images[0].name] if images else 0, y.strides[images[0].name] if images else 0]
    one = Winograd(
        node.output.type.dtype, count, fixed(o.extent), fixed(c.extent), *sizes,
        (first[0], *(x.strides[loop.name] for loop in (c, h, w))),
        tuple(steps.values()),
        (first[1], *(y.strides[loop.name] for loop in (o, h, w))),
    )  # fmt: skip
    shape = (count, one.inputs, sizes[0] + TAPS - 1, sizes[1] + TAPS - 1)
    image = View(x.view.buffer, shape, one.x, start, x.view.steps)
    kernel = View(k.view.buffer, (one.outputs, one.inputs, TAPS, TAPS), one.k, taps, k.view.steps)
    output = replace(y.view, shape=(count, one.outputs, *sizes), strides=one.y)
    _launch(assembly, node, one, image, kernel, output)
    return True


def _launch(
    assembly: "Assembly", node: Node, one: Winograd, image: View, kernel: View, output: View
) -> None:
    before, there = assembly.before(kernel)
    functions = winograd_text(one.dtype)
    assembly.kernels.add(*tiles(one.dtype))
    if before.kind != KEPT and one.squares <= FEW_SQUARES:
        main = emit_winograd_at_once(one)
        assembly.call(main, functions, (image, kernel), (output,), node.origin)
        assembly.decide(node, "kernel", f"{main.recipe}: {main.name}", main.flops, main.bytes)
        return
    u = before.scratch(f"{node.output.name}_kernels", TensorType(one.transformed, one.dtype))
    weights, main = emit_winograd_weights(one), emit_winograd(one)
    before.call(weights, functions, (there,), (u,), node.origin)
    assembly.call(main, functions, (image, u, kernel), (output,), node.origin)
    reason = f"{main.recipe}: {main.name}"
    assembly.decide(node, "kernel", reason, weights.flops + main.flops, main.bytes)


def _place_gradient(assembly: "Assembly", node: Node, found: Contraction) -> bool:
    """Add what computes the gradient of kernels: terms are places, columns channels and taps."""
    sources = operands_of(node)
    for tangent, image, outputs, columns in (
        (found.left, found.right, found.m, found.n),
        (found.right, found.left, found.n, found.m),
    ):
        y = placed(assembly.places[sources[tangent.tensor].name], tangent.index,
                   (*outputs, *found.k))  # fmt: skip
        x = placed(assembly.places[sources[image.tensor].name], image.index, (*columns, *found.k))
        if x is None or y is None or len(outputs) != 1 or len(columns) != TAPS:
            continue
        roles = _roles(found.k, columns, x)
        if roles is None:
            continue
        h, w, c, i, j = roles
        images = [loop for loop in found.k if loop not in (h, w)]
        forward = all(x.strides[a.name] == x.strides[b.name] for a, b in ((h, i), (w, j)))
        sizes = fixed(h.extent), fixed(w.extent)
        count = fixed(images[0].extent) if images else 1
        o = outputs[0]
        pays = _pays_gradient(count, fixed(o.extent), fixed(c.extent), sizes)
        if not forward or len(images) > 1 or not pays:
            continue
        k = placed(assembly.place(node.output), found.target, (o, *columns))
        assert k is not None, "the target of a contraction is affine"
        first = [place.strides[images[0].name] if images else 0 for place in (x, y)]
        one = Winograd(
            node.output.type.dtype, count, fixed(o.extent), fixed(c.extent), *sizes,
            (first[0], *(x.strides[loop.name] for loop in (c, h, w))),
            tuple(k.strides[loop.name] for loop in (o, c, i, j)),
            (first[1], *(y.strides[loop.name] for loop in (o, h, w))),
        )  # fmt: skip
        _launch_gradient(assembly, node, WinogradGradient(one), (x.view, y.view, k.view))
        return True
    return False


def _launch_gradient(
    assembly: "Assembly", node: Node, one: WinogradGradient, views: tuple[View, View, View]
) -> None:
    """Add the launches that compute a gradient; views: image, tangent and result."""
    (x, y, k), of = views, one.of
    size = of.height, of.width
    x = replace(
        x, shape=(of.images, of.inputs, size[0] + TAPS - 1, size[1] + TAPS - 1), strides=of.x
    )
    y = replace(y, shape=(of.images, of.outputs, *size), strides=of.y)
    k = replace(k, shape=(of.outputs, of.inputs, TAPS, TAPS), strides=of.k)
    v, d, m = (
        assembly.scratch(f"{node.output.name}_{name}", TensorType(shape, of.dtype))
        for name, shape in (("image", one.image), ("tangent", one.tangent), ("sums", one.sums))
    )
    functions, product = winograd_gradient_text(of.dtype), tiles(of.dtype)
    launches = (
        (emit_transformed_image(one), functions, (x,), v),
        (emit_transformed_tangent(one), functions, (y,), d),
        (emit_sums(one, usual_knobs(assembly.options)), product, (d, v), m),
        (emit_gradient_of_kernels(one), functions, (x, y, m), k),
    )
    for made, function, inputs, output in launches:
        assembly.call(made, function, inputs, (output,), node.origin)
    main = launches[-1][0]
    flops = sum(made.flops for made, *_ in launches)
    moved = sum(made.bytes for made, *_ in launches)
    assembly.decide(node, "kernel", f"{main.recipe}: {main.name}", flops, moved)
