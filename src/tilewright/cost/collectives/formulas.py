"""The published formulas as numbers: on one link, or as a bound where links differ.

The idea: a formula is an expression of the table, evaluated exactly.  On a flat network it is the
price; where there are several levels, a hierarchical variant is priced level by level, and any
other as though each of its rounds crossed the slowest links with all the traffic that it can have
there, which is never too little.

This module does not know message programs: `simulate` prices those, and a test compares.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tilewright.base.expr import Call, Const, Expr, Sym
from tilewright.base.syntax import parse
from tilewright.cost.collectives.network import Level, Network
from tilewright.cost.collectives.patterns import lower_power, tree_delay
from tilewright.cost.collectives.variants import Formula, Setting, Variant

MOST_SEGMENTS = 1 << 12


@dataclass(frozen=True, slots=True)
class Terms:
    """What a formula comes to.

    rounds: latencies.  moved, reduced: of n bytes, how many are sent one after the other, and
    combined.
    """

    rounds: Fraction
    moved: Fraction
    reduced: Fraction

    def __add__(self, other: "Terms") -> "Terms":
        return Terms(
            self.rounds + other.rounds, self.moved + other.moved, self.reduced + other.reduced
        )

    def seconds(self, size: float, latency: float, bandwidth: float, combining: float) -> float:
        """Return the time of `size` bytes; rates in bytes/s."""
        moved = float(self.moved) / bandwidth + float(self.reduced) / combining
        return float(self.rounds) * latency + size * moved


def terms(row: Variant, at: Setting) -> Terms:
    """Return the formula's numbers for all levels together."""
    whole = _terms(row.formula, at.ranks, at.segments, at.node)
    return whole if row.between is None else whole + terms_between(row, at)


def terms_between(row: Variant, at: Setting) -> Terms:
    """Return the numbers of what a hierarchical variant does between nodes."""
    assert row.between is not None, f"{row.name} is not hierarchical"
    return _terms(row.between, at.ranks, at.segments, at.node)


def formula_seconds(row: Variant, at: Setting, network: Network, size: float) -> float:
    """Return a variant's time by its formula, for vectors of `size` bytes.

    Exact where the network has one level, and for hierarchical variants where it has two; else a
    bound from above.  at.node: of a hierarchical variant, the ranks of the innermost level.
    """
    levels = network.levels
    if len(levels) == 1:
        (level,) = levels
        return terms(row, at).seconds(size, level.latency, level.bandwidth, network.combining)
    if row.between is None:
        return terms(row, at).seconds(size, *_slowest(row, network, levels), network.combining)
    within = _terms(row.formula, at.ranks, at.segments, at.node)
    near = within.seconds(size, *_slowest(row, network, levels[:1]), network.combining)
    far = _slowest(row, network, levels[1:])
    return near + terms_between(row, at).seconds(size, *far, network.combining)


def best_segments(row: Variant, at: Setting, network: Network, size: float) -> int:
    """Return the power of two of segments at which a pipeline is fastest, by its formula.

    With r + k S rounds of 1/S of the vector each, the time r a + k n b + k a S + r n b / S is least
    at S = sqrt(r n b / (k a)).
    """
    if not row.segmented or at.ranks <= 2:
        return 1
    choices = (1 << k for k in range(MOST_SEGMENTS.bit_length()) if (1 << k) <= max(size, 1))
    return min(choices, key=lambda s: formula_seconds(row, _cut(at, s), network, size))


def _cut(at: Setting, segments: int) -> Setting:
    return Setting(at.ranks, at.root, segments, at.node)


def _slowest(row: Variant, network: Network, levels: tuple[Level, ...]) -> tuple[float, float]:
    """Return the largest latency and the least bandwidth of a message, whatever it crosses."""
    units = dict(zip(network.levels, network.units, strict=True))
    rates = [
        min(level.bandwidth, level.shared / (1 if row.alone else units[level])) for level in levels
    ]
    return max(level.latency for level in levels), min(rates)


@functools.lru_cache(maxsize=1 << 14)
def _terms(formula: Formula, ranks: int, segments: int, node: int) -> Terms:
    if ranks == 1:
        return Terms(Fraction(0), Fraction(0), Fraction(0))
    names = quantities(ranks, segments, node)
    rounds, moved, reduced = (
        _value(parse(text), names) for text in (formula.rounds, formula.moved, formula.reduced)
    )
    return Terms(rounds, moved, reduced)


@functools.lru_cache(maxsize=1 << 12)
def quantities(ranks: int, segments: int, node: int) -> Mapping[str, int]:
    """Return what the names of the formulas stand for."""
    power = lower_power(ranks)
    low = power.bit_length() - 1
    beyond = ranks - power
    nodes = ranks // node
    return {
        "p": ranks, "L": (ranks - 1).bit_length(), "l": low, "f": power, "x": beyond,
        "e": int(beyond > 0), "w": sum(min(1 << k, beyond) for k in range(low)), "S": segments,
        "d": _tree_depth(ranks), "k": min(2, ranks - 1), "b": _bits_below(ranks), "g": node,
        "q": nodes, "G": (node - 1).bit_length(), "Q": (nodes - 1).bit_length(),
    }  # fmt: skip


def _tree_depth(ranks: int) -> int:
    """Return the largest delay: that of p itself, or of a number below with more ones."""
    shifts = range(ranks.bit_length())
    below = [((ranks >> k) - 1 << k) | ((1 << k) - 1) for k in shifts if ranks >> k & 1]
    return max(tree_delay(number - 1) for number in [ranks, *below] if number > 0)


def _bits_below(ranks: int) -> int:
    """Return how many bits are set in all of 0 ... p-1: bit k in half of each 2^(k+1)."""
    return sum(
        (ranks >> k + 1 << k) + max(0, ranks % (2 << k) - (1 << k))
        for k in range(ranks.bit_length())
    )


def _value(expr: Expr, names: Mapping[str, int]) -> Fraction:
    match expr:
        case Const(value):
            return Fraction(value)
        case Sym(name):
            return Fraction(names[name])
        case Call(fn, (left, right)):
            a, b = _value(left, names), _value(right, names)
            return {"add": a + b, "sub": a - b, "mul": a * b}[fn] if fn != "div" else a / b
    raise AssertionError(f"no arithmetic in a formula: {expr}")


def bus_share(collective: str, ranks: int) -> Fraction:
    """Return which part of n bytes must pass each rank's link: what bus bandwidth counts.

    All-reduce 2(p-1)/p, broadcast and reduce 1, all others (p-1)/p: NCCL's convention, and the
    lower bounds of Chan et al.
    """
    if ranks == 1:
        return Fraction(0)
    if collective in ("broadcast", "reduce"):
        return Fraction(1)
    return Fraction((2 if collective == "all-reduce" else 1) * (ranks - 1), ranks)


def lower_bound(collective: str, network: Network, size: float) -> float:
    """Return seconds below which no algorithm can be, for vectors of `size` bytes.

    ceil(lg p) latencies, the bytes that must pass a rank's link, or a node's, and (p-1)/p of the
    combining.
    """
    ranks = network.ranks
    if ranks == 1:
        return 0.0
    levels = network.levels
    moved = []
    for at, unit in enumerate(network.units):
        # What leaves a unit goes over its own level or a higher one.
        fastest = unit * max(level.bandwidth for level in levels[at:])
        outward = min(fastest, sum(level.shared for level in levels[at:]))
        load = size * unit if collective == "all-to-all" else size
        moved.append(load * float(bus_share(collective, ranks // unit)) / outward)
    reduces = collective in ("reduce", "reduce-scatter", "all-reduce")
    combined = size * (ranks - 1) / ranks / network.combining if reduces else 0.0
    latency = min(level.latency for level in levels) * math.ceil(math.log2(ranks))
    return latency + max(moved) + combined
