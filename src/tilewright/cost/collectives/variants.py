"""The table of algorithms: for each collective, how its messages are made and what they cost.

The idea: a row holds a way to build the message program and the published formula, as text that is
also what is computed.  They are independent of each other, so that each is the other's test.

A formula is three expressions: how often the latency is paid, which part of n bytes is moved one
after the other, and which part combined.  They hold for any p; what they name:

    p        ranks                           L, l    ceil(lg p), floor(lg p)
    f, x, e  2^l, p - f, 1 if x else 0       w       sum of min(2^k, x) over k < l
    S        segments                        d, k    depth of the binary tree in rounds, min(2, p-1)
    b        bits set in 0 ... p-1           g, q    ranks in a node, nodes: p = g q
    G, Q     ceil(lg g), ceil(lg q)

Sources: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
experience", 2007; Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations
in MPICH", 2005; Bruck et al. 1997.  Terms for p that is no power of two are our own.

This module does not know machines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.cost.collectives import patterns as of
from tilewright.cost.collectives.program import Message, Rounds


@dataclass(frozen=True, slots=True)
class Setting:
    """What a program is built for.  node: ranks in a node.  segments: of a pipeline."""

    ranks: int
    root: int = 0
    segments: int = 1
    node: int = 1

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.ranks // self.node

    def from_root(self) -> list[int]:
        """Return ranks in order from the root."""
        return [(v + self.root) % self.ranks for v in range(self.ranks)]

    def nodes_from_root(self) -> list[int]:
        """Return ranks node by node from the root: its node first, and its place in each."""
        node, place = divmod(self.root, self.node)
        return [
            (k + node) % self.nodes * self.node + (i + place) % self.node
            for k in range(self.nodes)
            for i in range(self.node)
        ]


@dataclass(frozen=True, slots=True)
class Formula:
    """What is paid: latencies, parts of the vector moved, and parts combined, as expressions."""

    rounds: str
    moved: str
    reduced: str = "0"


@dataclass(frozen=True, slots=True)
class Variant:
    """One algorithm of one collective.

    chunks: how many the vector is cut into.  formula: all of it; for a hierarchical one, what
    happens within the nodes, and `between` what happens between them.  alone: whether at most one
    message leaves a node in each round, whatever the nodes.  segmented: takes `segments`.
    """

    collective: str
    name: str
    build: Callable[[Setting], Rounds]
    chunks: Callable[[Setting], int]
    formula: Formula
    between: Formula | None = None
    alone: bool = False
    segmented: bool = False


def _one(_: Setting) -> int:
    return 1


def _ranks(at: Setting) -> int:
    return at.ranks


def _power(at: Setting) -> int:
    return of.lower_power(at.ranks)


def _segments(at: Setting) -> int:
    return at.segments


def _pairs(at: Setting) -> int:
    return at.ranks * at.ranks


# -------------------------------------------------------------------------------- from one to all


def _binomial_broadcast(at: Setting) -> Rounds:
    return of.relabelled(of.binomial_broadcast(at.ranks, 1), at.from_root())


def _linear_broadcast(at: Setting) -> Rounds:
    return of.relabelled(of.linear_broadcast(at.ranks, 1), at.from_root())


def _van_de_geijn(at: Setting) -> Rounds:
    spread = of.binomial_scatter(at.ranks) + of.ring_gather(at.ranks)
    return of.relabelled(spread, at.from_root())


def _scatter_doubling(at: Setting) -> Rounds:
    power = _power(at)
    spread = of.binomial_scatter(power) + of.doubling_gather(power)
    return of.relabelled(spread + of.unfold(at.ranks, power), at.from_root())


def _chain_broadcast(at: Setting) -> Rounds:
    return of.relabelled(of.chain(at.ranks, at.segments), at.from_root())


def _tree_broadcast(at: Setting) -> Rounds:
    return of.relabelled(of.binary_tree(at.ranks, at.segments), at.from_root())


def _hierarchical_broadcast(at: Setting) -> Rounds:
    order = at.nodes_from_root()
    between = of.relabelled(of.binomial_broadcast(at.nodes, 1), order[:: at.node])
    within = of.together(
        of.relabelled(of.binomial_broadcast(at.node, 1), order[k : k + at.node])
        for k in range(0, at.ranks, at.node)
    )
    return between + within


def _scatter(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    def build(at: Setting) -> Rounds:
        order = at.from_root()
        return of.relabelled(pattern(at.ranks), order, lambda chunk: (order[chunk],))

    return build


def _gather(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    scatter = _scatter(pattern)
    return lambda at: of.backwards(scatter(at), reduce=False)


# ------------------------------------------------------------------------------------ to the root


def _reduced(broadcast: Callable[[Setting], Rounds]) -> Callable[[Setting], Rounds]:
    return lambda at: of.backwards(broadcast(at), reduce=True)


def _scatter_gather_reduce(at: Setting) -> Rounds:
    made = of.backwards(of.ring_gather(at.ranks), reduce=True)
    made += of.backwards(of.binomial_scatter(at.ranks), reduce=False)
    return of.relabelled(made, at.from_root())


def _rabenseifner_reduce(at: Setting) -> Rounds:
    power = _power(at)
    made = of.fold(at.ranks, power)
    made += of.backwards(of.doubling_gather(power), reduce=True)
    made += of.backwards(of.binomial_scatter(power), reduce=False)
    return of.relabelled(made, at.from_root())


# -------------------------------------------------------------------------------- from all to all


def _all_gather(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    return lambda at: pattern(at.ranks)


def _reduce_scatter(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    return lambda at: of.backwards(pattern(at.ranks), reduce=True)


def _both(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    """Return an all-reduce: a reduce-scatter, then an all-gather."""
    return lambda at: of.backwards(pattern(at.ranks), reduce=True) + pattern(at.ranks)


def _binomial_all_gather(at: Setting) -> Rounds:
    return _gather(of.binomial_scatter)(at) + of.binomial_broadcast(at.ranks, at.ranks)


def _binomial_reduce_scatter(at: Setting) -> Rounds:
    reduced = of.backwards(of.binomial_broadcast(at.ranks, at.ranks), reduce=True)
    return reduced + of.binomial_scatter(at.ranks)


def _hierarchical_all_gather(at: Setting) -> Rounds:
    """Between nodes first, so that what is little travels far: Bruck there, rings within."""
    between = of.together(
        of.relabelled(
            of.bruck_gather(at.nodes),
            range(place, at.ranks, at.node),
            partial(_of_place, node=at.node, place=place),
        )
        for place in range(at.node)
    )
    within = of.together(
        of.relabelled(
            of.ring_gather(at.node),
            range(first, first + at.node),
            lambda place: range(place, at.ranks, at.node),
        )
        for first in range(0, at.ranks, at.node)
    )
    return between + within


def _of_place(block: int, node: int, place: int) -> tuple[int]:
    return (block * node + place,)


def _hierarchical_reduce_scatter(at: Setting) -> Rounds:
    return of.backwards(_hierarchical_all_gather(at), reduce=True)


def _hierarchical_all_reduce(at: Setting) -> Rounds:
    return _hierarchical_reduce_scatter(at) + _hierarchical_all_gather(at)


def _binomial_all_reduce(at: Setting) -> Rounds:
    spread = of.binomial_broadcast(at.ranks, 1)
    return of.backwards(spread, reduce=True) + spread


def _chain_all_reduce(at: Setting) -> Rounds:
    spread = of.chain(at.ranks, at.segments)
    return of.backwards(spread, reduce=True) + spread


def _tree_all_reduce(at: Setting) -> Rounds:
    spread = of.binary_tree(at.ranks, at.segments)
    return of.backwards(spread, reduce=True) + spread


def _star(at: Setting) -> Rounds:
    spread = of.linear_broadcast(at.ranks, 1)
    return of.backwards(spread, reduce=True) + spread


def _rabenseifner(at: Setting) -> Rounds:
    power = _power(at)
    spread = of.doubling_gather(power)
    middle = of.backwards(spread, reduce=True) + spread
    return of.fold(at.ranks, power) + middle + of.unfold(at.ranks, power)


def _doubling(at: Setting) -> Rounds:
    return of.doubling_reduce(at.ranks)


def _exchange(pattern: Callable[[int], Rounds]) -> Callable[[Setting], Rounds]:
    return lambda at: pattern(at.ranks)


def _hierarchical_exchange(at: Setting) -> Rounds:
    """Within a node to whoever has the target's place, then between nodes."""
    p, g = at.ranks, at.node
    within = tuple(
        tuple(
            Message(v, to, tuple(range(v * p + to % g, v * p + p, g)))
            for v in range(p)
            for to in [v // g * g + (v + by) % g]
        )
        for by in range(1, g)
    )
    between = tuple(
        tuple(
            Message(v, to, tuple(s * p + to for s in range(v // g * g, v // g * g + g)))
            for v in range(p)
            for to in [(v + by * g) % p]
        )
        for by in range(1, at.nodes)
    )
    return within + between


# ------------------------------------------------------------------------------------- the table

_LINEAR = Formula("p - 1", "p - 1")
_TREE = Formula("L", "L")
_SCATTER = Formula("L", "(p - 1) / p")
_CHAIN = Formula("p - 2 + S", "(p - 2 + S) / S")
_BINARY = Formula("d + k * (S - 1)", "(d + k * (S - 1)) / S")
_RING = Formula("p - 1", "(p - 1) / p")
_FOLDED = Formula("l + 2 * e", "(e + f - 1 + w + e * (p - 1)) / p")


def _combining(formula: Formula) -> Formula:
    """Return the formula of what combines everything that it moves."""
    return Formula(formula.rounds, formula.moved, formula.moved)


VARIANTS: tuple[Variant, ...] = (
    Variant("broadcast", "binomial", _binomial_broadcast, _one, _TREE, alone=True),
    Variant("broadcast", "linear", _linear_broadcast, _one, _LINEAR, alone=True),
    Variant(
        "broadcast", "van-de-geijn", _van_de_geijn, _ranks, Formula("L + p - 1", "2 * (p - 1) / p"),
        alone=True,
    ),
    Variant(
        "broadcast", "scatter-doubling", _scatter_doubling, _power,
        Formula("2 * l + e", "2 * (f - 1) / f + e"),
    ),
    Variant(
        "broadcast", "chain", _chain_broadcast, _segments, _CHAIN, alone=True, segmented=True
    ),
    Variant("broadcast", "binary-tree", _tree_broadcast, _segments, _BINARY, segmented=True),
    Variant(
        "broadcast", "hierarchical", _hierarchical_broadcast, _one, Formula("G", "G"),
        between=Formula("Q", "Q"), alone=True,
    ),
    Variant(
        "reduce", "binomial", _reduced(_binomial_broadcast), _one, _combining(_TREE), alone=True
    ),
    Variant("reduce", "linear", _reduced(_linear_broadcast), _one, _combining(_LINEAR), alone=True),
    Variant(
        "reduce", "ring-gather", _scatter_gather_reduce, _ranks,
        Formula("p - 1 + L", "2 * (p - 1) / p", "(p - 1) / p"), alone=True,
    ),
    Variant(
        "reduce", "rabenseifner", _rabenseifner_reduce, _power,
        Formula("2 * l + e", "2 * (f - 1) / f + e", "(f - 1) / f + e"),
    ),
    Variant(
        "reduce", "chain", _reduced(_chain_broadcast), _segments, _combining(_CHAIN), alone=True,
        segmented=True,
    ),
    Variant(
        "reduce", "binary-tree", _reduced(_tree_broadcast), _segments, _combining(_BINARY),
        segmented=True,
    ),
    Variant(
        "reduce", "hierarchical", _reduced(_hierarchical_broadcast), _one,
        Formula("G", "G", "G"), between=Formula("Q", "Q", "Q"), alone=True,
    ),
    Variant("scatter", "binomial", _scatter(of.binomial_scatter), _ranks, _SCATTER, alone=True),
    Variant("scatter", "linear", _scatter(of.linear_scatter), _ranks, _RING, alone=True),
    Variant("gather", "binomial", _gather(of.binomial_scatter), _ranks, _SCATTER, alone=True),
    Variant("gather", "linear", _gather(of.linear_scatter), _ranks, _RING, alone=True),
    Variant(
        "all-gather", "binomial", _binomial_all_gather, _ranks,
        Formula("2 * L", "(p - 1) / p + L"), alone=True,
    ),
    Variant("all-gather", "ring", _all_gather(of.ring_gather), _ranks, _RING, alone=True),
    Variant("all-gather", "doubling", _all_gather(of.doubling_gather), _ranks, _FOLDED),
    Variant("all-gather", "bruck", _all_gather(of.bruck_gather), _ranks, _SCATTER),
    Variant("all-gather", "direct", _all_gather(of.direct_gather), _ranks, _RING),
    Variant(
        "all-gather", "hierarchical", _hierarchical_all_gather, _ranks,
        Formula("g - 1", "(g - 1) / g"), between=Formula("Q", "(q - 1) / p"),
    ),
    Variant(
        "reduce-scatter", "binomial", _binomial_reduce_scatter, _ranks,
        Formula("2 * L", "(p - 1) / p + L", "L"), alone=True,
    ),
    Variant(
        "reduce-scatter", "ring", _reduce_scatter(of.ring_gather), _ranks, _combining(_RING),
        alone=True,
    ),
    Variant(
        "reduce-scatter", "halving", _reduce_scatter(of.doubling_gather), _ranks,
        _combining(_FOLDED),
    ),
    Variant(
        "reduce-scatter", "bruck", _reduce_scatter(of.bruck_gather), _ranks, _combining(_SCATTER)
    ),
    Variant(
        "reduce-scatter", "pairwise", _reduce_scatter(of.direct_gather), _ranks, _combining(_RING)
    ),
    Variant(
        "reduce-scatter", "hierarchical", _hierarchical_reduce_scatter, _ranks,
        _combining(Formula("g - 1", "(g - 1) / g")),
        between=_combining(Formula("Q", "(q - 1) / p")),
    ),
    Variant(
        "all-reduce", "binomial", _binomial_all_reduce, _one, Formula("2 * L", "2 * L", "L"),
        alone=True,
    ),
    Variant(
        "all-reduce", "star", _star, _one, Formula("2 * (p - 1)", "2 * (p - 1)", "p - 1"),
        alone=True,
    ),
    Variant(
        "all-reduce", "ring", _both(of.ring_gather), _ranks,
        Formula("2 * (p - 1)", "2 * (p - 1) / p", "(p - 1) / p"), alone=True,
    ),
    Variant(
        "all-reduce", "doubling", _doubling, _one, Formula("l + 2 * e", "l + 2 * e", "l + e")
    ),
    Variant(
        "all-reduce", "rabenseifner", _rabenseifner, _power,
        Formula("2 * l + 2 * e", "2 * (f - 1) / f + 2 * e", "(f - 1) / f + e"),
    ),
    Variant(
        "all-reduce", "bruck", _both(of.bruck_gather), _ranks,
        Formula("2 * L", "2 * (p - 1) / p", "(p - 1) / p"),
    ),
    Variant(
        "all-reduce", "chain", _chain_all_reduce, _segments,
        Formula("2 * (p - 2 + S)", "2 * (p - 2 + S) / S", "(p - 2 + S) / S"), alone=True,
        segmented=True,
    ),
    Variant(
        "all-reduce", "binary-tree", _tree_all_reduce, _segments,
        Formula("2 * (d + k * (S - 1))", "2 * (d + k * (S - 1)) / S", "(d + k * (S - 1)) / S"),
        segmented=True,
    ),
    Variant(
        "all-reduce", "hierarchical", _hierarchical_all_reduce, _ranks,
        Formula("2 * (g - 1)", "2 * (g - 1) / g", "(g - 1) / g"),
        between=Formula("2 * Q", "2 * (q - 1) / p", "(q - 1) / p"),
    ),
    Variant("all-to-all", "bruck", _exchange(of.bruck_exchange), _pairs, Formula("L", "b / p")),
    Variant("all-to-all", "pairwise", _exchange(of.pairwise_exchange), _pairs, _RING),
    Variant(
        "all-to-all", "hierarchical", _hierarchical_exchange, _pairs,
        Formula("g - 1", "(g - 1) / g"), between=Formula("q - 1", "(q - 1) / q"),
    ),
)  # fmt: skip
