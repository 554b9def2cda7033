"""Messages of a timetable: placed so that ranks that must meet do, and circles are named."""

from collections.abc import Callable

import pytest

from tilewright.base.errors import TimetableError
from tilewright.parallel import (
    TIMETABLES,
    Pass,
    Receive,
    Send,
    make_timetable,
    place_messages,
    run_rendezvous,
)
from tilewright.parallel.timetables import Line

Golden = Callable[[str, str], None]
NAMES = [kind.name for kind in TIMETABLES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 5), (4, 3), (4, 8), (6, 13)])
def test_every_boundary_between_ranks_is_crossed_once_each_way(name: str, p: int, m: int) -> None:
    table = make_timetable(name, p, m)
    rank_of = table.rank_of
    crossings = sum(
        rank_of[stage, n] != rank_of[stage + 1, n]
        for stage in range(table.stages - 1)
        for n in range(table.units)
    )
    lines = place_messages(table)
    assert run_rendezvous(lines) == 2 * crossings
    actions = tuple(
        tuple(item for item in line if not isinstance(item, Send | Receive)) for line in lines
    )
    assert actions == table.ranks


@pytest.mark.parametrize("name", NAMES)
def test_what_is_received_was_sent_before_and_is_there_in_time(name: str) -> None:
    table = make_timetable(name, 4, 6)
    for line in place_messages(table):
        seen: set[tuple[str, int, int]] = set()
        for item in line:
            if isinstance(item, Send):
                assert item.key in seen
            elif isinstance(item, Receive):
                seen.add(item.key)
            else:
                for part in item:
                    if part.kind == "F" and part.stage:
                        assert ("F", part.stage - 1, part.micro_batch) in seen
                    kind = "B" if part.kind == "BW" else part.kind
                    seen.add((kind, part.stage, part.micro_batch))


FORWARD, BACKWARD = ("F", 0, 1), ("B", 1, 0)
CIRCLE: tuple[Line, ...] = (
    ((Pass("F", 0, 1),), Send(FORWARD, 1), Receive(BACKWARD, 1)),
    ((Pass("BW", 1, 0),), Send(BACKWARD, 0), Receive(FORWARD, 0)),
)
LINES: dict[str, tuple[Line, ...]] = {
    "circle": CIRCLE,
    "nobody_sends": ((Receive(BACKWARD, 1),), ((Pass("BW", 1, 0),),)),
    "nobody_takes": ((Send(FORWARD, 1),), ((Pass("BW", 1, 0),),)),
    "no_such_rank": ((Send(FORWARD, 2),), ()),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_wait_for_ever_are_refused_with_who_waits(name: str, golden: Golden) -> None:
    with pytest.raises(TimetableError) as caught:
        run_rendezvous(LINES[name])
    golden(f"rendezvous_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


def test_turning_one_pair_around_resolves_the_circle() -> None:
    first, (action, send, receive) = CIRCLE
    assert run_rendezvous((first, (action, receive, send))) == 2
