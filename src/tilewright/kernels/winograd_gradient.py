"""The Winograd recipe of a gradient: that of 3 x 3 kernels, a square of four tangents at a time.

The idea: the transpose of `winograd` with respect to the kernels.  Squares of the image and of the
tangent are transformed, sixteen products of matrices (`contraction`) sum over the squares, and a
last launch transforms the sums back.  The sum of an element has one order, whatever the blocks.

This module does not know when that is faster.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.base.dtypes import DType
from tilewright.kernels.contraction import SLICE, Product, Tiling, emit_product
from tilewright.kernels.emit import PARTS, Emitted, named
from tilewright.kernels.winograd import Winograd, listed, squares_text

BETWEEN = 16  # elements between planes, which would else fall on the same sets of a cache
PART = 16384  # transformed elements below which a part is not worth a thread's attention
_TEXT = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class WinogradGradient:
    """`k[o, c, i, j] = sum over n, h, w of y[n, o, h, w] * x[n, c, h+i, w+j]`, of the convolution
    `of`: its x and y are read, its k is written."""

    of: Winograd

    @property
    def row(self) -> int:
        """Elements from a row of channels to the next: so many that vectors fit."""
        return -(-self.of.inputs // SLICE) * SLICE

    @property
    def image(self) -> tuple[int, ...]:
        """The shape of the transformed image: planes of squares by channels."""
        return 16, self.of.squares * self.row + BETWEEN

    @property
    def tangent(self) -> tuple[int, ...]:
        """The shape of the transformed tangent: planes of outputs by squares."""
        return 16, self.of.outputs * self.of.squares + BETWEEN

    @property
    def sums(self) -> tuple[int, ...]:
        """The shape of the sums of products: planes of outputs by channels."""
        return 16, self.of.outputs * self.row + BETWEEN

    @property
    def product(self) -> Product:
        """The sixteen products: of the tangent by the image."""
        outputs, squares, row = self.of.outputs, self.of.squares, self.row
        d, v, m = (shape[1] for shape in (self.tangent, self.image, self.sums))
        return Product(
            self.of.dtype,
            ((16, d, v, m),),
            ((outputs, squares, row),),
            ((self.of.inputs, 1, 1),),
            ((squares, 1, row),),
        )


@functools.cache
def winograd_gradient_text(dtype: DType) -> tuple[str, str]:
    """Return the name and the text of the C functions, which begin with the name; they call those
    of `tiles`."""
    between = f"#define BETWEEN {BETWEEN}"
    text = "\n".join((squares_text(dtype), between, _TEXT.read_text(encoding="utf-8")))
    name = f"winograd_gradient_{dtype.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    words = ("IMAGES", "TANGENTS", "KERNELS")
    given = ("#define TRANSFORMS", *(f"#define {word} {name}_{word.lower()}" for word in words))
    return name, "\n".join((*given, text))


def emit_transformed_image(one: WinogradGradient) -> Emitted:
    """Return the kernel that transforms x: pointers to x and to what is made of it."""
    c, lines = one.of.dtype.c, one.of.images * one.of.height // 2
    return _kernel(
        one,
        "image transformed",
        ("images", f"const {c} *, const long *, {c} *, long"),
        f"({c} *)p[0], x, ({c} *)p[1], {one.row}",
        lines,
        32 * one.of.squares * one.of.inputs,
        20 * one.of.squares * one.of.inputs,
    )


def emit_transformed_tangent(one: WinogradGradient) -> Emitted:
    """Return the kernel that transforms y: pointers to y and to what is made of it."""
    c = one.of.dtype.c
    return _kernel(
        one,
        "tangent transformed",
        ("tangents", f"const {c} *, const long *, {c} *"),
        f"({c} *)p[0], y, ({c} *)p[1]",
        one.of.outputs,
        12 * one.of.squares * one.of.outputs,
        20 * one.of.squares * one.of.outputs,
    )


def emit_gradient_of_kernels(one: WinogradGradient) -> Emitted:
    """Return the kernel that transforms sums back: pointers to x, y, the sums and k."""
    c, size = one.of.dtype.c, one.of.outputs * one.of.inputs
    return _kernel(
        one,
        "sums transformed back",
        (
            "kernels",
            f"const {c} *, const long *, const {c} *, const long *, const {c} *, long, "
            f"{c} *, const long *",
        ),
        f"({c} *)p[0], x, ({c} *)p[1], y, ({c} *)p[2], {one.row}, ({c} *)p[3], k",
        one.of.outputs,
        42 * size,
        25 * size,
    )


def emit_sums(one: WinogradGradient, tiling: Tiling) -> Emitted:
    """Return the kernel of the products, with these knobs: pointers to the tangent and the image,
    both transformed, and to the sums."""
    return emit_product(one.product, tiling)


def _kernel(
    one: WinogradGradient,
    title: str,
    function: tuple[str, str],
    given: str,
    many: int,
    flops: int,
    moved: int,
) -> Emitted:
    """Return a kernel that calls a function for some of `many`; moved: elements read and written.

    function: how its name ends, and its parameters after the range.
    """
    of, (end, parameters) = one.of, function
    name, _ = winograd_gradient_text(of.dtype)
    extents = of.images, of.outputs, of.inputs, of.height // 2, of.width // 2
    shape = f"{of.images} x {of.inputs} to {of.outputs}, {of.height} x {of.width}"
    tables = {word: strides for word, strides in (("x", of.x), ("y", of.y), ("k", of.k))}
    lines = [
        f"/* gradient of kernels by Winograd's F(2x2, 3x3), {title}: {shape} {of.dtype.name} */",
        "typedef struct { long images, outputs, inputs, down, across; } Extents;",
        f"extern void {name}_{end}(const Extents *, long, long, {parameters});",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        f"    static const Extents extents = {{{listed(extents)}}};",
        *(
            f"    static const long {word}[] = {{{listed(strides)}}};"
            for word, strides in tables.items()
        ),
        f"    {name}_{end}(&extents, {many} * part / parts, {many} * end / parts, {given});",
        "    return 0;",
        "}",
    ]
    parts = max(1, min(many, PARTS, moved // PART))
    reason = f"gradient of kernels by Winograd's F(2x2, 3x3), {shape}"
    return named(lines, parts, flops, moved * of.dtype.bytes, reason)
