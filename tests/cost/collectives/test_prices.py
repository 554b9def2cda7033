"""Prices: the program's, the formula's, the literature's, and the bounds below all of them."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.cost.collectives.cases import ROWS, divisors, settings

from tilewright.base.errors import OptionError
from tilewright.cost import (
    COLLECTIVES,
    Level,
    Machine,
    MessageProgram,
    Network,
    build_program,
    crossovers,
    lower_bound,
    network_of,
    price,
    prices,
    program_of,
    select,
    simulate,
)
from tilewright.cost.collectives.formulas import best_segments, formula_seconds, terms
from tilewright.cost.collectives.variants import Setting, Variant

LINKS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (3.0, 7.0, 2.0))
"""Latency, seconds for a byte, seconds for combining a byte: each alone, and all."""


def flat(ranks: int, link: tuple[float, float, float]) -> Network:
    latency, byte, combined = (1 / x if x else math.inf for x in link)
    return Network.flat(ranks, latency=1 / latency, bandwidth=byte, combining=combined)


def program(row: Variant, at: Setting) -> MessageProgram:
    return build_program(
        row.collective, row.name, at.ranks, root=at.root, segments=at.segments, node=at.node
    )


@pytest.mark.parametrize("name", ROWS)
def test_the_program_costs_what_the_formula_says_for_any_number_of_ranks(name: str) -> None:
    row = ROWS[name]
    for ranks in range(1, 18):
        for at in settings(row, ranks):
            for link in LINKS:
                network = flat(ranks, link)
                simulated = simulate(program(row, at), network, 1.0)
                assert simulated == pytest.approx(formula_seconds(row, at, network, 1.0), rel=1e-12)


# -------------------------------------------------------------------- the literature's, for p = 2^k

PUBLISHED = {
    "broadcast by binomial": ("k", "k", "0"),
    "broadcast by van-de-geijn": ("k + p - 1", "2 * (p - 1) / p", "0"),
    "broadcast by scatter-doubling": ("2 * k", "2 * (p - 1) / p", "0"),
    "reduce by binomial": ("k", "k", "k"),
    "reduce by ring-gather": ("p - 1 + k", "2 * (p - 1) / p", "(p - 1) / p"),
    "reduce by rabenseifner": ("2 * k", "2 * (p - 1) / p", "(p - 1) / p"),
    "scatter by binomial": ("k", "(p - 1) / p", "0"),
    "scatter by linear": ("p - 1", "(p - 1) / p", "0"),
    "gather by binomial": ("k", "(p - 1) / p", "0"),
    "gather by linear": ("p - 1", "(p - 1) / p", "0"),
    "all-gather by binomial": ("2 * k", "(p - 1) / p + k", "0"),
    "all-gather by ring": ("p - 1", "(p - 1) / p", "0"),
    "all-gather by doubling": ("k", "(p - 1) / p", "0"),
    "all-gather by bruck": ("k", "(p - 1) / p", "0"),
    "reduce-scatter by binomial": ("2 * k", "(p - 1) / p + k", "k"),
    "reduce-scatter by ring": ("p - 1", "(p - 1) / p", "(p - 1) / p"),
    "reduce-scatter by halving": ("k", "(p - 1) / p", "(p - 1) / p"),
    "reduce-scatter by pairwise": ("p - 1", "(p - 1) / p", "(p - 1) / p"),
    "all-reduce by binomial": ("2 * k", "2 * k", "k"),
    "all-reduce by ring": ("2 * (p - 1)", "2 * (p - 1) / p", "(p - 1) / p"),
    "all-reduce by doubling": ("k", "k", "k"),
    "all-reduce by rabenseifner": ("2 * k", "2 * (p - 1) / p", "(p - 1) / p"),
    "all-reduce by star": ("2 * (p - 1)", "2 * (p - 1)", "p - 1"),
    "all-to-all by bruck": ("k", "k / 2", "0"),
    "all-to-all by pairwise": ("p - 1", "(p - 1) / p", "0"),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("k", range(5))
def test_for_powers_of_two_the_program_costs_what_is_published(name: str, k: int) -> None:
    row, ranks = ROWS[name], 1 << k
    made = program(row, Setting(ranks))
    found = [simulate(made, flat(ranks, link), 1.0) for link in LINKS[:3]]
    published = [eval(text, {"p": ranks, "k": k}) for text in PUBLISHED[name]]
    assert found == pytest.approx(published, rel=1e-12)


# ------------------------------------------------------------------------------------ lower bounds


def bytes_due(collective: str, ranks: int) -> float:
    """Return which part of a vector must pass the busiest rank's link."""
    if collective in ("broadcast", "reduce"):
        return 1
    return (2 if collective == "all-reduce" else 1) * (ranks - 1) / ranks


@pytest.mark.parametrize("name", ROWS)
def test_no_lower_bound_is_beaten(name: str) -> None:
    row = ROWS[name]
    reduces = COLLECTIVES[row.collective].reduces
    for ranks in range(2, 18):
        moved = bytes_due(row.collective, ranks)
        bounds = (math.ceil(math.log2(ranks)), moved, (ranks - 1) / ranks if reduces else 0)
        for at in settings(row, ranks):
            made = program(row, at)
            for link, bound in zip(LINKS, (*bounds, 0), strict=True):
                network = flat(ranks, link)
                seconds = simulate(made, network, 1.0)
                assert seconds >= bound * (1 - 1e-12)
                assert seconds >= lower_bound(row.collective, network, 1.0) * (1 - 1e-12)


@pytest.mark.parametrize("ranks", range(2, 18))
def test_the_bounds_are_those_of_the_literature(ranks: int) -> None:
    for name, kind in COLLECTIVES.items():
        moved = bytes_due(name, ranks)
        combined = (ranks - 1) / ranks if kind.reduces else 0
        found = [lower_bound(name, flat(ranks, link), 1.0) for link in LINKS[:3]]
        assert found == pytest.approx([math.ceil(math.log2(ranks)), moved, combined], rel=1e-12)


# --------------------------------------------------------------------------------- several levels

NODES = (
    Network((Level(8, 3e-6, 235e9), Level(4, 8e-6, 25e9)), 1e12),
    Network((Level(4, 3e-6, 235e9), Level(2, 8e-6, 25e9, shared=25e9)), 1e12),
    Network((Level(3, 3e-6, 235e9), Level(5, 8e-6, 25e9, shared=30e9)), 1e12),
    Network((Level(2, 1e-6, 2e11), Level(3, 3e-6, 1e11, 1.5e11), Level(2, 8e-6, 2.5e10, 3e10))),
)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("network", NODES, ids=lambda network: f"{network.ranks} ranks")
def test_on_levels_a_formula_is_never_below_its_program_nor_a_program_below_the_bound(
    name: str, network: Network
) -> None:
    row = ROWS[name]
    at = Setting(network.ranks, segments=5 if row.segmented else 1, node=network.levels[0].size)
    made = program(row, at)
    for size in (1.0, 1e4, 1e6, 1e9):
        simulated, bound = simulate(made, network, size), formula_seconds(row, at, network, size)
        assert simulated <= bound * (1 + 1e-12)
        assert simulated >= lower_bound(row.collective, network, size)
        if row.between is not None and len(network.levels) == 2:
            assert simulated == pytest.approx(bound, rel=1e-12)


def test_a_ring_over_nodes_runs_at_the_pace_of_the_links_between_them() -> None:
    network = NODES[1]
    ring = build_program("all-reduce", "ring", 8)
    assert simulate(ring, network, 8e9) == pytest.approx(14 * (8e-6 + 1e9 / 25e9) + 7e9 / 1e12)


def test_messages_that_leave_a_node_together_share_its_links() -> None:
    exchange = build_program("all-to-all", "pairwise", 4)
    apart = Network((Level(2, 0, 1e9), Level(2, 0, 1e9)))
    shared = Network((Level(2, 0, 1e9), Level(2, 0, 1e9, shared=1e9)))
    # One message of a quarter leaves a node in the first and last round, two in the second.
    assert simulate(exchange, apart, 4e9) == pytest.approx(3)
    assert simulate(exchange, shared, 4e9) == pytest.approx(4)


# --------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("network", [flat(13, (1e-6, 1e-10, 1e-12)), *NODES[1:3]])
def test_the_choice_is_the_cheapest_program(collective: str, network: Network) -> None:
    for size in (1.0, 1e5, 1e7):
        chosen = select(collective, network, size)
        every = prices(collective, network, size)
        made = [simulate(program_of(choice, network), network, size) for choice in every]
        own = made[every.index(chosen)]
        assert own <= chosen.seconds * (1 + 1e-12)
        # No pipeline is so long here that its formula is asked.
        assert own == pytest.approx(min(made), rel=1e-12)


def test_small_vectors_are_doubled_and_large_ones_halved_from_where_the_lines_cross() -> None:
    # 3 a + 3 n b = 6 a + 7/4 n b
    network = Network.flat(8, latency=3e-6, bandwidth=2e11)
    found = crossovers("all-reduce", network)
    assert [at.variant for at in found] == ["doubling", "rabenseifner"]
    crossing = 3 * 3e-6 * 2e11 / (3 - 7 / 4)
    assert found[1].size == pytest.approx(crossing, abs=1)


def test_on_nodes_large_vectors_are_reduced_hierarchically() -> None:
    found = crossovers("all-reduce", NODES[0])
    assert [at.variant for at in found] == ["doubling", "hierarchical"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("network", [flat(12, (1e-6, 1e-10, 1e-12)), NODES[0]])
def test_between_crossovers_the_choice_stays(collective: str, network: Network) -> None:
    found = crossovers(collective, network)
    for at, after in pairwise(found):
        assert at.variant != after.variant
        assert select(collective, network, at.size).variant == at.variant
        assert select(collective, network, after.size - 1).variant == at.variant
        assert select(collective, network, (at.size * after.size) ** 0.5).variant == at.variant


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.segmented])
def test_segments_are_as_many_as_trying_them_all_says(name: str) -> None:
    row, network = ROWS[name], flat(9, (1e-6, 1e-10, 1e-12))
    for size in (10.0, 1e5, 1e7):
        at = Setting(9, segments=best_segments(row, Setting(9), network, size))
        tried = [
            formula_seconds(row, Setting(9, segments=s), network, size)
            for s in range(1, min(int(size), 3000) + 1)
        ]
        # Powers of two alone are taken: they cost at most (sqrt 2 + 1 / sqrt 2) / 2 of the best.
        assert min(tried) <= formula_seconds(row, at, network, size) <= 1.061 * min(tried)


def test_thousands_of_ranks_are_priced_at_once() -> None:
    network = Network((Level(8, 3e-6, 235e9), Level(384, 8e-6, 25e9)))
    assert price("all-reduce", "hierarchical", network, 1e9).seconds == pytest.approx(
        2 * (7 * (3e-6 + 125e6 / 235e9) + 9 * 8e-6 + 383 / 384 * 125e6 / 25e9)
    )
    assert select("all-reduce", network, 1e9).variant == "hierarchical"


@pytest.mark.parametrize("name", ROWS)
def test_one_rank_has_nothing_to_do(name: str) -> None:
    row = ROWS[name]
    assert program(row, Setting(1)).rounds == ()
    network = Network.flat(1, latency=1.0, bandwidth=1.0)
    assert price(row.collective, row.name, network, 1e6).seconds == 0


def test_nodes_of_one_level_are_every_way_to_part_the_ranks() -> None:
    row = ROWS["all-reduce by hierarchical"]
    for node in divisors(12):
        paid = terms(row, Setting(12, node=node))
        rounds = 2 * (node - 1 + math.ceil(math.log2(12 // node)))
        assert (paid.rounds, float(paid.moved)) == (rounds, pytest.approx(2 * 11 / 12))


def test_a_program_is_not_priced_on_a_network_of_other_ranks() -> None:
    with pytest.raises(OptionError, match="as many ranks"):
        simulate(build_program("all-reduce", "ring", 4), NODES[0], 1.0)


# -------------------------------------------------------------------------- the links of a machine


def test_devices_of_a_machine_make_the_levels_that_they_span() -> None:
    machine = Machine.parse("dgx-a100-80g x 8 nodes")
    near, far = (link.reached for link in machine.links)

    def shape(devices: Sequence[int]) -> list[tuple[int, float]]:
        return [(level.size, level.bandwidth) for level in network_of(machine, devices).levels]

    assert shape(range(8)) == [(8, near)]
    assert shape(range(4, 8)) == [(4, near)]
    assert shape(range(0, 64, 8)) == [(8, far)]
    assert shape(range(64)) == [(8, near), (8, far)]
    assert shape([0, 4, 8, 12, 16, 20]) == [(2, near), (3, far)]
    # Nodes that take part with different numbers, or by turns: every link counts as the slowest.
    assert shape(range(12)) == [(12, far)]
    assert shape([0, 8, 1, 9]) == [(4, far)]
    assert shape([5]) == [(1, near)]


def test_a_byte_is_combined_in_three_passes_over_memory() -> None:
    machine = Machine.parse("dgx-a100-80g")
    bandwidth = machine.device.memory_bandwidth * machine.constants.memory_fraction
    assert network_of(machine, range(8)).combining == bandwidth / 3


@pytest.mark.parametrize("devices", [[], [0, 0], [-1, 0], [0, 8]])
def test_devices_that_a_machine_does_not_have_are_refused(devices: list[int]) -> None:
    with pytest.raises(OptionError, match="no devices of dgx-a100-80g x 8"):
        network_of(Machine.parse("dgx-a100-80g"), devices)
