"""Captured models over pipeline ranks: placements of operators, branches too, and their prices."""

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tilewright as tw
from tilewright.base.dtypes import F32
from tilewright.base.errors import PlanError
from tilewright.cost import Constants, Device, Link, Machine, graph_cost
from tilewright.graph.ir import Graph, Node, TensorType, Value
from tilewright.parallel import ParallelPlan, Prediction
from tilewright.parallel.pieces import (
    Edge,
    Piece,
    edges_of,
    pieces_of,
    ranks_of,
    schedule,
)
from tilewright.parallel.timetables import even_times, make_timetable, simulate

Golden = Callable[[str, str], None]
PEAK = 1e9


def _ideal(devices: int, bandwidth: float = 1e15) -> Machine:
    """A machine on which products take time, and messages if asked."""
    device = Device("d", 1e12, 1e15, 0.0, (("float32", PEAK),))
    constants = Constants(gemm_fraction=0.5, memory_fraction=1.0)
    return Machine("ideal", device, (Link("all", None, 0.0, bandwidth),), devices, constants)


class Branches(nn.Module):
    """A stem, two branches alike, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64, bias=False)
        self.left = nn.Linear(64, 64, bias=False)
        self.right = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        return torch.tanh(self.left(h)) + torch.relu(self.right(h))


@pytest.fixture(scope="module")
def branches() -> Graph:
    return tw.capture(Branches(), torch.zeros(4, 64)).graph


@pytest.fixture(scope="module")
def chain() -> Graph:
    net = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    return tw.capture(net, torch.zeros(4, 64)).graph


def _priced(
    graph: Graph, machine: Machine, pp: int, places: Mapping[str, int] | None = None, **fix: object
) -> Prediction:
    settings = {"pp": pp, "dp": 1, "overlap": "none", "placement": places or {}} | fix
    return tw.plan(graph, machine, batch=32, fix=settings).predicted


# ----------------------------------------------------------------------------------------- seconds


def test_on_one_device_a_step_takes_its_products_three_times(chain: Graph) -> None:
    found = _priced(chain, _ideal(1), 1)
    flops = 3 * graph_cost(chain).products * 8
    assert found.breakdown.compute == pytest.approx(flops / (PEAK / 2), rel=1e-3)
    assert found.model_flops == flops == 3 * 2 * 32 * 4 * 64 * 64


def test_a_chain_placed_evenly_is_the_pipeline_of_its_stages(chain: Graph) -> None:
    """1F1B of 4 stages and 8 micro-batches: (m + p - 1)(F + B)."""
    found = _priced(chain, _ideal(4), 4)
    stage = 2 * 4 * 64 * 64 / (PEAK / 2)
    assert found.simulation.makespan == pytest.approx((8 + 3) * 3 * stage, rel=1e-3)
    assert found.breakdown.bubble == pytest.approx(3 * 3 * stage, rel=1e-3)
    reference = simulate(make_timetable("1f1b", 4, 8), even_times(4, stage, stage, stage))
    assert found.simulation.makespan == pytest.approx(reference.makespan, rel=1e-3)


def test_branches_on_two_ranks_run_at_once(branches: Graph) -> None:
    """The stem and a branch on one rank, a branch on the other: one product less in a row."""
    one = _priced(branches, _ideal(1), 1)
    two = _priced(branches, _ideal(2), 2, {"left": 1, "tanh": 1, "add": 0})
    product = 3 * 2 * 4 * 64 * 64 / (PEAK / 2)
    assert one.breakdown.compute == pytest.approx(8 * 3 * product, rel=1e-3)
    # Rank 0 has two of the three products of each of 8 micro-batches, and is never idle but for
    # the other branch's last way there and back.
    assert two.breakdown.compute == pytest.approx(8 * 2 * product, rel=1e-3)
    assert two.simulation.makespan < 8 * 2 * product + product
    ranks = ranks_of(branches, (("left", 1), ("tanh", 1), ("add", 0)), 2)
    assert len(pieces_of(branches, ranks)) == 4


def test_a_transfer_delays_whoever_waits_for_it(chain: Graph) -> None:
    slow = 1e6
    fast, late = _priced(chain, _ideal(2), 2), _priced(chain, _ideal(2, slow), 2)
    message = 4 * 64 * 4 / slow
    gained = late.simulation.makespan - fast.simulation.makespan
    assert 2 * message * 0.99 <= gained <= 2 * 8 * message * 1.01


@given(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(1, 9), st.booleans())
def test_every_placement_runs_each_pass_once_in_an_order_that_its_needs_allow(
    places: list[int], micro_batches: int, filled: bool
) -> None:
    pieces, edges = _diamond(places)
    seconds = [(1.0 + at, 2.0 + at) for at in range(len(pieces))]
    transfer = [0.0 if pieces[e.giver].rank == pieces[e.taker].rank else 0.5 for e in edges]
    found = schedule(
        pieces, edges, seconds, transfer, ranks=3, micro_batches=micro_batches, filled=filled
    )
    when = {
        (action[0].kind, action[0].stage, action[0].micro_batch): (start, end)
        for row, starts, ends in zip(found.timetable.ranks, found.starts, found.ends, strict=True)
        for action, start, end in zip(row, starts, ends, strict=True)
    }
    assert len(when) == 2 * len(pieces) * micro_batches
    for n in range(micro_batches):
        for edge, delay in zip(edges, transfer, strict=True):
            giver, taker = edge.giver, edge.taker
            assert when["F", taker, n][0] >= when["F", giver, n][1] + delay - 1e-9
            assert when["BW", giver, n][0] >= when["BW", taker, n][1] + delay - 1e-9
    for row in zip(found.starts, found.ends, strict=True):
        assert all(a <= b + 1e-9 for a, b in zip(row[1][:-1], row[0][1:], strict=True))
    # Never shorter than the busiest rank, nor than the longest way of one micro-batch.
    work = [
        sum(sum(pair) for pair, s in zip(seconds, pieces, strict=True) if s.rank == rank)
        for rank in range(3)
    ]
    assert found.makespan >= micro_batches * max(work) - 1e-9


def _diamond(places: list[int]) -> tuple[tuple[Piece, ...], tuple[Edge, ...]]:
    """A stem, two branches, and their join, placed by `places`."""
    x, stem, left, right, join = (
        Value(name, TensorType((4, 8), F32)) for name in ("x", "stem", "left", "right", "join")
    )
    nodes = (
        Node("add", (x, x), (stem,)),
        Node("add", (stem, stem), (left,)),
        Node("sub", (stem, stem), (right,)),
        Node("mul", (left, right), (join,)),
    )
    ranks = dict(zip(("stem", "left", "right", "join"), places, strict=True))
    pieces = pieces_of(Graph("diamond", (x,), nodes, (join,)), ranks)
    return pieces, edges_of(pieces, lambda _: 128)


# ------------------------------------------------------------------------------------------- bytes


def test_parameters_and_what_is_kept_are_on_the_rank_that_uses_them(branches: Graph) -> None:
    found = _priced(branches, _ideal(2), 2, {"left": 1, "tanh": 1, "add": 0}, timetable="gpipe")
    weights = [memory.weights for memory in found.memory_bytes]
    assert weights == [2 * 64 * 64 * 4, 64 * 64 * 4]
    # GPipe keeps all eight micro-batches; 1F1B as many as there are changes of rank ahead.
    less = _priced(branches, _ideal(2), 2, {"left": 1, "tanh": 1, "add": 0})
    assert all(
        few.activations < many.activations
        for few, many in zip(less.memory_bytes, found.memory_bytes, strict=True)
    )


# --------------------------------------------------------------------------------- plans and errors


def test_a_plan_of_a_graph_is_read_as_it_was_printed_and_priced_alike(branches: Graph) -> None:
    machine = Machine.parse("host-2core")
    made = tw.plan(branches, machine, batch=32, fix={"pp": 2})
    again = tw.plan(branches, machine, fix=ParallelPlan.parse(str(made)))
    assert again == made
    assert again.predicted.breakdown == made.predicted.breakdown


def test_a_module_is_captured_and_priced() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    made = tw.plan(net, "host-2core", batch=16, inputs=(torch.zeros(4, 8),))
    assert (made.dp, made.pp, made.micro_batch) == (2, 1, 4)
    assert made.predicted.tokens_per_second > 0


def test_what_a_graphs_plan_cannot_be_is_refused(branches: Graph, golden: Golden) -> None:
    machine = _ideal(2)
    for name, fix in (
        ("unknown_operator", {"pp": 2, "placement": {"lift": 1}}),
        ("unknown_rank", {"pp": 2, "placement": {"left": 2}}),
        ("tensor_parallel", {"tp": 2}),
        ("micro_batch", {"micro_batch": 2}),
    ):
        with pytest.raises(PlanError) as caught:
            tw.plan(branches, machine, batch=32, fix=fix)
        golden(f"plan_graph_{name}.txt", str(caught.value))
    made = tw.plan(branches, machine, batch=32, fix={"pp": 2})
    other = tw.capture(nn.Linear(64, 64), torch.zeros(4, 64)).graph
    with pytest.raises(PlanError, match="the plan was made for another model"):
        tw.plan(other, machine, fix=made)
