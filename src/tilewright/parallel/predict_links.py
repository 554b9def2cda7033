"""What collectives and messages cost on a machine, by where the ranks of a group sit.

The idea: a group is a network of so many ranks at each level of the links (eight in a node, four
nodes); within one level a ring is run, over several the hierarchical algorithm, as NCCL does, which
combines what arrives while it sends.  All groups of an axis run at once, so a rank has the
bandwidth that it has when all devices send.

This module does not know what is sent, or when.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.cost import Constants, Machine, Network, network_of, price


@dataclass(frozen=True, slots=True)
class Span:
    """Where a group's ranks sit.  start: seconds to begin a collective; straggler: seconds by which
    each two ranks of an innermost group miss each other, where their hosts are what is slow."""

    network: Network
    start: float
    straggler: float

    @property
    def host_seconds(self) -> float:
        """Seconds that starting a collective takes the hosts, who wait for each other."""
        if self.network.ranks == 1:
            return 0.0
        size = self.network.levels[0].size
        return self.start + self.straggler * size * (size - 1) / 2

    def all_reduce(self, size: float) -> float:
        """Return the seconds to sum `size` bytes on every rank."""
        return self._seconds("all-reduce", size)

    def all_gather(self, size: float) -> float:
        """Return the seconds to gather `size` bytes in all on every rank, or scatter their sum."""
        return self._seconds("all-gather", size)

    def all_to_all(self, size: float) -> float:
        """Return the seconds in which each rank sends `size` bytes, an equal part to each rank.

        The links of all levels work at once; each carries what goes beyond the level below.
        """
        ranks, inside, worst = self.network.ranks, 1, 0.0
        for level in self.network.levels:
            beyond = size * (ranks - inside) / ranks
            inside *= level.size
            rounds = (level.size - 1) * level.latency
            worst = max(worst, rounds + beyond / min(level.bandwidth, level.shared))
        return self.start + worst if ranks > 1 else 0.0

    def _seconds(self, collective: str, size: float) -> float:
        if self.network.ranks == 1:
            return 0.0
        variant = "ring" if len(self.network.levels) == 1 else "hierarchical"
        return self.start + price(collective, variant, self.network, size).seconds


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of ranks of a machine: `span` says where those of an axis sit."""

    bare: Machine  # without fitted constants, so that networks are built once for all of them
    start: float
    straggler: float

    def span(self, stride: int, ranks: int) -> Span:
        """Return where the ranks 0, stride, 2 stride, ... of a group sit."""
        return Span(_network(self.bare, stride, ranks), self.start, self.straggler)


def groups_of(machine: Machine) -> Groups:
    """Return the groups of a machine."""
    constants = machine.constants
    bare = replace(machine, constants=Constants())
    return Groups(bare, constants.collective_seconds, constants.straggler_seconds)


@lru_cache(maxsize=1 << 10)
def _network(machine: Machine, stride: int, ranks: int) -> Network:
    """Return what joins the slowest of an axis's groups; they differ where wires join devices."""
    networks = (
        network_of(machine, range(begin, begin + stride * ranks, stride))
        for begin in _begins(machine, stride, ranks)
    )
    slowest = min(networks, key=lambda network: network.levels[0].bandwidth)
    return replace(slowest, combining=math.inf)


def _begins(machine: Machine, stride: int, ranks: int) -> Iterator[int]:
    """Yield where groups of an axis begin: one of them where all are alike."""
    alike = not machine.links[0].wires
    begins = range(1 if alike else min(machine.node_devices, machine.devices))
    return (begin for begin in begins if begin // stride % ranks == 0)


def strides(degrees: dict[str, int], order: tuple[str, ...]) -> dict[str, int]:
    """Return how far apart the ranks of each axis are, the first of `order` side by side."""
    found, stride = {}, 1
    for axis in order:
        found[axis] = stride
        stride *= degrees[axis]
    return found


def message_seconds(machine: Machine, sender: int, receiver: int, size: float) -> float:
    """Return the seconds of one message between two devices."""
    level = machine.level_of((sender, receiver))
    return machine.links[level].latency + size / machine.reached(level, (sender, receiver))


def along_seconds(
    machine: Machine, stride: int, ranks: int, sender: int, receiver: int, size: float
) -> float:
    """Return the seconds in which every group of an axis has sent a message from one of its ranks
    to another: the slowest of them, where wires join devices."""
    return max(
        message_seconds(machine, begin + sender * stride, begin + receiver * stride, size)
        for begin in _begins(machine, stride, ranks)
    )


def exposed(sent: float, computing: float, slowdown: float) -> float:
    """Return what sending adds to computing that it runs beside, each slowing the computing."""
    if sent >= computing * slowdown:
        return sent - computing
    return sent * (1 - 1 / slowdown)
