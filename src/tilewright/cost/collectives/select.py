"""Which algorithm for which size: the cheapest on a network, and where another one becomes so.

The idea: small vectors pay latencies, large ones bytes, so the best variant changes with the size.
On a flat network the formula is the price.  With several levels the message program is priced
itself, up to EXACT ranks and PIPELINE sendings of segments; beyond, the formulas, which are exact
for rings and, on two levels, for hierarchical variants, and bounds from above for the others.

This module does not know how prices come about.
"""

import functools
import math
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.build import build_program, find_variant, setting, variants_of
from tilewright.cost.collectives.formulas import best_segments, formula_seconds
from tilewright.cost.collectives.network import Network
from tilewright.cost.collectives.program import MessageProgram
from tilewright.cost.collectives.simulate import Profile, profile
from tilewright.cost.collectives.variants import Setting, Variant

EXACT = 64  # ranks up to which programs are built to be priced
PIPELINE = 1 << 12  # ranks times segments up to which they are
SMALLEST, LARGEST = 1.0, float(1 << 40)  # bytes between which crossovers are looked for
STEPS = 8  # sizes looked at for each factor of two


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant at one size.  segments: of a pipelined one, else 1.  seconds: what it takes."""

    collective: str
    variant: str
    segments: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `size` bytes on, `variant` is the cheapest."""

    size: float
    variant: str


def price(collective: str, variant: str, network: Network, size: float) -> Choice:
    """Return what a variant takes for vectors of `size` bytes, in its best number of segments."""
    row = find_variant(collective, variant)
    _check_size(size)
    return _price(row, network.flattened, float(size))


def prices(collective: str, network: Network, size: float) -> tuple[Choice, ...]:
    """Return all variants of a collective, cheapest first, equal ones in the table's order."""
    rows = variants_of(collective)
    _check_size(size)
    flattened = network.flattened
    every = (_price(row, flattened, float(size)) for row in rows)
    # Equal prices may differ in their last bits.
    return tuple(sorted(every, key=lambda at: float(f"{at.seconds:.12g}")))


def formula_price(choice: Choice, network: Network, size: float) -> float:
    """Return what a choice's formula says, where `price` may have asked its program."""
    row = find_variant(choice.collective, choice.variant)
    flattened = network.flattened
    node = _node(row, flattened)
    at = setting(row, network.ranks, segments=choice.segments, node=node)
    return formula_seconds(row, at, flattened, size)


def select(collective: str, network: Network, size: float) -> Choice:
    """Return the cheapest variant of a collective for vectors of `size` bytes on a network."""
    return prices(collective, network, size)[0]


def crossovers(collective: str, network: Network) -> tuple[Crossover, ...]:
    """Return the cheapest variants from one byte to a tebibyte, and the size each begins at.

    Sizes are whole bytes, found by bisection between neighbours of eight for each factor of two.
    """
    steps = int(math.log2(LARGEST / SMALLEST)) * STEPS
    sizes = [SMALLEST * 2 ** (step / STEPS) for step in range(steps + 1)]
    best = [select(collective, network, size).variant for size in sizes]
    found = [Crossover(SMALLEST, best[0])]
    for low, high, before, after in zip(sizes, sizes[1:], best, best[1:], strict=False):
        if before != after:
            found.append(_crossover(collective, network, low, high, before))
    # Between neighbours that are less than a byte apart a variant may come and go.
    kept = [at for at, last in zip(found, [None, *found], strict=False)
            if last is None or at.variant != last.variant]  # fmt: skip
    return tuple(kept)


def program_of(choice: Choice, network: Network, *, root: int = 0) -> MessageProgram:
    """Return the message program of a choice."""
    flattened = network.flattened
    return build_program(
        choice.collective, choice.variant, network.ranks, root=root, segments=choice.segments,
        node=_node(find_variant(choice.collective, choice.variant), flattened),
    )  # fmt: skip


def _crossover(
    collective: str, network: Network, low: float, high: float, before: str
) -> Crossover:
    """Return the first whole size, above `low`, at which another variant than `before` is best."""
    least, most = math.floor(low), math.ceil(high)
    while most - least > 1:
        middle = (least + most) // 2
        if select(collective, network, middle).variant == before:
            least = middle
        else:
            most = middle
    return Crossover(float(most), select(collective, network, most).variant)


@functools.lru_cache(maxsize=1 << 16)
def _price(row: Variant, network: Network, size: float) -> Choice:
    at = setting(row, network.ranks, node=_node(row, network))
    segments = best_segments(row, at, network, size)
    if _by_program(row, network, segments):
        seconds = _profile(row, network, segments).seconds(size)
    else:
        cut = Setting(at.ranks, at.root, segments, at.node)
        seconds = formula_seconds(row, cut, network, size)
    return Choice(row.collective, row.name, segments, seconds)


def _by_program(row: Variant, network: Network, segments: int) -> bool:
    """Return whether the program is to be asked: it is short, and the formula is not exact."""
    levels, ranks = len(network.levels), network.ranks
    exact = levels == 1 or (row.between is not None and levels == 2)
    return not exact and ranks <= EXACT and ranks * segments <= PIPELINE


@functools.lru_cache(maxsize=1 << 12)
def _profile(row: Variant, network: Network, segments: int) -> Profile:
    """Return what is left of a program to be priced: a few lines, not its messages."""
    node, ranks = _node(row, network), network.ranks
    made = build_program(row.collective, row.name, ranks, segments=segments, node=node)
    return profile(made, network)


def _node(row: Variant, network: Network) -> int:
    """Return the ranks of a node, for a hierarchical variant; 0 where nothing says."""
    several = row.between is not None and len(network.levels) > 1
    return network.levels[0].size if several else 0


def _check_size(size: float) -> None:
    if not 0 <= size < math.inf:
        raise OptionError("a vector has a size", expected="bytes, 0 or more", found=str(size))
