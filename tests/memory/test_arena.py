"""The arena: no overlap, never below the bound, and the optimum where brute force can find it."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.memory import ALIGNMENT, Block, pack, verify

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "minimalloc"

blocks_strategy = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 12), st.integers(0, 6)), max_size=30
).map(lambda rows: [Block(f"b{k}", n, a, a + d) for k, (n, a, d) in enumerate(rows)])


@given(blocks_strategy)
def test_no_two_blocks_alive_at_once_overlap(blocks: list[Block]) -> None:
    plan = pack(blocks)
    verify(plan, blocks)
    assert plan.bytes >= plan.lower_bound


def test_verify_rejects_an_overlap() -> None:
    blocks = [Block("a", 64, 0, 1), Block("b", 64, 1, 2)]
    good = pack(blocks)
    bad = type(good)((("a", 0), ("b", 0)), good.bytes, good.lower_bound)
    with pytest.raises(AssertionError, match="a and b overlap"):
        verify(bad, blocks)


def test_dead_values_give_their_bytes_back() -> None:
    chain = [Block(f"b{k}", 1000, k, k + 1) for k in range(50)]
    assert pack(chain).bytes == 2 * 1024


def _optimum(blocks: list[Block]) -> int:
    """The least arena over all orders of first fit, which holds the optimum for few blocks."""
    best = 1 << 60
    for order in itertools.permutations(blocks):
        placed: list[tuple[int, Block]] = []
        for block in order:
            at = 0
            for start, other in sorted(placed, key=lambda item: item[0]):
                if block.meets(other) and at + block.bytes > start:
                    at = max(at, start + other.bytes)
            placed.append((at, block))
        best = min(best, max(at + block.bytes for at, block in placed))
    return best


def test_close_to_the_optimum_on_small_cases() -> None:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        starts, spans = rng.integers(0, 6, 6), rng.integers(0, 4, 6)
        sizes = rng.integers(1, 9, 6) * ALIGNMENT
        blocks = [
            Block(f"b{k}", int(n), int(a), int(a + d))
            for k, (n, a, d) in enumerate(zip(sizes, starts, spans, strict=True))
        ]
        ratios.append(pack(blocks).bytes / _optimum(blocks))
    assert min(ratios) >= 1
    assert np.mean(ratios) < 1.1


@pytest.mark.skipif(not SHARED.exists(), reason="the measured allocations are not at hand")
@pytest.mark.parametrize("letter", ["A", "D", "F"])
def test_published_allocations_pack_without_overlap(letter: str) -> None:
    rows = (SHARED / f"{letter}.1048576.csv").read_text().split()[1:]
    blocks = []
    for row in rows:
        name, lower, upper, size = row.split(",")
        blocks.append(Block(name, int(size), int(lower), int(upper) - 1))
    plan = pack(blocks)
    verify(plan, blocks)
    assert plan.gap < 0.5
