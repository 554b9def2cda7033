"""A Program's native stretches as functions: tables in C, made from launches, then compiled.

The idea: segments, and loops over segments, are data (which kernel, which pointers, how many parts,
whether all before must be complete first; where a loop begins and ends) that one C function,
`segments.c`, goes through; so a stretch of a thousand launches compiles at once, and one entry runs
all steps of a loop.  Threads take the parts of a launch as they come, so no part's result may
depend on who else has which.  A barrier stands only where a launch touches memory that another one
since the last barrier has written, or writes what it reads; and where an iteration begins, and a
loop ends.
This module does not know where buffers are when it runs: their addresses come with each call.
"""

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path

from tilewright.base.errors import IndexRangeError, IntegerDivisionError
from tilewright.program import (
    ARENA,
    INPUT,
    KERNEL_ERRORS,
    OUT_OF_MEMORY,
    ZERO_DIVISION,
    Buffer,
    Instruction,
    Launch,
    Loop,
    Program,
    Segment,
    Stretch,
    View,
    all_stretches,
    reach,
    steps,
)
from tilewright.runtime.threads import Team
from tilewright.runtime.toolchain import Toolchain, build, find_toolchain
from tilewright.runtime.units import units

RUNNER = Path(__file__).with_name("segments.c")
NONE = -1
"""What a native segment returns when nothing failed."""

TABLES = "the tables of a program"
DECLARATIONS = """\
typedef int Kernel(char **p, long part, long end, long parts);
typedef struct { long buffer, offset; } Place;
typedef struct { Kernel *kernel; long first, pointers, parts, barrier; } Step;
typedef struct { long width, alone, shared, next, first; } Pace;
typedef struct Call Call;
extern long tilewright_run(const Step *, long, const Place *, long, Pace *, const long *, long,
                           long, const Call *);
"""


class Call(ctypes.Structure):
    """What a native segment takes; it mirrors `Call` in `segments.c`."""

    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("team", ctypes.POINTER(Team)),
        ("threads", ctypes.c_long),
        ("index", ctypes.c_void_p),
        ("clock", ctypes.c_void_p),
    )


NativeSegment = Callable[[int], int]
"""Takes the address of a `Call`; returns NONE, or 256 * row + code of the launch that failed."""


def build_segments(program: Program, toolchain: Toolchain | None) -> tuple[NativeSegment, ...]:
    """Compile and load the stretches, in the order of `stretches_of`; calls count buffers in the
    program's.

    Without launches nothing is compiled, and without a toolchain given the system's is found.
    """
    count = len(stretches_of(program))
    if not any(isinstance(step, Launch) for step in steps(program)):
        return (_nothing,) * count
    texts = units(program.kernels)
    texts[TABLES] = tables(program)
    texts[RUNNER.name] = RUNNER.read_text(encoding="utf-8")
    library = build(toolchain or find_toolchain(), texts)
    return tuple(_function(library, i) for i in range(count))


class Kernels:
    """The kernels of a program whose sizes vary: compiled once, put into tables for each size."""

    def __init__(self, program: Program, toolchain: Toolchain | None) -> None:
        self.names = [kernel.name for kernel in program.kernels]
        self._library: ctypes.CDLL | None = None
        if self.names:
            texts = units(program.kernels)
            texts[TABLES] = _exports(self.names)
            texts[RUNNER.name] = RUNNER.read_text(encoding="utf-8")
            self._library = build(toolchain or find_toolchain(), texts)

    def segments(self, program: Program) -> tuple[NativeSegment, ...]:
        """Return the stretches of a program without sizes that vary, which has these kernels."""
        numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
        buffers = {buffer.name: buffer for buffer in program.buffers}
        ending = refusing(program)
        made = (
            tabulate(items, outer, numbers, buffers, ending)
            for items, outer in all_stretches(program.instructions)
        )
        return tuple(self._segment(table) for table in made)

    def _segment(self, table: "Table") -> NativeSegment:
        library = self._library
        if library is None or not any(table.launches):
            return _nothing
        kernels = (ctypes.c_long * len(self.names)).in_dll(library, "tilewright_kernels")
        address = dict(zip(self.names, kernels, strict=True))
        steps = [(address[kernel] if kernel else 0, *rest) for kernel, *rest in table.rows]
        step_table = (ctypes.c_long * (5 * len(steps)))(*chain.from_iterable(steps))
        place_table = (ctypes.c_long * (2 * len(table.places)))(*chain.from_iterable(table.places))
        move_table = (ctypes.c_long * len(table.moves))(*table.moves)
        run = library["tilewright_bound"]
        run.restype = ctypes.c_long
        run.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 7, ctypes.c_void_p)
        pace = (ctypes.c_long * 5)(table.width)
        # Addresses in the order of `tilewright_run`'s arguments; the tables live with the function.
        first = (ctypes.addressof(step_table), len(steps), ctypes.addressof(place_table))
        last = (ctypes.addressof(pace), ctypes.addressof(move_table), table.depth, table.outer)
        fixed = (*first, len(table.places), *last)

        tables = (step_table, place_table, move_table, pace)

        def segment(call: int, _tables: object = tables) -> int:
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
        "                      long pointers, Pace *pace, const long *moves, long depth,",
        "                      long outer, const Call *call) {",
        "  return tilewright_run(steps, count, places, pointers, pace, moves, depth, outer,",
        "                        call);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def stretches_of(program: Program) -> list[Stretch]:
    """Return the native stretches in order, those inside loops and branches too."""
    return [stretch for stretch, _ in all_stretches(program.instructions)]


def native_functions(
    program: Program, functions: Sequence[NativeSegment]
) -> dict[tuple[int, ...], NativeSegment]:
    """Return the functions of a program's stretches by their keys."""
    return dict(zip(map(key, stretches_of(program)), functions, strict=True))


def key(stretch: Stretch) -> tuple[int, ...]:
    """Return what a stretch is known by: which instructions it is, as equal ones may stand in two
    places."""
    return tuple(map(id, stretch))


def _nothing(_: int) -> int:
    return NONE


def _function(library: ctypes.CDLL, number: int) -> NativeSegment:
    function = library[f"tilewright_segment_{number}"]
    function.argtypes = (ctypes.c_void_p,)
    function.restype = ctypes.c_long
    # The library lives as long as its functions are held.
    function.library = library  # type: ignore[attr-defined]
    return function


def entry(function: NativeSegment) -> int | None:
    """Return where C enters a function of a library; None for one of Python's."""
    is_native = hasattr(function, "library")
    return ctypes.cast(function, ctypes.c_void_p).value if is_native else None  # type: ignore[arg-type]


def failure(stretch: Stretch, outcome: int) -> Exception:
    """Return the error for what the function of a stretch returned."""
    launch, code = in_rows(stretch)[outcome >> 8], outcome & 255
    assert launch is not None, "loops do not fail"
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


ENOUGH = 32
"""Microseconds, about, that a team must share to be worth its meeting: what the threads wrote for
each other has to move from core to core."""
LITTLE = 6
"""Likewise where runs follow each other closely, so that the team is awake."""
MUCH = 1000
"""Likewise where nobody asks whether a team is faster; what is shorter is measured as it runs."""
MOVED, COMPUTED = 16384, 100_000
"""Elements, and operations, of a microsecond; of products a core makes 90,000 (AVX2) to 250,000."""
ALONE, AWAKE, SHORT, ALWAYS = range(4)
"""What a stretch is worth: one thread, a team that is awake, one where that was faster, any team;
so `segments.c` has it."""


def is_wide(program: Program) -> bool:
    """Say whether any stretch is worth more than one thread, at least where they are awake."""
    return any(width(stretch) != ALONE for stretch in stretches_of(program))


def width(items: Sequence[Instruction]) -> int:
    """Return which threads a stretch is worth: ALONE, AWAKE, SHORT or ALWAYS."""
    shared = _shared(items)
    if shared >= MUCH:
        return ALWAYS
    return SHORT if shared >= ENOUGH else AWAKE if shared >= LITTLE else ALONE


def _shared(items: Sequence[Instruction]) -> int:
    """Return about how many microseconds of a stretch threads could share."""
    total = 0
    for item in items:
        if isinstance(item, Loop):
            total += item.count * _shared(item.body)
        elif isinstance(item, Segment):
            total += sum(_worth(launch) for launch in item.launches)
    return total


def _worth(launch: Launch) -> int:
    """Return about how many microseconds of a launch threads could share: one for each part."""
    if launch.parts == 1:
        return 0
    moved = sum(prod(view.shape) for view in launch.views)
    return max(launch.parts - 1, moved // MOVED, launch.flops // COMPUTED)


def tables(program: Program) -> str:
    """Return the C text of the tables that say what each segment does."""
    return "\n".join((DECLARATIONS, *table_lines(program))) + "\n"


def table_lines(program: Program, *, always_wide: bool = False) -> list[str]:
    """Return the lines of the tables, which stand behind declarations.

    always_wide: let threads share stretches that are not worth it, too.
    """
    used = {step.kernel for step in steps(program) if isinstance(step, Launch)}
    lines = [f"extern Kernel {kernel.name};" for kernel in program.kernels if kernel.name in used]
    numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
    buffers = {buffer.name: buffer for buffer in program.buffers}
    ending = refusing(program)
    for number, (stretch, outer) in enumerate(all_stretches(program.instructions)):
        table = tabulate(stretch, outer, numbers, buffers, ending)
        lines += _printed(replace(table, width=ALWAYS if always_wide else table.width), number)
    return lines


def _printed(table: "Table", number: int) -> list[str]:
    places = [f"{{{number}, {offset}}}" for number, offset in table.places]
    rows = [f"{{{', '.join(map(str, (row[0] or 0, *row[1:])))}}}" for row in table.rows]
    counts = f"{len(rows)}, places, {len(places)}, &pace"
    # C has no empty arrays: each ends with an entry that no count includes.
    return [
        f'__attribute__((visibility("default"))) long tilewright_segment_{number}'
        "(const Call *call) {",
        f"  static Pace pace = {{{table.width}, 0, 0, 0, 0}};",
        f"  static const Place places[] = {{{', '.join([*places, '{0, 0}'])}}};",
        f"  static const Step steps[] = {{{', '.join([*rows, '{0, 0, 0, 0, 0}'])}}};",
        f"  static const long moves[] = {{{', '.join(map(str, [*table.moves, 0]))}}};",
        f"  return tilewright_run(steps, {counts}, moves, {table.depth}, {table.outer}, call);",
        "}",
    ]


@dataclass(frozen=True, slots=True)
class Table:
    """What `segments.c` goes through.

    places: (buffer, offset) of each pointer.  rows: (kernel, first pointer, pointers, parts,
    barrier) of a launch; ("", level, row of the end, count, 0) where a loop begins, and ("", level,
    row of the begin, -1, 0) where it ends.  moves: for each pointer, by how many bytes it moves
    with each of `depth` loops, of which `outer` are around the stretch.  width: which threads it
    is worth.  launches: that of a row.
    """

    places: list[tuple[int, int]]
    rows: list[tuple[str, int, int, int, int]]
    moves: list[int]
    depth: int
    outer: int
    width: int
    launches: list[Launch | None]


def tabulate(
    stretch: Stretch,
    outer: int,
    numbers: dict[str, int],
    buffers: dict[str, Buffer],
    refusing: Collection[str],
) -> Table:
    """Return the table of a stretch that has `outer` loops around; refusing: see `barriers`."""
    launches = in_rows(stretch)
    deepest = (len(view.steps) for launch in launches if launch for view in launch.views)
    depth = max(outer + _depth(stretch), *deepest, 0)
    table = Table([], [], [], depth, outer, width(stretch), launches)
    _add_rows(table, stretch, outer, numbers, buffers, refusing, after_loop=False)
    return table


def _add_rows(
    table: Table,
    items: Sequence[Instruction],
    level: int,
    numbers: dict[str, int],
    buffers: dict[str, Buffer],
    refusing: Collection[str],
    *,
    after_loop: bool,
) -> None:
    for item in items:
        if isinstance(item, Loop):
            begin = len(table.rows)
            table.rows.append(("", level, 0, item.count, 0))
            inside = (table, item.body, level + 1, numbers, buffers, refusing)
            _add_rows(*inside, after_loop=True)
            table.rows[begin] = ("", level, len(table.rows), item.count, 0)
            table.rows.append(("", level, begin, -1, 0))
            after_loop = True
            continue
        assert isinstance(item, Segment), "a stretch is segments and loops"
        waits = barriers(item.launches, buffers, refusing)
        for launch, needed in zip(item.launches, waits, strict=True):
            barrier = int(needed or after_loop)
            after_loop = False
            row = (launch.kernel, len(table.places), len(launch.views), launch.parts, barrier)
            table.rows.append(row)
            for view in launch.views:
                size = buffers[view.buffer].dtype.bytes
                table.places.append((numbers[view.buffer], view.offset * size))
                steps_ = [step * size for step in view.steps]
                table.moves.extend(steps_ + [0] * (table.depth - len(steps_)))
        # Segments are not compared with each other.
        after_loop = after_loop or bool(item.launches)


def in_rows(items: Sequence[Instruction]) -> list[Launch | None]:
    """Return what stands in each row of a stretch: a launch, or None for a loop's begin and end."""
    found: list[Launch | None] = []
    for item in items:
        if isinstance(item, Segment):
            found += item.launches
        elif isinstance(item, Loop):
            found += [None, *in_rows(item.body), None]
    return found


def _depth(items: Sequence[Instruction]) -> int:
    return max((1 + _depth(item.body) for item in items if isinstance(item, Loop)), default=0)


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
        """Say whether both, of one space, touch a byte in one iteration, and not from one
        thread."""
        (low, high), (first, last) = (self.low, self.high), (other.low, other.high)
        if self.steps != other.steps:
            (low, high), (first, last) = self.reach, other.reach
        return low < last and first < high and not (self.alone and other.alone)


def refusing(program: Program) -> frozenset[str]:
    """Return the kernels that may end a run: those whose last line gives back more than 0."""
    return frozenset(
        kernel.name
        for kernel in program.kernels
        if not kernel.text.rstrip().endswith("return 0;\n}")
    )


def barriers(
    launches: Sequence[Launch], buffers: dict[str, Buffer], refusing: Collection[str] = ()
) -> list[bool]:
    """Return for each launch whether all launches before it must be complete first.

    Launches of one part are all thread 0's, so their order among themselves needs none.  refusing:
    kernels that may end a run: no input is written before they have ended.
    """
    needed = []
    asked: list[Launch] = []
    read: dict[str, list[_Span]] = {}
    written: dict[str, list[_Span]] = {}
    for launch in launches:
        reads = [_span(view, buffers, launch) for view in launch.inputs]
        writes = [_span(view, buffers, launch) for view in launch.outputs]
        barrier = _meet(reads, written) or _meet(writes, written) or _meet(writes, read)
        if any(buffers[view.buffer].kind == INPUT for view in launch.outputs):
            barrier = barrier or any(max(one.parts, launch.parts) > 1 for one in asked)
        if barrier:
            read, written, asked = {}, {}, []
        if launch.kernel in refusing:
            asked.append(launch)
        for known, spans in ((read, reads), (written, writes)):
            for span in spans:
                known.setdefault(span.space, []).append(span)
        needed.append(barrier)
    return needed


def _meet(ours: list[_Span], others: dict[str, list[_Span]]) -> bool:
    for one in ours:
        start, end = one.reach
        for other in others.get(one.space, ()):
            # First what most differ in: they are many, and a call for each would take long.
            first, last = other.reach
            if start < last and first < end and one.meets(other):
                return True
    return False


def _span(view: View, buffers: dict[str, Buffer], launch: Launch) -> _Span:
    buffer = buffers[view.buffer]
    size, start = buffer.dtype.bytes, buffer.offset if buffer.kind == ARENA else 0
    space = "" if buffer.kind == ARENA else buffer.name
    low, high = ((view.offset + end) * size + start for end in reach(view.shape, view.strides))
    steps = tuple(step * size for step in view.steps) if any(view.steps) else ()
    everywhere = (start, start + buffer.bytes) if steps else (low, high)
    return _Span(space, low, high, launch.parts == 1, steps, everywhere)
