"""The price of a captured model under data parallelism and a placement of its operators.

The idea: seconds and bytes of each operator by roofline from its own loops, pieces of a rank's
operators scheduled with the transfers between them, and then what happens once in a step, as for
any plan.  A graph computes one micro-batch, of as many examples as it was captured with.  The
backward of an operator moves twice its bytes and multiplies twice.

This module does not know tensor parallelism of graphs (`spread` splits single operators).
"""

import math
from collections.abc import Sequence

from tilewright.autodiff import activations
from tilewright.base.errors import PlanError
from tilewright.cost import Machine, graph_cost, state_bytes
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.text import digest
from tilewright.graph.total import fixed
from tilewright.parallel.pieces import (
    Edge,
    Piece,
    edges_of,
    name_of,
    pieces_of,
    ranks_of,
    schedule,
)
from tilewright.parallel.plan import ParallelPlan, Placement
from tilewright.parallel.plan_check import check_batch, check_devices
from tilewright.parallel.predict_block import Load, rates
from tilewright.parallel.predict_links import along_seconds, exposed, strides
from tilewright.parallel.predict_stage import WIDTHS, axes, update_seconds
from tilewright.parallel.prediction import Breakdown, MemoryBytes, Prediction
from tilewright.parallel.timetables import Simulation

PARAMETER = "parameter"
# What a graph's plan can say beside degrees; all else has no effect on it yet.
PRECISION = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
ORDERS = ("1f1b", "gpipe")
GRAPH_PLAIN = {
    "tp": 1, "cp": 1, "ep": 1, "chunks": 1, "recompute": "none", "sequence_parallel": False,
    "seq": 1, "stages": (), "attention": "unfused", "tied": True,
}  # fmt: skip


def graph_words(graph: Graph) -> str:
    """Return how a plan names a graph: its name, and a digest of all in it."""
    return f"{graph.name} {digest(graph)[:12]}"


def examples_of(graph: Graph) -> int:
    """Return the examples of a micro-batch: the first dim of the first input that is no parameter.

    Raises PlanError for a graph without one.
    """
    for value in graph.inputs:
        if graph.role(value.name).kind == "argument" and value.type.shape:
            return fixed(value.type.shape[0])
    raise PlanError(
        "the graph has no input whose first dim could be a batch",
        expected="an input of examples",
        found=", ".join(value.name for value in graph.inputs) or "no inputs",
    )


def check_graph_plan(plan: ParallelPlan, graph: Graph, machine: Machine) -> None:
    """Raise PlanError where a plan was made for another graph or machine, or cannot be run."""
    if plan.model != graph_words(graph):
        raise PlanError(
            "the plan was made for another model",
            expected=graph_words(graph),
            found=plan.model,
            mend="plan this model anew",
        )
    for name, value in GRAPH_PLAIN.items():
        if getattr(plan, name) != value:
            raise PlanError(
                f"{name} has no effect on a captured graph",
                expected="dp, pp, zero 0 or 1, overlap, optimizer, and places of operators",
                found=f"{name} {getattr(plan, name)}",
                mend="leave it out, or plan a specification (`gpt:layers=...`)",
            )
    if plan.micro_batch != examples_of(graph) or plan.timetable not in ORDERS or plan.zero > 1:
        raise PlanError(
            "a captured graph has its own micro-batch, and two orders",
            expected=f"micro_batch {examples_of(graph)}, timetable {' or '.join(ORDERS)}, "
            "zero 0 or 1",
            found=f"micro_batch {plan.micro_batch}, timetable {plan.timetable}, zero {plan.zero}",
            mend="capture it with as many examples as a micro-batch has",
        )
    check_devices(plan, machine)
    check_batch(plan)


def graph_precision(graph: Graph) -> str:
    """Return the type of a graph's parameters, in the words of plans."""
    for value in graph.inputs:
        if graph.role(value.name).kind == PARAMETER:
            found = PRECISION.get(str(value.type.dtype))
            if found is not None:
                return found
    return "float32"


def even_placement(plan: ParallelPlan, graph: Graph, machine: Machine) -> Placement:
    """Return a rank for each operator, in their order: pieces of as equal seconds as can be."""
    if plan.pp == 1:
        return tuple((name_of(node), 0) for node in graph.nodes)
    reached = rates(machine, plan.precision)
    loads = node_loads(graph)
    each = [reached.seconds(loads[name_of(node)]) for node in graph.nodes]
    whole, done, found = sum(each), 0.0, []
    for at, (node, seconds) in enumerate(zip(graph.nodes, each, strict=True)):
        middle = done + seconds / 2
        rank = int(middle / whole * plan.pp) if whole else at * plan.pp // len(each)
        found.append((name_of(node), min(rank, plan.pp - 1)))
        done += seconds
    return tuple(found)


def node_loads(graph: Graph) -> dict[str, Load]:
    """Return what each operator computes and moves forward, by name."""
    return {name_of(node): _load(node) for node in graph.nodes}


def _load(node: Node) -> Load:
    cost = graph_cost(Graph("node", node.inputs, (node,), node.outputs))
    if cost.products:
        return Load(cost.products, cost.bytes, products=1)
    return Load(0.0, cost.bytes, passes=1 if cost.bytes else 0)


def predict_graph(plan: ParallelPlan, graph: Graph, machine: Machine) -> Prediction:
    """Return what a step of a graph costs.  The plan fits it (`check_graph_plan`)."""
    ranks = ranks_of(graph, plan.placement, plan.pp)
    pieces = pieces_of(graph, ranks)
    loads = node_loads(graph)
    seconds = tuple(_seconds(plan, machine, piece, loads) for piece in pieces)
    sizes = {value.name: _bytes(value) for node in graph.nodes for value in node.outputs}
    edges = edges_of(pieces, sizes.__getitem__)
    simulation = schedule(
        pieces, edges, seconds, _transfers(plan, machine, pieces, edges),
        ranks=plan.pp, micro_batches=plan.micro_batches, filled=plan.timetable == "gpipe",
    )  # fmt: skip
    counts = _parameters(graph, ranks, plan.pp)
    flops = 3 * sum(load.flops for load in loads.values()) * plan.batch / plan.micro_batch
    return Prediction(
        breakdown=_breakdown(plan, machine, pieces, seconds, simulation, counts),
        memory_bytes=_memory(plan, graph, pieces, simulation, counts),
        memory_limit=machine.device.memory_bytes,
        model_flops=flops,
        hardware_flops=flops,
        peak=machine.device.peak(plan.precision) * plan.devices,
        tokens=plan.batch,
        simulation=simulation,
        notes=_notes(graph, pieces),
    )


def _bytes(value: Value) -> int:
    return math.prod(fixed(dim) for dim in value.type.shape) * int(value.type.dtype.bytes)


def _seconds(
    plan: ParallelPlan, machine: Machine, piece: Piece, loads: dict[str, Load]
) -> tuple[float, float]:
    """Return the seconds of a piece's forward and backward; the host may be what is slower."""
    reached = rates(machine, plan.precision)
    own = [loads[name_of(node)] for node in piece.nodes]
    forward = sum(reached.seconds(load) for load in own)
    twice = [Load(2 * o.flops, 2 * o.bytes, 2 * o.products, 2 * o.passes) for o in own]
    backward = sum(reached.seconds(load) for load in twice)
    started = reached.host * sum(load.operators for load in own)
    return max(forward, started), max(backward, 2 * started)


def _transfers(
    plan: ParallelPlan, machine: Machine, pieces: Sequence[Piece], edges: Sequence[Edge]
) -> tuple[float, ...]:
    stride = strides(plan.degrees, plan.order)["pp"]
    found = []
    for edge in edges:
        one, two = pieces[edge.giver].rank, pieces[edge.taker].rank
        seconds = along_seconds(machine, stride, plan.pp, one, two, edge.bytes)
        found.append(seconds if one != two else 0.0)
    return tuple(found)


def _parameters(graph: Graph, ranks: dict[str, int], count: int) -> tuple[int, ...]:
    """Return the elements of parameters on each rank: with the first operator that reads them."""
    found, seen = [0] * count, set[str]()
    for node in graph.nodes:
        for value in node.inputs:
            if graph.role(value.name).kind == PARAMETER and value.name not in seen:
                seen.add(value.name)
                size = math.prod(fixed(dim) for dim in value.type.shape)
                found[ranks[name_of(node)]] += size
    return tuple(found)


def _breakdown(
    plan: ParallelPlan,
    machine: Machine,
    pieces: Sequence[Piece],
    seconds: Sequence[tuple[float, float]],
    simulation: Simulation,
    counts: Sequence[int],
) -> Breakdown:
    """Split the step as the busiest rank spends it; its transfers run beside computing."""
    data = axes(plan, machine).data
    width = 4 if plan.precision == "bfloat16" else WIDTHS[plan.precision]
    rows = []
    for rank, count in enumerate(counts):
        sent = data.all_reduce(count * width)
        backward = sum(pair[1] for pair, at in zip(seconds, pieces, strict=True) if at.rank == rank)
        if plan.overlap != "none":
            sent = exposed(sent, backward, machine.constants.overlap_slowdown)
        rows.append((sent, update_seconds(plan, machine, count)))
    ends = [row[-1] if row else 0.0 for row in simulation.ends]
    step = max(end + sum(once) for end, once in zip(ends, rows, strict=True))
    busy = simulation.busy
    busiest = max(range(plan.pp), key=lambda rank: (busy[rank], sum(rows[rank])))
    waits = step - busy[busiest] - sum(rows[busiest])
    return Breakdown(busy[busiest], 0.0, 0.0, 0.0, max(0.0, waits), *rows[busiest])


def _memory(
    plan: ParallelPlan,
    graph: Graph,
    pieces: Sequence[Piece],
    simulation: Simulation,
    counts: Sequence[int],
) -> tuple[MemoryBytes, ...]:
    wrt = [value.name for value in graph.inputs if graph.role(value.name).kind == PARAMETER]
    maker = {value.name: name_of(node) for node in graph.nodes for value in node.outputs}
    where = {name_of(node): at for at, item in enumerate(pieces) for node in item.nodes}
    kept = [0] * len(pieces)
    for value, size in activations(graph, wrt) if wrt else ():
        kept[where[maker[value.name]]] += size
    rows = []
    for rank, count in enumerate(counts):
        state = state_bytes(
            count, optimizer=plan.optimizer, zero=plan.zero, data=plan.dp,
            precision=WIDTHS[plan.precision], main_gradients=plan.precision == "bfloat16",
        )  # fmt: skip
        held = _peak(simulation, rank, kept)
        rows.append(MemoryBytes(state.weights, state.gradients, state.optimizer, held, 0.0))
    return tuple(rows)


def _peak(simulation: Simulation, rank: int, kept: Sequence[int]) -> float:
    """Walk the passes of a rank: a forward keeps what its piece's backward frees."""
    now = most = 0
    for ((part,),) in zip(simulation.timetable.ranks[rank], strict=True):
        now += kept[part.stage] if part.kind == "F" else 0
        most = max(most, now)
        now -= kept[part.stage] if part.kind != "F" else 0
    return float(most)


def _notes(graph: Graph, pieces: Sequence[Piece]) -> tuple[str, ...]:
    unknown = graph_cost(graph).unknown
    notes = [f"{len(graph.nodes)} operators in {len(pieces)} pieces"]
    if unknown:
        notes.append(f"not counted: {', '.join(unknown)}")
    return tuple(notes)
