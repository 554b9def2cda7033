"""Timetables are legal for any number of ranks and micro-batches, print, parse, and say what they
hold; what is not legal is refused with the reason."""

import itertools
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

from tilewright.base.errors import OptionError, TilewrightError
from tilewright.parallel import (
    TIMETABLES,
    Pass,
    Timetable,
    in_flight,
    make_timetable,
    peak_activations,
    read_timetable,
    show_timetable,
    ticks,
    verify_timetable,
)

Golden = Callable[[str, str], None]
TWO_WAY = ("chimera", "dualpipe")


def _all_of(p: int, m: int) -> Iterator[Timetable]:
    for kind in TIMETABLES:
        if p % 2 and kind.name in TWO_WAY:
            continue
        for parts in (1, 2, 3) if kind.parts else (1,):
            yield make_timetable(kind.name, p, m, parts)


@pytest.mark.parametrize(("p", "m"), [*itertools.product((1, 2, 3, 4, 6), (1, 2, 3, 5, 9, 16))])
def test_every_timetable_is_legal_for_any_ranks_and_micro_batches(p: int, m: int) -> None:
    for table in _all_of(p, m):
        verify_timetable(table)
        assert len(table.ranks) == p
        assert (table.micro_batches, table.units) == (m, m * table.slices)
        held = [stage for rank in range(p) for stage in table.stages_of(rank)]
        copies = 2 if table.name in TWO_WAY and m > 1 else 1
        assert sorted(held) == sorted([*range(table.stages)] * copies)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 8)])
def test_the_text_of_every_timetable_reads_back(p: int, m: int) -> None:
    for table in _all_of(p, m):
        assert read_timetable(show_timetable(table)) == table


PASSES = st.builds(
    Pass,
    st.sampled_from(("F", "B", "W", "BW", "U")),
    st.integers(0, 99),
    st.integers(0, 999),
    st.none() | st.integers(0, 99),
)
ROWS = st.lists(st.lists(PASSES, min_size=1, max_size=2).map(tuple), max_size=6).map(tuple)


@hypothesis.given(
    st.builds(
        Timetable,
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,8}", fullmatch=True),
        st.integers(1, 9999),
        st.integers(1, 9999),
        st.lists(ROWS, max_size=4).map(tuple),
        st.integers(1, 9),
    )
)
def test_the_text_of_any_value_reads_back(table: Timetable) -> None:
    assert read_timetable(show_timetable(table)) == table


@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 4), (4, 3), (4, 12)])
def test_ticks_are_one_action_for_a_rank_and_after_what_is_needed(p: int, m: int) -> None:
    for table in _all_of(p, m):
        made = ticks(table)
        places = [(item.tick, item.rank) for item in made]
        assert len(set(places)) == len(places) == sum(map(len, table.ranks))
        at = {(part.kind[0], part.stage, part.micro_batch): item.tick for item in made
              for part in item.action}  # fmt: skip
        for (kind, stage, n), tick in at.items():
            if kind == "F" and stage:
                assert tick > at["F", stage - 1, n]
            if kind == "B":
                assert tick > at["F", stage, n]
                assert stage == table.stages - 1 or tick > at["B", stage + 1, n]
            if kind == "W":
                assert tick > at["B", stage, n]


def test_a_rank_that_only_frees_held_nothing() -> None:
    table = read_timetable("timetable x stages 1 micro-batches 1\nrank 0: 0W0\n")
    assert peak_activations(table, (1.0,), (0.4,)) == (0.0,)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 2), (4, 4), (4, 16), (8, 32)])
def test_activations_in_flight_are_the_published_counts(p: int, m: int) -> None:
    flight = {name: in_flight(make_timetable(name, p, m)) for name in ("gpipe", "1f1b")}
    assert flight["gpipe"] == (m,) * p
    assert flight["1f1b"] == tuple(min(m, p - i) for i in range(p))
    for v in (1, 2, 4):
        assert in_flight(make_timetable("breadth-first", p, m, v)) == (m * v,) * p
        if m % p == 0 and m > p:
            first = in_flight(make_timetable("interleaved", p, m, v))[0]
            assert first / v == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 40)])
def test_zero_bubble_holds_the_published_bytes(p: int, m: int) -> None:
    held, kept = (34.0,) * p, (32.0,) * p
    h1 = peak_activations(make_timetable("zb-h1", p, m), held, kept)
    assert h1 == tuple((p - i) * 34.0 + i * 32.0 for i in range(p))
    h2 = peak_activations(make_timetable("zb-h2", p, m), held, kept)
    assert h2 == tuple((2 * p - 2 * i - 1) * 34.0 + 2 * i * 32.0 for i in range(p))


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_two_way_pipelines_hold_the_published_counts(p: int) -> None:
    found = in_flight(make_timetable("chimera", p, 4 * p))
    assert (min(found), max(found)) == (p // 2 + 1, p)
    assert in_flight(make_timetable("dualpipe", p, 3 * p)) == (p + 1,) * p
    folded = make_timetable("dualpipe-v", p, 3 * p)
    assert in_flight(folded) == (folded.stages + 1,) * p


def test_pairs_hold_what_both_passes_need() -> None:
    table = read_timetable("timetable t stages 1 micro-batches 2\nrank 0: 0F0 0F1&0BW0 0BW1\n")
    verify_timetable(table)
    assert peak_activations(table, (3.0,), (1.0,)) == (6.0,)


def test_slices_are_held_by_their_share() -> None:
    table = make_timetable("terapipe", 2, 2, 2)
    assert peak_activations(table, (8.0, 8.0), (0.0, 0.0), (0.75, 0.25)) == (16.0, 16.0)


def _edited(name: str, old: str, text: str) -> str:
    made = show_timetable(make_timetable(name, 2, 2))
    assert old in made
    return made.replace(old, text, 1)


ILLEGAL = {
    "missing_receive": _edited("1f1b", "0F1 ", ""),
    "cycle": _edited("1f1b", "1F0 1BW0", "1BW0 1F0"),
    "cycle_of_ranks": _edited("1f1b", "0F0 0F1 0BW0", "0F0 0BW0 0F1").replace(
        "1F0 1BW0 1F1", "1F0 1F1 1BW0"
    ),
    "missing_weights": _edited("zb-h1", " 1W1", ""),
    "pass_twice": _edited("1f1b", "1F1", "1F1 1F1"),
    "two_ranks": _edited("1f1b", " 1BW1", "").replace("0BW1", "1BW1 0BW1"),
    "no_pair": _edited("1f1b", "0F0 0F1", "0F0&0F1"),
    "no_such_stage": _edited("1f1b", "1F1", "2F1"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_timetable_is_refused_with_the_reason(name: str, golden: Golden) -> None:
    with pytest.raises(TilewrightError) as caught:
        verify_timetable(read_timetable(ILLEGAL[name]))
    golden(f"illegal_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


TEXTS = {
    "empty": "# nothing\n",
    "no_head": "rank 0: 0F0\n",
    "no_number": "timetable t stages two micro-batches 2\n",
    "zero": "timetable t stages 0 micro-batches 2\n",
    "too_much": "timetable t stages 1 micro-batches 2 slices 3 more\n",
    "wrong_rank": "timetable t stages 1 micro-batches 1\n\nrank 1: 0F0\n",
    "no_pass": "timetable t stages 1 micro-batches 1\nrank 0: 0F0 0X0\n",
    "half_a_pair": "timetable t stages 1 micro-batches 1\nrank 0: 0F0&0Q0\n",
    "cut_short": "timetable t stages 1 micro-batches\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_timetable_is_refused_at_its_line_and_column(
    name: str, golden: Golden
) -> None:
    with pytest.raises(TilewrightError) as caught:
        read_timetable(TEXTS[name])
    golden(f"text_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")


CHOICES = {
    "unknown_name": ("1f2b", 4, 4, 1),
    "chunks_of_none": ("1f1b", 4, 4, 2),
    "odd_ranks": ("dualpipe", 3, 4, 1),
    "no_ranks": ("1f1b", 0, 4, 1),
    "no_micro_batches": ("zb-h1", 4, 0, 1),
    "endless": ("interleaved", 1 << 40, 1 << 40, 1 << 20),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_that_means_nothing_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(OptionError) as caught:
        make_timetable(*CHOICES[name])
    golden(f"choice_{name}.txt", f"{type(caught.value).__name__}: {caught.value}")
