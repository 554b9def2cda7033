"""The knobs of products that are worth a try: within the caches, none twice, ranked by a model."""

import re
from dataclasses import replace

import pytest
from tests.kernels.products import product
from tests.tune.test_measured import HERE

from tilewright.kernels import Product, Tiling, blocks, usual_tiling
from tilewright.kernels.contraction import TILE_ROWS, TILE_VECTORS, vectors_text
from tilewright.tune import Candidate, product_candidates, read_tiling, show_tiling, worth_trying

PEAK, BANDWIDTH = 9e10, 1e10


def candidates(one: Product) -> tuple[Candidate, ...]:
    return product_candidates(one, HERE, PEAK, BANDWIDTH)


def test_tiles_are_those_of_the_kernels() -> None:
    pairs = re.findall(r"#define VECTOR (\d+)\n#define ROWS (\d+)", vectors_text())
    assert {int(vector): int(rows) for vector, rows in pairs} == TILE_ROWS
    assert f"#define WIDE {TILE_VECTORS}\n" in vectors_text()


def test_what_no_cache_holds_is_refused_with_the_reason() -> None:
    found = {one.tiling: one for one in candidates(product((), 1024, 1024, 1024))}
    for tiling, one in found.items():
        panel = tiling.depth * 64
        rows = tiling.tiles * 6 * tiling.depth * 4
        assert bool(one.refused) == (panel > HERE.l1 or rows > HERE.l2 // 2)
    reasons = {one.refused for one in found.values()}
    assert "packed rows of a do not fit in half of the second cache" in reasons  # 393 KB of 256


def test_a_panel_beyond_a_small_first_cache_is_refused() -> None:
    small = replace(HERE, l1=1 << 14)
    found = product_candidates(product((), 512, 512, 512), small, PEAK, BANDWIDTH)
    refused = {one.tiling.depth for one in found if one.refused}
    assert refused == {384, 512}
    assert {one.refused for one in found if one.refused} == {
        "a panel of b does not fit in the first cache"
    }


def test_the_usual_knobs_are_among_them_and_the_best_come_first() -> None:
    for shape in ((8, 128, 128), (1024, 256, 768), (512, 512, 512), (1, 1, 1)):
        found = candidates(product((), *shape))
        assert any(one.tiling == Tiling() for one in found)
        fit = [one.predicted for one in found if not one.refused]
        assert fit == sorted(fit)
        assert [bool(one.refused) for one in found] == sorted(bool(one.refused) for one in found)


@pytest.mark.parametrize("vector", [16, 32, 64])
def test_the_usual_knobs_are_never_refused(vector: int) -> None:
    usual = usual_tiling(vector)
    tiny = replace(HERE, vector=vector, l1=1 << 10, l2=1 << 12, threads=64)
    (first,) = (
        one
        for one in product_candidates(product((), 64, 64, 2048), tiny, PEAK, BANDWIDTH)
        if not one.refused
    )
    assert first.tiling == usual


def test_as_many_terms_are_summed_at_a_time_as_pays_with_the_vectors() -> None:
    assert [usual_tiling(vector).depth for vector in (16, 32, 64)] == [256, 256, 512]


def test_knobs_that_make_the_same_kernel_are_tried_once() -> None:
    assert {one.tiling for one in candidates(product((), 1, 1, 1))} == {Tiling()}
    # 40 rows are seven tiles: 4 at a time are two groups, 8, 16 and 32 are one.
    assert {one.tiling.tiles for one in candidates(product((), 40, 64, 100))} == {4, 16}
    assert len(candidates(product((), 40, 64, 100))) == 2


def test_more_operations_are_predicted_to_take_longer() -> None:
    usual = [
        next(one.predicted for one in candidates(product((), n, n, n)) if one.tiling == Tiling())
        for n in (64, 128, 256, 512, 1024)
    ]
    assert usual == sorted(usual)
    # A large product is bound by its sums: never faster than the peak, hardly slower than half.
    floor = 2 * 1024**3 / PEAK / HERE.threads
    assert floor <= usual[-1] <= 2 * floor


def test_the_usual_knobs_are_tried_and_none_that_differ_in_little() -> None:
    one = product((), 1024, 256, 768)
    found = candidates(one)
    tried = worth_trying(one, found, 6, Tiling())
    assert tried[0] == Tiling()
    assert len(tried) in (6, 7)
    apart = {(tiling.depth, blocks(one, tiling)) for tiling in tried[1:]}
    assert len(apart) == len(tried) - 1
    refused = {candidate.tiling for candidate in found if candidate.refused}
    assert refused.isdisjoint(tried)


def test_knobs_are_what_their_text_says() -> None:
    for tiling in (Tiling(), Tiling(1, 2, 3, 4), Tiling(512, 64, 32, 64)):
        assert read_tiling(show_tiling(tiling)) == tiling


@pytest.mark.parametrize(
    "text",
    [
        "library",
        "",
        "depth=0 panels=64 tiles=16 blocks=8",
        "depth=513 panels=64 tiles=16 blocks=8",
        "depth=256 panels=64 tiles=16 blocks=8 more=1",
        "depth=256 panels=64 tiles=16 blocks=8\n",
        "depth=٣ panels=64 tiles=16 blocks=8",
    ],
)
def test_a_text_that_says_no_knobs_is_none(text: str) -> None:
    assert read_tiling(text) is None
