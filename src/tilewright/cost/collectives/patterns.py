"""The patterns that algorithms are put together from: trees, rings, doublings, pipelines.

The idea: a pattern is written once, for spreading data over ranks 0 ... p-1 from rank 0; others
follow from it.  Run backwards, with arrows turned and results combined, a broadcast is a reduction,
a scatter a gather, and an all-gather a reduce-scatter.  Relabelled, it works among any ranks.

Where p is no power of two, doublings work among the f = 2^floor(lg p) first ranks: rank f + i hands
its data to rank i before (*fold*) and gets the result from it after.

This module does not know collectives: what a pattern is good for is said in `variants`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from tilewright.cost.collectives.program import Message, Rounds

ChunkMap = Callable[[int], Iterable[int]]


# ------------------------------------------------------------------------------ out of other ones


def backwards(rounds: Rounds, *, reduce: bool) -> Rounds:
    """Return the rounds in reverse, every message sent back.

    reduce: what comes is combined.  Right if no rank was sent a chunk twice, or one that it had.
    """
    return tuple(
        tuple(Message(m.target, m.source, m.chunks, reduce) for m in round_)
        for round_ in reversed(rounds)
    )


def relabelled(
    rounds: Rounds, ranks: Sequence[int], chunks: ChunkMap = lambda chunk: (chunk,)
) -> Rounds:
    """Return the rounds among other ranks: rank r is `ranks[r]`, a chunk those it stands for."""

    def moved(message: Message) -> Message:
        carried = sorted({new for chunk in message.chunks for new in chunks(chunk)})
        return Message(ranks[message.source], ranks[message.target], tuple(carried), message.reduce)

    return tuple(tuple(map(moved, round_)) for round_ in rounds)


def together(parts: Iterable[Rounds]) -> Rounds:
    """Return rounds in which several groups of ranks do theirs at the same time."""
    return tuple(
        tuple(message for round_ in layer for message in round_)
        for layer in zip_longest(*parts, fillvalue=())
    )


def lower_power(ranks: int) -> int:
    """Return the largest power of two that is not above."""
    return 1 << (ranks.bit_length() - 1)


def _halves(ranks: int) -> list[int]:
    """Return the powers of two below, from the largest."""
    return [1 << k for k in reversed(range((ranks - 1).bit_length()))]


# -------------------------------------------------------------------------------- from one to all


def binomial_broadcast(ranks: int, chunks: int) -> Rounds:
    """Return a broadcast in which every rank that has the data sends, ceil(lg p) rounds."""
    whole = tuple(range(chunks))
    return tuple(
        tuple(Message(v, v + d, whole) for v in range(0, ranks - d, 2 * d)) for d in _halves(ranks)
    )


def binomial_scatter(ranks: int) -> Rounds:
    """Return a scatter of a chunk for each rank, in which halves of what is held are handed on."""
    return tuple(
        tuple(
            Message(v, v + d, tuple(range(v + d, min(v + 2 * d, ranks))))
            for v in range(0, ranks - d, 2 * d)
        )
        for d in _halves(ranks)
    )


def linear_broadcast(ranks: int, chunks: int) -> Rounds:
    """Return a broadcast in which rank 0 sends to each of the others in turn."""
    whole = tuple(range(chunks))
    return tuple((Message(0, v, whole),) for v in range(1, ranks))


def linear_scatter(ranks: int) -> Rounds:
    """Return a scatter in which rank 0 sends to each of the others in turn."""
    return tuple((Message(0, v, (v,)),) for v in range(1, ranks))


def chain(ranks: int, segments: int) -> Rounds:
    """Return a broadcast along a chain: while one segment comes, the last is handed on."""
    count = ranks - 2 + segments if ranks > 1 else 0
    return tuple(
        tuple(Message(v, v + 1, (at - v,)) for v in range(ranks - 1) if 0 <= at - v < segments)
        for at in range(count)
    )


def binary_tree(ranks: int, segments: int) -> Rounds:
    """Return a broadcast down a binary tree, in segments; v's children are 2v+1 and 2v+2.

    A rank sends each segment twice, so that a new one comes every other round.
    """
    rounds: dict[int, list[Message]] = {}
    for child in range(1, ranks):
        parent = (child - 1) // 2
        for segment in range(segments):
            at = tree_delay(child) - 1 + 2 * segment
            rounds.setdefault(at, []).append(Message(parent, child, (segment,)))
    return tuple(tuple(rounds[at]) for at in sorted(rounds))


def tree_delay(rank: int) -> int:
    """Return after how many rounds a rank of the binary tree has the first segment."""
    # The path from the root is the digits of rank + 1: a left turn takes one round, a right two.
    return (rank + 1).bit_length() + (rank + 1).bit_count() - 2


# ----------------------------------------------------------------------------- from each to all


def ring_gather(ranks: int) -> Rounds:
    """Return an all-gather in which every rank hands on to the next what came last."""
    return tuple(
        tuple(Message(v, (v + 1) % ranks, ((v - at) % ranks,)) for v in range(ranks))
        for at in range(ranks - 1)
    )


def direct_gather(ranks: int) -> Rounds:
    """Return an all-gather in which every rank sends its own chunk to each other one."""
    return tuple(
        tuple(Message(v, (v + by) % ranks, (v,)) for v in range(ranks)) for by in range(1, ranks)
    )


def bruck_gather(ranks: int) -> Rounds:
    """Return an all-gather in which what is held doubles every round, for any p (Bruck, 1997)."""
    rounds = []
    for by in reversed(_halves(ranks)):
        count = min(by, ranks - by)
        rounds.append(
            tuple(
                Message(v, (v - by) % ranks, tuple(sorted((v + k) % ranks for k in range(count))))
                for v in range(ranks)
            )
        )
    return tuple(rounds)


def doubling_gather(ranks: int) -> Rounds:
    """Return an all-gather in which ranks that differ in one bit exchange what they hold."""
    power = lower_power(ranks)
    before = tuple(Message(v, v - power, (v,)) for v in range(power, ranks))
    after = tuple(
        Message(v - power, v, tuple(k for k in range(ranks) if k != v)) for v in range(power, ranks)
    )
    middle = []
    for by in reversed(_halves(power)):
        held = [
            tuple(k for k in range(ranks) if (k % power) // by == v // by) for v in range(power)
        ]
        middle.append(tuple(Message(v, v ^ by, held[v]) for v in range(power)))
    return (before, *middle, after) if before else tuple(middle)


# ----------------------------------------------------------------------------- from all to all


def fold(ranks: int, chunks: int) -> Rounds:
    """Return the round in which ranks beyond the lower power of two hand in what they hold."""
    power, whole = lower_power(ranks), tuple(range(chunks))
    messages = tuple(Message(v, v - power, whole, reduce=True) for v in range(power, ranks))
    return (messages,) if messages else ()


def unfold(ranks: int, chunks: int) -> Rounds:
    """Return the round in which these get the result."""
    return backwards(fold(ranks, chunks), reduce=False)


def doubling_reduce(ranks: int) -> Rounds:
    """Return an all-reduce in which ranks exchange and combine whole vectors."""
    power = lower_power(ranks)
    middle = tuple(
        tuple(Message(v, v ^ by, (0,), reduce=True) for v in range(power))
        for by in reversed(_halves(power))
    )
    return fold(ranks, 1) + middle + unfold(ranks, 1)


def pairwise_exchange(ranks: int) -> Rounds:
    """Return an all-to-all in which each rank sends each other one its chunk."""
    return tuple(
        tuple(Message(v, (v + by) % ranks, (v * ranks + (v + by) % ranks,)) for v in range(ranks))
        for by in range(1, ranks)
    )


def bruck_exchange(ranks: int) -> Rounds:
    """Return an all-to-all of ceil(lg p) rounds: a chunk travels by the bits of its distance."""
    rounds = []
    for by in reversed(_halves(ranks)):
        far = [j for j in range(ranks) if j & by]
        rounds.append(
            tuple(
                Message(
                    v, (v + by) % ranks, tuple(sorted(_held_chunk(v, j, by, ranks) for j in far))
                )
                for v in range(ranks)
            )
        )
    return tuple(rounds)


def _held_chunk(rank: int, distance: int, by: int, ranks: int) -> int:
    """Return the chunk to go `distance` that is at a rank when the bits below `by` are gone."""
    source = (rank - distance % by) % ranks
    return source * ranks + (source + distance) % ranks
