"""Give every value an offset in one arena, so that values alive at one time never overlap.

The idea: largest first, each in the tightest gap that is free for its whole lifetime (greedy by
size, best fit; Pisarchyk and Lee 2020).  The plan states its lower bound, the most bytes alive at
any one time, so that the gap is known.

This module does not know what a value is: a block has a name, bytes, and a first and last step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that are alive from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: "Block") -> bool:
        """Say whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in bytes by block name; the arena's size; the most bytes alive at one step."""

    offsets: tuple[tuple[str, int], ...]
    bytes: int
    lower_bound: int

    @property
    def gap(self) -> float:
        """How far the arena is above the lower bound, as a fraction of it."""
        return self.bytes / self.lower_bound - 1 if self.lower_bound else 0.0

    def __str__(self) -> str:
        return (
            f"arena {self.bytes:,} bytes for {len(self.offsets)} values, "
            f"lower bound {self.lower_bound:,} (gap {self.gap:.1%})"
        )


def pack(blocks: Iterable[Block]) -> MemoryPlan:
    """Plan the arena for `blocks`."""
    ordered = sorted(blocks, key=lambda block: (-block.bytes, block.first, block.name))
    placed: list[tuple[int, Block]] = []  # sorted by offset
    offsets: dict[str, int] = {}
    for block in ordered:
        at = _best_fit(block, placed)
        offsets[block.name] = at
        placed.append((at, block))
        placed.sort(key=lambda item: item[0])
    total = max((at + _padded(block) for at, block in placed), default=0)
    return MemoryPlan(tuple(sorted(offsets.items())), total, lower_bound(ordered))


def stacked(plan: MemoryPlan, blocks: Sequence[Block]) -> dict[str, tuple[str, ...]]:
    """Return for each block those that it starts right above, in the order that a plan puts them.

    Whatever the blocks' sizes are then, no two that are alive at one time overlap: of each pair one
    is above the other, if only by way of others.
    """
    offsets = dict(plan.offsets)
    placed: list[Block] = []
    below: dict[str, set[str]] = {}
    above: dict[str, tuple[str, ...]] = {}
    for block in sorted(blocks, key=lambda block: (offsets[block.name], block.name)):
        direct: list[str] = []
        below[block.name] = set()
        for other in reversed(placed):
            if block.meets(other) and other.name not in below[block.name]:
                direct.append(other.name)
                below[block.name] |= {other.name, *below[other.name]}
        above[block.name] = tuple(reversed(direct))
        placed.append(block)
    return above


def lower_bound(blocks: Sequence[Block]) -> int:
    """Return the most bytes alive at one step: no arena can be smaller."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + _padded(block)
        changes[block.last + 1] = changes.get(block.last + 1, 0) - _padded(block)
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def verify(plan: MemoryPlan, blocks: Sequence[Block]) -> None:
    """Assert that a plan, whoever made it, overlaps no two blocks that are alive at one time."""
    offsets = dict(plan.offsets)
    assert set(offsets) == {block.name for block in blocks}, "a plan places every block once"
    for position, block in enumerate(blocks):
        start = offsets[block.name]
        assert start % ALIGNMENT == 0 and start >= 0, f"{block.name} is not aligned"
        assert start + block.bytes <= plan.bytes, f"{block.name} leaves the arena"
        for other in blocks[position + 1 :]:
            apart = start + block.bytes <= offsets[other.name]
            apart = apart or offsets[other.name] + other.bytes <= start
            assert apart or not block.meets(other), f"{block.name} and {other.name} overlap"


def _best_fit(block: Block, placed: Sequence[tuple[int, Block]]) -> int:
    """Return the start of the smallest gap that holds the block during its whole lifetime."""
    best, best_size, end = None, 0, 0
    need = _padded(block)
    for at, other in placed:
        if not block.meets(other):
            continue
        size = at - end
        if size >= need and (best is None or size < best_size):
            best, best_size = end, size
        end = max(end, at + _padded(other))
    return end if best is None else best


def _padded(block: Block) -> int:
    return max(ALIGNMENT, -(-block.bytes // ALIGNMENT) * ALIGNMENT)
