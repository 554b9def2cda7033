"""Where values live: lifetimes to addresses in one arena, with the lower bound and the gap."""

from tilewright.memory.arena import ALIGNMENT, Block, MemoryPlan, pack, stacked, verify

__all__ = ["ALIGNMENT", "Block", "MemoryPlan", "pack", "stacked", "verify"]
