"""From a variant's name to its message program.

The idea: the table says how; here a wrong request is refused, and the defaults are chosen.
This module does not know what a program costs.
"""

import difflib
import functools
from collections.abc import Iterable

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.program import COLLECTIVES, MessageProgram
from tilewright.cost.collectives.variants import VARIANTS, Setting, Variant


def variants_of(collective: str) -> tuple[Variant, ...]:
    """Return the algorithms of a collective; OptionError where there is no such collective."""
    _known("collective", collective, COLLECTIVES)
    return tuple(row for row in VARIANTS if row.collective == collective)


def find_variant(collective: str, name: str) -> Variant:
    """Return one algorithm; OptionError, with the nearest names, where there is none."""
    rows = {row.name: row for row in variants_of(collective)}
    _known(f"{collective} by", name, rows)
    return rows[name]


def build_program(
    collective: str, variant: str, ranks: int, *, root: int = 0, segments: int = 1, node: int = 0
) -> MessageProgram:
    """Return the message program of a variant.

    segments: how many a pipelined variant cuts the vector into.  node: ranks in a node, for a
    hierarchical variant; 0: the divisor of `ranks` nearest below its square root.
    Raises OptionError where the setting is impossible.
    """
    row = find_variant(collective, variant)
    at = setting(row, ranks, root=root, segments=segments, node=node)
    return MessageProgram(collective, variant, ranks, row.chunks(at), row.build(at), root)


def setting(
    row: Variant, ranks: int, *, root: int = 0, segments: int = 1, node: int = 0
) -> Setting:
    """Return what a variant is built for, checked."""
    rooted = COLLECTIVES[row.collective].rooted
    _require(ranks >= 1, "a collective is among at least one rank", "1 or more", ranks)
    _require(
        0 <= root < ranks and (rooted or not root), f"{row.collective} has no such root",
        f"0 to {ranks - 1}" if rooted else "no root", root,
    )  # fmt: skip
    _require(segments >= 1, "a vector is cut into at least one segment", "1 or more", segments)
    _require(
        row.segmented or segments == 1, f"{row.collective} by {row.name} is not segmented",
        "segments=1", segments,
    )  # fmt: skip
    node = node or near_square(ranks)
    _require(
        node >= 1 and ranks % node == 0, f"{ranks} ranks are not nodes of {node}",
        f"a divisor of {ranks}", node,
    )  # fmt: skip
    return Setting(ranks, root, segments, node)


@functools.cache
def near_square(ranks: int) -> int:
    """Return the largest divisor that is not above the square root."""
    return max(k for k in range(1, int(ranks**0.5) + 1) if ranks % k == 0)


def _known(what: str, name: str, choices: Iterable[str]) -> None:
    listed = tuple(choices)
    if name in listed:
        return
    close = difflib.get_close_matches(name, listed, n=3, cutoff=0.4)
    raise OptionError(
        f"there is no {what} {name!r}",
        expected=f"one of {', '.join(listed)}",
        found=repr(name),
        known=f"close to it: {', '.join(close)}" if close else "",
        mend=f"write {close[0]}" if close else "choose one of these",
    )


def _require(holds: bool, summary: str, expected: str, found: object) -> None:
    if not holds:
        raise OptionError(summary, expected=expected, found=str(found))
