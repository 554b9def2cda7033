"""The proof that a message program delivers: it is run on sets of contributions.

The idea: what a rank has of a chunk is the set of ranks whose contribution is in it, one bit each.
A copy replaces the set, a reduction joins two, which must not overlap, or a sum would count twice.
At the end every chunk that is due must be there, with the contribution of every rank that has one.

This module does not know the algorithms, nor numbers.
"""

from collections.abc import Iterable, Iterator
from typing import NoReturn

from tilewright.base.errors import MessageError
from tilewright.cost.collectives.program import COLLECTIVES, Message, MessageProgram, Round
from tilewright.cost.collectives.text import show_message, show_numbers

Held = list[dict[int, int]]
"""For each rank, the chunks that it has, and whose contributions are in them."""


def verify(program: MessageProgram) -> None:
    """Raise MessageError, naming the first fault, unless the program delivers its collective.

    Checked: that ranks and chunks exist, that a rank sends at most one message in a round and
    receives at most one, that it sends only what it has, that no contribution is combined twice,
    and that at the end everybody has everything that is due.
    """
    *_, held = progress(program)
    _check_end(program, held)


def progress(program: MessageProgram) -> Iterator[Held]:
    """Yield what ranks have at first, and after each round; the same value, changed.

    Raises MessageError, as `verify` does, where a message cannot be sent or taken in.
    """
    _check_head(program)
    held: Held = [
        {chunk: 1 << rank for chunk in program.begins(rank)} for rank in range(program.ranks)
    ]
    yield held
    for number, round_ in enumerate(program.rounds):
        _check_ports(program, number, round_)
        # All messages of a round are sent before any of it is taken in.
        sent = [_taken(program, number, message, held) for message in round_]
        for message, masks in zip(round_, sent, strict=True):
            _deliver(number, message, masks, held)
        yield held


def _check_head(program: MessageProgram) -> None:
    if program.collective not in COLLECTIVES:
        _refuse("there is no such collective", ", ".join(COLLECTIVES), repr(program.collective))
    kind = COLLECTIVES[program.collective]
    if program.ranks < 1 or program.chunks < 1:
        _refuse(
            "a message program is for at least one rank and one chunk", "1 or more of each",
            f"{program.ranks} ranks, {program.chunks} chunks",
        )  # fmt: skip
    if not 0 <= program.root < program.ranks or (program.root and not kind.rooted):
        expected = f"a rank below {program.ranks}" if kind.rooted else "no root"
        _refuse("the root is not one", expected, f"{kind.name} with root {program.root}")
    if kind.name == "all-to-all" and program.chunks != program.ranks**2:
        _refuse(
            "an all-to-all has a chunk for each pair of ranks",
            f"{program.ranks**2} chunks for {program.ranks} ranks", str(program.chunks),
        )  # fmt: skip
    if "own" in (kind.begin, kind.end) and program.chunks % program.ranks:
        _refuse(
            "ranks have blocks of equally many chunks",
            f"a multiple of {program.ranks} chunks", str(program.chunks),
        )  # fmt: skip


def _check_ports(program: MessageProgram, number: int, round_: Round) -> None:
    senders: set[int] = set()
    receivers: set[int] = set()
    for message in round_:
        _check_message(program, number, message)
        for rank, busy, verb in (
            (message.source, senders, "sends"),
            (message.target, receivers, "receives"),
        ):
            if rank in busy:
                _refuse(
                    f"rank {rank} {verb} twice in round {number}",
                    f"at most one message that a rank {verb} in a round",
                    show_message(message),
                    mend="move one of them to a round of its own",
                )
            busy.add(rank)


def _check_message(program: MessageProgram, number: int, message: Message) -> None:
    where = f"in round {number}"
    ends = (message.source, message.target)
    if any(not 0 <= rank < program.ranks for rank in ends):
        _refuse(
            f"there is no such rank {where}", f"ranks below {program.ranks}", show_message(message)
        )
    if message.source == message.target:
        _refuse(
            f"rank {message.source} sends to itself {where}", "another rank", show_message(message)
        )
    chunks = message.chunks
    if not chunks or list(chunks) != sorted(set(chunks)):
        _refuse(f"chunks are not in order {where}", "each once, ascending", show_message(message))
    if chunks[0] < 0 or chunks[-1] >= program.chunks:
        _refuse(f"there is no such chunk {where}", f"below {program.chunks}", show_message(message))
    if message.reduce and not COLLECTIVES[program.collective].reduces:
        _refuse(
            f"{program.collective} combines nothing, but is told to {where}",
            "copy",
            show_message(message),
        )


def _taken(program: MessageProgram, number: int, message: Message, held: Held) -> list[int]:
    missing = [chunk for chunk in message.chunks if chunk not in held[message.source]]
    if missing:
        _refuse(
            f"rank {message.source} sends chunk {missing[0]} in round {number}, "
            "which it does not have",
            f"chunks that rank {message.source} has: {_listed(held[message.source])}",
            show_message(message),
            known=f"{program.collective} of {program.ranks} ranks",
        )
    return [held[message.source][chunk] for chunk in message.chunks]


def _deliver(number: int, message: Message, masks: list[int], held: Held) -> None:
    target = held[message.target]
    for chunk, mask in zip(message.chunks, masks, strict=True):
        twice = target.get(chunk, 0) & mask if message.reduce else 0
        if twice:
            _refuse(
                f"rank {message.target} combines a contribution with chunk {chunk} twice, "
                f"again in round {number}",
                "contributions that are not in it yet",
                f"{show_message(message)}, both with that of rank {_lowest(twice)}",
            )
        target[chunk] = target[chunk] | mask if message.reduce else mask


def _check_end(program: MessageProgram, held: Held) -> None:
    reduces = COLLECTIVES[program.collective].reduces
    every = (1 << program.ranks) - 1
    for rank in range(program.ranks):
        for chunk in program.ends(rank):
            mask = held[rank].get(chunk)
            if mask is None:
                _refuse(
                    f"rank {rank} never gets chunk {chunk}", "every chunk that is due to it",
                    f"it ends with {_listed(held[rank])}",
                )  # fmt: skip
            if reduces and mask != every:
                _refuse(
                    f"rank {rank} ends with chunk {chunk} without the contribution of rank "
                    f"{_lowest(every & ~mask)}",
                    "the contributions of all ranks",
                    f"those of ranks {_listed(k for k in range(program.ranks) if mask >> k & 1)}",
                )


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _listed(numbers: Iterable[int]) -> str:
    return show_numbers(sorted(numbers)) or "none"


def _refuse(
    summary: str, expected: str, found: str, *, known: str = "", mend: str = ""
) -> NoReturn:
    raise MessageError(summary, expected=expected, found=found, known=known, mend=mend)
