"""The page of one collective: what each algorithm costs on a machine, and which one to take.

The idea: each price stands twice, by the published formula and by the messages themselves, beside
the bound that none can be under.  This module does not know how prices come about.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.draw import MOST_CHUNKS as MOST_CHUNKS_DRAWN
from tilewright.cost.collectives.draw import MOST_RANKS as MOST_RANKS_DRAWN
from tilewright.cost.collectives.draw import draw_program
from tilewright.cost.collectives.formulas import lower_bound
from tilewright.cost.collectives.legend import formula_lines
from tilewright.cost.collectives.network import Network, network_of
from tilewright.cost.collectives.program import MessageProgram
from tilewright.cost.collectives.select import (
    Choice,
    crossovers,
    formula_price,
    price,
    prices,
    program_of,
)
from tilewright.cost.collectives.simulate import simulate
from tilewright.cost.collectives.verify import verify
from tilewright.cost.machine import Machine
from tilewright.cost.quantity import show_quantity

MOST_RANKS, MOST_MESSAGES = 64, 1 << 16  # of programs that are built to be priced


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.  size: bytes of the vector.  stride: every how manieth device is a rank."""

    collective: str
    ranks: int
    size: float
    machine: Machine
    stride: int = 1
    root: int = 0

    @property
    def network(self) -> Network:
        """The links between the ranks."""
        return _network(self.machine, self.ranks, self.stride)


def collective_page(asked: Question) -> list[str]:
    """Return the page as lines."""
    network = asked.network
    every = prices(asked.collective, network, asked.size)
    lines = [*_head(asked, network), "", *_table(asked, network, every), ""]
    lines += _changes(asked, network)
    lines += ["", *formula_lines(asked.collective)]
    return lines


def program_page(program: MessageProgram, machine: Machine, size: float, stride: int) -> list[str]:
    """Return lines about a program of the user's own, which must deliver: its price, its picture.

    Raises MessageError where it does not deliver, naming chunk, rank and round.
    """
    verify(program)
    network = _network(machine, program.ranks, stride)
    seconds, bound = (
        simulate(program, network, size),
        lower_bound(program.collective, network, size),
    )
    best = prices(program.collective, network, size)[0]
    ratio = f", {seconds / bound:.2f} of the bound" if bound else ""
    lines = [
        *_head(Question(program.collective, program.ranks, size, machine, stride), network),
        "",
        f"{program.variant} delivers in {len(program.rounds)} rounds, "
        f"of which a rank sends {_short(max(_sent(program, size)), 'B')} at most",
        f"it takes {_short(seconds, 's')}{ratio}; "
        f"{best.variant}, the cheapest, takes {_short(best.seconds, 's')}",
    ]
    if program.ranks <= MOST_RANKS_DRAWN and program.chunks <= MOST_CHUNKS_DRAWN:
        lines += ["", draw_program(program)]
    return lines


def choice_of(asked: Question, variant: str) -> Choice:
    """Return a variant as it is best on the links asked for; OptionError where there is none."""
    return price(asked.collective, variant, asked.network, asked.size)


def _head(asked: Question, network: Network) -> Iterator[str]:
    machine = asked.machine
    yield (
        f"{asked.collective} of {_size(asked.size)} among {asked.ranks} ranks "
        f"of {machine.name} x {machine.devices}"
    )
    for level in network.levels:
        yield (
            f"  {level.size:>6} joined   {_short(level.latency, 's')} a message, "
            f"{_short(level.bandwidth, 'B/s')} a rank, each way"
        )
    yield f"  combined at {_short(network.combining, 'B/s')}"
    begins = machine.constants.collective_seconds
    if begins:
        yield f"  not in the prices: {_short(begins, 's')} to begin a collective on this machine"
    if len(network.levels) > 1:
        yield "  a formula that knows no nodes takes all links for the slowest: a bound from above"


def _table(asked: Question, network: Network, every: Sequence[Choice]) -> Iterator[str]:
    bound = lower_bound(asked.collective, network, asked.size)
    rows = [("", "algorithm", "rounds", "sent", "by formula", "by program", "of the bound")]
    for number, choice in enumerate(every):
        seconds = formula_price(choice, network, asked.size)
        rounds, sent, simulated = _of_program(asked, network, choice)
        ratio = f"{choice.seconds / bound:.2f}" if bound else "-"
        name = choice.variant + (f" in {choice.segments}" if choice.segments > 1 else "")
        mark = "*" if number == 0 else ""
        rows.append((mark, name, rounds, sent, _short(seconds, "s"), simulated, ratio))
    rows.append(("", "lower bound", "", "", _short(bound, "s"), "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = (row[0].ljust(1), row[1].ljust(widths[1]))
        right = (cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))
        yield "  ".join((*left, *right)).rstrip()


def _of_program(asked: Question, network: Network, choice: Choice) -> tuple[str, str, str]:
    """Return rounds, the most bytes that a rank sends, and seconds; dashes where it is too long."""
    if asked.ranks > MOST_RANKS or asked.ranks * choice.segments > MOST_MESSAGES:
        return "-", "-", "-"
    program = program_of(choice, network, root=asked.root)
    seconds = simulate(program, network, asked.size)
    most = max(_sent(program, asked.size))
    return str(len(program.rounds)), _short(most, "B"), _short(seconds, "s")


def _sent(program: MessageProgram, size: float) -> list[float]:
    """Return how many bytes each rank sends."""
    sent = [0.0] * program.ranks
    for message in program.messages():
        sent[message.source] += program.share(message) * size
    return sent


def _network(machine: Machine, ranks: int, stride: int) -> Network:
    devices = range(0, ranks * stride, stride)
    if devices[-1] >= machine.devices:
        node = machine.node_devices
        enough = devices[-1] + 1 if devices[-1] < node else -(-(devices[-1] + 1) // node) * node
        raise OptionError(
            f"{machine.name} x {machine.devices} has too few devices",
            expected=f"{devices[-1] + 1} devices for {ranks} ranks",
            found=str(machine.devices),
            mend=f"write the machine as '{machine.name} x {enough}'",
        )
    return network_of(machine, devices)


def _changes(asked: Question, network: Network) -> Iterator[str]:
    found = crossovers(asked.collective, network)
    parts = [found[0].variant]
    parts += [f"from {_short(at.size, 'B')} on {at.variant}" for at in found[1:]]
    yield f"cheapest: {', '.join(parts)}"


def _size(value: float) -> str:
    """Return a size as it is usually said, whole MiB as such."""
    return f"{int(value) >> 20}MiB" if value and value % (1 << 20) == 0 else _short(value, "B")


def _short(value: float, unit: str) -> str:
    """Return four digits of a value."""
    return show_quantity(float(f"{value:.4g}"), unit)
