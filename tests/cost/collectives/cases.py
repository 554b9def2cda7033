"""The settings that every law of collectives is asked for."""

from collections.abc import Iterator

from tilewright.cost.collectives.program import COLLECTIVES
from tilewright.cost.collectives.variants import VARIANTS, Setting, Variant

ROWS = {f"{row.collective} by {row.name}": row for row in VARIANTS}


def settings(row: Variant, ranks: int, *, roots: bool = False) -> Iterator[Setting]:
    """Yield a variant's settings: of segments, nodes and (where asked) roots."""
    every = range(ranks) if roots and COLLECTIVES[row.collective].rooted else range(1)
    for root in every:
        for segments in (1, 2, 5) if row.segmented else (1,):
            for node in divisors(ranks) if row.between else (1,):
                yield Setting(ranks, root, segments, node)


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    return [k for k in range(1, number + 1) if number % k == 0]
