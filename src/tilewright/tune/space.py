"""The ways to compute a product by our kernel: its knobs, without those that cannot be good.

The idea: the grid of knobs is small; what caches and registers rule out goes first, each with its
reason, and a model of what is moved between caches ranks the rest (Low and others, Analytical
modeling is enough for high-performance BLIS, 2016; its formulas keep a panel in the first cache and
packed blocks in the second).  The model says what a product takes to about a third, and hardly how
those differ that fit: so the best few are measured, of those that are far apart in terms at a time
and blocks.

This module does not know what anything took.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from tilewright.kernels import (
    KNOB_LIMITS,
    Product,
    Tiling,
    blocks,
    grouped_rows,
    packed_columns,
    product_extents,
    tile_shape,
    usual_tiling,
)
from tilewright.tune.processor import Processor

DEPTHS, PANELS, TILES, BLOCKS = (128, 256, 384, 512), (8, 24, 64), (4, 8, 16, 32), (2, 4, 8, 16, 32)
L2_BYTES = 32
"""A cycle brings so many from the second cache, and a quarter of them from the third."""
EXPOSED = 0.3
"""The share of this that sums do not hide."""
BLOCK_SECONDS = 1e-6
"""What a block takes beside its sums."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Knobs, the seconds that are predicted for them, or why they are not worth trying."""

    tiling: Tiling
    predicted: float
    refused: str = ""


def product_candidates(
    product: Product, processor: Processor, peak: float, bandwidth: float
) -> tuple[Candidate, ...]:
    """Return all candidates for a product, the best by prediction first, refused ones last.

    peak: FLOP/s of one core for its element type.  bandwidth: B/s of the memory for one core.
    """
    found: dict[tuple[object, ...], Candidate] = {}
    usual = usual_tiling(processor.vector)
    for tiling in (usual, *_grid()):
        reason = "" if tiling == usual else _refusal(product, tiling, processor)
        seconds = _seconds(product, tiling, processor, peak, bandwidth)
        found.setdefault(_seen(product, tiling, processor), Candidate(tiling, seconds, reason))
    return tuple(sorted(found.values(), key=lambda one: (one.refused, one.predicted)))


def worth_trying(
    product: Product, candidates: Sequence[Candidate], most: int, usual: Tiling
) -> tuple[Tiling, ...]:
    """Return the usual knobs, and the best by prediction: of those that share the terms at a time
    and the blocks, one."""
    found: dict[tuple[object, ...], Tiling] = {}
    for one in candidates:
        if not one.refused:
            found.setdefault((one.tiling.depth, blocks(product, one.tiling)), one.tiling)
    return tuple(dict.fromkeys((usual, *list(found.values())[:most])))


def show_tiling(tiling: Tiling) -> str:
    """Return knobs as text: `depth=256 panels=64 tiles=16 blocks=8`."""
    named = zip((field.name for field in fields(tiling)), astuple(tiling), strict=True)
    return " ".join(f"{name}={value}" for name, value in named)


def read_tiling(text: str) -> Tiling | None:
    """Return the knobs that a text says, None if it says something else."""
    pattern = " ".join(rf"{name}=(\d{{1,4}})" for name, _ in KNOB_LIMITS)
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None:
        return None
    values = [int(value) for value in match.groups()]
    if not all(1 <= n <= most for n, (_, most) in zip(values, KNOB_LIMITS, strict=True)):
        return None
    return Tiling(*values)


def _grid() -> Iterator[Tiling]:
    for depth in DEPTHS:
        for panels in PANELS:
            for tiles in TILES:
                for count in BLOCKS:
                    yield Tiling(depth, panels, tiles, count)


def _seen(product: Product, tiling: Tiling, processor: Processor) -> tuple[object, ...]:
    """Return what a product shows of its knobs: those that are the same in this are the same."""
    _, rows, columns, terms = product_extents(product)
    down, across = blocks(product, tiling)
    height, width = tile = tile_shape(product.dtype, processor.vector)
    wide, tall = -(-columns // (across * width)) * width, -(-rows // down)
    return (
        (down, across),
        min(tiling.depth, terms),
        min(packed_columns(product, tiling, tile, tall), wide),
        min(grouped_rows(product, tiling, tile), -(-tall // height) * height),
    )


def _refusal(product: Product, tiling: Tiling, processor: Processor) -> str:
    """Return why knobs are not worth trying, "" if they are."""
    batch, _, _, terms = product_extents(product)
    size, depth = product.dtype.bytes, min(tiling.depth, terms)
    height, width = tile_shape(product.dtype, processor.vector)
    panel = depth * width * size
    if panel > processor.l1:
        return "a panel of b does not fit in the first cache"
    if tiling.tiles * height * depth * size > processor.l2 // 2:
        return "packed rows of a do not fit in half of the second cache"
    down, across = blocks(product, tiling)
    if batch * down * across < processor.threads:
        return "fewer blocks than threads"
    return ""


def _seconds(
    product: Product, tiling: Tiling, processor: Processor, peak: float, bandwidth: float
) -> float:
    """Return what a product is predicted to take: its sums, a share of what the second cache brings
    for them, and what the memory brings."""
    batch, rows, columns, terms = product_extents(product)
    down, across = blocks(product, tiling)
    size = product.dtype.bytes
    height, width = tile = tile_shape(product.dtype, processor.vector)
    tall, wide = -(-rows // down), -(-columns // across)
    units = batch * down * across
    busiest = -(-units // processor.threads)
    whole = (-(-tall // height) * height) * (-(-wide // width) * width) * terms
    sums = 2 * whole / peak
    lanes = processor.vector / size
    second = L2_BYTES * peak / (4 * lanes)
    group = grouped_rows(product, tiling, tile)
    packed = min(wide, packed_columns(product, tiling, tile, tall))
    deep = -(-terms // tiling.depth)
    turns = -(-wide // packed)
    # What goes through the second cache: b packed once, and read for each group of rows, from the
    # third cache where a block of it is larger than the second; a for each panel of b; c for each
    # step of the sum.
    near = packed * min(tiling.depth, terms) * size <= processor.l2 // 2
    read_b = terms * wide * -(-tall // group) * (1 if near else 4)
    read_a = terms * tall * (-(-wide // width) if tiling.tiles > 1 else turns)
    moved = 2 * terms * wide + read_b + read_a + 2 * tall * wide * deep
    again = 1 if tall <= group else turns
    memory = (terms * wide + terms * tall * again + tall * wide) * size / bandwidth
    return busiest * (sums + EXPOSED * moved * size / second + memory + BLOCK_SECONDS)
