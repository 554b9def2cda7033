"""A message program: who sends which chunks of a vector to whom, round by round.

The idea: a collective is data.  One value is proved to deliver (`verify`), priced (`simulate`),
drawn, printed, and run over real processes; the algorithms of the literature are only ways to make
it.  This module does not know any of them, nor what a message costs.

The words: a vector of n bytes is cut into *pieces* of (nearly) equal length.  For all collectives
but the all-to-all a chunk is a piece, and n is the whole vector: of a broadcast, reduction or
all-reduce what every rank has at the end or the beginning; of a gather or all-gather the result;
of a scatter or reduce-scatter what is parted.  In an all-to-all every rank has a vector of n bytes
with a piece for each rank: chunk `s * ranks + d` is what rank s has for rank d.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collective:
    """What is to be delivered.

    rooted: one rank begins with everything, or ends with it.  reduces: contributions of all ranks
    are combined (sum, prod, min or max: the messages are the same).  begin, end: who holds what,
    "all" (every rank the whole vector), "root", "own" (each rank its block), or "pairs".
    """

    name: str
    begin: str
    end: str
    reduces: bool = False

    @property
    def rooted(self) -> bool:
        """Whether one rank begins or ends with everything."""
        return "root" in (self.begin, self.end)


COLLECTIVES = {
    row.name: row
    for row in (
        Collective("broadcast", "root", "all"),
        Collective("reduce", "all", "root", reduces=True),
        Collective("scatter", "root", "own"),
        Collective("gather", "own", "root"),
        Collective("all-gather", "own", "all"),
        Collective("reduce-scatter", "all", "own", reduces=True),
        Collective("all-reduce", "all", "all", reduces=True),
        Collective("all-to-all", "pairs", "pairs"),
    )
}


@dataclass(frozen=True, slots=True)
class Message:
    """Chunks that one rank sends another.

    chunks: ascending.  reduce: the target combines them with what it holds, else it keeps them.
    """

    source: int
    target: int
    chunks: tuple[int, ...]
    reduce: bool = False


Round = tuple[Message, ...]
"""Messages that are under way together: a rank sends at most one and receives at most one."""

Rounds = tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class MessageProgram:
    """The rounds by which a collective is done.

    collective: a key of COLLECTIVES.  variant: the algorithm's name.  chunks: how many there are.
    root: 0 where the collective has none.
    """

    collective: str
    variant: str
    ranks: int
    chunks: int
    rounds: Rounds
    root: int = 0

    @property
    def pieces(self) -> int:
        """How many parts a vector is cut into."""
        return self.chunks // self.ranks if self.collective == "all-to-all" else self.chunks

    def begins(self, rank: int) -> tuple[int, ...]:
        """Return the chunks that a rank has before the first round."""
        if self.collective == "all-to-all":
            return tuple(range(rank * self.ranks, (rank + 1) * self.ranks))
        return self._held(COLLECTIVES[self.collective].begin, rank)

    def ends(self, rank: int) -> tuple[int, ...]:
        """Return the chunks that a rank must have after the last round, in order."""
        if self.collective == "all-to-all":
            return tuple(range(rank, self.chunks, self.ranks))
        return self._held(COLLECTIVES[self.collective].end, rank)

    def lengths(self, elements: int) -> tuple[int, ...]:
        """Return how many elements each chunk has, of vectors of so many: equal up to one."""
        whole, more = divmod(elements, self.pieces)
        return tuple(whole + (chunk % self.pieces < more) for chunk in range(self.chunks))

    def messages(self) -> Iterator[Message]:
        """Yield all messages, in order."""
        return (message for round_ in self.rounds for message in round_)

    def share(self, message: Message) -> float:
        """Return which part of a vector a message carries."""
        return len(message.chunks) / self.pieces

    def traffic(self, rank: int, elements: int) -> tuple[int, int]:
        """Return how many messages a rank sends, and how many elements in them.

        A message of no elements is not sent.
        """
        lengths = self.lengths(elements)
        sent = [
            sum(lengths[chunk] for chunk in message.chunks)
            for message in self.messages()
            if message.source == rank
        ]
        return sum(count > 0 for count in sent), sum(sent)

    def _held(self, who: str, rank: int) -> tuple[int, ...]:
        if who == "all" or (who == "root" and rank == self.root):
            return tuple(range(self.chunks))
        if who == "root":
            return ()
        block = self.chunks // self.ranks
        return tuple(range(rank * block, (rank + 1) * block))
