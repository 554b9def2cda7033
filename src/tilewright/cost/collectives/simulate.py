"""A message program's price, message by message.

The idea: a round is over when its slowest message has arrived and is combined.  On a given network
that is the largest of a few lines `a + n b` over the size n, so a program is looked at once and
priced for any size after that.  This module does not know the algorithms or their formulas.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.network import Network
from tilewright.cost.collectives.program import Message, MessageProgram, Round

Line = tuple[float, float]
"""Seconds for no bytes, and for each byte of the vector."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A program on a network: how many rounds there are of each kind, each the largest of lines."""

    rounds: tuple[tuple[int, tuple[Line, ...]], ...]

    def seconds(self, size: float) -> float:
        """Return the time for vectors of `size` bytes."""
        return sum(
            count * max(latency + size * slope for latency, slope in lines)
            for count, lines in self.rounds
        )


def simulate(program: MessageProgram, network: Network, size: float) -> float:
    """Return the seconds that a program takes for vectors of `size` bytes.

    Messages that leave a unit together share what it has; chunks count as equally long.
    Raises OptionError where the network has another number of ranks.
    """
    return profile(program, network).seconds(size)


def profile(program: MessageProgram, network: Network) -> Profile:
    """Return what a program is on a network, for any size."""
    if network.ranks != program.ranks:
        raise OptionError(
            "a message program is priced on a network of as many ranks",
            expected=f"{program.ranks} ranks",
            found=f"{network.ranks} ranks",
        )
    kinds = Counter(_upper(_lines(program, network, round_)) for round_ in program.rounds if round_)
    return Profile(tuple((count, lines) for lines, count in kinds.items()))


def _lines(program: MessageProgram, network: Network, round_: Round) -> Iterable[Line]:
    units = network.units
    at = [_level(units, network, message) for message in round_]
    leaving: Counter[tuple[int, int, bool]] = Counter()
    for message, number in zip(round_, at, strict=True):
        for rank, out in ((message.source, True), (message.target, False)):
            leaving[number, rank // units[number], out] += len(message.chunks)
    for message, number in zip(round_, at, strict=True):
        level, unit = network.levels[number], units[number]
        busy = max(
            leaving[number, message.source // unit, True],
            leaving[number, message.target // unit, False],
        )
        slope = max(len(message.chunks) / level.bandwidth, busy / level.shared)
        if message.reduce:
            slope += len(message.chunks) / network.combining
        yield level.latency, slope / program.pieces


def _level(units: tuple[int, ...], network: Network, message: Message) -> int:
    """Return the lowest level that joins both ends."""
    for number, level in enumerate(network.levels):
        joined = units[number] * level.size
        if message.source // joined == message.target // joined:
            return number
    raise AssertionError("the outermost level joins all ranks")


def _upper(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that are the largest for some size: with more latency only if flatter."""
    kept: list[Line] = []
    for line in sorted(set(lines), reverse=True):
        if not kept or line[1] > kept[-1][1]:
            kept.append(line)
    return tuple(kept)
