"""The links between ranks, as far as a collective feels them.

The idea: a few levels, innermost first.  Ranks are numbered node by node; a message costs what the
lowest level costs that joins its two ends.  A machine and the devices that take part make one.
This module does not know what is sent.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.cost.machine import Machine

PASSES = 3  # over memory, to combine a byte: two are read, one is written


@dataclass(frozen=True, slots=True)
class Level:
    """Links that join `size` units of the level below (ranks, at the innermost).

    latency: seconds for each message.  bandwidth: bytes/s of one message, each way at once.
    shared: bytes/s, each way, of all messages that leave (or enter) one unit together.
    """

    size: int
    latency: float
    bandwidth: float
    shared: float = math.inf

    def __post_init__(self) -> None:
        """Raise OptionError unless the numbers are possible."""
        _require(self.size >= 1, "a level joins at least one unit", "1 or more", self.size)
        _require(
            0 <= self.latency < math.inf, "a latency is a time", "seconds, 0 or more", self.latency
        )
        for rate in (self.bandwidth, self.shared):
            _require(rate > 0, "a bandwidth is a rate", "bytes/s, above 0", rate)


@dataclass(frozen=True, slots=True)
class Network:
    """Levels, innermost first; combining: bytes/s at which a rank adds what it has received."""

    levels: tuple[Level, ...]
    combining: float = math.inf

    def __post_init__(self) -> None:
        """Raise OptionError unless there is a level."""
        _require(bool(self.levels), "a network has levels", "at least one", "none")
        _require(self.combining > 0, "combining has a rate", "bytes/s, above 0", self.combining)

    @classmethod
    def flat(
        cls, ranks: int, *, latency: float, bandwidth: float, combining: float = math.inf
    ) -> "Network":
        """Return a network in which all links are alike."""
        return cls((Level(ranks, latency, bandwidth),), combining)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(level.size for level in self.levels)

    @property
    def units(self) -> tuple[int, ...]:
        """How many ranks a unit of each level has: 1 at the innermost."""
        sizes = [level.size for level in self.levels]
        return tuple(math.prod(sizes[:at]) for at in range(len(sizes)))

    @property
    def flattened(self) -> "Network":
        """Without the levels that join nothing."""
        kept = tuple(level for level in self.levels if level.size > 1)
        return Network(kept or self.levels[:1], self.combining)


def network_of(machine: Machine, devices: Sequence[int]) -> Network:
    """Return the network among some devices of a machine; rank r is `devices[r]`.

    A link's bandwidth is what a device reaches while all send; where wires join devices, what rings
    over all wires between these reach.  Where groups have different numbers of these devices,
    or their ranks are not next to each other, all links count as the slowest.
    Raises OptionError where a device is none of the machine's, or there twice.
    """
    _require(
        len(set(devices)) == len(devices) > 0
        and all(0 <= device < machine.devices for device in devices),
        f"these are no devices of {machine.name} x {machine.devices}",
        f"different numbers below {machine.devices}",
        ", ".join(map(str, devices[:8])) or "none",
    )
    last = machine.level_of(devices)
    sizes = [_size(machine, devices, level) for level in range(last + 1)]
    links = machine.links[: last + 1]
    combining = machine.device.memory_bandwidth * machine.constants.memory_fraction / PASSES
    if None in sizes:
        latency = max(link.latency for link in links)
        slowest = min(machine.reached(level, devices) for level in range(last + 1))
        return Network((Level(len(devices), latency, slowest),), combining)
    levels = tuple(
        Level(size, link.latency, machine.reached(level, devices))
        for level, (size, link) in enumerate(zip(sizes, links, strict=True))
        if size is not None
    )
    return Network(levels, combining).flattened


def _size(machine: Machine, devices: Sequence[int], level: int) -> int | None:
    """Return how many groups of the level below each group of a level joins; None if not as many.

    None too where groups are taken up again after others.
    """
    outer = machine.group_devices(level)
    inner = machine.group_devices(level - 1) if level else 1
    groups = [device // inner for device in devices]
    runs = [group for at, group in enumerate(groups) if at == 0 or groups[at - 1] != group]
    counts = set(Counter(group * inner // outer for group in runs).values())
    return counts.pop() if len(counts) == 1 and len(set(runs)) == len(runs) else None


def _require(holds: bool, summary: str, expected: str, found: object) -> None:
    if not holds:
        raise OptionError(summary, expected=expected, found=str(found))
