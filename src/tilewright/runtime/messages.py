"""Run a message program over real processes, by `torch.distributed`'s point-to-point calls.

The idea: a round is entered by posting its receive, then its send, and left when both are done, so
that ranks that wait for each other have already promised what the other needs: no order of arrival
can lock them.  What came is taken in only then, as all of a round is sent at once.

A program comes in as a value with the shape of `MessageProgram` below.  This module does not know
who makes it, nor what it should cost; it counts what it sends.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from tilewright.base.errors import CollectiveError, OptionError

BACKEND = "gloo"
COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Message(Protocol):
    """Chunks from one rank to another, kept there or combined with what is there."""

    @property
    def source(self) -> int:
        """The rank that sends."""

    @property
    def target(self) -> int:
        """The rank that receives."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Which chunks."""

    @property
    def reduce(self) -> bool:
        """Whether they are combined."""


class MessageProgram(Protocol):
    """Rounds of messages, and which chunks of what lengths a rank begins and ends with."""

    @property
    def ranks(self) -> int:
        """How many take part."""

    @property
    def rounds(self) -> Sequence[Sequence[Message]]:
        """Messages under way together: a rank sends one and receives one at most."""

    def begins(self, rank: int) -> tuple[int, ...]:
        """Return the chunks that a rank has at first."""

    def ends(self, rank: int) -> tuple[int, ...]:
        """Return the chunks that a rank has at last."""

    def lengths(self, elements: int) -> tuple[int, ...]:
        """Return the elements of each chunk, of vectors of so many."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sent and received: messages, and bytes in them."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0


def run_messages(
    program: MessageProgram,
    vector: torch.Tensor,
    *,
    elements: int,
    op: str = "sum",
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, Traffic]:
    """Return the chunks that this rank ends with, one after the other, and what it sent for them.

    vector: one dim, the chunks that this rank begins with, one after the other; it is not changed.
    Ranks that begin with none give an empty vector of the same type.  elements: of the vector that
    the program is about.  op: "sum", "prod", "min" or "max".  All ranks of the group must call this
    with the same program, elements and op, over Gloo (`agree` finds out whether they do); messages
    of no elements are not sent.

    Raises OptionError or CollectiveError, before anything is sent, where the call does not fit.
    """
    rank = _check(program, vector, elements, op, group)
    course = _Course(rank, program.lengths(elements), COMBINE[op], vector, group)
    first = program.begins(rank)
    parts = vector.split([course.lengths[chunk] for chunk in first]) if first else ()
    held = dict(zip(first, parts, strict=True))
    counts = [course.exchange(number, round_, held) for number, round_ in enumerate(program.rounds)]
    last = [held[chunk] for chunk in program.ends(rank)]
    size = vector.element_size()
    sent, received = ([pair[way] * size for pair in counts if pair[way]] for way in (0, 1))
    traffic = Traffic(len(sent), sum(sent), len(received), sum(received))
    return torch.cat(last) if last else vector.new_empty(0), traffic


def agree(
    program: MessageProgram,
    *,
    elements: int,
    dtype: torch.dtype,
    op: str = "sum",
    group: dist.ProcessGroup | None = None,
) -> None:
    """Raise CollectiveError, on every rank, unless all are about to run the same messages.

    Ranks that differ would wait for each other until Gloo gives up.  To be asked once for a
    program, by all ranks of the group: digests are gathered by torch's own all-gather.
    """
    said = repr((program.ranks, program.rounds, program.lengths(elements), str(dtype), op))
    digest = hashlib.sha256(said.encode()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group)
    others = [rank for rank, theirs in enumerate(all_of_them) if not theirs.equal(all_of_them[0])]
    if others:
        raise CollectiveError(
            "ranks are about to run different messages",
            expected="one program, of one length, type and operator, on all ranks",
            found=f"others than on rank 0 on rank {', '.join(map(str, others))}",
            mend="make the program from the same numbers everywhere, or send its text to all",
        )


@dataclass(frozen=True, slots=True)
class _Course:
    """What stays the same while one rank runs a program.  like: of what type and where data is."""

    rank: int
    lengths: tuple[int, ...]
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    like: torch.Tensor
    group: dist.ProcessGroup | None

    def exchange(
        self, number: int, round_: Sequence[Message], held: dict[int, torch.Tensor]
    ) -> tuple[int, int]:
        """Do this rank's part of a round; return how many elements it sent and received."""
        waiting = []
        sent = received = 0
        come: tuple[Message, torch.Tensor] | None = None
        for message in round_:
            if message.target == self.rank and (received := self._elements(message)):
                come = message, self.like.new_empty(received)
                waiting.append(dist.irecv(come[1], self._peer(message.source), self.group, number))
        for message in round_:
            if message.source == self.rank and (sent := self._elements(message)):
                data = torch.cat([held[chunk] for chunk in message.chunks])
                waiting.append(dist.isend(data, self._peer(message.target), self.group, number))
        for work in waiting:
            assert work is not None, "a rank outside the group does not run its programs"
            work.wait()
        if come is not None:
            self._take_in(*come, held)
        return sent, received

    def _take_in(self, message: Message, data: torch.Tensor, held: dict[int, torch.Tensor]) -> None:
        parts = data.split([self.lengths[chunk] for chunk in message.chunks])
        for chunk, part in zip(message.chunks, parts, strict=True):
            held[chunk] = self.combine(held[chunk], part) if message.reduce else part

    def _elements(self, message: Message) -> int:
        return sum(self.lengths[chunk] for chunk in message.chunks)

    def _peer(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def _check(
    program: MessageProgram,
    vector: torch.Tensor,
    elements: int,
    op: str,
    group: dist.ProcessGroup | None,
) -> int:
    """Return this process's rank in the group."""
    if op not in COMBINE:
        raise OptionError(
            f"ranks' values are not combined by {op!r}",
            expected=f"one of {', '.join(COMBINE)}",
            found=repr(op),
        )
    if dist.get_backend(group) != BACKEND:
        # NCCL runs what a rank posts one after the other: two that both receive first would wait.
        raise CollectiveError(
            "message programs run over processes that Gloo joins",
            expected=BACKEND,
            found=dist.get_backend(group),
            mend=f"give a group of its own: dist.new_group(ranks, backend={BACKEND!r})",
        )
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks != program.ranks or rank < 0:
        raise CollectiveError(
            "a message program is run by as many processes as it has ranks",
            expected=f"{program.ranks} processes",
            found=f"{ranks} in the group" if rank >= 0 else "a process that is not in the group",
            mend=f"make the program for {ranks} ranks",
        )
    lengths = program.lengths(elements)
    due = sum(lengths[chunk] for chunk in program.begins(rank))
    if tuple(vector.shape) != (due,):
        raise CollectiveError(
            f"rank {rank} begins with another vector",
            expected=f"one dim of {due} elements, its part of {elements}",
            found=f"the shape {tuple(vector.shape)}",
            mend="flatten it, and give every rank the chunks that it begins with",
        )
    return rank
