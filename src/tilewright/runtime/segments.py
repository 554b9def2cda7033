"""A Program's segments as native functions: tables in C, made from its launches, then compiled.

The idea: a segment is data (which kernel, which pointers, how many parts, whether all before must
be complete first) that one C function, `segments.c`, goes through; so a segment of a thousand
launches compiles at once.  A barrier stands only where a launch touches memory that another one
since the last barrier has written, or writes what it reads.
This module does not know where buffers are when it runs: their addresses come with each call.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tilewright.base.errors import IndexRangeError, IntegerDivisionError
from tilewright.program import (
    ARENA,
    KERNEL_ERRORS,
    OUT_OF_MEMORY,
    ZERO_DIVISION,
    Buffer,
    Launch,
    Program,
    Segment,
    View,
    flat,
    reach,
    steps,
)
from tilewright.runtime.threads import Team
from tilewright.runtime.toolchain import Toolchain, build, find_toolchain

RUNNER = Path(__file__).with_name("segments.c")
NONE = -1
"""What a native segment returns when nothing failed."""

TABLES = "the tables of a program"
DECLARATIONS = """\
typedef int Kernel(char **p, long part, long parts);
typedef struct { long buffer, offset; } Place;
typedef struct { Kernel *kernel; long first, parts, barrier; } Step;
typedef struct Call Call;
extern long tilewright_run(const Step *, long, const Place *, long, long, const long *, long,
                           const Call *);
"""


class Call(ctypes.Structure):
    """What a native segment takes; it mirrors `Call` in `segments.c`."""

    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("team", ctypes.POINTER(Team)),
        ("threads", ctypes.c_long),
        ("index", ctypes.c_void_p),
    )


NativeSegment = Callable[[int], int]
"""Takes the address of a `Call`; returns NONE, or 256 * launch + code of the one that failed."""


def build_segments(program: Program, toolchain: Toolchain | None) -> tuple[NativeSegment, ...]:
    """Compile and load the segments, in the order of `flat`; calls count buffers in the program's.

    Without launches nothing is compiled, and without a toolchain given the system's is found.
    """
    segments = segments_of(program)
    if not any(segment.launches for segment in segments):
        return tuple(_nothing for _ in segments)
    texts = {f"kernel {kernel.name}": kernel.text for kernel in program.kernels}
    texts[TABLES] = tables(program)
    texts[RUNNER.name] = RUNNER.read_text(encoding="utf-8")
    library = build(toolchain or find_toolchain(), texts)
    return tuple(_function(library, i) for i in range(len(segments)))


class Kernels:
    """The kernels of a program whose sizes vary: compiled once, put into tables for each size."""

    def __init__(self, program: Program, toolchain: Toolchain | None) -> None:
        self.names = [kernel.name for kernel in program.kernels]
        self._library: ctypes.CDLL | None = None
        if self.names:
            texts = {f"kernel {kernel.name}": kernel.text for kernel in program.kernels}
            texts[TABLES] = _exports(self.names)
            texts[RUNNER.name] = RUNNER.read_text(encoding="utf-8")
            self._library = build(toolchain or find_toolchain(), texts)

    def segments(self, program: Program) -> tuple[NativeSegment, ...]:
        """Return the segments of a program without sizes that vary, which has these kernels."""
        numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
        buffers = {buffer.name: buffer for buffer in program.buffers}
        launches = [segment.launches for segment in segments_of(program)]
        return tuple(self._segment(items, numbers, buffers) for items in launches)

    def _segment(
        self, launches: Sequence[Launch], numbers: dict[str, int], buffers: dict[str, Buffer]
    ) -> NativeSegment:
        library = self._library
        if library is None or not launches:
            return _nothing
        kernels = (ctypes.c_long * len(self.names)).in_dll(library, "tilewright_kernels")
        address = dict(zip(self.names, kernels, strict=True))
        places, rows, moves, depth = _rows(launches, numbers, buffers)
        steps = [(address[kernel], *rest) for kernel, *rest in rows]
        step_table = (ctypes.c_long * (4 * len(steps)))(*chain.from_iterable(steps))
        place_table = (ctypes.c_long * (2 * len(places)))(*chain.from_iterable(places))
        move_table = (ctypes.c_long * len(moves))(*moves)
        wide = any(launch.parts > 1 for launch in launches)
        run = library["tilewright_bound"]
        run.restype = ctypes.c_long
        run.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 6, ctypes.c_void_p)
        # Addresses in the order of `tilewright_run`'s arguments; the tables live with the function.
        first = (ctypes.addressof(step_table), len(steps), ctypes.addressof(place_table))
        fixed = (*first, len(places), wide, ctypes.addressof(move_table), depth)

        def segment(call: int, _tables: object = (step_table, place_table, move_table)) -> int:
            found: int = run(*fixed, call)
            return found

        return segment


def _exports(names: Sequence[str]) -> str:
    """Return the C text that gives a library's kernels and its runner away."""
    visible = '__attribute__((visibility("default")))'
    lines = [DECLARATIONS, *(f"extern Kernel {name};" for name in names)]
    lines += [
        f"{visible} Kernel *const tilewright_kernels[] = {{{', '.join(names)}}};",
        f"{visible} long tilewright_bound(const Step *steps, long count, const Place *places,",
        "                      long pointers, long wide, const long *moves, long depth,",
        "                      const Call *call) {",
        "  return tilewright_run(steps, count, places, pointers, wide, moves, depth, call);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def segments_of(program: Program) -> list[Segment]:
    """Return the segments in order, those inside loops and branches too."""
    return [item for item in flat(program.instructions) if isinstance(item, Segment)]


def _nothing(_: int) -> int:
    return NONE


def _function(library: ctypes.CDLL, number: int) -> NativeSegment:
    function = library[f"tilewright_segment_{number}"]
    function.argtypes = (ctypes.c_void_p,)
    function.restype = ctypes.c_long
    # The library lives as long as its functions are held.
    function.library = library  # type: ignore[attr-defined]
    return function


def failure(segment: Segment, outcome: int) -> Exception:
    """Return the error for what a native segment returned."""
    launch, code = segment.launches[outcome >> 8], outcome & 255
    assert code in KERNEL_ERRORS, f"kernel {launch.kernel} returned {code}, which means nothing"
    operands = ", ".join(view.buffer for view in launch.inputs)
    if code == OUT_OF_MEMORY:
        return MemoryError(KERNEL_ERRORS[code])
    if code == ZERO_DIVISION:
        return IntegerDivisionError(
            KERNEL_ERRORS[code],
            expected="divisors other than 0",
            found=f"0, in a kernel that reads {operands}",
            where=launch.origin,
            mend="replace zeros first, or divide floating numbers",
        )
    return IndexRangeError(
        KERNEL_ERRORS[code],
        expected="every index that is read from a tensor to point into the other",
        found=f"one that does not, in a kernel that reads {operands}",
        where=launch.origin,
        mend="look for a token id beyond the vocabulary or a label beyond the classes",
    )


def is_wide(program: Program) -> bool:
    """Say whether any launch is worth more than one thread."""
    return any(isinstance(step, Launch) and step.parts > 1 for step in steps(program))


def tables(program: Program) -> str:
    """Return the C text of the tables that say what each segment does."""
    segments = segments_of(program)
    used = {launch.kernel for segment in segments for launch in segment.launches}
    lines = [DECLARATIONS]
    lines += [f"extern Kernel {kernel.name};" for kernel in program.kernels if kernel.name in used]
    numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
    buffers = {buffer.name: buffer for buffer in program.buffers}
    for number, segment in enumerate(segments):
        lines += _tables_of(segment.launches, number, numbers, buffers)
    return "\n".join(lines) + "\n"


def _tables_of(
    launches: Sequence[Launch],
    number: int,
    numbers: dict[str, int],
    buffers: dict[str, Buffer],
) -> list[str]:
    pairs, steps, moves, depth = _rows(launches, numbers, buffers)
    places = [f"{{{number}, {offset}}}" for number, offset in pairs]
    rows = [f"{{{', '.join(map(str, step))}}}" for step in steps]
    wide = int(any(launch.parts > 1 for launch in launches))
    counts = f"{len(rows)}, places, {len(places)}, {wide}"
    # C has no empty arrays: each ends with an entry that no count includes.
    return [
        f'__attribute__((visibility("default"))) long tilewright_segment_{number}'
        "(const Call *call) {",
        f"  static const Place places[] = {{{', '.join([*places, '{0, 0}'])}}};",
        f"  static const Step steps[] = {{{', '.join([*rows, '{0, 0, 0, 0}'])}}};",
        f"  static const long moves[] = {{{', '.join(map(str, [*moves, 0]))}}};",
        f"  return tilewright_run(steps, {counts}, moves, {depth}, call);",
        "}",
    ]


def _rows(
    launches: Sequence[Launch], numbers: dict[str, int], buffers: dict[str, Buffer]
) -> tuple[list[tuple[int, int]], list[tuple[str, int, int, int]], list[int], int]:
    """Return the entries of a segment's tables: (buffer, offset) of each pointer; for each launch
    (kernel, first pointer, parts, barrier); for each pointer by how many bytes it moves with each
    of the loops around; and how many loops those are."""
    places: list[tuple[int, int]] = []
    rows: list[tuple[str, int, int, int]] = []
    moves: list[int] = []
    depth = max((len(view.steps) for launch in launches for view in launch.views), default=0)
    needed = barriers(launches, buffers)
    for launch, barrier in zip(launches, needed, strict=True):
        rows.append((launch.kernel, len(places), launch.parts, int(barrier)))
        for view in launch.views:
            size = buffers[view.buffer].dtype.bytes
            places.append((numbers[view.buffer], view.offset * size))
            moves += [step * size for step in view.steps] + [0] * (depth - len(view.steps))
    return places, rows, moves, depth


# ---- barriers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of a buffer, or of the arena (space ""), and whether one thread alone touches them.

    low, high: in the first iteration of the loops around.  steps: how they move with them.  reach:
    all bytes that may be touched in any iteration.
    """

    space: str
    low: int
    high: int
    alone: bool
    steps: tuple[int, ...]
    reach: tuple[int, int]

    def meets(self, other: "_Span") -> bool:
        """Say whether both touch a byte in one iteration, and not from one thread."""
        (low, high), (first, last) = (self.low, self.high), (other.low, other.high)
        if self.steps != other.steps:
            (low, high), (first, last) = self.reach, other.reach
        overlap = low < last and first < high
        return self.space == other.space and overlap and not (self.alone and other.alone)


def barriers(launches: Sequence[Launch], buffers: dict[str, Buffer]) -> list[bool]:
    """Return for each launch whether all launches before it must be complete first.

    Launches of one part are all thread 0's, so their order among themselves needs none.
    """
    needed = []
    read: list[_Span] = []
    written: list[_Span] = []
    for launch in launches:
        reads = [_span(view, buffers, launch) for view in launch.inputs]
        writes = [_span(view, buffers, launch) for view in launch.outputs]
        barrier = _meet(reads, written) or _meet(writes, written) or _meet(writes, read)
        if barrier:
            read, written = [], []
        read += reads
        written += writes
        needed.append(barrier)
    return needed


def _meet(ours: list[_Span], others: list[_Span]) -> bool:
    return any(one.meets(other) for one in ours for other in others)


def _span(view: View, buffers: dict[str, Buffer], launch: Launch) -> _Span:
    buffer = buffers[view.buffer]
    size, start = buffer.dtype.bytes, buffer.offset if buffer.kind == ARENA else 0
    space = "" if buffer.kind == ARENA else buffer.name
    low, high = ((view.offset + end) * size + start for end in reach(view.shape, view.strides))
    steps = tuple(step * size for step in view.steps) if any(view.steps) else ()
    everywhere = (start, start + buffer.bytes) if steps else (low, high)
    return _Span(space, low, high, launch.parts == 1, steps, everywhere)
