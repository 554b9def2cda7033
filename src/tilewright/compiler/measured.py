"""Where the time of a compiled graph goes: its steps by the clock, the longest first.

The idea: beside each time stands what the step computes and moves in it, so that a reader sees at
once whether it is near what the machine can do; steps by the same line of the user's, doing the
same, are one row.
This module does not measure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tilewright.kernels import Emitted, kernel_loops, moved
from tilewright.program import (
    Branch,
    Instruction,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    View,
    While,
    blocks,
)
from tilewright.runtime import Timed, Trace
from tilewright.tune import Processor, this_processor

if TYPE_CHECKING:
    from tilewright.compiler.built import Built

MEGA, GIGA = 1e6, 1e9
MOST = 40  # rows that are shown


@dataclass(frozen=True, slots=True)
class _Row:
    """Steps that are alike: where, by what, how many, and all they took, computed and moved.

    flops, bytes: None where nobody knows, as in a loop whose steps nobody has counted.  moved:
    bytes into each cache, as predicted; None where a step's loops are not known.
    """

    what: str
    where: str
    count: int
    seconds: float
    waited: float
    flops: int | None
    bytes: int | None
    moved: tuple[int, ...] | None


def measured_text(built: "Built", trace: Trace, *, most: int = MOST) -> str:
    """Return a table of what a run spends its time on."""
    processor = this_processor(built.target)
    traffic = _Traffic(built.why().assembled.emitted, processor)
    rows = _rows(built.program, trace, traffic)
    accounted = sum(row.seconds for row in rows)
    lines = [
        f"{built.program.name}: {trace.seconds * 1e3:.3f} ms a run, the mean of {trace.runs}, "
        f"{trace.threads} thread{'s' * (trace.threads > 1)}",
        f"{'ms':>9}  {'share':>5}  {'GFLOP/s':>8}  {'GB/s':>6}  {'waited':>6}  "
        f"{'to L1':>7}  {'to L2':>7}  {'to L3':>7}  what",
    ]
    lines += [_line(row, trace) for row in rows[:most]]
    if len(rows) > most:
        rest = sum(row.seconds for row in rows[most:])
        lines.append(f"{rest * 1e3:9.3f}  {rest / trace.seconds:5.1%}  {len(rows) - most} more")
    rest = max(0.0, trace.seconds - accounted)
    lines.append(f"{rest * 1e3:9.3f}  {rest / trace.seconds:5.1%}  between them")
    lines.append(
        "waited: ms of all threads together, for others, before the step; bytes count each "
        "operand and result once"
    )
    sizes = ", ".join(f"{size / 2**10:,.0f}" for size in traffic.caches)
    lines.append(
        f"to L1, L2, L3: MB that loops are predicted to move into caches of {sizes} KiB, empty at "
        "each step; - for library calls, and recipes that are no loop nests"
    )
    return "\n".join(lines)


def _line(row: _Row, trace: Trace) -> str:
    def rate(amount: int | None) -> str:
        return "-" if not amount or not row.seconds else f"{amount / row.seconds / GIGA:.1f}"

    times = f"{row.count} x " if row.count > 1 else ""
    where = f"   {row.where}" if row.where else ""
    into = (f"{n / MEGA:.2f}" for n in row.moved) if row.moved is not None else "---"
    moved = "  ".join(f"{text:>7}" for text in into)
    return (
        f"{row.seconds * 1e3:9.3f}  {row.seconds / trace.seconds:5.1%}  {rate(row.flops):>8}  "
        f"{rate(row.bytes):>6}  {row.waited * 1e3:6.3f}  {moved}  {times}{row.what}{where}"
    )


class _Traffic:
    """What kernels move into each cache of a processor.  Mutable: it knows those asked for."""

    def __init__(self, kernels: Mapping[str, Emitted], processor: Processor) -> None:
        self.caches = processor.l1, processor.l2, processor.l3
        self._kernels = kernels
        self._vector = processor.vector
        self._known: dict[str, tuple[int, ...] | None] = {}

    def of(self, step: Launch | LibraryCall) -> tuple[int, ...] | None:
        """Return the bytes into each cache; None where the loops are not known."""
        made = self._kernels.get(step.kernel) if isinstance(step, Launch) else None
        if made is None:
            return None
        if made.name not in self._known:
            loops = kernel_loops(made, self._vector)
            self._known[made.name] = (
                None if loops is None else tuple(moved(loops, size) for size in self.caches)
            )
        return self._known[made.name]


def _rows(program: Program, trace: Trace, traffic: _Traffic) -> list[_Row]:
    counts = dict(_iterations(program.instructions, 1))
    titles = {kernel.name: _title(kernel.text) for kernel in program.kernels}
    alike: dict[tuple[str, str], list[Timed]] = {}
    for timed in trace.rows:
        step = timed.step
        if isinstance(step, Launch):
            made = ", ".join(view.buffer for view in step.outputs)
            what = f"{step.kernel} {titles[step.kernel] or 'makes ' + made}"
        else:
            what = step.target + " (gradient)" * (step.vjp is not None)
        alike.setdefault((what, str(step.origin)), []).append(timed)
    rows = [_row(program, *key, same, counts, traffic) for key, same in alike.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _row(
    program: Program,
    what: str,
    where: str,
    same: Sequence[Timed],
    counts: dict[int, int | None],
    traffic: _Traffic,
) -> _Row:
    times = [counts[id(timed.step)] for timed in same]
    known = [n for n in times if n is not None]
    flops = bytes_ = into = None
    if len(known) == len(times):
        each = [traffic.of(timed.step) for timed in same]
        if all(row is not None for row in each):
            scaled = ([n * size for size in row or ()] for n, row in zip(known, each, strict=True))
            into = tuple(map(sum, zip(*scaled, strict=True)))
        flops = sum(n * _flops(timed.step) for n, timed in zip(known, same, strict=True))
        bytes_ = sum(n * _bytes(program, timed.step) for n, timed in zip(known, same, strict=True))
    seconds = sum(timed.seconds for timed in same)
    waited = sum(timed.waited for timed in same)
    return _Row(what, where, len(same), seconds, waited, flops, bytes_, into)


def _iterations(
    items: Sequence[Instruction], times: int | None
) -> Iterator[tuple[int, int | None]]:
    """Yield how often each step runs, by its identity; None where its inputs decide."""
    for item in items:
        match item:
            case Loop(body, count):
                yield from _iterations(body, None if times is None else times * count)
            case While() | Branch():
                for inner in blocks(item):
                    yield from _iterations(inner, None)
            case Segment() | LibraryCall():
                steps = item.launches if isinstance(item, Segment) else (item,)
                yield from ((id(step), times) for step in steps)


def _flops(step: Launch | LibraryCall) -> int:
    return step.flops if isinstance(step, Launch) else _products(step)


def _products(call: LibraryCall) -> int:
    """Return the operations of a matrix product; 0 for calls that nobody has a formula for."""
    if call.target not in ("aten.mm.out", "aten.bmm.out"):
        return 0
    left, right = call.inputs
    return 2 * prod(left.shape) * right.shape[-1]


def _bytes(program: Program, step: Launch | LibraryCall) -> int:
    views = (*step.inputs, *step.outputs)
    return sum(_elements(view) * program.buffer(view.buffer).dtype.bytes for view in views)


def _elements(view: View) -> int:
    """Return how many elements a view has; those that it repeats count once."""
    dims = zip(view.shape, view.strides, strict=True)
    return prod(extent for extent, stride in dims if stride or extent == 0)


def _title(text: str) -> str:
    """Return what a kernel's first comment says, if it begins with one."""
    first = text.split("\n", 1)[0]
    return first[2:-2].strip() if first.startswith("/*") and first.endswith("*/") else ""
