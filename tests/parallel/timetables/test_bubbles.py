"""What timetables cost on the clock: published tables, closed forms, and an independent clock."""

import itertools
import random
import time

import pytest
from bench.published_timetables import ROWS, Row

from tilewright.base.errors import OptionError
from tilewright.parallel import (
    TIMETABLES,
    Pass,
    Times,
    Timetable,
    even_times,
    make_timetable,
    peak_activations,
    read_times,
    read_timetable,
    simulate,
    verify_timetable,
)
from tilewright.parallel.timetables import Kind

EXACT = 1e-9


def _times(row: Row, chunks: int = 1) -> Times:
    parts = (time / chunks for time in (row.forward, row.input_grad, row.weight_grad))
    return even_times(row.ranks * chunks, *parts, row.transfer)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_published_bubbles_come_out_of_the_simulator(row: Row) -> None:
    published = {"1f1b": row.one_f_one_b, "zb-h1": row.h1, "zb-h2": row.h2}
    for name, bubble in published.items():
        made = simulate(make_timetable(name, row.ranks, row.micro_batches), _times(row))
        assert made.bubble_without_barrier.of_total == pytest.approx(bubble, abs=1e-4)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_interleaved_bubble_is_the_closed_form_less_hops_of_the_last_transfers(
    row: Row,
) -> None:
    work = row.forward + row.input_grad + row.weight_grad
    p, v, m = row.ranks, row.chunks, row.micro_batches
    cost = m * work + (p - 1) * work / v + ((2 * v - 1) * p - 2) * row.transfer
    assert (cost - m * work) / cost == pytest.approx(row.interleaved, abs=1e-4)
    made = simulate(make_timetable("interleaved", p, m, v), _times(row, v))
    assert 0 <= made.bubble.of_total - row.interleaved <= 0.004


@pytest.mark.parametrize(("p", "m"), [*itertools.product((1, 2, 4, 7), (1, 2, 5, 16))])
def test_gpipe_and_1f1b_lose_p_minus_1_micro_batches(p: int, m: int) -> None:
    for name in ("gpipe", "1f1b"):
        made = simulate(make_timetable(name, p, m), even_times(p, 2.0, 3.0, 1.5))
        assert made.bubble.cost == pytest.approx((m + p - 1) * 6.5, abs=EXACT)
        assert made.bubble.of_total == pytest.approx((p - 1) / (m + p - 1), abs=EXACT)
        assert made.bubble.of_ideal == pytest.approx((p - 1) / m, abs=EXACT)


@pytest.mark.parametrize(("p", "v", "groups"), [(2, 2, 1), (4, 2, 2), (4, 3, 4), (8, 4, 2)])
@pytest.mark.parametrize("name", ["interleaved", "breadth-first"])
def test_interleaving_divides_the_bubble_by_the_chunks(
    name: str, p: int, v: int, groups: int
) -> None:
    m = p * groups
    made = simulate(make_timetable(name, p, m, v), even_times(p * v, 1 / v, 1 / v, 1 / v))
    assert made.bubble.of_ideal == pytest.approx((p - 1) / (v * m), abs=EXACT)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 20), (8, 32)])
def test_zero_bubble_closed_forms(p: int, m: int) -> None:
    f, b, w = 3.0, 2.9, 1.3
    h1 = simulate(make_timetable("zb-h1", p, m), even_times(p, f, b, w))
    assert h1.bubble.cost - h1.bubble.work == pytest.approx((p - 1) * (f + b - w), abs=EXACT)
    even = simulate(make_timetable("zb-h2", p, max(m, 2 * p)), even_times(p))
    assert even.bubble_without_barrier.of_total == pytest.approx(0, abs=EXACT)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 2), (8, 2), (8, 4), (8, 8), (5, 3)])
def test_few_micro_batches_take_their_known_time(p: int, m: int) -> None:
    f, b, w = 18.5, 18.1, 9.3
    one = simulate(make_timetable("1f1b", p, m), even_times(p, f, b, w))
    assert one.makespan == pytest.approx((m + p - 1) * (f + b + w), abs=EXACT)
    split = simulate(make_timetable("zb-h2", p, m), even_times(p, f, b, w))
    assert split.makespan >= (m + p - 1) * (f + b) + w - EXACT


@pytest.mark.parametrize(("p", "m"), [*itertools.product((2, 4, 6, 8), (1, 2, 4))])
def test_chimera_loses_p_minus_2_slots(p: int, m: int) -> None:
    n = p * m
    made = simulate(make_timetable("chimera", p, n), even_times(p, 2.0, 1.0, 1.0))
    assert made.bubble.of_total == pytest.approx((p - 2) / (2 * n + p - 2), abs=EXACT)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("rounds", [2.0, 2.5, 4.0])
def test_zb_v_has_no_bubble_in_the_memory_of_1f1b(p: int, rounds: float) -> None:
    table = make_timetable("zb-v", p, int(rounds * p))
    made = simulate(table, even_times(2 * p))
    assert made.bubble_without_barrier.of_total == pytest.approx(0, abs=EXACT)
    half = (0.5,) * (2 * p)
    assert max(peak_activations(table, half, half)) == p


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 8, 12, 16])
def test_v_half_and_v_min_trade_activations_for_bubble(p: int) -> None:
    """Published: 1/2 and 1/3 of 1F1B's activations, 1/2 and 2/3 of its bubble, and a constant."""
    lost_by_1f1b = (p - 1) * 3.0
    halves = (0.5,) * (2 * p)
    for name, share, lost_share in (("v-half", 1 / 2, 1 / 2), ("v-min", 1 / 3, 2 / 3)):
        table = make_timetable(name, p, 4 * p)
        made = simulate(table, even_times(2 * p, 0.5, 0.5, 0.5))
        assert max(peak_activations(table, halves, halves)) <= share * p + 1.5
        assert made.bubble.cost - made.bubble.work <= lost_share * lost_by_1f1b + 2.5


@pytest.mark.parametrize("overlap", [0.0, 0.4])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 20), (8, 32)])
def test_dualpipe_loses_its_closed_form(p: int, m: int, overlap: float) -> None:
    f, b, w = 1.0, 1.0, 1.0
    pair = f + b + w - overlap * f
    for name, ranks, halves in (("dualpipe", p, p // 2), ("dualpipe-v", p, p)):
        table = make_timetable(name, ranks, m)
        made = simulate(table, even_times(table.stages, f, b, w, overlap=overlap))
        lost = (halves - 1) * (pair + b + w - 3 * w)
        pairs = [sum(len(action) == 2 for action in actions) for actions in table.ranks]
        chunks = m * table.stages // ranks if name == "dualpipe-v" else m
        # A rank whose passes are paired less often has less of the overlap's gain to show.
        work = chunks * (f + b + w) - max(pairs) * overlap * f
        assert made.makespan == pytest.approx(work + lost, abs=EXACT)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_terapipe_takes_all_slices_and_p_minus_1_of_the_longest(p: int) -> None:
    slices = (0.4, 0.3, 0.2, 0.1)
    forward = Times((1.0,) * p, (0.0,) * p, (0.0,) * p, (0.0,) * (p - 1), slices)
    made = simulate(make_timetable("terapipe", p, 1, 4), forward)
    assert made.makespan == pytest.approx(1.0 + (p - 1) * 0.4, abs=EXACT)


def test_a_hand_made_timetable_with_unequal_stages_and_transfers() -> None:
    table = read_timetable(
        "timetable mine stages 2 micro-batches 2\n"
        "rank 0: 0F0 0F1 0BW0 0B1 0W1\n"
        "rank 1: 1F0 1BW0 1F1 1BW1\n"
    )
    verify_timetable(table)
    times = Times((1.0, 2.0), (3.0, 2.0), (1.0, 1.0), (0.5,))
    made = simulate(table, times)
    assert made.starts == ((0.0, 1.0, 7.0, 12.0, 15.0), (1.5, 3.5, 6.5, 8.5))
    assert made.ends == ((1.0, 2.0, 11.0, 15.0, 16.0), (3.5, 6.5, 8.5, 11.5))
    assert made.busy == (10.0, 10.0)
    assert (made.makespan, made.longest) == (16.0, 16.0)
    steps = [(str(step.action[0]), step.start, step.waited) for step in made.path]
    assert steps == [
        ("0F0", 0.0, 0.0),
        ("1F0", 1.5, 0.5),
        ("1BW0", 3.5, 0.0),
        ("1F1", 6.5, 0.0),
        ("1BW1", 8.5, 0.0),
        ("0B1", 12.0, 0.5),
        ("0W1", 15.0, 0.0),
    ]


def test_a_transfer_that_is_not_hidden_keeps_the_sender() -> None:
    table = make_timetable("gpipe", 2, 2)
    beside = simulate(table, Times((1.0,) * 2, (1.0,) * 2, (1.0,) * 2, (0.5,)))
    alone = simulate(table, Times((1.0,) * 2, (1.0,) * 2, (1.0,) * 2, (0.5,), hidden=0.0))
    assert beside.starts[0][:2] == (0.0, 1.0)
    assert alone.starts[0][:2] == (0.0, 1.5)
    assert alone.busy == beside.busy


def _relaxed_ends(table: Timetable, times: Times) -> list[list[float]]:
    """Ends of all actions by the plainest means: raise what is too early until nothing is."""
    made = {
        ("B" if part.kind == "BW" else part.kind, part.stage, part.micro_batch): (rank, at)
        for rank, row in enumerate(table.ranks)
        for at, action in enumerate(row)
        for part in action
    }
    takes, needs, sends = {}, {}, {}
    for rank, row in enumerate(table.ranks):
        for at, action in enumerate(row):
            place, lengths = (rank, at), [_length(part, times) for part in action]
            paired = times.overlap * min(lengths) if len(lengths) > 1 else 0.0
            takes[place], needs[place] = sum(lengths) - paired, []
            sends[place] = 0.0
            for part in action:
                share = times.slices[part.micro_batch % len(times.slices)]
                for key in _needed(table, part):
                    crosses = made[key][0] != rank
                    hop = times.transfer[min(key[1], part.stage)] * share if crosses else 0.0
                    needs[place].append((made[key], hop))
                to = part.stage + {"F": 1, "B": -1, "BW": -1}.get(part.kind, 0)
                there = made.get(("F", to, part.micro_batch), place)
                if there[0] != rank:
                    kept = times.transfer[min(to, part.stage)] * share
                    sends[place] += (1 - times.hidden) * kept
    ends = dict(takes)
    for _ in range(len(ends) + 1):
        before = dict(ends)
        for place, inputs in needs.items():
            rank, at = place
            start = max((ends[one] + hop for one, hop in inputs), default=0.0)
            if at:
                start = max(start, ends[rank, at - 1] + sends[rank, at - 1])
            ends[place] = max(ends[place], start + takes[place])
        if ends == before:
            return [[ends[r, at] for at in range(len(row))] for r, row in enumerate(table.ranks)]
    raise AssertionError("a circle")


def _length(part: Pass, times: Times) -> float:
    f, b, w = (row[part.stage] for row in (times.forward, times.input_grad, times.weight_grad))
    whole = {"F": f, "B": b, "W": w, "BW": b + w, "U": 0.0}[part.kind]
    return whole * times.slices[part.micro_batch % len(times.slices)]


def _needed(table: Timetable, part: Pass) -> list[tuple[str, int, int]]:
    s, n, k, last = part.stage, part.micro_batch, table.slices, table.stages - 1
    if part.kind in ("W", "U"):
        return [("B", s, n)]
    if part.kind == "F":
        return [("F", s - 1, n)] * (s > 0) + [("F", s, n - 1)] * (n % k > 0)
    return [("F", s, n)] + [("B", s + 1, n)] * (s < last) + [("B", s, n + 1)] * ((n + 1) % k > 0)


@pytest.mark.parametrize("kind", TIMETABLES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 2), (4, 9)])
def test_the_simulator_agrees_with_relaxation(kind: Kind, p: int, m: int) -> None:
    table = make_timetable(kind.name, p, m, 3 if kind.parts else 1)
    draw = random.Random(p * m)
    forward, input_grad, weight_grad, transfer = (
        tuple(draw.uniform(low, 2) for _ in range(table.stages)) for low in (0.5, 0.5, 0, 0)
    )
    slices = tuple(draw.uniform(0.1, 1) for _ in range(table.slices)) if table.slices > 1 else (1,)
    for overlap, hidden in ((0.0, 1.0), (0.6, 0.3)):
        times = Times(
            forward, input_grad, weight_grad, transfer[1:], slices, overlap=overlap, hidden=hidden
        )
        for mine, wanted in zip(
            simulate(table, times).ends, _relaxed_ends(table, times), strict=True
        ):
            assert mine == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", TIMETABLES, ids=lambda kind: kind.name)
def test_32_stages_and_256_micro_batches_take_less_than_a_second(kind: Kind) -> None:
    for _ in range(3):  # as others may be running
        start = time.process_time()
        table = make_timetable(kind.name, 32, 256, 2 if kind.parts else 1)
        made = simulate(table, even_times(table.stages, 1.0, 0.9, 0.8, 0.05))
        seconds = time.process_time() - start
        assert made.makespan > 256
        if seconds < 1:
            return
    raise AssertionError(f"{seconds:.2f} s")


def test_times_are_read_for_a_rank_and_shared_by_its_chunks() -> None:
    found = read_times("F=2,B=4:6,comm=0.5", (0, 1, 1, 0))
    assert found == Times((1.0,) * 4, (2.0, 3.0, 3.0, 2.0), (0.5,) * 4, (0.5,) * 3)
    assert read_times("", (0, 1)) == even_times(2)


@pytest.mark.parametrize("text", ["G=1", "F=1,F=2", "F=one", "F=1:2:3", "F=", "F=-1", "F=nan"])
def test_times_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        read_times(text, (0, 1))


def test_times_of_another_pipeline_are_refused() -> None:
    with pytest.raises(OptionError, match="another pipeline"):
        simulate(make_timetable("1f1b", 4, 4), even_times(3))
    with pytest.raises(OptionError, match="not of one number"):
        Times((1.0,), (1.0, 1.0), (1.0,), ())
