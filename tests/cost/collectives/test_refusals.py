"""What a user reads of a message program that is wrong: each message whole, against its golden."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.errors import MessageError, OptionError
from tilewright.cost import MessageProgram, Network, build_program, parse_program, price, verify
from tilewright.cost.collectives import show_program

Golden = Callable[[str, str], None]

GATHER = "all-gather by hand: 3 ranks, 3 chunks\n"
REDUCE = "reduce by hand: 3 ranks, 1 chunk, root 0\n"

FAULTY = {
    "sends_what_it_lacks": GATHER + "round\n 0 -> 1 copy 0\n 1 -> 2 copy 0\n",
    "sends_twice": GATHER + "round\n 0 -> 1 copy 0\n 0 -> 2 copy 0\n",
    "receives_twice": GATHER + "round\n 0 -> 1 copy 0\nround\n 0 -> 2 copy 0\n 1 -> 2 copy 1\n",
    "sends_to_itself": GATHER + "round\n 2 -> 2 copy 2\n",
    "never_gets": GATHER + "round\n 0 -> 1 copy 0\n 1 -> 2 copy 1\n 2 -> 0 copy 2\n",
    "combines_where_nothing_is_combined": GATHER + "round\n 0 -> 1 reduce 0\n",
    "combines_twice": REDUCE
    + "round\n 1 -> 0 reduce 0\nround\n 1 -> 2 reduce 0\nround\n 2 -> 0 reduce 0\n",
    "combines_too_little": REDUCE + "round\n 1 -> 0 reduce 0\n",
    "overwrites_a_contribution": REDUCE + "round\n 1 -> 0 reduce 0\nround\n 2 -> 0 copy 0\n",
    "combines_twice_what_it_was_sent": "reduce-scatter by hand: 2 ranks, 2 chunks\n"
    "round\n 0 -> 1 reduce 1\n 1 -> 0 reduce 0\nround\n 0 -> 1 reduce 1\n",
    "blocks_of_unlike_lengths": "all-gather by hand: 3 ranks, 4 chunks\n",
    "pairs_without_chunks": "all-to-all by hand: 3 ranks, 3 chunks\n",
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_program_that_does_not_deliver_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(MessageError) as caught:
        verify(parse_program(FAULTY[name]))
    golden(f"faulty_{name}.txt", str(caught.value))


MADE = {
    "unknown_collective": MessageProgram("allreduce", "x", 2, 1, ()),
    "no_ranks": MessageProgram("all-reduce", "x", 0, 1, ()),
    "root_of_none": MessageProgram("all-reduce", "x", 2, 1, (), root=1),
}


@pytest.mark.parametrize("name", MADE)
def test_a_program_of_nothing_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(MessageError) as caught:
        verify(MADE[name])
    golden(f"made_{name}.txt", str(caught.value))


MISWRITTEN = {
    "empty": "\n  \n",
    "unknown_collective": "all-greet by ring: 3 ranks, 3 chunks",
    "no_variant": "all-gather by : 3 ranks, 3 chunks",
    "no_root": "broadcast by tree: 3 ranks, 1 chunk",
    "a_root_too_many": "all-gather by ring: 3 ranks, 3 chunks, root 1",
    "no_ranks": "all-gather by ring: 0 ranks, 3 chunks",
    "huge": "all-gather by ring: 999999999 ranks, 3 chunks",
    "a_message_before_a_round": GATHER + "  0 -> 1 copy 0",
    "no_such_rank": GATHER + "round\n  0 -> 3 copy 0",
    "no_such_chunk": GATHER + "round\n  0 -> 1 copy 0, 3",
    "no_more_chunks": GATHER + "round\n  0 -> 1 copy 0-2, 3",
    "chunks_out_of_order": GATHER + "round\n  0 -> 1 copy 1, 0",
    "no_verb": GATHER + "round\n  0 -> 1 send 0",
    "cut_short": GATHER + "round\n  0 -> 1 copy 0-",
    "more_on_the_line": GATHER + "round\n  0 -> 1 copy 0 1",
    "a_strange_character": GATHER + "round\n  0 => 1 copy 0",
}


@pytest.mark.parametrize("name", MISWRITTEN)
def test_a_text_that_is_no_program_is_refused_with_its_place(name: str, golden: Golden) -> None:
    with pytest.raises(MessageError) as caught:
        parse_program(MISWRITTEN[name])
    golden(f"text_{name}.txt", str(caught.value))


ASKED: dict[str, Callable[[], object]] = {
    "unknown_collective": lambda: build_program("allreduce", "ring", 4),
    "unknown_variant": lambda: build_program("all-reduce", "rings", 4),
    "no_ranks": lambda: build_program("all-reduce", "ring", 0),
    "no_such_root": lambda: build_program("broadcast", "chain", 4, root=4),
    "root_of_none": lambda: build_program("all-reduce", "ring", 4, root=1),
    "no_segments": lambda: build_program("broadcast", "chain", 4, segments=0),
    "segments_of_a_whole": lambda: build_program("broadcast", "binomial", 4, segments=2),
    "uneven_nodes": lambda: build_program("all-reduce", "hierarchical", 6, node=4),
    "negative_size": lambda: price(
        "all-reduce", "ring", Network.flat(2, latency=0.0, bandwidth=1.0), -1
    ),
    "no_bandwidth": lambda: Network.flat(2, latency=0.0, bandwidth=0.0),
    "no_latency": lambda: Network.flat(2, latency=-1e-6, bandwidth=1e9),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_collective_that_is_not_possible_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(OptionError) as caught:
        ASKED[name]()
    golden(f"asked_{name}.txt", str(caught.value))


@given(st.text(alphabet="all-gtherby:0123456789 ,\n>copydcunksr", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    _read_or_refused(text)


@given(st.integers(0, 200), st.integers(0, 200), st.text(max_size=4))
def test_any_altered_program_is_read_or_refused(start: int, length: int, text: str) -> None:
    whole = show_program(build_program("all-reduce", "ring", 3))
    _read_or_refused(whole[:start] + text + whole[start + length :])


def _read_or_refused(text: str) -> None:
    try:
        program = parse_program(text)
    except MessageError:
        return
    assert parse_program(show_program(program)) == program
