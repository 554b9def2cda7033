"""Timetables by name: the one table from which commands and plans choose.

The idea: a row is a name, what it needs beside ranks and micro-batches, and who makes it.

This module does not know how any is made.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.parallel.timetables.asynchronous import (
    ampnet,
    pipedream,
    pipedream_2bw,
    pipemare,
)
from tilewright.parallel.timetables.orders import (
    breadth_first,
    gpipe,
    interleaved,
    one_forward_one_backward,
    terapipe,
    zero_bubble_h1,
    zero_bubble_h2,
)
from tilewright.parallel.timetables.search import zero_bubble_1p, zero_bubble_2p
from tilewright.parallel.timetables.timetable import Timetable
from tilewright.parallel.timetables.two_way import chimera, dualpipe, dualpipe_v
from tilewright.parallel.timetables.v_block import v_half, v_min
from tilewright.parallel.timetables.v_shape import zero_bubble_v

MOST_PASSES = 1 << 22


@dataclass(frozen=True, slots=True)
class Kind:
    """A named way to make timetables.

    parts: what its third argument counts (chunks of a rank's model, token slices, micro-batches in
    flight); empty if it has none.  cap: what a search for one may hold, in multiples of the ranks;
    0 where none is searched.  asynchronous: whether weights are updated without a flush.  fills:
    whether all forwards of a step come first, so that it holds activations as it has micro-batches.
    warm: rounds, of as many micro-batches as ranks, after which each takes as long as the last.
    """

    name: str
    make: Callable[..., Timetable]
    parts: str = ""
    cap: int = 0
    asynchronous: bool = False
    fills: bool = False
    warm: int = 1

    @property
    def rounds(self) -> int:
        """Rounds that tell what any number of them takes and holds.

        One more than `warm`.  What a search may hold is filled slowly, by the bubbles it saves.
        """
        return 8 if self.cap else self.warm + 1


TIMETABLES = (
    Kind("gpipe", gpipe, fills=True),
    Kind("1f1b", one_forward_one_backward),
    Kind("interleaved", interleaved, "chunks"),
    Kind("breadth-first", breadth_first, "chunks", fills=True),
    Kind("terapipe", terapipe, "slices", fills=True),
    Kind("zb-h1", zero_bubble_h1),
    Kind("zb-h2", zero_bubble_h2, warm=2),
    Kind("zb-1p", zero_bubble_1p, cap=1),
    Kind("zb-2p", zero_bubble_2p, cap=2),
    Kind("zb-v", zero_bubble_v, warm=2),
    Kind("v-half", v_half),
    Kind("v-min", v_min),
    Kind("chimera", chimera),
    Kind("dualpipe", dualpipe, warm=2),
    Kind("dualpipe-v", dualpipe_v, warm=2),
    Kind("pipedream", pipedream, asynchronous=True),
    Kind("pipedream-2bw", pipedream_2bw, asynchronous=True),
    Kind("pipemare", pipemare, asynchronous=True),
    Kind("ampnet", ampnet, "in-flight", asynchronous=True),
)


def make_timetable(name: str, ranks: int, micro_batches: int, parts: int = 1) -> Timetable:
    """Return the timetable of a name.

    ranks: of the pipeline, each with an equal share of the model.  parts: chunks, token slices or
    micro-batches in flight, for the kinds that have them.  Raises OptionError for an unknown name
    (the nearest offered), for parts where a kind has none, and for more than MOST_PASSES.
    """
    kind = kind_named(name)
    passes = ranks * micro_batches * (1 if kind.parts == "in-flight" else parts)
    if passes > MOST_PASSES:
        raise OptionError(
            f"{name} of so many passes would take minutes",
            expected=f"ranks x micro-batches x chunks or slices up to {MOST_PASSES:,}",
            found=f"{passes:,}",
            mend="take fewer micro-batches: after some rounds of the ranks each is as the last",
        )
    if kind.parts:
        return kind.make(ranks, micro_batches, parts)
    if parts != 1:
        raise OptionError(
            f"a {name} timetable has nothing to count",
            expected=", ".join(f"{row.name} ({row.parts})" for row in TIMETABLES if row.parts),
            found=f"{name} with {parts} of them",
            mend="leave them out, or take one of these",
        )
    return kind.make(ranks, micro_batches)


def kind_named(name: str) -> Kind:
    """Return the row of a name; raise OptionError if there is none."""
    rows = {row.name: row for row in TIMETABLES}
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name, rows, n=3)
    raise OptionError(
        f"there is no timetable {name!r}",
        expected=", ".join(rows),
        found=name,
        mend=f"take {' or '.join(near)}" if near else "",
    )
