"""Every algorithm delivers, for every number of ranks and every root: by proof, and on numbers."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.cost.collectives.cases import ROWS, settings

from tilewright.base.errors import MessageError
from tilewright.cost.collectives import (
    COLLECTIVES,
    Message,
    MessageProgram,
    build_program,
    parse_program,
    show_program,
    verify,
)

RANKS = range(1, 18)


def programs(name: str, ranks: int, *, roots: bool = True) -> list[MessageProgram]:
    row = ROWS[name]
    return [
        build_program(
            row.collective, row.name, ranks, root=at.root, segments=at.segments, node=at.node
        )
        for at in settings(row, ranks, roots=roots)
    ]


@pytest.mark.parametrize("name", ROWS)
def test_every_variant_is_proved_to_deliver(name: str) -> None:
    for ranks in RANKS:
        for program in programs(name, ranks):
            verify(program)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("ranks", [23, 32, 36, 65])
def test_every_variant_is_proved_to_deliver_among_more_ranks(name: str, ranks: int) -> None:
    for program in programs(name, ranks)[:: ranks // 3]:
        verify(program)


def run(program: MessageProgram, vectors: np.ndarray) -> list[dict[int, Any]]:
    """Run a program on a number for each rank and chunk; messages of a round are sent first."""
    held = [{c: vectors[r, c] for c in program.begins(r)} for r in range(program.ranks)]
    for round_ in program.rounds:
        sent = [[held[m.source][c] for c in m.chunks] for m in round_]
        for message, numbers in zip(round_, sent, strict=True):
            for chunk, number in zip(message.chunks, numbers, strict=True):
                mine = held[message.target]
                mine[chunk] = mine[chunk] + number if message.reduce else number
    return held


def expected(program: MessageProgram, vectors: np.ndarray, chunk: int) -> int:
    """Return what a chunk is at the end, by the meaning of the collective's name."""
    ranks = program.ranks
    if COLLECTIVES[program.collective].reduces:
        return int(vectors[:, chunk].sum())
    if program.collective in ("broadcast", "scatter"):
        return int(vectors[program.root, chunk])
    if program.collective == "all-to-all":
        return int(vectors[chunk // ranks, chunk])
    return int(vectors[chunk * ranks // program.chunks, chunk])


@pytest.mark.parametrize("name", ROWS)
def test_numbers_arrive_where_the_collective_says(name: str) -> None:
    generator = np.random.default_rng(0)
    for ranks in (1, 2, 3, 6, 8, 13, 16):
        for program in programs(name, ranks)[:: max(1, ranks // 3)]:
            vectors = generator.integers(1, 1 << 40, (ranks, program.chunks))
            held = run(program, vectors)
            for rank in range(ranks):
                due = program.ends(rank)
                assert [held[rank][c] for c in due] == [expected(program, vectors, c) for c in due]


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("all-reduce")])
def test_every_rank_ends_an_all_reduce_with_the_same_bits(name: str) -> None:
    generator = np.random.default_rng(0)
    for ranks in (2, 3, 7, 8, 13):
        for program in programs(name, ranks):
            vectors = generator.standard_normal((ranks, program.chunks)).astype(np.float32)
            first, *others = run(program, vectors)
            assert all(held == first for held in others)


def test_what_ranks_begin_and_end_with_is_what_the_names_say() -> None:
    four = {name: MessageProgram(name, "x", 4, 8, (), root=0) for name in COLLECTIVES}
    own, whole = (2, 3), tuple(range(8))
    assert [four[name].begins(1) for name in ("broadcast", "scatter")] == [(), ()]
    assert [four[name].begins(0) for name in ("broadcast", "scatter")] == [whole, whole]
    assert [four[name].begins(1) for name in ("gather", "all-gather")] == [own, own]
    assert [four[name].ends(1) for name in ("scatter", "reduce-scatter")] == [own, own]
    assert [four[name].ends(1) for name in ("gather", "reduce")] == [(), ()]
    assert four["all-reduce"].begins(1) == four["all-reduce"].ends(1) == whole
    pairs = MessageProgram("all-to-all", "x", 3, 9, ())
    assert (pairs.begins(1), pairs.ends(1)) == ((3, 4, 5), (1, 4, 7))


# ---------------------------------------------------------------------- the proof finds every fault


@pytest.mark.parametrize("name", ROWS)
def test_a_program_without_one_of_its_messages_is_refused(name: str) -> None:
    for program in programs(name, 6, roots=False):
        for at, gone in needed(program):
            round_ = program.rounds[at]
            less = round_[:gone] + round_[gone + 1 :]
            rounds = (*program.rounds[:at], less, *program.rounds[at + 1 :])
            with pytest.raises(MessageError):
                verify(with_rounds(program, rounds))


def needed(program: MessageProgram) -> Iterator[tuple[int, int]]:
    """Yield which messages bring their target what it does not have yet.

    Broadcasts by scatter and all-gather send the root its own, as rings and doublings do not ask.
    """
    reduces = COLLECTIVES[program.collective].reduces
    held = [set(program.begins(rank)) for rank in range(program.ranks)]
    for at, round_ in enumerate(program.rounds):
        for number, message in enumerate(round_):
            if reduces or not held[message.target].issuperset(message.chunks):
                yield at, number
        for message in round_:
            held[message.target].update(message.chunks)


def with_rounds(program: MessageProgram, rounds: tuple[tuple[Message, ...], ...]) -> MessageProgram:
    return MessageProgram(
        program.collective, program.variant, program.ranks, program.chunks, rounds, program.root
    )


@pytest.mark.parametrize("name", [name for name in ROWS if "reduce" in name.split(" by ")[0]])
def test_a_contribution_that_is_combined_twice_is_refused(name: str) -> None:
    for program in programs(name, 6, roots=False):
        at = next(k for k, round_ in enumerate(program.rounds) if round_[0].reduce)
        twice = (*program.rounds[: at + 1], (program.rounds[at][0],), *program.rounds[at + 1 :])
        with pytest.raises(MessageError):
            verify(with_rounds(program, twice))


def delivers(program: MessageProgram, vectors: np.ndarray) -> bool:
    """Return whether numbers end where they should, with one message at a time to and from each."""
    for round_ in program.rounds:
        for ends in ([m.source for m in round_], [m.target for m in round_]):
            if len(set(ends)) < len(ends):
                return False
    try:
        held = run(program, vectors)
    except KeyError:  # a rank sends what it does not have
        return False
    return all(
        chunk in held[rank] and held[rank][chunk] == expected(program, vectors, chunk)
        for rank in range(program.ranks)
        for chunk in program.ends(rank)
    )


@st.composite
def altered(draw: st.DrawFn) -> MessageProgram:
    """Return a program some messages of which are changed, dropped, moved or sent twice."""
    name, ranks = draw(st.sampled_from(sorted(ROWS))), draw(st.integers(2, 5))
    program = draw(st.sampled_from(programs(name, ranks)))
    rounds = [list(round_) for round_ in program.rounds]
    for _ in range(draw(st.integers(0, 2))):
        at, to = draw(st.integers(0, len(rounds) - 1)), draw(st.integers(0, len(rounds) - 1))
        if not rounds[at]:
            continue
        message = rounds[at].pop(draw(st.integers(0, len(rounds[at]) - 1)))
        match draw(st.sampled_from(("drop", "move", "twice", "turn", "chunks"))):
            case "move":
                rounds[to].append(message)
            case "twice":
                rounds[at].append(message)
                rounds[to].append(message)
            case "turn":
                turned = Message(message.target, message.source, message.chunks, message.reduce)
                rounds[at].append(turned)
            case "chunks":
                some = draw(st.sets(st.integers(0, program.chunks - 1), min_size=1, max_size=3))
                kept = Message(message.source, message.target, tuple(sorted(some)), message.reduce)
                rounds[at].append(kept)
    return with_rounds(program, tuple(map(tuple, rounds)))


@hypothesis.settings(max_examples=400)
@hypothesis.given(altered(), st.integers(0, 1 << 30))
def test_the_proof_accepts_no_program_that_gives_wrong_numbers(
    program: MessageProgram, seed: int
) -> None:
    vectors = np.random.default_rng(seed).integers(1, 1 << 40, (program.ranks, program.chunks))
    try:
        verify(program)
    except MessageError:
        # It may refuse what happens to come out: a contribution that is combined twice and then
        # overwritten, say.  What it accepts is right.
        return
    assert delivers(program, vectors)


# --------------------------------------------------------------------------------- text, and counts


@pytest.mark.parametrize("name", ROWS)
def test_the_text_of_a_program_reads_back(name: str) -> None:
    for ranks in (1, 2, 5, 12):
        for program in programs(name, ranks):
            assert parse_program(show_program(program)) == program


def test_uneven_chunks_make_up_the_whole_vector() -> None:
    program = build_program("all-reduce", "ring", 5)
    assert program.lengths(13) == (3, 3, 3, 2, 2)
    assert build_program("all-to-all", "pairwise", 3).lengths(4) == (2, 1, 1) * 3


def test_a_parameter_server_carries_2n_p_minus_1_and_each_rank_of_a_ring_2n_p_minus_1_over_p() -> (
    None
):
    ranks, elements = 6, 600
    star, ring = (build_program("all-reduce", name, ranks) for name in ("star", "ring"))
    out = star.traffic(0, elements)[1]
    into = sum(star.traffic(rank, elements)[1] for rank in range(1, ranks))
    assert out + into == 2 * elements * (ranks - 1)
    for rank in range(ranks):
        assert ring.traffic(rank, elements) == (
            2 * (ranks - 1),
            2 * elements * (ranks - 1) // ranks,
        )
