"""The depthwise recipe: convolutions whose channels each have a kernel of their own.

The idea: nothing is shared between channels, so there is no product of matrices; `depthwise.c`
keeps the sums of a row in registers while the taps go by, over rows that were copied near with a
border.  The same text, with its constants, makes the result, the gradient of the image and that of
the kernels.  The sum of an element has one order, whatever the parts.

This module does not know when that is faster.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels.contraction import vectors_text
from tilewright.kernels.emit import PARTS, Emitted, even, named

DEPTHWISE_DTYPES = (F32, F64)
NEAR = 32 << 10  # bytes of rows that are copied together, where there is more than one
MOST_COPIED = 128 << 10
"""Bytes that the rows of one line may have, copied to the stack."""
MOST_TAPS = 11  # whose sums are in registers together, in the gradient of kernels
MOST_LANES = 16  # of a vector on any processor
PART_FLOPS = 100_000  # below, a part is not worth a thread's attention
KINDS = ("forward", "input", "weight")
_TEXT = Path(__file__).with_suffix(".c")

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Depthwise:
    """`y[n, c, h, w] = sum over i, j of x[n, c, h*s+i*d-p, w*s+j*d-p] * k[c, i, j]`, or a gradient.

    kind: of KINDS, what is computed: y, the gradient of x or that of k.  image, taps, result: rows
    and columns of x, k and y.  x, y: strides of n, channel, row, column in elements; k: of channel,
    row, column.
    """

    kind: str
    dtype: DType
    images: int
    channels: int
    image: Pair
    taps: Pair
    result: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    x: tuple[int, ...]
    k: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def flops(self) -> int:
        """Products and sums."""
        positions = self.images * self.channels * self.result[0] * self.result[1]
        return 2 * positions * self.taps[0] * self.taps[1]

    @property
    def bytes(self) -> int:
        """Read and written, each tensor once."""
        planes = self.image[0] * self.image[1] + self.result[0] * self.result[1]
        taps = self.channels * self.taps[0] * self.taps[1]
        return (self.images * self.channels * planes + taps) * self.dtype.bytes

    def copied(self, rows: int) -> int:
        """Return how many bytes are copied, at most, to make so many rows."""
        (kh, kw), (sh, sw), (_, pw), (dh, dw) = self.taps, self.stride, self.padding, self.dilation
        reach = (kw - 1) * dw // sw
        if self.kind == "input":
            read, columns = (rows - 1 + (kh - 1) * dh) // sh + 2, -(-self.image[1] // sw)
            row = columns + 2 * reach + pw // sw + 4
        else:
            read, columns = (rows - 1) * sh + (kh - 1) * dh + 1, self.result[1]
            row = sw * (columns + reach + 2 * MOST_LANES)
        own = columns if self.kind == "weight" else 0
        return (read * (row + 2 * MOST_LANES) + rows * own) * self.dtype.bytes

    @property
    def block(self) -> int:
        """Rows that are made together: as many as are copied near, and at least one."""
        rows = self.image[0] if self.kind == "input" else self.result[0]
        return max((n for n in range(1, rows + 1) if self.copied(n) <= NEAR), default=1)


@functools.cache
def depthwise_text(one: Depthwise) -> tuple[str, str]:
    """Return the name and the text of the C function."""
    taps = one.taps[0] * one.taps[1]
    chunks = -(-taps // MOST_TAPS)
    pairs = {
        ("H", "W"): one.image,
        ("OH", "OW"): one.result,
        ("KH", "KW"): one.taps,
        ("SH", "SW"): one.stride,
        ("PH", "PW"): one.padding,
        ("DH", "DW"): one.dilation,
        ("XN", "XC", "XH", "XW"): one.x,
        ("YN", "YC", "YH", "YW"): one.y,
        ("KC", "KI", "KJ"): one.k,
        ("IMAGES", "CHANNELS", "BLOCK"): (one.images, one.channels, one.block),
        ("CHUNKS", "TAPS"): (chunks, -(-taps // chunks)),
        ("KIND", "SINGLE"): (KINDS.index(one.kind), int(one.dtype == F32)),
    }
    lines = [
        f"#define {word} {number}L"
        for words, numbers in pairs.items()
        for word, number in zip(words, numbers, strict=True)
    ]
    given = ["#define TRANSFORMS", f"#define ELEMENT {one.dtype.c}", *lines]
    text = "\n".join((*given, vectors_text(), _TEXT.read_text(encoding="utf-8")))
    name = f"depthwise_{one.dtype.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return name, f"#define NAME {name}\n{text}"


def emit_depthwise(one: Depthwise) -> Emitted:
    """Return the kernel: pointers to x and k, to the tangent and k, or to x and the tangent, and to
    what is made."""
    name, _ = depthwise_text(one)
    rows = one.image[0] if one.kind == "input" else one.result[0]
    blocks = one.images * -(-rows // one.block)
    units = one.channels * (1 if one.kind == "weight" else blocks)
    c = one.dtype.c
    size, window = ("x".join(map(str, pair)) for pair in (one.image, one.taps))
    words = {"forward": "", "input": "image's gradient of a ", "weight": "kernels' gradient of a "}
    shape = f"{one.images} x {one.channels} of {size} by {window}"
    reason = f"{words[one.kind]}depthwise convolution, {shape}"
    lines = [
        f"/* {reason} {one.dtype.name} */",
        f"extern void {name}(long, long, const {c} *, const {c} *, {c} *);",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        f"    {name}({units} * part / parts, {units} * end / parts,",
        f"        (const {c} *)p[0], (const {c} *)p[1], ({c} *)p[2]);",
        "    return 0;",
        "}",
    ]
    parts = even(max(1, min(units, PARTS, one.flops // PART_FLOPS)), units)
    return named(lines, parts, one.flops, one.bytes, reason)
