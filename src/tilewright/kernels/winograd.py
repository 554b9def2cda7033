"""The Winograd recipe: 3 x 3 convolutions by four outputs at a time, with fewer products.

The idea: `winograd.c` transforms squares of the image, multiplies them by transformed kernels as
sixteen products of matrices, and transforms what comes out, block by block in the second cache.
One launch transforms the kernels, another does the rest.  The sum of an element has one order,
whatever the blocks.

This module does not know when that is faster.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.base.dtypes import F32, DType
from tilewright.kernels.contraction import SLICE, panels_text, together
from tilewright.kernels.emit import PARTS, Emitted, named
from tilewright.kernels.expression import OUT_OF_MEMORY as NO_MEMORY

WINOGRAD_DTYPES = (F32,)
MARGIN = 16
"""Elements after planes of what is transformed, which would else be on the same sets of a cache."""
BLOCK = 3 << 16  # transformed elements that are taken together, on the stack: 768 KiB
MOST_INPUTS = (BLOCK // 16 - MARGIN) // SLICE
"""Channels of the image of which one panel of squares fits there."""
FEW_SQUARES = 2 * SLICE
"""Squares up to which kernels are transformed by the tile that reads them, each time."""
MOST_ROWS = 16  # of a tile on any machine, and more
FEWEST = 8  # blocks, where there are so many, for threads
_TEXT = Path(__file__).with_suffix(".c")
_SQUARES = _TEXT.with_name("squares.c")


@dataclass(frozen=True, slots=True)
class Winograd:
    """`y[n, o, h, w] = sum over c, i, j of x[n, c, h+i, w+j] * k[o, c, i, j]`, windows of 3 x 3.

    height, width: of y, even.  x, y: strides of n, channel, h, w in elements; k: of o, c, i, j.
    More inputs than MOST_INPUTS take memory of the heap while they are computed.
    """

    dtype: DType
    images: int
    outputs: int
    inputs: int
    height: int
    width: int
    x: tuple[int, ...]
    k: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def squares(self) -> int:
        """Squares of four outputs, of all images."""
        return self.images * (self.height // 2) * (self.width // 2)

    @property
    def transformed(self) -> tuple[int, ...]:
        """The shape of the transformed kernels, which a processor's tiles do not fill."""
        return 16, self.outputs * (self.inputs + MARGIN) + MARGIN


@functools.cache
def winograd_text(dtype: DType) -> tuple[str, str]:
    """Return the name and the text of the C functions, which begin with the name; they call those
    of `tiles`."""
    text = "\n".join((squares_text(dtype), _TEXT.read_text(encoding="utf-8")))
    name = f"winograd_{dtype.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return (
        name,
        f"#define TRANSFORMS\n#define WEIGHTS {name}_weights\n#define SQUARES_OF {name}\n{text}",
    )


def squares_text(dtype: DType) -> str:
    """Return what stands before the C of all that computes in panels of squares."""
    return "\n".join((panels_text(dtype), _SQUARES.read_text(encoding="utf-8")))


def emit_winograd_weights(one: Winograd) -> Emitted:
    """Return the kernel that transforms k to u: two pointers."""
    name, _ = winograd_text(one.dtype)
    c = one.dtype.c
    lines = [
        f"/* kernels of 3 x 3 transformed: {one.outputs} x {one.inputs} {one.dtype.name} */",
        f"extern void {name}_weights(long, long, long, long, long, const {c} *, const long *,",
        f"    {c} *);",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        f"    static const long strides[] = {{{listed(one.k)}}};",
        f"    {name}_weights(part, end, parts, {one.outputs}, {one.inputs}, (const {c} *)p[0],",
        f"        strides, ({c} *)p[1]);",
        "    return 0;",
        "}",
    ]
    work = one.outputs * one.inputs
    parts = max(1, min(one.outputs, PARTS, work // 4096))
    return named(lines, parts, 36 * work, 25 * work * one.dtype.bytes, "kernels transformed")


def emit_winograd(one: Winograd) -> Emitted:
    """Return the kernel that computes y: pointers to x, u, k and y."""
    block = max(BLOCK, _image(one, 1))
    return _emitted(one, _cut(one), block, block, ("p[1]", "p[2]", "p[3]"))


def emit_winograd_at_once(one: Winograd) -> Emitted:
    """Return the kernel that computes y and transforms k on the way: pointers to x, k and y.

    Nothing is transformed twice: blocks have all squares, which should be FEW_SQUARES.
    """
    block = _image(one, -(-one.squares // SLICE))
    room = 16 * (MOST_ROWS * one.inputs + MARGIN)
    across = min(FEWEST, max(1, one.outputs // SLICE))
    return _emitted(one, (1, across), block, block + room, ("0", "p[1]", "p[2]"))


def _image(one: Winograd, panels: int) -> int:
    """Return how many elements so many panels of squares have, transformed."""
    return 16 * (one.inputs * SLICE * panels + MARGIN)


def _emitted(
    one: Winograd, cut: tuple[int, int], block: int, room: int, given: tuple[str, str, str]
) -> Emitted:
    """Return a kernel that computes y.

    cut: into how many blocks squares and outputs are.  block: elements of squares that are taken
    together; room: of all that is transformed.  given: what u, k and y are.
    """
    name, _ = winograd_text(one.dtype)
    c, (u, k, y) = one.dtype.c, given
    down, across = cut
    large = room > BLOCK
    panels, extents = -(-one.squares // SLICE), (one.height // 2, one.width // 2)
    shape = f"{one.images} x {one.inputs} to {one.outputs}, {one.height} x {one.width}"
    lines = [
        f"/* convolution by Winograd's F(2x2, 3x3): {shape} {one.dtype.name} */",
        "typedef struct { long images, outputs, inputs, down, across; } Extents;",
        f"extern void {name}(const Extents *, long, long, long, long, long, const {c} *,",
        f"    const long *, const {c} *, const {c} *, const long *, {c} *, const long *, {c} *,",
        "    long);",
        *(["extern void *malloc(unsigned long);", "extern void free(void *);"] if large else []),
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        "    static const Extents extents =",
        f"        {{{listed((one.images, one.outputs, one.inputs, *extents))}}};",
        f"    static const long x[] = {{{listed(one.x)}}}, k[] = {{{listed(one.k)}}};",
        f"    static const long y[] = {{{listed(one.y)}}};",
        f"    const {c} *const image = (const {c} *)p[0], *const kernels = (const {c} *){k};",
        *(
            (
                f"    {c} *const v = malloc({room} * sizeof({c}));",
                f"    if (!v) return {NO_MEMORY};",
            )
            if large
            else (f"    {c} v[{room}] __attribute__((aligned(64)));",)
        ),
        f"    const long last = {down * across} * end / parts;",
        f"    for (long u = {down * across} * part / parts; u < last;) {{",
        *(f"        {line}" for line in together(down, across)),
        f"        const long behind = {panels} * (r + high) / {down} * {SLICE};",
        f"        {name}(&extents, {panels} * r / {down} * {SLICE},",
        f"            behind < {one.squares} ? behind : {one.squares}, s, s + wide, {across},",
        f"            image, x, (const {c} *){u}, kernels, k, ({c} *){y}, y, v, {block});",
        "        u += wide * high;",
        "    }",
        *(["    free(v);"] if large else []),
        "    return 0;",
        "}",
    ]
    flops = 32 * one.squares * one.outputs * one.inputs
    moved = 4 * one.squares * (one.inputs + one.outputs) + 16 * one.outputs * one.inputs
    reason = f"convolution by Winograd's F(2x2, 3x3), {shape}"
    return named(lines, down * across, flops, moved * one.dtype.bytes, reason)


def _cut(one: Winograd) -> tuple[int, int]:
    """Return into how many blocks squares and outputs are cut."""
    panels = -(-one.squares // SLICE)
    down = min(2 * FEWEST, panels)
    across = 1 if down >= FEWEST else min(-(-FEWEST // down), max(1, one.outputs // SLICE))
    return down, across


def listed(numbers: tuple[int, ...]) -> str:
    """Return numbers as an initializer of C has them."""
    return ", ".join(map(str, numbers))
