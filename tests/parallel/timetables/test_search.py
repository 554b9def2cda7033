"""Searched timetables: as good as what was published, never below the bound, proved where small."""

import itertools
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from bench.published_timetables import ROWS, Row
from hypothesis import strategies as st
from tests.sweep import few

from tilewright.base.errors import OptionError
from tilewright.parallel import (
    Budget,
    Pass,
    Problem,
    Times,
    Timetable,
    even_times,
    lower_bound,
    peak_activations,
    prove_timetable,
    search_timetable,
    simulate,
    verify_timetable,
)

Golden = Callable[[str, str], None]
PRINTED = 5e-5  # half of the last digit of a published bubble
REAL = (18.5, 18.1, 9.3, 0.6)


def _problem(row: Row, cap: int) -> Problem:
    times = even_times(row.ranks, row.forward, row.input_grad, row.weight_grad, row.transfer)
    return Problem(row.micro_batches, times, Budget(cap, 1.0, row.kept))


def _bubble(problem: Problem, table: Timetable) -> float:
    """Check that a timetable is legal and within its budget, and return its bubble."""
    verify_timetable(table)
    budget, ranks = problem.budget, problem.ranks
    peaks = peak_activations(table, (budget.held,) * ranks, (budget.kept,) * ranks)
    assert max(peaks) <= budget.cap + 1e-6
    run = simulate(table, problem.times)
    bubble = run.bubble if problem.barrier else run.bubble_without_barrier
    return bubble.of_total


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_at_twice_the_memory_the_search_is_below_zb_2p_and_proved(row: Row) -> None:
    problem = _problem(row, 2 * row.ranks)
    found = search_timetable(problem)
    assert _bubble(problem, found.timetable) <= row.two_p + PRINTED
    assert found.optimal


def test_most_rows_are_strictly_below_zb_2p() -> None:
    below = 0
    for row in ROWS:
        problem = _problem(row, 2 * row.ranks)
        found = search_timetable(problem)
        below += _bubble(problem, found.timetable) < row.two_p - 1e-4
    assert below >= 5


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_at_the_memory_of_1f1b_the_search_is_not_above_zb_1p_and_proved(row: Row) -> None:
    problem = _problem(row, row.ranks)
    found = search_timetable(problem)
    assert _bubble(problem, found.timetable) <= row.h1 + PRINTED
    assert found.optimal


def _orders(micro_batches: int) -> Iterator[tuple[Pass, ...]]:
    """Yield every order of one rank's passes, with micro-batches in any order."""
    kinds = [(kind, n) for n in range(micro_batches) for kind in "FBW"]
    for order in itertools.permutations(kinds):
        place = {op: at for at, op in enumerate(order)}
        own = all(place["F", n] < place["B", n] < place["W", n] for n in range(micro_batches))
        if own:
            yield tuple(Pass(kind, 0, n) for kind, n in order)


def _words(left: tuple[int, int, int], word: str = "") -> Iterator[str]:
    """Yield every order of kinds in which each B has its F before it and each W its B."""
    if not any(left):
        yield word
    f, b, w = left
    if f:
        yield from _words((f - 1, b, w), word + "F")
    if b > f:
        yield from _words((f, b - 1, w), word + "B")
    if w > b:
        yield from _words((f, b, w - 1), word + "W")


def _tables(ranks: int, micro_batches: int) -> Iterator[Timetable]:
    """Yield every timetable; of larger problems those with micro-batches in their order."""
    if micro_batches <= 2 and ranks <= 2:
        rows = list(_orders(micro_batches))
    else:
        rows = []
        for word in _words((micro_batches,) * 3):
            count = {kind: itertools.count() for kind in "FBW"}
            rows.append(tuple(Pass(kind, 0, next(count[kind])) for kind in word))
    for chosen in itertools.product(rows, repeat=ranks):
        yield Timetable(
            "any",
            ranks,
            micro_batches,
            tuple(
                tuple((Pass(part.kind, rank, part.micro_batch),) for part in row)
                for rank, row in enumerate(chosen)
            ),
        )


def _brute_force(problems: list[Problem]) -> list[float]:
    """Return the least cost of each of the problems, all of one size and times."""
    best = [float("inf")] * len(problems)
    first = problems[0]
    ranks = first.ranks
    for table in _tables(ranks, first.micro_batches):
        try:
            run = simulate(table, first.times)
        except ValueError:
            continue
        for at, problem in enumerate(problems):
            budget = problem.budget
            peaks = peak_activations(table, (budget.held,) * ranks, (budget.kept,) * ranks)
            if max(peaks) <= budget.cap + 1e-9:
                cost = run.makespan if problem.barrier else run.longest
                best[at] = min(best[at], cost)
    return best


SIZES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_proved_cost_is_that_of_brute_force(p: int, m: int) -> None:
    unequal = Times((2.0, 1.0)[:p], (1.5, 2.5)[:p], (1.0, 0.5)[:p], (0.3,) * (p - 1))
    for times in (even_times(p), even_times(p, *REAL), unequal):
        problems = [
            Problem(m, times, Budget(cap, 1.0, kept), barrier)
            for cap, kept, barrier in [
                (1, 0.4, False),
                (2, 0.4, True),
                (2, 1.0, False),
                (3, 1.0, True),
                (4, 0.4, False),
            ]
        ]
        for problem, least in zip(problems, _brute_force(problems), strict=True):
            found = prove_timetable(problem)
            assert found.optimal
            assert found.cost == pytest.approx(least, rel=1e-6)
            assert lower_bound(problem) <= least * (1 + 1e-9)
            _bubble(problem, found.timetable)


@st.composite
def problems(draw: st.DrawFn, sizes: list[tuple[int, int]]) -> Problem:
    """Any problem of one of the sizes: unequal stages, and any budget that holds one."""
    p, m = draw(st.sampled_from(sizes))

    def times(count: int, least: float) -> tuple[float, ...]:
        every = st.one_of(st.sampled_from((1.0, 2.0, 5.0)), st.floats(least, 9))
        return tuple(draw(st.lists(every, min_size=count, max_size=count)))

    given = Times(times(p, 0.1), times(p, 0.1), times(p, 0.0), times(p - 1, 0.0))
    budget = Budget(draw(st.floats(1, m + 1)), 1.0, draw(st.floats(0, 1)))
    return Problem(m, given, budget, draw(st.booleans()))


@hypothesis.settings(max_examples=40)
@hypothesis.given(problems([(1, 3), (2, 2), (3, 2), (2, 1), (4, 1)]))
def test_the_bound_is_not_above_brute_force(problem: Problem) -> None:
    (least,) = _brute_force([problem])
    assert lower_bound(problem) <= least * (1 + 1e-9)
    assert search_timetable(problem, trials=50).cost >= least * (1 - 1e-9)
    assert prove_timetable(problem).cost == pytest.approx(least, rel=1e-6)


@pytest.mark.slow
@hypothesis.settings(max_examples=150)
@hypothesis.given(problems([(2, 3), (3, 2), (4, 2)]))
def test_the_bound_is_not_above_brute_force_of_larger_problems(problem: Problem) -> None:
    (least,) = _brute_force([problem])
    assert lower_bound(problem) <= least * (1 + 1e-9)
    assert prove_timetable(problem).cost == pytest.approx(least, rel=1e-6)


PROVED = [(f"{p}x{m}", p, m) for p in (1, 2, 3, 4) for m in range(1, 7)]


@pytest.mark.parametrize(("name", "p", "m"), few(PROVED, "2x3", "3x4", "4x6"))
def test_small_problems_are_proved_optimal(name: str, p: int, m: int) -> None:
    for cap, barrier in ((p, False), (2 * p, False), (p, True)):
        for times in (even_times(p), even_times(p, *REAL)):
            problem = Problem(m, times, Budget(cap), barrier)
            found = prove_timetable(problem)
            assert found.optimal, name
            assert _bubble(problem, found.timetable) >= -1e-12
            assert search_timetable(problem, trials=100).cost >= found.cost * (1 - 1e-6)


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.data(), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_nothing_found_is_below_the_bound_or_above_the_budget(
    data: st.DataObject, p: int, m: int, barrier: bool
) -> None:
    def times(count: int) -> tuple[float, ...]:
        return tuple(data.draw(st.lists(st.floats(0.1, 9), min_size=count, max_size=count)))

    given = Times(times(p), times(p), times(p), times(p - 1))
    budget = Budget(data.draw(st.floats(1, 2 * p + 1)), 1.0, data.draw(st.floats(0, 1)))
    problem = Problem(m, given, budget, barrier)
    found = search_timetable(problem, trials=25)
    _bubble(problem, found.timetable)
    assert found.cost >= found.bound * (1 - 1e-9)
    run = simulate(found.timetable, given)
    assert found.cost == pytest.approx(run.makespan if barrier else run.longest)


def test_a_seed_gives_the_same_timetable_again() -> None:
    problem = Problem(6, even_times(4, *REAL), Budget(4))
    one, other = (search_timetable(problem, trials=60, seed=3) for _ in range(2))
    assert one == other


def test_progress_is_told_and_an_interrupt_keeps_the_best() -> None:
    problem = Problem(12, even_times(4, *REAL), Budget(4))
    told: list[tuple[int, float, float]] = []

    def listen(trials: int, cost: float, bound: float) -> None:
        told.append((trials, cost, bound))
        if len(told) == 2:
            raise KeyboardInterrupt

    found = search_timetable(problem, progress=listen)
    assert [cost for _, cost, _ in told] == sorted((cost for _, cost, _ in told), reverse=True)
    assert (found.trials, found.cost, found.bound) == told[-1]


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("cap", (0.5, 1.0, 0.4)),
        ("kept", (4.0, 1.0, 1.5)),
        ("nan", (float("nan"), 1.0, 0.4)),
    ],
)
def test_a_budget_that_holds_nothing_is_refused(
    name: str, budget: tuple[float, float, float], golden: Golden
) -> None:
    with pytest.raises(OptionError) as caught:
        Budget(*budget)
    golden(f"budget_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


def test_a_step_that_takes_no_time_has_no_gap() -> None:
    found = search_timetable(Problem(2, even_times(2, 0.0, 0.0, 0.0), Budget(2.0)))
    assert (found.cost, found.gap) == (0.0, 0.0)
    assert found.optimal


@pytest.mark.parametrize("time", [1e308, float("inf"), float("nan"), -1.0])
def test_times_add_up_to_a_number(time: float) -> None:
    with pytest.raises(OptionError, match="time is"):
        even_times(2, time)
