"""The Program: what runs.  Buffers, kernels as C text, and a list of instructions over them.

The idea: by now every decision is taken.  Where each value lives, in which order it is made, by
which kernel, in how many parts: a Program only says so, and a runtime only does so.

Grammar
-------
::

    program     = Program(name, buffers, kernels, instructions, inputs, outputs, updates,
                          arena_bytes, sizes, prepare)
    buffer      = Buffer(name, type, kind, strides, offset, data)
                  kind: input     filled by the caller
                        output    allocated for each run and handed to the caller
                        arena     `offset` bytes into the arena, which each run has to itself
                        constant  `data`, read only
                        library   allocated by the library call that writes it
                        kept      written by `prepare`, and read as long as its inputs stay
                        sizes     the values of the sizes that vary, int64, for the kernels
    view        = View(buffer, shape, strides, offset, steps) strides, offset, steps in elements
    kernel      = KernelSource(name, text)
    instruction = Segment(launches)                           native, one entry into C
                | LibraryCall(target, args, kwargs, inputs, outputs, results, vjp, through)
                | Loop(body, count)                           instructions, `count` times
                | While(test, holds, body)                    as long as `holds`, after each test
                | Branch(holds, then, otherwise)
    launch      = Launch(kernel, inputs, outputs, parts, origin, flops)
    input       = Input(buffer, role)
    template    = ("%", i) | ("list", ...) | ("dtype", name) | ("device", name)
                | ("layout", name) | ("memory_format", name)
                | tuple | None | bool | int | float | str

- **Kernels.**  The text of one exported C function
  `int NAME(char **p, long part, long end, long parts)`, with no headers: it computes the parts
  from `part` to before `end`.  `p` holds the launch's inputs, then its outputs; each pointer is
  at the view's first element and aligned to the element only.  The parts of a launch share
  nothing and may run at the same time; a part's result never depends on how many threads there
  are.  It returns 0, or a code of `KERNEL_ERRORS`, or several of them, added.
- **Segments.**  Launches run in order: one starts when those it depends on are complete.
- **Library calls.**  Inputs fill the template's operands ("%", i).  If the target has `out=`
  arguments, the outputs fill these.  Otherwise the target's results are flattened (lists and tuples
  opened; None and numbers count) and `results` says which of them the outputs take.  With a `vjp`
  the call is the gradient of `target`: inputs are its operands, then the tangents; outputs are the
  gradients.  `through` says further derivatives and batches, innermost first (`layers`).
- **Loops.**  Inside `Loop`s a view may move: in iteration i of the loop around it, `i * step`
  elements on; `steps` counts loops from the outermost, those left out move nothing.  What one
  iteration hands to the next lies in a buffer that was written before the loop.
- **Updates** name the inputs that a run writes in place.  An output that views an input buffer is
  that input.  Arena and constant memory is never handed out.
- **What is kept.**  `prepare` holds instructions that read constants and inputs that stay from run
  to run (parameters and buffers, none that is updated) and write kept buffers.  They run before the
  first run, and again before a run whose inputs are others; `instructions` read what they kept.  No
  size varies in them.
- **Sizes that vary.**  Where a program has `sizes`, any extent, stride, offset, step, number of
  parts or integer argument of a library call may be a `Size`, and an arena buffer says which others
  it stands `above` in place of an offset.  `bind` gives the program for one value of each size;
  that is what runs.
- **A Program is code.**  Who can write the file can run what they like: load only your own.

This module knows structs only; `verify`, `syntax` and `store` work on them.
"""

from dataclasses import dataclass
from os import PathLike
from typing import cast

from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.sizes import Size, Sizes, all_same, larger, same, smaller
from tilewright.graph.ir import Attr, Role, TensorType
from tilewright.program.layers import Layer

INPUT, OUTPUT, ARENA, CONSTANT, LIBRARY = "input", "output", "arena", "constant", "library"
SIZES, KEPT = "sizes", "kept"
KINDS = (INPUT, OUTPUT, ARENA, CONSTANT, LIBRARY, SIZES, KEPT)

OUT_OF_RANGE, ZERO_DIVISION, OUT_OF_MEMORY = 1, 2, 4
KERNEL_ERRORS = {
    OUT_OF_RANGE: "an index is out of range",
    ZERO_DIVISION: "an integer is divided by zero",
    OUT_OF_MEMORY: "there is no memory for a kernel's own values",
}

Template = Attr
"""The argument of a library call; the grammar above says how operands are marked in it."""


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape: (2, 9, 1) has (9, 1, 1)."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the lowest and one past the highest element touched; (0, 0) if there is none."""
    if 0 in shape:
        return 0, 0
    low, high = 0, 1
    for extent, stride in zip(shape, strides, strict=True):
        step = (extent - 1) * stride
        if isinstance(step, Size):
            low, high = low + smaller(step, 0), high + larger(step, 0)
        elif step < 0:
            low += step
        else:
            high += step
    return low, high


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory: what it holds, where it comes from, and how it is laid out.

    type: all extents are ints.  strides: in elements, for each dim (row-major if not given).
    offset: bytes into the arena (arena only).  data: its bytes (constant only).  above: names of
    the arena buffers whose ends it starts after (arena only, where sizes vary).
    """

    name: str
    type: TensorType
    kind: str
    strides: tuple[int, ...] = ()
    offset: int = 0
    data: bytes = b""
    above: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.strides:
            object.__setattr__(self, "strides", contiguous(self.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, all of them ints."""
        for dim in self.type.shape:
            assert isinstance(dim, int), f"{self.name}: {self.type.shape} is not static"
        return cast(tuple[int, ...], self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def elements(self) -> int:
        """How many elements lie between the first and the last, both included."""
        return reach(self.shape, self.strides)[1]

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class View:
    """Some elements of a buffer, as a tensor of the buffer's dtype.

    steps: by how much the view moves with each iteration of the loops around, outermost first.
    """

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    steps: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        # Sizes that vary are equal where they are known to be, whatever the example says.
        return (
            isinstance(other, View)
            and self.buffer == other.buffer
            and all_same(self.shape, other.shape)
            and all_same(self.strides, other.strides)
            and same(self.offset, other.offset)
            and all_same(self.steps, other.steps)
        )


def whole(buffer: Buffer) -> View:
    """Return the view that is the buffer itself."""
    return View(buffer.name, buffer.shape, buffer.strides)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One C function, named as it is exported."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel: a buffer read and written stands among its inputs and its outputs.

    parts: into how many pieces the work falls, fixed by the shapes (1: not worth a second thread).
    flops: operations of one run, as far as its loops say.
    """

    kernel: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    parts: int = 1
    origin: Origin = UNKNOWN
    flops: int = 0

    @property
    def views(self) -> tuple[View, ...]:
        """What the kernel's pointers point at, in their order."""
        return self.inputs + self.outputs


@dataclass(frozen=True, slots=True)
class Segment:
    """Launches that run in native code, one after the other."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Vjp:
    """What to differentiate: the gradients of which inputs, given tangents of which results.

    inputs: positions among the operands of the target, one for each output of the call.
    results: positions among its flattened results, one for each tangent; the tangents are the last
    inputs of the call.
    """

    inputs: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """One call to ATen, or to torch's gradient of one ATen operator.

    target: "aten.mm.out".  results: positions among the flattened results, one for each output;
    not used for targets with `out=` arguments and for gradients.  through: layers around the call;
    their innermost one sees the results in `results`.
    """

    target: str
    args: tuple[Template, ...]
    kwargs: tuple[tuple[str, Template], ...]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    results: tuple[int, ...] = ()
    vjp: Vjp | None = None
    origin: Origin = UNKNOWN
    through: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        if not self.results:
            object.__setattr__(self, "results", tuple(range(len(self.outputs))))


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions that run `count` times, one time after the other."""

    body: tuple["Instruction", ...]
    count: int


@dataclass(frozen=True, slots=True)
class While:
    """Run `test`, and where then `holds` (a bool of rank 0) is true, `body`, and so on."""

    test: tuple["Instruction", ...]
    holds: View
    body: tuple["Instruction", ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run `then` where `holds` (a bool of rank 0) is true, else `otherwise`."""

    holds: View
    then: tuple["Instruction", ...]
    otherwise: tuple["Instruction", ...]


Instruction = Segment | LibraryCall | Loop | While | Branch

ARGUMENT = Role()


@dataclass(frozen=True, slots=True)
class Input:
    """An input: its buffer, what it is for, and the name that the user knows it by."""

    buffer: str
    role: Role = ARGUMENT


@dataclass(frozen=True, slots=True)
class Program:
    """All of it.  `arena_bytes` is the size of the arena; `updates` are names of input buffers.

    sizes: what varies; None where every size is a number.  prepare: what runs only where inputs
    that stay are others than they were.
    """

    name: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[KernelSource, ...]
    instructions: tuple[Instruction, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[View, ...]
    updates: tuple[str, ...] = ()
    arena_bytes: int = 0
    sizes: Sizes | None = None
    prepare: tuple[Instruction, ...] = ()

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file that `tilewright.load` makes ready to run; all of it or nothing."""
        from tilewright.program.store import save

        save(self, path)

    def buffer(self, name: str) -> Buffer:
        """Return the buffer of that name."""
        for candidate in self.buffers:
            if candidate.name == name:
                return candidate
        raise AssertionError(f"program {self.name!r} has no buffer {name!r}")
