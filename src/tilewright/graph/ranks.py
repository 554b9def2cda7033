"""Run the graphs of all ranks in one process: the reference for every parallel execution.

The idea: every rank runs on its own until it comes to a collective; where all ranks of a group have
come to the same one, what they bring is stacked, the collective's loops are evaluated over the
stack, and each rank goes on with its own part of the result.  Where no group is complete and some
rank still waits, real devices would wait for ever: an error says who waits where.

This module does not know which collectives there are: `across` gives their loops.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.base.errors import CollectiveError
from tilewright.graph.evaluate import (
    Across,
    EvaluateFormula,
    Expand,
    Library,
    Meaning,
    Meeting,
    Run,
    begin,
    evaluate_formula,
)
from tilewright.graph.evaluate_scalar import Array
from tilewright.graph.ir import Graph, Node

Group = tuple[int, ...]


def evaluate_ranks(
    graphs: Sequence[Graph],
    inputs: Sequence[Sequence[Array] | Mapping[str, Array]],
    *,
    across: Across,
    library: Library | None = None,
    expand: Expand | None = None,
    formula: EvaluateFormula = evaluate_formula,
    wide: bool = False,
) -> tuple[tuple[Array, ...], ...]:
    """Return the outputs of each rank's graph.

    inputs: those of each rank.  across: gives a collective's loops over the values of all ranks of
    its group, which its attribute `group` lists.  Raises CollectiveError where ranks do not meet,
    and what `evaluate` raises.
    """
    if len(graphs) != len(inputs):
        raise CollectiveError(
            "the ranks have not as many graphs as inputs",
            expected=f"inputs for {len(graphs)} ranks",
            found=f"inputs for {len(inputs)}",
        )
    meaning = Meaning(library, expand, formula, None, wide, across)
    runs = [begin(graph, given, meaning) for graph, given in zip(graphs, inputs, strict=True)]
    waiting: dict[int, Meeting] = {}
    done: dict[int, tuple[Array, ...]] = {}
    for rank, run in enumerate(runs):
        _advance(rank, run, None, waiting, done)
    while waiting:
        group = next(_complete(waiting, len(runs)), None)
        if group is None:
            raise _stuck(waiting, done)
        for rank, result in _meet(group, waiting, meaning):
            _advance(rank, runs[rank], result, waiting, done)
    return tuple(done[rank] for rank in range(len(runs)))


def _advance(
    rank: int, run: Run, result: Array | None, waiting: dict[int, Meeting],
    done: dict[int, tuple[Array, ...]],
) -> None:  # fmt: skip
    """Let a rank run up to its next collective, or its end."""
    try:
        waiting[rank] = next(run) if result is None else run.send(result)
    except StopIteration as end:
        waiting.pop(rank, None)
        done[rank] = end.value


def group_of(node: Node) -> Group:
    """Return the ranks that a collective joins."""
    group = node.attr("group")
    assert isinstance(group, tuple), f"{node.op} has a group of ranks"
    return tuple(rank for rank in group if isinstance(rank, int))


def _complete(waiting: Mapping[int, Meeting], count: int) -> Iterator[Group]:
    """Yield the groups of which every rank waits for just this group."""
    for rank, meeting in waiting.items():
        group = group_of(meeting.node)
        if rank not in group or max(group) >= count:
            raise CollectiveError(
                f"rank {rank} comes to a collective that does not fit it",
                expected=f"a group with rank {rank} in it, of ranks below {count}",
                found=_said(meeting.node),
                where=meeting.node.origin,
            )
        if all(other in waiting and group_of(waiting[other].node) == group for other in group):
            yield group


def _meet(
    group: Group, waiting: Mapping[int, Meeting], meaning: Meaning
) -> list[tuple[int, Array]]:
    """Evaluate a collective over what all its ranks bring."""
    first = waiting[group[0]]
    for rank in group[1:]:
        if not _same(first.node, waiting[rank].node):
            raise _different(group[0], first.node, rank, waiting[rank].node)
    stacked = np.stack([waiting[rank].array for rank in group])
    origin = first.node.origin
    results = meaning.formula(first.loops, [stacked], wide=meaning.wide, origin=origin)
    return list(zip(group, results, strict=True))


def _same(a: Node, b: Node) -> bool:
    types = [[value.type for value in (*node.inputs, *node.outputs)] for node in (a, b)]
    return (a.op, a.attrs) == (b.op, b.attrs) and types[0] == types[1]


def _different(rank: int, node: Node, other: int, found: Node) -> CollectiveError:
    return CollectiveError(
        f"ranks {rank} and {other} come to different collectives at the same time",
        expected=f"rank {other}: {_said(node)}, as on rank {rank}",
        found=f"rank {other}: {_said(found)}",
        known="the ranks of a group make the same collectives in the same order",
        where=found.origin if str(found.origin) else node.origin,
        mend="let the graphs of both ranks have the same collectives in one order",
    )


def _stuck(waiting: Mapping[int, Meeting], done: Mapping[int, object]) -> CollectiveError:
    rank, meeting = next(iter(waiting.items()))
    missing = [other for other in group_of(meeting.node) if other in done]
    lines = [f"rank {other} waits at {_said(at.node)}" for other, at in waiting.items()]
    lines += [f"rank {other} has ended" for other in sorted(done)]
    known = "a collective ends when every rank of its group has come to it"
    return CollectiveError(
        f"rank {rank} waits for ever at {meeting.node.op}"
        + (f": rank {missing[0]} has ended without it" if missing else ""),
        expected=f"ranks {_listed(group_of(meeting.node))} at {_said(meeting.node)}",
        found="\n".join(lines),
        known=known,
        where=meeting.node.origin,
        mend="let the graphs of all ranks have the same collectives in one order",
    )


def _said(node: Node) -> str:
    operands = ", ".join(f"%{value.name}: {value.type}" for value in node.inputs)
    attrs = ", ".join(f"{name}={value!r}" for name, value in node.attrs)
    return f"{node.op}({operands}, {attrs})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
