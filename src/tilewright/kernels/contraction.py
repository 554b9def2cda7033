"""The contraction recipe: a matrix product of strided operands, cut into equal blocks.

The idea: `contraction.c` holds one function that multiplies a block whose rows, columns and terms
run through loops of any strides, with tiles that are summed in registers; it is compiled once a
machine.  A contraction's own kernel is a few lines that say which block belongs to which part.  The
sum of an element has one order, whatever the blocks, so neither their number nor that of threads is
seen in the result.

This module does not know whether a library would be faster.
"""

import functools
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.base.dtypes import BF16, F32, F64, DType
from tilewright.kernels.body import volume
from tilewright.kernels.emit import PARTS, Emitted, even, named
from tilewright.kernels.epilogue import Following

DTYPES = (F32, F64, BF16)
PAIRED = BF16  # tiles read two terms at once, and sums are F32
SLICE = 32  # columns of a block come in multiples of it: of a tile's width on any machine
LINE = 64  # bytes of b that one step over the terms finds together: tiles read whole lines in turn
SPAN = 2**31  # elements that a tensor has less than, from the first to the last
SPREAD = 128  # as in contraction.c: elements between rows of b that many tiles read, to be packed
TALL = 56  # rows of a block, at least: what is packed of b serves four tiles
HALF = 48  # rows, at least, of either of two blocks where columns make one or three
LAID_TALL = 8  # likewise where rows are few and every thread may have all of b (`_is_by_rows`)
LAID_BYTES = 1 << 18
SMALL = 2048  # elements of b that every thread may pack
BLOCK_FLOPS, MOST_BLOCKS = 128_000_000, 64  # a large product is cut into more blocks
ROOM_A, ROOM_B = 1 << 18, 1 << 20  # as in contraction.c: bytes for packed rows and columns
PASSING = 8  # as there: panels that are packed at a time where one group of rows reads them
EVEN = 4  # threads that share blocks evenly, if they can
PACKING = 32  # products and sums that take as long as packing an element
LOOPS = 16  # that rows, columns or terms run through, at most
TILE_ROWS, TILE_VECTORS = {16: 4, 32: 6, 64: 14}, 2  # as in vectors.c, by the bytes of a vector
FEW_ALONG, MOST_DOTS = 16, {32: 6, 64: 8}  # as in few_rows.c
RECIPE = 8  # grows when what was measured of it no longer holds
PART_FLOPS = 250_000  # below, a part is not worth a thread's attention
PART_BYTES = 65536  # likewise, of what is laid as tiles read it
_TEXT = Path(__file__).with_suffix(".c")
_BEFORE = tuple(map(_TEXT.with_name, ("vectors.c", "turn.c", "pairs.c", "amx.c")))
_PANELS = _TEXT.with_name("panels.c")
_AFTER = tuple(map(_TEXT.with_name, ("few_rows.c", "amx_blocks.c")))


@dataclass(frozen=True, slots=True)
class Tiling:
    """The knobs of the recipe; they are seen in a product's speed, and `depth` in its last digits.

    depth: terms that are summed before the next tile's turn, 512 at most.  panels: columns that are
    packed at a time, in widths of a tile, 64 at most; tiles: rows that are, in heights of a tile,
    32 at most (as far as a megabyte and a quarter of one hold them).  blocks: into how many a
    product is cut, at least, if it is worth it.
    """

    depth: int = 256
    panels: int = 64
    tiles: int = 16
    blocks: int = 8

    def __post_init__(self) -> None:
        for name, most in LIMITS:
            assert 1 <= getattr(self, name) <= most, f"{name} is from 1 to {most}"


LIMITS = (("depth", 512), ("panels", 64), ("tiles", 32), ("blocks", MOST_BLOCKS))
DEFAULT = Tiling()
Batch = tuple[tuple[int, int, int, int], ...]
"""Loops of all three tensors, outermost first: the extent, and the strides in a, b and c."""
Role = tuple[tuple[int, int, int], ...]
"""Loops of two of the tensors: the extent, and the strides in the two."""


@dataclass(frozen=True, slots=True)
class Product:
    """`c[batch, row, column] = scale * sum over terms of a[batch, row, term] * b[batch, term,
    column]` in one element type.

    No extent is 0.  rows: with strides in a and c; columns: in b and c; terms: in a and b; strides
    are in elements, and no tensor spans SPAN of them.  At most LOOPS loops play a part.
    """

    dtype: DType
    batch: Batch
    rows: Role
    columns: Role
    terms: Role
    scale: float = 1.0

    @property
    def word(self) -> int:
        """Bytes of what a tile reads as one term: of a pair of them, in PAIRED."""
        return self.dtype.compute.bytes

    @property
    def words(self) -> int:
        """How many such an element of c has."""
        return -(-count(self.terms) * self.dtype.bytes // self.word)

    @property
    def flops(self) -> int:
        """Products and sums."""
        return 2 * count(self.batch) * count(self.rows) * count(self.columns) * count(self.terms)


def usual_tiling(vector: int) -> Tiling:
    """Return the knobs that are taken where nothing was measured, for vectors of so many bytes.

    A panel of b stays in the first cache, but where vectors have 64 bytes: a tile has so many rows
    that the second cache brings a panel fast enough, and sums go to memory half as often.
    """
    return Tiling(depth=512) if vector == 64 else DEFAULT


def count(loops: Batch | Role) -> int:
    """Return how many iterations some loops have."""
    return volume([extent for extent, *_ in loops])


def merged(role: Role) -> Role:
    """Return the same loops in as few as there can be: two are one where strides go on."""
    made: list[tuple[int, int, int]] = []
    for extent, one, two in role:
        if extent == 1:
            continue
        if made and made[-1][1:] == (one * extent, two * extent):
            made[-1] = (made[-1][0] * extent, one, two)
        else:
            made.append((extent, one, two))
    return tuple(made) or ((1, 0, 0),)


def is_rounded(dtype: DType) -> bool:
    """Say whether sums have a type of their own: what follows a product has to round them."""
    return dtype != dtype.compute


@functools.cache
def tiles(dtype: DType) -> tuple[str, str]:
    """Return the name and the text of the C function that multiplies blocks of an element type."""
    after = "".join(text.read_text(encoding="utf-8") for text in (_TEXT, *_AFTER))
    source = _panels(dtype) + after
    name = f"contract_{dtype.name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return name, _named(dtype, name) + source


def panels_text(dtype: DType) -> str:
    """Return what stands before the C of all that calls what `tiles` has besides its function."""
    name, _ = tiles(dtype)
    return _named(dtype, name) + _panels(dtype)


def _named(dtype: DType, name: str) -> str:
    sums = dtype.compute
    given = {"ELEMENT": sums.c, "SINGLE": str(int(sums == F32)), "NAME": name}
    given |= {"LAY": f"{name}_slices", "PACK": f"{name}_pack", "TILES": f"{name}_tiles"}
    return "".join(f"#define {macro} {meaning}\n" for macro, meaning in given.items())


def _panels(dtype: DType) -> str:
    return words_text(dtype) + _PANELS.read_text(encoding="utf-8")


def words_text(dtype: DType) -> str:
    """Return what stands before the C of tiles that sum products of an element type."""
    pair = f"#define PAIR {2 if dtype == PAIRED else 1}\n"
    return pair + "".join(text.read_text(encoding="utf-8") for text in _BEFORE)


def vectors_text() -> str:
    """Return what stands before the C of all that computes in tiles of vectors."""
    return _BEFORE[0].read_text(encoding="utf-8")


def tile_shape(dtype: DType, vector: int) -> tuple[int, int]:
    """Return the rows and columns of a tile, where a vector has so many bytes."""
    return TILE_ROWS[vector], TILE_VECTORS * vector // dtype.compute.bytes


def sums_along(dtype: DType, vector: int, rows: int, terms: int) -> bool:
    """Say whether a product whose terms lie together in both operands sums them in the lanes of
    vectors of so many bytes: then b is read once, as it lies."""
    if dtype == F64 or vector not in MOST_DOTS or rows > FEW_ALONG:
        return False
    return terms >= min(rows, MOST_DOTS[vector]) * vector // dtype.bytes


def grouped_rows(product: Product, tiling: Tiling, tile: tuple[int, int]) -> int:
    """Return how many rows at most meet a panel of b before it is the next one's turn."""
    height, _ = tile
    room = ROOM_A // (height * (tiling.depth * product.word + LINE))
    return min(tiling.tiles, room) * height


def packed_columns(product: Product, tiling: Tiling, tile: tuple[int, int], rows: int) -> int:
    """Return how many columns of b are packed at a time for a block of so many rows."""
    _, width = tile
    alone = rows <= grouped_rows(product, tiling, tile)
    most = min(tiling.panels, PASSING) if alone else tiling.panels
    return min(most, ROOM_B // (tiling.depth * width * product.word)) * width


def keeps(product: Product, tiling: Tiling) -> bool:
    """Say whether c is needed for sums that lack terms, though something else takes them then."""
    return product.words > tiling.depth


def emit_product(
    product: Product,
    tiling: Tiling = DEFAULT,
    following: Following | None = None,
    result: int | None = 2,
) -> Emitted:
    """Return the kernel of a matrix product, and of what follows it where its elements are.

    `tiles` gives the function that it calls.  c holds sums in the type that is computed in: what
    follows rounds them where results have another.  result: which pointer is c; None where there is
    none, as nothing `keeps` sums in it.
    """
    roles = {
        "rows": merged(product.rows),
        "columns": merged(product.columns),
        "terms": merged(product.terms),
    }
    down, across = blocks(product, tiling)
    function, _ = tiles(product.dtype)
    units = count(product.batch) * down * across
    given, c = product.dtype.c, product.dtype.compute.c
    text = () if following is None else following.text
    into = "0" if result is None else f"p[{result}]"
    lines = [
        f"/* {described_product(product)} */",
        *text,
        f"extern void {function}(const long *, const long *, const long *, long, long, long, long,",
        f"    const {given} *, const {given} *, {c} *, {c}, long, long, long,",
        f"    void (*)(const void *, const {c} *, long, long, long, long, long), const void *);",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        *(f"    {_table(name, role)}" for name, role in roles.items()),
        f"    const {given} *p0 = (const {given} *)p[0], *p1 = (const {given} *)p[1];",
        f"    {c} *p2 = ({c} *){into};",
        f"    const long last = {units} * end / parts;",
        "    /* Blocks below and beside each other are one: what it packs serves them all. */",
        f"    for (long u = {units} * part / parts; u < last;) {{",
        *(f"        {line}" for line in _block(product, tiling, down, across, bool(text))),
        "    }",
        "    return 0;",
        "}",
    ]
    parts = even(max(1, min(PARTS, units, product.flops // _part_flops(product))), units)
    reason = f"contraction: {described_product(product)}, {units} block{'s' * (units > 1)}"
    flops, moved = product.flops, _bytes(product)
    if following is not None:
        flops, moved = flops + following.flops, moved + following.bytes
    return replace(named(lines, parts, flops, moved, reason), product=(product, tiling))


def emit_slices(dtype: DType, batch: Role, columns: Role, terms: Role) -> Emitted:
    """Return the kernel that lays the right operand of products as tiles read it: [batch.., slices,
    terms, a line's columns], and pairs of terms side by side where tiles read two at once.

    Columns fill lines, and terms pairs.  batch, columns, terms: with strides in the operand first.
    """
    wide, function = LINE // dtype.compute.bytes, f"{tiles(dtype)[0]}_slices"
    slices, units = count(columns) // wide, count(batch) * count(columns) // wide
    size, c = count(columns) * count(terms), dtype.compute.c
    given = f"const {dtype.c} *, {c} *"
    lines = [
        f"/* {units} slices of [{count(terms)}, {wide}] {dtype.name} */",
        f"extern void {function}(const long *, const long *, long, long, {given});",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        f"    {_table('columns', merged(columns))}",
        f"    {_table('terms', merged(terms))}",
        f"    for (long u = {units} * part / parts; u < {units} * end / parts; u++) {{",
        f"        const long s = u % {slices};",
        f"        long batch = u / {slices}, from = 0;",
    ]
    for extent, step, _ in reversed(batch):
        lines.append(f"        from += batch % {extent} * {step}, batch /= {extent};")
    lines += [
        f"        {function}(columns, terms, s * {wide}, (s + 1) * {wide},",
        f"            (const {dtype.c} *)p[0] + from,",
        f"            ({c} *)(({dtype.c} *)p[1] + u / {slices} * {size}));",
        "    }",
        "    return 0;",
        "}",
    ]
    moved = 2 * count(batch) * size * dtype.bytes
    parts = even(max(1, min(PARTS, units, moved // PART_BYTES)), units)
    return named(lines, parts, 0, moved, f"slices of a line: {units} of {count(terms)} terms")


def product_extents(product: Product) -> tuple[int, int, int, int]:
    """Return how many iterations batch, rows, columns and terms have."""
    batch, rows, columns = count(product.batch), count(product.rows), count(product.columns)
    return batch, rows, columns, count(product.terms)


def blocks(product: Product, tiling: Tiling) -> tuple[int, int]:
    """Return into how many blocks rows and columns are cut: enough for all threads, a multiple of
    EVEN, and so that little is packed: every block packs its columns of b, and its rows of a each
    time that other columns are packed."""
    batch, rows, columns, _ = product_extents(product)
    by_rows = _is_by_rows(product)
    wanted = max(
        min(EVEN, product.flops // _part_flops(product)) if by_rows else 0,
        min(tiling.blocks, product.flops // PART_FLOPS),
        min(MOST_BLOCKS, product.flops // BLOCK_FLOPS),
    )
    widest = min(tiling.panels * SLICE, ROOM_B // (tiling.depth * product.word))

    def price(cut: tuple[int, int]) -> tuple[int, float]:
        down, across = cut
        units = batch * down * across
        of_b = 0 if by_rows else down * columns
        packed = of_b + 2 * across * -(-columns // (across * widest)) * rows
        uneven = -(-units // EVEN) * EVEN / units
        return max(0, wanted - units), (rows * columns + PACKING * packed) * uneven

    most = max(1, PARTS // batch)
    halves = columns // SLICE in (1, 3) and 2 * HALF <= rows < 2 * TALL
    tall = HALF if halves else TALL
    if by_rows:  # a block of few rows may sum along the terms, in another order (`few_rows.c`)
        tall = LAID_TALL if columns >= SLICE else FEW_ALONG + 1
    cuts = (
        (down, across)
        for down in range(1, max(1, min(most, rows // tall)) + 1)
        for across in range(1, max(1, min(most // down, columns // SLICE)) + 1)
    )
    return min(cuts, key=price)


def _is_by_rows(product: Product) -> bool:
    """Say whether threads take rows before columns, though rows are few: b lies as tiles read it,
    and each thread's caches hold all of it; or its columns are not to be cut, and little is packed.

    Then the rows of one product are in the cache of the thread that takes them in the next, and
    less work is worth a thread's attention.
    """
    run, step, _ = product.columns[-1]
    _, rows, columns, terms = product_extents(product)
    if product.batch or rows >= 2 * TALL:
        return False
    if columns < SLICE:
        return columns * terms <= SMALL
    laid = len(product.columns) > 1 and step == 1 and run * product.word == LINE
    return laid and columns * terms * product.word <= LAID_BYTES


def _part_flops(product: Product) -> int:
    return PART_FLOPS // 8 if _is_by_rows(product) else PART_FLOPS


def _block(product: Product, tiling: Tiling, down: int, across: int, followed: bool) -> list[str]:
    """Return the lines that compute block u and those after it that make a larger one with it."""
    function, _ = tiles(product.dtype)
    rows, columns = count(product.rows), count(product.columns)
    panels = -(-columns // SLICE)
    lines = [
        *(
            together(down, across)
            if _is_tall(product, down)
            else together(across, down, ("s", "wide", "r", "high"))
        ),
        f"const long right = {panels} * (s + wide) / {across} * {SLICE};",
    ]
    lines += [f"long batch = u / {down * across};"] if product.batch else []
    starts = ["p0", "p1", "p2"]
    for at in reversed(range(len(product.batch))):
        extent, *strides = product.batch[at]
        lines.append(f"const long b{at} = {f'batch % {extent}' if at else 'batch'};")
        lines += [f"batch /= {extent};"] if at else []
        starts = [f"{start} + b{at} * {step}" for start, step in zip(starts, strides, strict=True)]
    if followed:
        before = f"u / {down * across} * {rows}" if product.batch else "0"
        lines.append(f"const KERNEL_with with = {{p, {before}}};")
    return [
        *lines,
        f"{function}(rows, columns, terms, {rows} * r / {down}, {rows} * (r + high) / {down},",
        f"    {panels} * s / {across} * {SLICE}, right < {columns} ? right : {columns},",
        *(f"    {start}," for start in starts),
        f"    {product.scale!r}, {tiling.depth}, {tiling.panels}, {tiling.tiles},",
        f"    {'KERNEL_then, &with' if followed else '0, 0'});",
        "u += wide * high;",
    ]


def _is_tall(product: Product, down: int) -> bool:
    """Say whether threads have blocks of rows of their own rather than of columns.

    What a thread makes then lies together, where an update of the same elements finds it in that
    thread's cache; but each packs all of b, which is dear where b has to be turned.
    """
    (_, step, _), rows = product.columns[-1], count(product.rows)
    if _is_by_rows(product):
        return True
    return rows >= count(product.columns) and down % 2 == 0 and step == 1


def together(
    outer: int, inner: int, names: tuple[str, str, str, str] = ("r", "high", "s", "wide")
) -> list[str]:
    """Return the lines that say which block u is, of `outer` times `inner`, and how many of those
    before `last` make one with it.

    names: of its place and its extent, in blocks, in the outer loop, then in the inner one.
    """
    at, many, place, some = names
    return [
        f"const long {at} = u / {inner} % {outer}, {place} = u % {inner};",
        f"const long {some} = {inner} - {place} < last - u ? {inner} - {place} : last - u;",
        f"const long rest = {outer} - {at}, full = (last - u) / {inner};",
        "const long most = full < rest ? full : rest;",
        f"const long {many} = {some} < {inner} ? 1 : most;",
    ]


def _table(name: str, role: Role) -> str:
    """Return a role's loops as `contraction.c` takes them."""
    numbers = [len(role), *(number for loop in role for number in loop)]
    return f"static const long {name}[] = {{{', '.join(map(str, numbers))}}};"


def _bytes(product: Product) -> int:
    m, n, k = count(product.rows), count(product.columns), count(product.terms)
    return count(product.batch) * (m * k + k * n + m * n) * product.dtype.bytes


def described_product(product: Product) -> str:
    """Return a product's extents in words."""
    batch = "".join(f"{extent} x " for extent, *_ in product.batch)
    m, n, k = count(product.rows), count(product.columns), count(product.terms)
    return f"{batch}[{m}, {k}] @ [{k}, {n}] {product.dtype.name}"
