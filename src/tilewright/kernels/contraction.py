"""The contraction recipe: a matrix product of strided operands, cut into equal blocks.

The idea: `contraction.c` holds one function that multiplies a block of any strides, with tiles that
are summed in registers; it is compiled once a machine.  A contraction's own kernel is a few lines
that say which block belongs to which part.  The sum of an element has one order, whatever the
blocks, so neither their number nor that of threads is seen in the result.

This module does not know whether a library would be faster.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels.body import volume
from tilewright.kernels.emit import PARTS, Emitted

DTYPES = (F32, F64)
SLICE = 32  # columns of a block come in multiples of it: of a tile's width on any machine
WIDEST = 256  # columns that are packed at a time
PART_FLOPS = 1_000_000  # below, a part is not worth a thread's attention
_TEXT = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class Product:
    """`c[b.., i, j] = scale * sum over t of a[b.., i, t] * b[b.., t, j]` in one element type.

    No extent is 0.  batch: extents.  a, b, c: strides in elements, of the batch dims and then of
    the two others; the last one of c is 1, or there is one column.  slice_: how far it is in b from
    every SLICE columns to the next, where that is another stride.
    """

    dtype: DType
    batch: tuple[int, ...]
    rows: int
    columns: int
    length: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    scale: float = 1.0
    slice_: int | None = None

    @property
    def flops(self) -> int:
        """Products and sums."""
        return 2 * volume(self.batch) * self.rows * self.columns * self.length


@functools.cache
def tiles(dtype: DType) -> tuple[str, str]:
    """Return the name and the text of the C function that multiplies blocks of an element type."""
    text = _TEXT.read_text(encoding="utf-8")
    name = f"contract_{dtype.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    given = {"ELEMENT": dtype.c, "NAME": name, "SINGLE": str(int(dtype == F32))}
    lines = [f"#define {macro} {meaning}" for macro, meaning in given.items()]
    return name, "\n".join((*lines, text))


def emit_product(product: Product) -> Emitted:
    """Return the kernel of a matrix product; `tiles` gives the function that it calls."""
    down, across = _cut(product)
    function, _ = tiles(product.dtype)
    units = volume(product.batch) * down * across
    c, panels = product.dtype.c, -(-product.columns // SLICE)
    inside = [f"long batch = u / {down * across};"] if product.batch else []
    starts = ["p0", "p1", "p2"]
    for at in reversed(range(len(product.batch))):
        here = f"batch % {product.batch[at]}" if at else "batch"
        inside.append(f"const long b{at} = {here};")
        inside += [f"batch /= {product.batch[at]};"] if at else []
        for k, strides in enumerate((product.a, product.b, product.c)):
            starts[k] += f" + b{at} * {strides[at]}"
    (ai, at_), (bt, bj), (ci, _) = (s[-2:] for s in (product.a, product.b, product.c))
    bp = SLICE * bj if product.slice_ is None else product.slice_
    inside += [
        f"const long r = u / {across} % {down}, s = u % {across};",
        f"const long i = {product.rows} * r / {down}, low = {product.rows} * (r + 1) / {down};",
        f"const long j = {panels} * s / {across} * {SLICE};",
        f"const long end = {panels} * (s + 1) / {across} * {SLICE};",
        f"const long right = end < {product.columns} ? end : {product.columns};",
        f"{function}(low - i, right - j, {product.length},",
        f"    {starts[0]} + i * {ai}, {ai}, {at_},",
        f"    {starts[1]} + j / {SLICE} * {bp}, {bt}, {bj}, {bp},",
        f"    {starts[2]} + i * {ci} + j, {ci}, {product.scale!r});",
    ]
    lines = [
        f"/* {_described(product)} */",
        f"extern void {function}(long, long, long, const {c} *, long, long,",
        f"    const {c} *, long, long, long, {c} *, long, {c});",
        "int KERNEL(char **p, long part, long parts)",
        "{",
        f"    const {c} *p0 = (const {c} *)p[0], *p1 = (const {c} *)p[1];",
        f"    {c} *p2 = ({c} *)p[2];",
        f"    for (long u = {units} * part / parts; u < {units} * (part + 1) / parts; u++) {{",
        *(f"        {line}" for line in inside),
        "    }",
        "    return 0;",
        "}",
    ]
    text = "\n".join(lines) + "\n"
    name = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    parts = max(1, min(PARTS, units, product.flops // PART_FLOPS))
    reason = f"contraction: {_described(product)}, {units} block{'s' * (units > 1)}"
    return Emitted(
        name, text.replace("KERNEL", name), parts, product.flops, _bytes(product), reason
    )


def _cut(product: Product) -> tuple[int, int]:
    """Return into how many blocks rows and columns are cut: enough for all threads, but so that
    what is packed of an operand serves many tiles."""
    batch = volume(product.batch)
    wanted = max(1, min(PARTS, product.flops // PART_FLOPS))
    across = -(-product.columns // WIDEST)
    down = max(1, min(-(-wanted // (batch * across)), product.rows // 64))
    if batch * across * down < wanted:
        across = max(across, min(-(-wanted // (batch * down)), product.columns // 64))
    return down, across


def _bytes(product: Product) -> int:
    m, n, k = product.rows, product.columns, product.length
    return volume(product.batch) * (m * k + k * n + m * n) * product.dtype.bytes


def _described(product: Product) -> str:
    batch = "".join(f"{extent} x " for extent in product.batch)
    shape = f"[{product.rows}, {product.length}] @ [{product.length}, {product.columns}]"
    return f"{batch}{shape} {product.dtype.name}"
