"""Running a Program on NumPy arrays, without torch: for Programs that make no library calls.

The idea: the native segments only want addresses, and an array has one.  This module does not know
how contexts are shared among runs (`executable`).
"""

import array
import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter, is_
from typing import Any, NamedTuple
from weakref import getweakrefcount, ref

import numpy as np
from numpy.exceptions import TooHardError
from numpy.lib.stride_tricks import as_strided

from tilewright.base.errors import DTypeError, MutationError, ShapeError
from tilewright.program import (
    ARENA,
    CONSTANT,
    KEPT,
    OUTPUT,
    Buffer,
    Input,
    LibraryCall,
    Program,
    Stretch,
    View,
    contiguous,
    depth,
    stretches,
    whole,
)
from tilewright.runtime.calls import (
    Quick,
    Types,
    Wanted,
    covered,
    frame,
    types,
    unquickened,
    unsettled,
)
from tilewright.runtime.control import Step, Truth, bind_steps, truth
from tilewright.runtime.kept import Kept
from tilewright.runtime.pages import LARGE, SPARE
from tilewright.runtime.segments import (
    NONE,
    Call,
    NativeSegment,
    failure,
    is_wide,
    key,
    native_functions,
)
from tilewright.runtime.threads import find_team, thread_count

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
MOST_WORK = 100_000  # of a search for an element that two arrays share

# Of names that are one look-up each: they are asked of every input of a run.
_view_of_bytes: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address_of: Callable[[ctypes.c_char], int] = ctypes.addressof
_layout = attrgetter("dtype", "shape", "strides")


class _Expected(NamedTuple):
    """An input that a run takes, its buffer, and that one's number."""

    number: int
    item: Input
    buffer: Buffer


class ArrayContext:
    """The memory of one run on arrays.  One run at a time may use it."""

    def __init__(self, program: Program, segments: Sequence[NativeSegment]) -> None:
        self.program = program
        self.functions = native_functions(program, segments)
        self.numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
        self.addresses = array.array("Q", [0] * (len(program.buffers) + 1))
        self.index = array.array("l", [0] * (depth(program.instructions) + 1))
        self.call = Call(self.addresses.buffer_info()[0], None, 1, self.index.buffer_info()[0])
        team = find_team()
        if team is not None:
            self.call.team = ctypes.pointer(team)
        self.arena = _untouched(program.arena_bytes)
        self.constants: list[Array] = []
        for number, buffer in enumerate(program.buffers):
            if buffer.kind == ARENA:
                self.addresses[number] = self.arena.ctypes.data + buffer.offset
            elif buffer.kind == CONSTANT:
                block = _aligned(buffer.bytes)
                block[:] = np.frombuffer(buffer.data, dtype=np.uint8)
                self.constants.append(block)
                self.addresses[number] = block.ctypes.data
        self.steps = bind_steps(program.instructions, self.index, self._bind_leaf, self._truth)
        self.expected = tuple(
            _Expected(self.numbers[item.buffer], item, program.buffers[self.numbers[item.buffer]])
            for item in program.inputs
        )
        # What is kept comes last, and nobody else has it: an array of it lies where it lay.
        kinds = [item.role.kind for item in program.inputs]
        kept = len([*takewhile(KEPT.__eq__, reversed(kinds))])
        self.given = len(kinds) - kept
        # What arrays are that are taken as they are, and where the last ones began.
        self.layouts = [_expected_layout(each.buffer) for each in self.expected[: self.given]]
        self.types = [np.ndarray] * self.given
        self.frame: object | None = None  # of `calls.c`, where it runs this
        self.where: list[int] = []
        self.kept: list[Callable[[], Array | None]] = [_nothing] * kept
        fresh = [buffer for buffer in program.buffers if buffer.kind == OUTPUT]
        self.fresh = tuple((self.numbers[b.name], _maker(b)) for b in fresh)
        names = [*(item.buffer for item in program.inputs), *(b.name for b in fresh)]
        wholes = {buffer.name: whole(buffer) for buffer in fresh}
        self.results = tuple(
            (names.index(view.buffer), None if wholes.get(view.buffer) == view else view)
            for view in program.outputs
        )

    def make_frame(self, types: Types) -> None:
        """Let C run this, if it is native from its inputs to fresh outputs."""
        match tuple(stretches(self.program.instructions)):
            case ((_, tuple(stretch)),):
                first = len(self.expected)
                order = [at - first for at, view in self.results if view is None and at >= first]
            case _:
                return
        entered = {each.number for each in self.expected}
        if len(order) == len(self.results):
            self.frame = frame(
                types,
                self.call,
                [0 if at in entered else place for at, place in enumerate(self.addresses)],
                self.functions[key(stretch)],
                self.fresh,
                order,
                thread_count if is_wide(self.program) else None,
                partial(failure, stretch),
            )

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for the inputs; write the updates."""
        program = self.program
        if len(inputs) != len(program.inputs):
            raise ShapeError(
                "a program is called with another number of inputs than it takes",
                expected=f"{len(program.inputs)}: "
                + ", ".join(item.role.source or item.buffer for item in program.inputs),
                found=str(len(inputs)),
                mend="pass every input of the function compiled, parameters and buffers too",
            )
        given, kept = inputs[: self.given], inputs[self.given :]
        held = self._admitted(given)
        if not all(map(is_, kept, [last() for last in self.kept])):
            self._place_kept(kept)
        held += kept
        if program.updates:
            self._keep_whole(inputs)
        addresses = self.addresses
        for number, make in self.fresh:
            value = make()
            held.append(value)
            addresses[number] = _address(value)
        self.call.threads = thread_count()
        for step in self.steps:
            step()
        if program.updates:
            for before, value, item in zip(inputs, held, program.inputs, strict=False):
                if item.buffer in program.updates and value is not before:
                    before[...] = value
        return tuple(
            [held[at] if view is None else _strided(held[at], view) for at, view in self.results]
        )

    def _admitted(self, given: Sequence[Array]) -> list[Array]:
        """Return arrays laid out as the Program expects them, once it is entered where they lie;
        raise if they cannot be."""
        if [*map(type, given)] == self.types and [*map(_layout, given)] == self.layouts:
            where = _addresses(given)
            if where == self.where:  # all are aligned there, and what is written lies apart
                return [*given]
            if all(value.flags.aligned for value in given):
                return self._place([*given], where)
        pairs = [*zip(given, self.expected, strict=False)]
        held = [conform(value, wanted.buffer, wanted.item) for value, wanted in pairs]
        copied = {w.item.buffer for (v, w), lies in zip(pairs, held, strict=True) if v is not lies}
        # What is updated of them is written back to where it was given.
        self._keep_apart(given, [name for name in self.program.updates if name in copied])
        return self._place(held, _addresses(held))

    def _place(self, held: list[Array], where: list[int]) -> list[Array]:
        """Enter where arrays lie, and return them; refuse any that is updated and shared."""
        self.where = []  # should this be interrupted
        self._keep_apart(held, self.program.updates)
        for address, wanted in zip(where, self.expected, strict=False):
            self.addresses[wanted.number] = address
        self.where = where
        return held

    def _place_kept(self, kept: Sequence[Array]) -> None:
        """Enter where what is kept lies, and remember whose places these are."""
        self.kept = [_nothing] * len(kept)  # should this be interrupted
        for value, wanted in zip(kept, self.expected[self.given :], strict=True):
            lies = conform(value, wanted.buffer, wanted.item) is value
            assert lies, "what is kept lies as it was made"
            self.addresses[wanted.number] = _address(value)
        # No more than remembered: what was prepared anew need not stay for a context that rests.
        self.kept = [ref(value) for value in kept]

    def _keep_whole(self, inputs: Sequence[Array]) -> None:
        for given, item in zip(inputs, self.program.inputs, strict=True):
            if item.buffer in self.program.updates and not given.flags.writeable:
                raise MutationError(
                    f"input {item.role.source or item.buffer} is updated, and is read only",
                    expected="an array that can be written",
                    found="flags.writeable is False",
                    mend="pass a copy of it",
                )

    def _bind_leaf(self, item: Stretch | LibraryCall) -> Step:
        assert isinstance(item, tuple), "a program with library calls does not run on arrays"
        function, address = self.functions[key(item)], ctypes.addressof(self.call)

        def step() -> None:
            outcome = function(address)
            if outcome != NONE:
                raise failure(item, outcome)

        return step

    def _truth(self, view: View) -> Truth:
        return truth(self.addresses, self.numbers[view.buffer], view, self.index)

    def _keep_apart(self, values: Sequence[Array], updated: Sequence[str]) -> None:
        named = {each.item.buffer: v for each, v in zip(self.expected, values, strict=False)}
        for name in updated:
            for other, value in named.items():
                if other != name and overlap(named[name], value):
                    raise MutationError(
                        f"inputs {other} and {name} share memory, and one of them is updated",
                        expected="each updated input to have its memory to itself",
                        mend="pass a copy of one of them",
                    )


def quick_call(
    program: Program, context: ArrayContext, idle: list[ArrayContext], kept: Kept | None
) -> Quick:
    """Return what makes calls of a Program as one was made in this context: in C where it can, and
    with what is kept now, which C reads as long as that is so.

    program: all of it; `context` runs what is left once something is kept.
    """
    record = None if kept is None else kept.record
    found = types()
    if found is not None and context.frame is None:
        context.make_frame(found)
    if found is None or context.frame is None:
        return unquickened
    # Another thread may have prepared last, from tensors, or be about to.
    if kept is not None and (record is None or record.state):
        return unsettled
    passed = {each.item.buffer: at for at, each in enumerate(context.expected)}
    staying = {} if kept is None or record is None else kept.places(record)
    rows = []
    for place, item in enumerate(program.inputs):
        stays, at, number = staying.get(place), passed.get(item.buffer), -1
        layout = None if stays is None else stays.form
        if at is not None:
            number = context.expected[at].number
            if layout not in (None, context.layouts[at]):
                return unsettled  # it is copied at each call
            layout = context.layouts[at]
        assert layout is not None, "an input is passed on, or something is made of it"
        dtype, shape, strides = layout
        same = None if stays is None else stays.value
        written = item.buffer in program.updates
        form = (*shape, *strides)
        rows.append(Wanted(same, number, written, *covered(layout), dtype=dtype, form=form))
    lasting = () if record is None else record.kept
    numbers = [each.number for each in context.expected[context.given :]]
    places = [(number, _address(value)) for number, value in zip(numbers, lasting, strict=True)]
    made = None if record is None else ref(record)
    return found.quick(idle, kept, made, tuple(rows), (*chain(*places),), (np.ndarray,))


def overlap(one: Array, other: Array) -> bool:
    """Say whether arrays have an element's memory in common, or may have: real and imaginary parts
    of numbers have not, though they lie between each other."""
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=MOST_WORK)  # type: ignore[arg-type]
    except TooHardError:
        return True


def _expected_layout(buffer: Buffer) -> tuple[Any, ...]:
    strides = tuple(stride * buffer.dtype.bytes for stride in buffer.strides)
    return np.dtype(buffer.dtype.numpy), buffer.shape, strides


def _nothing() -> None:
    return None


def _addresses(values: Sequence[Array]) -> list[int]:
    """Return where the first elements of arrays are."""
    try:  # in half of the time that asking one by one takes
        return [*map(_address_of, map(_view_of_bytes, values))]
    except (TypeError, ValueError, BufferError):
        return [*map(_address, values)]


def _address(value: Array) -> int:
    """Return where an array's first element is."""
    try:  # a quarter of the time that asking NumPy takes
        return _address_of(_view_of_bytes(value))
    except (TypeError, ValueError, BufferError):  # read only, not in one piece, or empty
        address: int = value.ctypes.data
        return address


def conform(given: Array, buffer: Buffer, item: Input) -> Array:
    """Return the array laid out as the Program expects; raise if it cannot be."""
    name = item.role.source or item.buffer
    if not isinstance(given, np.ndarray) or given.dtype != buffer.dtype.numpy:
        raise DTypeError(
            f"input {name} has another dtype than was compiled for",
            expected=str(buffer.dtype.numpy),
            found=str(given.dtype) if isinstance(given, np.ndarray) else type(given).__name__,
            mend=f"pass numpy.asarray(..., dtype={str(buffer.dtype.numpy)!r}) for {name}",
        )
    if given.shape != buffer.shape:
        raise ShapeError(
            f"input {name} has another shape than was compiled for",
            expected=str(list(buffer.shape)),
            found=str(list(given.shape)),
            mend="compile for this shape",
        )
    strides = tuple(stride * buffer.dtype.bytes for stride in buffer.strides)
    same = zip(given.shape, given.strides, strides, strict=True)
    if given.flags.aligned and all(a == b or extent == 1 for extent, a, b in same):
        return given
    memory = np.empty(buffer.elements, dtype=buffer.dtype.numpy)
    value = _strided(memory, whole(buffer))
    value[...] = given
    return value


def _maker(buffer: Buffer) -> Callable[[], Array]:
    """Return what makes an array for an output: each time one in memory that nobody else has."""
    if buffer.bytes >= LARGE:
        return ReusingArrays(buffer)
    if buffer.strides == contiguous(buffer.shape):
        return partial(np.empty, buffer.shape, np.dtype(buffer.dtype.numpy))
    return lambda: _strided(np.empty(buffer.elements, buffer.dtype.numpy), whole(buffer))


class ReusingArrays:
    """Makes arrays in the memory of earlier ones that nobody has any more; else in fresh memory.

    Whoever has an array of it, or a view, has the block of bytes that owns the memory.
    One thread at a time may call it.
    """

    def __init__(self, buffer: Buffer) -> None:
        dtype = np.dtype(buffer.dtype.numpy)
        strides = tuple(stride * dtype.itemsize for stride in buffer.strides)
        self._form = buffer.shape, dtype, strides
        self._bytes = buffer.bytes
        self._blocks: list[Array] = []  # last given out first

    def __call__(self) -> Array:
        blocks, (shape, dtype, strides) = self._blocks, self._form
        at = next((at for at in range(len(blocks)) if _is_free(blocks, at)), None)
        block = np.empty(self._bytes + ALIGNMENT, np.uint8) if at is None else blocks.pop(at)
        self._blocks = [block, *blocks[: SPARE - 1]]
        return np.ndarray(shape, dtype, block, -block.ctypes.data % ALIGNMENT, strides)


def _is_free(blocks: list[Array], at: int) -> bool:
    """Say whether nobody else has a block, nor comes by it through a weak reference."""
    return _owners(blocks, at) == _ALONE and not getweakrefcount(blocks[at])


def _owners(blocks: list[Array], at: int) -> int:
    return sys.getrefcount(blocks[at])


# What is said of a block that nobody else has: versions of Python differ in what they count.
_ALONE = _owners([np.empty(0)], 0)


def _strided(memory: Array, view: View) -> Array:
    strides = tuple(stride * memory.itemsize for stride in view.strides)
    if memory.shape == view.shape and memory.strides == strides and view.offset == 0:
        return memory
    flat = as_strided(memory, (view.offset + 1,), (memory.itemsize,))
    return as_strided(flat[view.offset :], view.shape, strides)


def _untouched(size: int) -> Array:
    """Return memory that begins a page, and costs something only where it is used.

    In small pages, as torch's: NumPy asks for huge ones, which are cleared as wholes, and where the
    host of a virtual machine has taken back what was free, that takes longer than a step.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=private)
    except OSError as error:
        raise MemoryError(f"no {size} bytes of memory for a run") from error
    return np.frombuffer(memory, dtype=np.uint8)


def _aligned(size: int) -> Array:
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
