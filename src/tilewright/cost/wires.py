"""Links that join devices two by two, without a switch: which devices, by how many wires.

The idea: a device of such a mesh reaches another over the wires between the two, so among some of
the devices it has as much of its bandwidth as it has wires to them.  In the text of a machine
`wires 0/1 0/3x2` is one wire between the first and the second device of each group and two between
the first and the fourth.

This module does not know bandwidths.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tilewright.base.errors import MachineError
from tilewright.cost.scanner import Scanner

Wires = tuple[tuple[int, int, int], ...]  # two devices of a group, and the wires between them
MOST_WIRES = 1000
# Devices that no wires join, not even by way of others that take part, send through the host or
# through devices that do not: half a wire, about what a PCIe link of a wire's age carries for two.
DETOUR = 0.5


def read_wires(scanner: Scanner, groups: int) -> Wires:
    """Take `0/1 0/3x2 ...`: pairs of devices of a group, with how many wires each has."""
    begin, found = scanner.at, [_pair(scanner)]
    while scanner.next.kind == "number":
        found.append(_pair(scanner))
    wrong = _wrong(groups, tuple(found))
    if wrong:
        scanner.at = begin
        scanner.refuse("these wires cannot be", *wrong)
    return tuple(found)


def show_wires(wires: Wires) -> str:
    """Return the text that `read_wires` takes."""
    return " ".join(f"{a}/{b}" + (f"x{count}" if count > 1 else "") for a, b, count in wires)


def check_wires(link: str, groups: int | None, wires: Wires) -> None:
    """Raise MachineError unless wires join devices of a group, each pair once and all of them."""
    wrong = _wrong(groups or 0, wires)
    if wrong:
        expected, found = wrong
        raise MachineError(f"the wires of link {link} cannot be so", expected=expected, found=found)


def least_share(wires: Wires, size: int, devices: Sequence[int]) -> float:
    """Return the share of a device's bandwidth that it has among some devices of a machine.

    That of the one with the fewest wires to others in its group of `size`, as a ring goes through
    all: what rings reach where the wires can be shared out among them, and never less.  Without
    wires, 1.
    """
    groups: dict[int, set[int]] = {}
    for device in devices if wires else ():
        groups.setdefault(device // size, set()).add(device % size)
    several = [tuple(sorted(group)) for group in groups.values() if len(group) > 1]
    return min((_share(wires, group) for group in several), default=1.0)


@lru_cache(maxsize=1 << 12)
def _share(wires: Wires, members: tuple[int, ...]) -> float:
    every, inside = Counter[int](), Counter[int]()
    for a, b, count in wires:
        for one, other in ((a, b), (b, a)):
            every[one] += count
            inside[one] += count if one in members and other in members else 0
    joined = len(_reachable(wires, members)) == len(set(members))
    return (min(inside[one] for one in members) if joined else DETOUR) / max(every.values())


def _reachable(wires: Wires, members: Sequence[int]) -> set[int]:
    """Return the members that the first reaches by way of members."""
    found, pending = set[int](), [members[0]]
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        ends = [(a, b) for a, b, _ in wires if one in (a, b)]
        pending += [b if a == one else a for a, b in ends if a in members and b in members]
    return found


def _wrong(size: int, wires: Wires) -> tuple[str, str] | None:
    """Return what was expected of the wires of a group of devices, and found; None if nothing."""
    if type(wires) is not tuple or not all(map(_is_triple, wires)):
        return "a tuple of triples of whole numbers, such as ((0, 1, 1),)", repr(wires)[:60]
    pairs = Counter((a, b) for a, b, _ in wires)
    for a, b, count in wires:
        if not (0 <= a < b < size and 1 <= count <= MOST_WIRES):
            expected = f"two of the devices 0 to {size - 1}, the lower first, and 1 wire or more"
            return expected, f"{a}/{b}x{count}"
        if pairs[a, b] > 1:
            return "each pair of devices once", f"{a}/{b} twice"
    if wires and len(_reachable(wires, range(size))) < size:
        return f"wires by which all of {size} devices reach each other", show_wires(wires)
    return None


def _is_triple(wire: object) -> bool:
    return type(wire) is tuple and [type(item) for item in wire] == [int] * 3


def _pair(scanner: Scanner) -> tuple[int, int, int]:
    one, _, rest = scanner.next.text.partition("/")
    other, sign, count = rest.partition("x")
    words = (one, other, count if sign else "1")
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        scanner.refuse("wires join no two devices", "a pair such as 0/1, or 0/3x2 for two wires")
    scanner.at += 1
    a, b, wires = map(int, words)
    return a, b, wires
