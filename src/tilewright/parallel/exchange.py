"""Borders between ranks: fetch what a neighbour holds, hand on what is a neighbour's.

The idea: a halo is fetched by one `shift` for each distance that it reaches over: every rank sends
a border of one width, and takes of what it receives what it needs.  Where parts write over each
other's borders the same is done backwards: a border is sent to whom it belongs, and combined there.

This module does not know formulas that are cut.
"""

from collections.abc import Iterator, Sequence

from tilewright.base.dtypes import BOOL
from tilewright.graph.build import Builder
from tilewright.graph.ir import Value
from tilewright.ops import emit
from tilewright.ops.operator import write
from tilewright.parallel.shares import Range, length, overlap

BORDER = "_border"


def loops(value: Value) -> list[str]:
    """Return names for loops over a value's dims."""
    return [f"i{k}" for k in range(value.type.rank)]


def fetch(
    builder: Builder, value: Value, dim: int, held: Sequence[Range], needed: Sequence[Range],
    rank: int,
) -> Value:  # fmt: skip
    """Add what gives a rank the range of a dim that it needs, of the ranges that ranks hold."""
    spans = [[overlap(source, part) for part in needed] for source in held]
    pieces = [(spans[rank][rank], value, held[rank][0])]
    for by, width in _distances(spans):
        start = spans[rank][rank + by][0] if 0 <= rank + by < len(held) else held[rank][0]
        border = cut_out(builder, value, dim, start - held[rank][0], width, f"{value.name}{BORDER}")
        near = _shift(builder, border, by, len(held))
        nothing = (needed[rank][0], needed[rank][0])
        span = spans[rank - by][rank] if 0 <= rank - by < len(held) else nothing
        pieces.append((span, near, span[0]))
    return _joined(builder, pieces, dim, needed[rank], value)


def hand_on(
    builder: Builder, value: Value, dim: int, made: Sequence[Range], held: Sequence[Range],
    rank: int,
) -> Value:  # fmt: skip
    """Add what gives a rank its share of a dim, of the overlapping ranges that ranks have made.

    Numbers are summed, truth values joined by `or`.
    """
    spans = [[overlap(source, part) for part in held] for source in made]
    terms = [(value, made[rank][0])]
    for by, width in _distances(spans):
        theirs = spans[rank][rank + by] if 0 <= rank + by < len(held) else (0, 0)
        # To whom nothing belongs goes what changes nothing: what lies beyond the end.
        start = theirs[0] if length(theirs) else made[rank][1]
        border = cut_out(builder, value, dim, start - made[rank][0], width, f"{value.name}{BORDER}")
        near = _shift(builder, border, by, len(held))
        span = spans[rank - by][rank] if 0 <= rank - by < len(held) else held[rank]
        terms.append((near, span[0] if length(span) else held[rank][0]))
    start, count = held[rank][0], length(held[rank])
    nothing, plus = ("false", " or ") if value.type.dtype == BOOL else ("0", " + ")
    read = (
        f"t{k}[{_index(value, dim, start - origin)}] ?? {nothing}"
        for k, (_, origin) in enumerate(terms)
    )
    body = f"y[{_index(value, dim, 0, count)}] = {plus.join(read)}"
    operands = {f"t{k}": term for k, (term, _) in enumerate(terms)}
    return write(builder, body, operands, dtype=value.type.dtype, name=value.name)


def cut_out(
    builder: Builder, value: Value, dim: int, start: int, count: int, name: str = ""
) -> Value:
    """Add a range of a dim; 0 where it reaches beyond the value."""
    if start == 0 and count == value.type.shape[dim]:
        return value
    nothing = "false" if value.type.dtype == BOOL else "0"
    body = f"y[{_index(value, dim, 0, count)}] = x[{_index(value, dim, start)}] ?? {nothing}"
    return write(builder, body, x=value, dtype=value.type.dtype, name=name or value.name)


def _distances(spans: Sequence[Sequence[Range]]) -> Iterator[tuple[int, int]]:
    """Yield by how many ranks something travels, and the width of the widest that does."""
    ranks = range(len(spans))
    for by in (sign * distance for distance in ranks[1:] for sign in (1, -1)):
        width = max(length(spans[rank][rank + by]) for rank in ranks if rank + by in ranks)
        if width:
            yield by, width


def _shift(builder: Builder, value: Value, by: int, ranks: int) -> Value:
    name = value.name.removesuffix(BORDER) + "_near"
    made = emit(builder, "shift", value, names=(name,), group=tuple(range(ranks)), by=by)
    assert isinstance(made, Value), "a collective has one result"
    return made


def _joined(
    builder: Builder, pieces: Sequence[tuple[Range, Value, int]], dim: int, wanted: Range,
    like: Value,
) -> Value:  # fmt: skip
    """Put pieces side by side: (range, value, where the value begins)."""
    if len(pieces) == 1:
        return cut_out(builder, like, dim, wanted[0] - pieces[0][2], length(wanted))
    loop, (start, _) = loops(like)[dim], wanted
    text = f"p0[{_index(like, dim, start - pieces[0][2])}]"
    for k, ((low, high), _, origin) in enumerate(pieces[1:], 1):
        inside = f"{loop} >= {low - start} and {loop} < {high - start}"
        text = f"p{k}[{_index(like, dim, start - origin)}] if {inside} else {text}"
    body = f"y[{_index(like, dim, 0, length(wanted))}] = {text}"
    operands = {f"p{k}": piece for k, (_, piece, _) in enumerate(pieces)}
    return write(builder, body, operands, dtype=like.type.dtype, name=like.name)


def _index(value: Value, dim: int, start: int, count: int | None = None) -> str:
    """Return an index whose entry for `dim` begins at `start`, or with extents where `count` is."""
    names = loops(value)
    entries = names
    if count is not None:
        pairs = zip(names, value.type.shape, strict=True)
        entries = [f"{name}<{size}" for name, size in pairs]
        entries[dim] = f"{names[dim]}<{count}"
    elif start:
        entries = [*names[:dim], f"{names[dim]} {'+' if start > 0 else '-'} {abs(start)}",
                   *names[dim + 1 :]]  # fmt: skip
    return ", ".join(entries)
