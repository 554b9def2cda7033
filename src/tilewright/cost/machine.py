"""A machine as data: devices, the links that join them, and what was fitted to measurements.

The idea: a machine is a text that parses back.  `dgx-a100-80g x 64` is 64 devices of a preset,
`dgx-a100-80g x 8 nodes, link 800Gb/s` changes what a node sends to others; `str(machine)` is the
whole record, one line for the machine, its device, each level of links, and the constants::

    machine NAME x DEVICES
    device NAME: memory 80GiB, bandwidth 2.039TB/s, launch 5us, bfloat16 312TFLOP/s, ...
    link NAME: groups 8, latency 2.7us, bandwidth 300GB/s, share 0.76
    link NAME: latency 5us, bandwidth 25GB/s, share 0.9
    constants: gemm_fraction 0.8, ...

A line that ends with a comma goes on in the next.  `wires` after `groups` says which devices a link
without a switch joins (`wires`).

This module does not know what runs on a machine, nor how a constant is fitted (`fit`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from tilewright.base.errors import MachineError, expect_text
from tilewright.cost.calibration import check_measured, check_narrower, check_priced
from tilewright.cost.fit import fit
from tilewright.cost.measure import Progress, measure_host
from tilewright.cost.presets import NODES, preset_names, read_machine
from tilewright.cost.quantity import EXAMPLES, parse_quantity, show_quantity
from tilewright.cost.scanner import Scanner
from tilewright.cost.wires import Wires, check_wires, least_share, read_wires, show_wires

Row = TypeVar("Row")
Item = TypeVar("Item")

MOST_DEVICES = 10_000_000
MOST_GROUPS = 100_000
DTYPES = ("float8", "bfloat16", "float16", "float32", "float64", "int8")
_MEND = "write NAME x DEVICES, or copy the text of `tilewright machine NAME`"

# Word in the text, field, unit, least and greatest value.
_DEVICE = (
    ("memory", "memory_bytes", "B", 1.0, 1e15),
    ("bandwidth", "memory_bandwidth", "B/s", 1e6, 1e15),
    ("launch", "launch_seconds", "s", 0.0, 1.0),
)
_LINK = (
    ("latency", "latency", "s", 0.0, 1.0),
    ("bandwidth", "bandwidth", "B/s", 1e3, 1e15),
    ("share", "share", "", 0.05, 1.0),
)
_CONSTANTS = (
    ("gemm_fraction", "gemm_fraction", "", 0.05, 0.9),
    ("memory_fraction", "memory_fraction", "", 0.05, 1.0),
    ("product_seconds", "product_seconds", "s", 0.0, 0.0001),
    ("operator_seconds", "operator_seconds", "s", 0.0, 0.001),
    ("micro_batch_seconds", "micro_batch_seconds", "s", 0.0, 0.01),
    ("loss_seconds", "loss_seconds", "s", 0.0, 0.01),
    ("collective_seconds", "collective_seconds", "s", 0.0, 0.01),
    ("straggler_seconds", "straggler_seconds", "s", 0.0, 0.001),
    ("overlap_slowdown", "overlap_slowdown", "", 1.0, 2.0),
)
_PEAK = (1e6, 1e18)
_Field = tuple[str, str, str, float, float]


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one core.

    memory_bytes, memory_bandwidth (B/s); launch_seconds: the price of starting one kernel.
    peaks: FLOP/s by element type, dense, a multiplication and an addition being two.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    launch_seconds: float
    peaks: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        _check(self, f"device {self.name}", _DEVICE)

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s for an element type; raise MachineError where there is none."""
        for name, flops in self.peaks:
            if name == dtype:
                return flops
        known = ", ".join(name for name, _ in self.peaks)
        raise MachineError(
            f"device {self.name} has no peak for {dtype}",
            expected=f"one of {known}",
            found=dtype,
            mend=f"train in one of these, or add `{dtype} ...FLOP/s` to the machine's text",
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the links: what joins `groups` groups of the level below (devices, at first).

    groups: None joins all that there are.  latency: seconds of a message.  bandwidth: B/s that one
    device sends (and receives at once) when all do.  share: the part of it that is reached.  wires:
    of a mesh of devices, which of a group are joined, by how many; none where a switch joins all.
    """

    name: str
    groups: int | None
    latency: float
    bandwidth: float
    share: float = 1.0
    wires: Wires = ()

    def __post_init__(self) -> None:
        _check(self, f"link {self.name}", _LINK)
        check_wires(self.name, self.groups, self.wires)

    @property
    def reached(self) -> float:
        """The bandwidth that is reached, in B/s for one device and direction."""
        return self.bandwidth * self.share


@dataclass(frozen=True, slots=True)
class Constants:
    """What measurements fit, each within what physics allows.

    gemm_fraction: of the peak that large products reach.  memory_fraction: of the memory's
    bandwidth that is reached.  product_seconds: what each product takes beside its operations,
    which makes small ones inefficient.  operator_seconds: in which the host starts one operator.
    micro_batch_seconds: the host's work around each micro-batch of a stage; loss_seconds: around
    its loss.  collective_seconds: the price of starting a collective; straggler_seconds: for each
    two ranks of a node, whose hosts may miss each other.  overlap_slowdown: how much longer
    computing takes while something is sent.
    """

    gemm_fraction: float = 0.8
    memory_fraction: float = 0.8
    product_seconds: float = 0.0
    operator_seconds: float = 0.0
    micro_batch_seconds: float = 0.0
    loss_seconds: float = 0.0
    collective_seconds: float = 0.0
    straggler_seconds: float = 0.0
    overlap_slowdown: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "the constants", _CONSTANTS)


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind, joined by levels of links, the innermost first.

    devices: how many; device r sits in group r // n of a level whose groups hold n devices.
    """

    name: str
    device: Device
    links: tuple[Link, ...]
    devices: int
    constants: Constants

    def __post_init__(self) -> None:
        _check_links(self)
        if type(self.devices) is not int or not 1 <= self.devices <= MOST_DEVICES:
            raise MachineError(
                f"machine {self.name} has {str(self.devices)[:60]} devices",
                expected=f"a whole number from 1 to {MOST_DEVICES}",
                found=repr(self.devices)[:60],
            )
        for level, link in enumerate(self.links):
            inside = self.group_devices(level - 1)
            if self.devices > inside and self.devices % inside:
                raise MachineError(
                    f"{self.devices} devices leave a group of machine {self.name} half full",
                    expected=f"less than {inside} devices, or a multiple of {inside}",
                    found=str(self.devices),
                    known=f"link {link.name} joins groups of {inside} devices",
                    mend=f"take {self.devices // inside * inside} or "
                    f"{-(-self.devices // inside) * inside} devices",
                )

    @classmethod
    def parse(cls, text: str) -> "Machine":
        """Return the machine that a text means.

        Either the whole record, as `str` prints it, or `PRESET [x COUNT [nodes]] {, KEY VALUE}`:
        COUNT devices (one full node where nothing is said), or that many nodes.  Keys: `link` (what
        one node sends to others, all devices together), `memory`, and the name of a constant.
        Or the path of such a text, `host.txt`.
        Raises MachineError with line, column and the nearest names.
        """
        text = expect_text(text, "a machine", MachineError).strip()
        if text.endswith(".txt") and "\n" not in text:
            text = read_machine(Path(text))
        scanner = Scanner(text, "machine", MachineError, _MEND)
        return _record(scanner) if scanner.next.text == "machine" else _preset(scanner)

    @classmethod
    def here(cls, progress: Progress | None = None) -> "Machine":
        """Measure this host: one device for each core, joined by local sockets.

        Takes about two seconds.  progress: called with a line of text before each measurement.
        """
        host = measure_host(progress or (lambda _: None))
        device = Device(
            "cpu-core", host.memory_bytes, host.memory_bandwidth, host.launch_seconds, host.peaks
        )
        link = Link("loopback", None, host.link_latency, host.link_bandwidth)
        return cls("host", device, (link,), host.cores, Constants(gemm_fraction=0.9))

    def calibrate(
        self,
        rows: Sequence[tuple[Row, float]],
        predict: "Callable[[Machine, Row], float]",
        names: Sequence[str],
        within: Mapping[str, tuple[float, float]] | None = None,
    ) -> "Machine":
        """Return the machine whose predictions are nearest to what was measured.

        rows: what ran, and the seconds that it took.  predict: the seconds that a machine would
        take.  names: what is fitted: constants, or `LINK.latency` and `LINK.share`, each within
        its bounds, by least relative errors, from the present values.  within: narrower bounds.
        Raises MachineError where a name is unknown or there are fewer rows than names.
        """
        measured = check_measured(rows, predict, names)
        known = {name: self._bounds(name) for name in names}
        narrower = check_narrower(within or {}, known)
        bounds = [narrower.get(name, known[name]) for name in names]

        def price(values: Sequence[float]) -> list[float]:
            machine = self.adjusted(dict(zip(names, values, strict=True)))
            return check_priced([predict(machine, row) for row, _ in rows])

        start = [self.value(name) for name in names]
        found = fit(price, measured, start, bounds)
        return self.adjusted(dict(zip(names, found, strict=True)))

    def value(self, name: str) -> float:
        """Return a constant, or `LINK.latency`, `LINK.share` or `LINK.bandwidth`."""
        self._bounds(name)
        link, _, field = name.rpartition(".")
        owner: object = self.link(link) if link else self.constants
        value = getattr(owner, field)
        assert isinstance(value, float), f"{name} is a number"
        return value

    def adjusted(self, values: dict[str, float]) -> "Machine":
        """Return the machine with other values of what `value` names."""
        constants, links = self.constants, self.links
        for name, value in values.items():
            self._bounds(name)
            link, _, field = name.rpartition(".")
            if link:
                links = tuple(
                    _changed(item, field, value) if item.name == link else item for item in links
                )
            else:
                constants = _changed(constants, field, value)
        return replace(self, constants=constants, links=links)

    def with_devices(self, devices: int) -> "Machine":
        """Return the same kind of machine with another number of devices."""
        return replace(self, devices=devices)

    def link(self, name: str) -> Link:
        """Return a level of links by its name."""
        for item in self.links:
            if item.name == name:
                return item
        raise _unknown(f"link {name!r} of machine {self.name}", [item.name for item in self.links])

    def group_devices(self, level: int) -> int:
        """Return how many devices a full group of a level holds; below the first level, one."""
        groups = [link.groups for link in self.links[: level + 1]]
        return math.prod(self.devices if count is None else count for count in groups)

    @property
    def node_devices(self) -> int:
        """How many devices a full node holds: a group just below the outermost links."""
        return self.group_devices(len(self.links) - 2)

    def level_of(self, ranks: Sequence[int]) -> int:
        """Return the innermost level (from 0) one of whose groups holds all of these devices."""
        for level in range(len(self.links)):
            size = self.group_devices(level)
            if len({rank // size for rank in ranks}) <= 1:
                return level
        raise AssertionError("the outermost links join all devices")

    def reached(self, level: int, devices: Sequence[int]) -> float:
        """Return the B/s that each of some devices reaches over a level's links, beside all others.

        Where wires join devices, those between the devices of a group; of all groups the least.
        """
        link = self.links[level]
        return link.reached * least_share(link.wires, self.group_devices(level), devices)

    def _bounds(self, name: str) -> tuple[float, float]:
        table: dict[str, tuple[float, float]] = {
            word: (low, high) for word, _, _, low, high in _CONSTANTS
        }
        for link in self.links:
            table |= {f"{link.name}.{word}": (low, high) for word, _, _, low, high in _LINK}
        if name not in table:
            name = expect_text(name, "the name of a constant", MachineError)
            raise _unknown(f"constant {name!r} of machine {self.name}", list(table))
        return table[name]

    def __str__(self) -> str:
        lines = [f"machine {self.name} x {self.devices}"]
        peaks = [f"{name} {show_quantity(value, 'FLOP/s')}" for name, value in self.device.peaks]
        described = ", ".join([*_shown(self.device, _DEVICE), *peaks])
        lines.append(f"device {self.device.name}: {described}")
        for link in self.links:
            joined = [] if link.groups is None else [f"groups {link.groups}"]
            joined += [f"wires {show_wires(link.wires)}"] if link.wires else []
            lines.append(f"link {link.name}: {', '.join([*joined, *_shown(link, _LINK)])}")
        lines.append(f"constants: {', '.join(_shown(self.constants, _CONSTANTS))}")
        return "\n".join(lines)


def machine_lines() -> list[str]:
    """Return a line for each machine that is known: its node, memory, fastest type and links."""
    lines = []
    for machine in map(Machine.parse, preset_names()):
        dtype, peak = max(machine.device.peaks, key=lambda item: item[1])
        reach = " | ".join(f"{k.name} {show_quantity(k.bandwidth, 'B/s')}" for k in machine.links)
        memory = show_quantity(machine.device.memory_bytes, "B")
        lines.append(
            f"{machine.name:<13} {machine.devices} x {machine.device.name:<14} {memory:>6}  "
            f"{dtype:<8} {show_quantity(peak, 'FLOP/s'):>13}  {reach}"
        )
    return lines


# -------------------------------------------------------------------------------------- the checks


def _unknown(what: str, choices: Sequence[str]) -> MachineError:
    return MachineError(
        f"there is no {what}", expected=f"one of {', '.join(choices)}", found=what.split("'")[1]
    )


def _check(item: object, what: str, table: tuple[_Field, ...]) -> None:
    for word, field, unit, low, high in table:
        value = getattr(item, field)
        if not low <= value <= high:
            raise MachineError(
                f"{word} of {what} is out of bounds",
                expected=f"from {show_quantity(low, unit)} to {show_quantity(high, unit)}",
                found=str(value),
            )


def _check_links(machine: Machine) -> None:
    names = [link.name for link in machine.links]
    inner = [link.groups for link in machine.links[:-1]]
    wired = any(link.wires for link in machine.links[1:])
    last = [link.groups for link in machine.links[-1:]]
    if last != [None] or len(set(names)) < len(names) or None in inner or wired:
        raise MachineError(
            f"the links of machine {machine.name} are no levels",
            expected="one link or more with names of their own, all but the last with groups, and "
            "wires in the first alone",
            found=", ".join(f"{link.name}: groups {link.groups or 'all'}" for link in machine.links)
            or "none",
        )


def _changed(item: Item, field: str, value: float) -> Item:
    changes: Any = {field: value}
    return cast(Item, replace(cast(Any, item), **changes))


# --------------------------------------------------------------------------------------- the texts


def _shown(item: object, table: tuple[_Field, ...]) -> list[str]:
    return [
        f"{word} {show_quantity(getattr(item, field), unit)}" for word, field, unit, *_ in table
    ]


def _quantity(scanner: Scanner, word: str, unit: str, low: float, high: float) -> float:
    value = parse_quantity(scanner.next.text, unit)
    example = EXAMPLES.get(unit, "0.8")
    if value is None:
        scanner.refuse(f"{word} has no value", f"a number such as {example}")
    if not low <= value <= high:
        limits = f"from {show_quantity(low, unit)} to {show_quantity(high, unit)}"
        scanner.refuse(f"{word} is out of bounds", limits)
    scanner.at += 1
    return value


def _settings(
    scanner: Scanner, table: tuple[_Field, ...], more: dict[str, tuple[str, float, float]]
) -> dict[str, float]:
    """Read `word value, word value ...` to the end of the line, each word at most once."""
    rows = {word: (unit, low, high) for word, _, unit, low, high in table} | more
    found: dict[str, float] = {}
    while not found or scanner.take(","):
        scanner.take("\n")  # a line that ends with a comma goes on
        if scanner.next.text in found:
            scanner.refuse(f"{scanner.next.text!r} is said twice", "each setting once")
        word = scanner.one_of(rows, "setting")
        unit, low, high = rows[word]
        found[word] = _quantity(scanner, word, unit, low, high)
    missing = [word for word, *_ in table if word not in found]
    if missing:
        scanner.refuse(f"{missing[0]} is missing", f"{', '.join(missing)} on this line")
    return found


def _fields(found: dict[str, float], table: tuple[_Field, ...]) -> dict[str, float]:
    return {field: found[word] for word, field, *_ in table}


def _record(scanner: Scanner) -> Machine:
    scanner.expect("machine")
    name = scanner.word("a name")
    scanner.expect("x")
    count = scanner.integer("a number of devices", most=MOST_DEVICES)
    scanner.expect("\n")
    scanner.expect("device")
    kind = scanner.word("a name")
    scanner.expect(":")
    found = _settings(scanner, _DEVICE, {dtype: ("FLOP/s", *_PEAK) for dtype in DTYPES})
    peaks = tuple((dtype, found[dtype]) for dtype in found if dtype in DTYPES)
    device = Device(kind, peaks=peaks, **_fields(found, _DEVICE))
    links = []
    scanner.expect("\n")
    while scanner.take("link"):
        links.append(_link(scanner))
        scanner.expect("\n")
    scanner.expect("constants")
    scanner.expect(":")
    constants = Constants(**_fields(_settings(scanner, _CONSTANTS, {}), _CONSTANTS))
    scanner.end()
    return Machine(name, device, tuple(links), count, constants)


def _link(scanner: Scanner) -> Link:
    name = scanner.word("a name")
    scanner.expect(":")
    groups, wires = None, Wires()
    if scanner.take("groups"):
        groups = scanner.integer("a number of groups", most=MOST_GROUPS)
        scanner.expect(",")
        scanner.take("\n")
        if scanner.take("wires"):
            wires = read_wires(scanner, groups)
            scanner.expect(",")
    return Link(name, groups, wires=wires, **_fields(_settings(scanner, _LINK, {}), _LINK))


def _preset(scanner: Scanner) -> Machine:
    if scanner.take("here"):
        scanner.end()
        return Machine.here()
    texts = dict(NODES)
    name = scanner.one_of(texts, "machine")
    machine = Machine.parse(texts[name])
    if scanner.take("x"):
        count = scanner.integer("a number of devices", most=MOST_DEVICES)
        nodes = scanner.take("nodes") or scanner.take("node")
        machine = machine.with_devices(count * machine.node_devices if nodes else count)
    keys = {word: (unit, low, high) for word, _, unit, low, high in _CONSTANTS}
    keys |= {"link": ("B/s", 1e3, 1e15), "memory": ("B", 1.0, 1e15)}
    if scanner.take(","):
        for word, value in _settings(scanner, (), keys).items():
            machine = _overridden(machine, word, value)
    scanner.end()
    return machine


def _overridden(machine: Machine, word: str, value: float) -> Machine:
    if word == "memory":
        return replace(machine, device=replace(machine.device, memory_bytes=value))
    if word == "link":
        outer = machine.links[-1]
        return machine.adjusted({f"{outer.name}.bandwidth": value / machine.node_devices})
    return machine.adjusted({word: value})


assert {field.name for field in fields(Constants)} == {row[1] for row in _CONSTANTS}, (
    "every constant has bounds"
)
