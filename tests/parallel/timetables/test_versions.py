"""Asynchronous pipelines: which weights a micro-batch meets, and how many versions are alive."""

from collections.abc import Callable

import pytest

from tilewright.base.errors import TimetableError
from tilewright.parallel import (
    TIMETABLES,
    Timetable,
    even_times,
    in_flight,
    make_timetable,
    read_timetable,
    simulate,
    trace_versions,
    verify_timetable,
    versions_held,
)
from tilewright.parallel.timetables import Kind

Golden = Callable[[str, str], None]


def _forward(table: Timetable, stage: int) -> list[int]:
    return [trace.forward for trace in trace_versions(table) if trace.stage == stage]


def test_pipedream_reads_the_weights_of_the_worked_example() -> None:
    table = make_timetable("pipedream", 4, 12)
    # On the first stage batch 4 meets weights updated by batch 0, 5 by {0, 1}, 6 by {0, 1, 2}.
    assert _forward(table, 0)[:7] == [0, 0, 0, 0, 1, 2, 3]
    assert versions_held(table) == (4, 3, 2, 1)


def test_2bw_reads_the_weights_of_the_worked_example() -> None:
    table = make_timetable("pipedream-2bw", 4, 12)
    # Batches 4 to 6 are on the initial weights, from 7 on on those of {0, 1, 2, 3}.
    for stage in range(4):
        assert _forward(table, stage)[4:11] == [0, 0, 0, 1, 1, 1, 1]
    updates = {trace.micro_batch: trace.update for trace in trace_versions(table)}
    assert [updates[n] for n in range(8)] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert versions_held(table) == (2, 2, 2, 2)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_staleness_is_the_published_one(p: int) -> None:
    m = 5 * p
    for trace in trace_versions(make_timetable("pipedream", p, m)):
        assert trace.staleness == min(trace.micro_batch, p - 1 - trace.stage)
        assert trace.consistent
    assert versions_held(make_timetable("pipedream", p, m)) == tuple(p - i for i in range(p))
    double = trace_versions(make_timetable("pipedream-2bw", p, m))
    worst = max(trace.staleness for trace in double)
    assert worst == (1 if p > 1 else 0)
    assert all(trace.consistent for trace in double)
    assert max(versions_held(make_timetable("pipedream-2bw", p, m))) == min(p, 2)


@pytest.mark.parametrize("p", [2, 4, 5])
def test_what_keeps_one_version_reads_another_going_back(p: int) -> None:
    for table in (make_timetable("pipemare", p, 4 * p), make_timetable("ampnet", p, 4 * p, p)):
        traces = trace_versions(table)
        assert versions_held(table) == (1,) * p
        assert any(not trace.consistent for trace in traces if trace.stage == 0)
        assert all(trace.forward <= trace.backward < trace.update for trace in traces)
        assert all(trace.consistent for trace in traces if trace.stage == p - 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9])
def test_ampnet_keeps_its_micro_batches_in_flight(limit: int) -> None:
    table = make_timetable("ampnet", 4, 10, limit)
    verify_timetable(table)
    assert max(in_flight(table)) == limit
    stale = [trace.staleness for trace in trace_versions(table) if trace.stage == 0]
    assert max(stale) == limit - 1


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw", "pipemare"])
def test_without_a_flush_there_is_no_bubble_in_steady_state(name: str) -> None:
    p, m, times = 4, 12, even_times(4, 1.0, 1.0, 1.0)
    short, long = (simulate(make_timetable(name, p, n), times) for n in (m, 2 * m))
    assert long.makespan - short.makespan == pytest.approx(m * 3.0)
    assert in_flight(long.timetable) == tuple(p - i for i in range(p))


@pytest.mark.parametrize("kind", [k for k in TIMETABLES if k.asynchronous], ids=lambda k: k.name)
@pytest.mark.parametrize(("p", "m"), [(1, 1), (3, 7), (4, 4), (5, 21)])
def test_the_versions_held_are_those_that_are_newest_or_still_read(
    kind: Kind, p: int, m: int
) -> None:
    """Asked of every moment and every version, by going through all that comes later."""
    table = make_timetable(kind.name, p, m, 3 if kind.parts else 1)
    for row, held in zip(table.ranks, versions_held(table), strict=True):
        parts = [part for action in row for part in action]
        most = 1
        for now in range(len(parts) + 1):
            newest = sum(part.kind == "U" for part in parts[:now])
            later = {part.version for part in parts[now:] if part.kind != "U"}
            most = max(most, len({newest} | {one for one in range(newest) if one in later}))
        assert held == most


def test_a_flushed_step_has_no_versions() -> None:
    table = make_timetable("1f1b", 3, 4)
    assert trace_versions(table) == ()
    assert versions_held(table) == (1, 1, 1)


HEAD = "timetable t stages 1 micro-batches 1\nrank 0: "
WRONG = {
    "later_than_made": "0F0@1 0BW0@0 0U0@1",
    "skipped": "0F0@0 0BW0@0 0U0@2",
    "some_without": "0F0@0 0BW0 0U0@1",
    "never_updated": "0F0@0 0BW0@0",
}


@pytest.mark.parametrize("name", WRONG)
def test_versions_that_do_not_fit_are_refused(name: str, golden: Golden) -> None:
    with pytest.raises(TimetableError) as caught:
        verify_timetable(read_timetable(HEAD + WRONG[name]))
    golden(f"versions_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")
