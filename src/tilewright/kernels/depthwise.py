"""The depthwise recipe: convolutions whose channels each have a kernel of their own.

The idea: nothing is shared between channels, so there is no product of matrices; `depthwise.c`
keeps the sums of a tile in registers while the taps go by, over rows that were copied near with a
border: a tile of rows and columns of a channel or, where channels lie innermost, of columns and
channels.  The same text, with its constants, makes the result, the gradient of the image and that
of the kernels.  The sum of an element has one order, whatever the parts.

This module does not know when that is faster.
"""

import functools
import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels.contraction import vectors_text
from tilewright.kernels.emit import PARTS, Emitted, even, named

DEPTHWISE_DTYPES = (F32, F64)
NEAR = 128 << 10  # bytes of rows that are copied together, where there is more than one
NEAR_TERMS = 32 << 10  # where they are read for every tap
MOST_COPIED = 512 << 10
"""Bytes that the rows of one line may have, copied to the stack."""
MOST_LANES = 16  # of a vector on any processor
SIDE = 64  # bytes of the channels that are taken together, where they lie innermost
HELD = 7  # taps that are in registers together
SUMS = 15  # and with them the sums of a tile, beside the vector that is read
CHAINS = 8  # sums that a processor has under way
BROAD = (1, 2, 4, 8)  # vectors that a tile may have side by side
RUN = 4  # tiles, at least, of which sums are in registers, where rows are added one by one
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

    @property
    def last(self) -> bool:
        """Whether channels lie innermost, and are what vectors are of."""
        return self.x[1] == self.y[1] == 1 and 1 not in (self.x[3], self.y[3])

    @property
    def group(self) -> int:
        """Channels that are taken together."""
        return SIDE // self.dtype.bytes if self.last else 1

    @property
    def made(self) -> Pair:
        """Rows and columns that are made; those of y, where the gradient of kernels is."""
        return self.image if self.kind == "input" else self.result

    def copied(self, rows: int) -> int:
        """Return how many bytes are copied, at most, to make so many rows."""
        (kh, kw), (sh, sw), (_, pw), (dh, dw) = self.taps, self.stride, self.padding, self.dilation
        reach = (kw - 1) * dw
        if self.kind == "input":
            read, columns = (rows - 1 + (kh - 1) * dh) // sh + 2, -(-self.image[1] // sw)
            row, sh, sw = columns + 2 * (reach // sw) + pw // sw + 4, 1, 1
        else:
            read, columns = (rows - 1) * sh + (kh - 1) * dh + 1, self.result[1]
            row = sw * columns + reach
        own = columns if self.kind == "weight" else 0
        if self.last:
            return (read * (row + self.tall(1) * sw) + rows * own) * SIDE
        row += sw * max(MOST_LANES, self.made[1])
        return ((read + self.tall(1) * sh) * row + rows * (own + MOST_LANES)) * self.dtype.bytes

    @property
    def block(self) -> int:
        """Rows that are made together: as many as are copied near, about as many each time."""
        rows, often = self.made[0], self.kind == "weight" and not self.last
        near = NEAR_TERMS if often else NEAR
        most = max(1, bisect_right(range(1, rows + 1), near, key=self.copied))
        by = self.stride[0] if self.kind == "input" else 1
        by = self.tall(1) if often else by
        even = -(-rows // -(-rows // most))
        return min(rows, -(-even // by) * by)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many taps in A the phases have, where they have any, the most first."""
        at = int(self.last)
        k, s, p, d = (of[at] for of in (self.taps, self.stride, self.padding, self.dilation))
        if self.kind != "input":
            return (k,)
        met = (sum((q + p - i * d) % s == 0 for i in range(k)) for q in range(s))
        return tuple(sorted({count for count in met if count}, reverse=True))

    @property
    def held(self) -> int:
        """Taps in A that are in registers together."""
        return min(HELD, self.counts[0])

    @property
    def across(self) -> int:
        """Taps in B whose sums are in registers together, in the gradient of kernels."""
        taps, most = self.taps[not self.last], max(1, 10 // self.held)
        return -(-taps // -(-taps // most))

    def tall(self, broad: int) -> int:
        """Return how many neighbours in A a tile has that is so many vectors broad."""
        at = int(self.last)
        apart = self.stride[at] if self.kind == "input" else 1
        places = -(-self.made[at] // apart)
        if self.kind == "weight":
            return -(-places // -(-places // (SUMS - self.held * self.across)))
        return _tall(places, self.held, broad)


@functools.cache
def _tall(places: int, held: int, broad: int) -> int:
    """Return the tile that takes the least time over so many places."""

    def price(tall: int) -> tuple[float, int]:
        products = max(tall * broad, CHAINS) * held
        loads = (tall + held - 1) * broad * 1.4 + held  # some cross two lines
        return -(-places // tall) * max(products, loads), -tall

    return min(range(1, max(1, (SUMS - held) // broad) + 1), key=price)


@functools.cache
def depthwise_text(one: Depthwise) -> tuple[str, str]:
    """Return the name and the text of the C function."""
    steps = [
        (s // gcd(s, d), d // gcd(s, d)) for s, d in zip(one.stride, one.dilation, strict=True)
    ]
    if one.kind == "input":
        apart, back = ([-s for s, _ in steps], [d for _, d in steps])
    else:
        apart, back = [1, 1], list(one.dilation)
    if one.last:
        apart.reverse()
    run = -(-RUN // -(-one.result[1] // one.tall(1)))
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
        ("BACK_H", "BACK_W"): back,
        ("APART_A", "APART_B"): apart,
        ("MOST_TAPS", "LEAST_TAPS"): (one.counts[0], one.counts[-1]),
        ("LAST", "GROUP", "HELD"): (int(one.last), one.group, one.held),
        ("ACROSS", "RUN"): (one.across, run),
        tuple(f"TALL_{broad}" for broad in BROAD): [one.tall(broad) for broad in BROAD],
        ("KIND", "SINGLE"): (KINDS.index(one.kind), int(one.dtype == F32)),
    }
    lines = [
        f"#define {word} ({number}L)"
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
    blocks = one.images * -(-one.made[0] // one.block)
    units = -(-one.channels // one.group) * (1 if one.kind == "weight" else blocks)
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
