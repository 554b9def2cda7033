"""Devices that are wired two by two: what some of them reach is what rings over their wires can."""

import csv
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tilewright.base.errors import MachineError
from tilewright.cost import Link, Machine, network_of, price
from tilewright.parallel import make_plan

Golden = Callable[[str, str], None]
MACHINE = Machine.parse("p3.16xlarge")
NODE = MACHINE.links[0]


def _rings(members: tuple[int, ...]) -> float:
    """Return the most wires' worth that rings through all of the members can send at once.

    Every ring is tried, and as much of each is taken as the wires, each way at once, can carry.
    """
    wires = {(a, b): n for a, b, n in NODE.wires} | {(b, a): n for a, b, n in NODE.wires}
    inside = [pair for pair in wires if set(pair) <= set(members)]
    columns = []
    for rest in itertools.permutations(members[1:]):
        ring = (members[0], *rest)
        hops = list(zip(ring, (*rest, members[0]), strict=True))
        if all(hop in inside for hop in hops):
            columns.append([hops.count(pair) for pair in inside])
    if not columns:
        return 0.0
    limits = [wires[pair] for pair in inside]
    return -float(linprog(-np.ones(len(columns)), np.array(columns).T, limits).fun)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_ranks_of_a_plan_reach_what_rings_over_their_wires_carry(stride: int) -> None:
    for ranks in (2, 4, 8):
        for begin in range(8 - stride * (ranks - 1)):
            if begin // stride % ranks:
                continue
            members = tuple(range(begin, begin + stride * ranks, stride))
            carried = _rings(members) / 6 * NODE.reached
            if carried:
                assert MACHINE.reached(0, members) == pytest.approx(carried, rel=1e-9), members


def test_nothing_is_faster_than_a_device_with_all_its_wires_nor_slower_than_rings() -> None:
    for ranks in (2, 3, 4, 5):
        for members in itertools.combinations(range(8), ranks):
            reached = MACHINE.reached(0, members)
            assert _rings(members) / 6 * NODE.reached - 1 <= reached <= NODE.reached
            assert MACHINE.reached(0, members[::-1]) == reached


def test_devices_that_no_wires_join_send_half_a_wires_worth() -> None:
    for members in ((0, 5), (0, 1, 6, 7)):
        assert MACHINE.reached(0, members) == pytest.approx(25e9 * NODE.share / 2)
    # In two nodes, the slower of the two groups decides; one device of a node uses no wires.
    two = MACHINE.with_devices(16)
    assert two.reached(0, (0, 3, 8, 9)) == pytest.approx(25e9 * NODE.share)
    assert two.reached(0, (0, 8)) == NODE.reached


def test_all_groups_of_a_plan_wait_for_the_one_with_the_fewest_wires() -> None:
    """Of the pairs 0-1, 2-3, 4-5 and 6-7, 2-3 and 6-7 have two wires: they wait for the others."""
    model = "gpt:layers=2,hidden=1024,heads=16,vocab=50257"
    fix = {"tp": 2, "pp": 1, "micro_batch": 1, "precision": "float16"}
    wired = make_plan(model, MACHINE, batch=4, seq=512, fix=fix).predicted
    one = NODE.bandwidth / 6
    slow = replace(MACHINE, links=(replace(NODE, wires=(), bandwidth=one), *MACHINE.links[1:]))
    assert wired.breakdown.tensor == pytest.approx(
        make_plan(model, slow, batch=4, seq=512, fix=fix).predicted.breakdown.tensor
    )
    fast = replace(MACHINE, links=(replace(NODE, wires=()), *MACHINE.links[1:]))
    switched = make_plan(model, fast, batch=4, seq=512, fix=fix).predicted
    assert wired.breakdown.tensor > 1.5 * switched.breakdown.tensor


def test_a_pipeline_sends_over_the_wires_between_its_two_ranks() -> None:
    model = "gpt:layers=8,hidden=1024,heads=16,vocab=50257"
    fix = {"tp": 1, "pp": 8, "micro_batch": 1, "precision": "float16", "overlap": "none"}
    plan = make_plan(model, MACHINE, batch=8, seq=512, fix=fix)
    # Rank 3 sends to 4, which no wires join; rank 2 to 3 over two.
    size = 512 * 1024 * 2
    times = {(2, 3): 2.0, (3, 4): 0.5}
    for (one, _), wires in times.items():
        ends = plan.predicted.simulation.ends[one][0]
        begins = plan.predicted.simulation.starts[one + 1][0]
        sent = NODE.latency + size / (25e9 * NODE.share * wires)
        assert begins - ends == pytest.approx(sent, rel=1e-6)


def test_all_pipelines_of_a_plan_wait_for_the_one_with_the_fewest_wires() -> None:
    """Of the pairs 0-4, 1-5, 2-6 and 3-7, 2-6 and 3-7 have one wire: the others wait."""
    model = "gpt:layers=8,hidden=1024,heads=16,vocab=50257"
    fix = {
        "tp": 1, "pp": 2, "dp": 4, "micro_batch": 1, "precision": "float16", "overlap": "none",
        "timetable": "1f1b", "zero": 0,
    }  # fmt: skip
    plan = make_plan(model, MACHINE, batch=32, seq=512, fix=fix)
    apart = make_plan(model, MACHINE, batch=32, seq=512, fix=fix | {"tied": False})
    assert MACHINE.reached(0, (0, 4)) > MACHINE.reached(0, (2, 6)) == 25e9 * NODE.share
    run = plan.predicted.simulation
    sent = NODE.latency + 512 * 1024 * 2 / (25e9 * NODE.share)
    assert run.starts[1][0] - run.ends[0][0] == pytest.approx(sent, rel=1e-6)
    tie = NODE.latency + 1024 * 50257 * 2 / (25e9 * NODE.share)
    data = plan.predicted.breakdown.data - apart.predicted.breakdown.data
    assert data == pytest.approx(tie, rel=1e-6)


DATA = Path(__file__).parents[3] / "shared" / "data" / "vtrain"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measured all-reduces are not at {DATA}")
@pytest.mark.parametrize(("ranks", "error"), [(2, 0.01), (4, 0.06), (8, 0.02)])
def test_some_v100s_of_a_node_all_reduce_as_fast_as_was_measured(ranks: int, error: float) -> None:
    network = replace(network_of(MACHINE, range(ranks)), combining=float("inf"))
    with (DATA / f"allreduce_v100_{ranks}gpu.csv").open(encoding="utf-8") as file:
        rows = [(float(row[0]), float(row[3]) * 1e-9) for row in list(csv.reader(file))[1:]]
    assert len(rows) > 1000
    launch = MACHINE.constants.collective_seconds
    off = [
        abs((launch + price("all-reduce", "ring", network, size).seconds) / seconds - 1)
        for size, seconds in rows
    ]
    assert sum(off) / len(off) < error


def test_wires_are_read_as_they_are_printed() -> None:
    text = str(MACHINE)
    assert "groups 8, wires 0/1 0/2 0/3x2" in text
    assert Machine.parse(text) == MACHINE
    assert Machine.parse(text.replace(", ", ",\n  ")) == MACHINE


WRONG = {
    "one_device": "0/",
    "none": "",
    "a_superscript": "0/1x²",
    "beyond_the_group": "0/1 1/8",
    "itself": "0/1 3/3",
    "backwards": "1/0",
    "twice": "0/1 0/1x2",
    "parted": "0/1 2/3 4/5 6/7",
    "of_no_wire": "0/1x0",
}


@pytest.mark.parametrize("name", WRONG)
def test_wires_that_join_no_group_are_refused(name: str, golden: Golden) -> None:
    whole = str(MACHINE)
    begin = whole.index("wires ")
    end = whole.index(",", begin)
    with pytest.raises(MachineError) as caught:
        Machine.parse(whole[:begin] + f"wires {WRONG[name]}" + whole[end:])
    golden(f"wires_{name}.txt", str(caught.value))


@pytest.mark.parametrize(
    "wires", [((0, 1),), ((0, 1, 1.5),), ((0, 1, True),), [(0, 1, 1)], (None,), 5, "0/1", None]
)
def test_wires_that_are_no_triples_of_whole_numbers_are_refused(wires: Any) -> None:
    with pytest.raises(MachineError, match="a tuple of triples of whole numbers"):
        replace(NODE, groups=2, wires=wires)


def test_wires_beyond_the_innermost_link_are_refused() -> None:
    with pytest.raises(MachineError, match="no levels"):
        replace(
            MACHINE,
            links=(replace(NODE, wires=()), Link("rack", 2, 1e-6, 1e9, 1.0, ((0, 1, 1),)),
                   replace(MACHINE.links[-1])),
        )  # fmt: skip
