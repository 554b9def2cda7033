"""The text of a Program, and how it is read: `read(show(program)) == program`.

The idea: one line for each thing, the kernels' C text set off by a bar, so that a saved Program is
a page that a person can read and a diff can compare.  The reader takes nothing on trust: what it
does not know, it refuses with the line's number; what the lines mean together is `verify`'s.

Grammar
-------
::

    program "name" arena 4096
    kernel scale
      |int scale(char **p, long part, long end, long parts) { ... }
    buffer x = input f32[4, 64] strides [1, 4]
    buffer t = arena f32[4, 64] at 128
    buffer c = constant f32[2] data "AACAPwAAAEA="
    buffer k = kept f32[64, 64]
    input x parameter "layers.0.weight"
    update x
    prepare
    segment
      launch turn (w) -> (k)
    end
    segment
      launch scale (x, c{2; 0; 1}) -> (t) parts 2 flops 64 origin "model.py" 12 "x * s" "layers.0"
    call aten.mm.out (%0, %1) {} (x, t) -> (y) results [0]
    call aten.cat.default ([%0, %1], -1) {} (x, t, dy) -> (dx) gradient [0] of [0]
    loop 64
    segment
      launch cell (h, x{8; 1; 0; 8}) -> (h)
    end
    while go
    ...
    do
    ...
    end
    branch go
    ...
    otherwise
    ...
    end
    output y

Where sizes vary, these lines come first, and `$"n_0*64"` stands where a number may::

    size n_0 37 from 2 to 128
    assume $"n_0 - 3" ge
    buffer t = arena f32[$"n_0", 64] above [x]

A view of a whole buffer is the buffer's name; else `name{shape; strides; offset}`, and `; steps`
where it moves with the loops around.
"""

import base64
import binascii

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import UNKNOWN, Origin, ProgramError
from tilewright.base.sizes import INFINITY, PREFIX, Limits, Size, Sizes
from tilewright.graph.ir import Role, TensorType
from tilewright.program.ir import (
    Branch,
    Buffer,
    Input,
    Instruction,
    KernelSource,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    Template,
    View,
    Vjp,
    While,
    contiguous,
    whole,
)
from tilewright.program.layers import Layer
from tilewright.program.refusal import COMPILE_AGAIN
from tilewright.program.text import BAR
from tilewright.program.tokens import DEEPEST, Line

RELATIONS = ("ge", "eq", "ne")


def read(text: str) -> Program:
    """Return the Program that the text describes; raise `ProgramError` naming the bad line."""
    return _Reader(text).program()


class _Reader:
    """Goes through the lines once; what it has read so far is its state."""

    def __init__(self, text: str) -> None:
        if not text.endswith("\n"):
            raise ProgramError(
                "the text of a program does not end with a line's end",
                expected="a last line that is whole",
                found=repr(text[-40:]),
                where=f"line {text.count(chr(10)) + 1}",
                mend=COMPILE_AGAIN,
            )
        self.lines = text[:-1].split("\n")
        self.at = 0
        self.nesting = 0
        self.buffers: dict[str, Buffer] = {}
        self.kernels: list[KernelSource] = []
        self.inputs: list[Input] = []
        self.sizes: Sizes | None = None
        self.updates: list[str] = []
        self.prepare: tuple[Instruction, ...] = ()
        self.instructions: list[Instruction] = []
        self.outputs: list[View] = []

    def program(self) -> Program:
        line = self.next_line()
        line.expect("program")
        name = line.string()
        line.expect("arena")
        arena = line.integer()
        line.end()
        kinds = {
            "size": self.size,
            "assume": self.assume,
            "kernel": self.kernel,
            "buffer": self.buffer,
            "input": self.input,
            "update": self.update,
            "prepare": self.prepare_,
            "segment": self.segment,
            "call": self.call,
            "loop": self.loop,
            "while": self.while_,
            "branch": self.branch,
            "output": self.output,
        }
        while self.at < len(self.lines):
            line = self.next_line()
            word = line.name()
            if word not in kinds:
                line.refuse(
                    f"{word!r} begins no line of a program",
                    f"one of {', '.join(kinds)}",
                    repr(word),
                )
            kinds[word](line)
        return Program(
            name=name,
            buffers=tuple(self.buffers.values()),
            kernels=tuple(self.kernels),
            instructions=tuple(self.instructions),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            updates=tuple(self.updates),
            arena_bytes=arena,
            sizes=self.sizes,
            prepare=self.prepare,
        )

    def next_line(self) -> Line:
        self.at += 1
        return Line(self.lines[self.at - 1], self.at, self.sizes)

    def size(self, line: Line) -> None:
        name, value = line.name(), line.integer()
        line.expect("from")
        low = line.integer()
        high = line.integer() if line.take("to") else INFINITY
        line.end()
        if self.buffers or not name.startswith(PREFIX) or not 0 <= low <= value <= high:
            line.refuse(
                f"{name!r} is no size that varies",
                f"{PREFIX}NAME, a value and the limits it is within, before all buffers",
                f"{value} from {low} to {high}",
            )
        known = {} if self.sizes is None else dict(self.sizes.values)
        limits = {} if self.sizes is None else dict(self.sizes.limits)
        self.sizes = Sizes({**known, name: value}, {**limits, name: Limits(low, high)})

    def assume(self, line: Line) -> None:
        value, relation = line.integer(), line.name()
        line.end()
        if self.sizes is None or relation not in RELATIONS or not isinstance(value, Size):
            line.refuse(
                "that is nothing to assume of sizes", f"one of {', '.join(RELATIONS)}", relation
            )
        assert isinstance(value, Size), "refuse raises"
        value.sizes.assume(value.key, relation)

    def kernel(self, line: Line) -> None:
        name = line.name()
        line.end()
        first = self.at
        while self.at < len(self.lines) and self.lines[self.at].startswith(BAR):
            self.at += 1
        text = "\n".join(bar[len(BAR) :] for bar in self.lines[first : self.at])
        self.kernels.append(KernelSource(name, text))

    def buffer(self, line: Line) -> None:
        name = line.name()
        line.expect("=")
        kind, dtype, shape = line.name(), line.name(), line.integers("[", "]")
        if dtype not in BY_NAME:
            line.refuse(f"{dtype!r} is no dtype", f"one of {', '.join(BY_NAME)}", repr(dtype))
        if name in self.buffers:
            line.refuse(f"two buffers have the name {name!r}", "each name once", repr(name))
        strides = line.integers("[", "]") if line.take("strides") else contiguous(shape)
        if len(strides) != len(shape):
            line.refuse("the strides do not fit the shape", f"{len(shape)} strides", str(strides))
        offset = line.integer() if line.take("at") else 0
        above: tuple[str, ...] = ()
        if line.take("above"):
            line.expect("[")
            above = tuple(line.separated(line.name, "]"))
        data = _bytes(line) if line.take("data") else b""
        line.end()
        type_ = TensorType(shape, BY_NAME[dtype])
        self.buffers[name] = Buffer(name, type_, kind, strides, offset, data, above)

    def input(self, line: Line) -> None:
        name = line.name()
        self.inputs.append(Input(name, Role(line.string(), line.string())))
        line.end()

    def update(self, line: Line) -> None:
        self.updates.append(line.name())
        line.end()

    def prepare_(self, line: Line) -> None:
        line.end()
        if self.prepare or self.instructions:
            line.refuse(
                "what is prepared does not stand first", "one block, before all others", "prepare"
            )
        self.prepare = self.block("end")

    def segment(self, line: Line) -> None:
        line.end()
        launches = []
        while self.at < len(self.lines) and self.lines[self.at].startswith("  launch "):
            launches.append(self.launch(self.next_line()))
        self.instructions.append(Segment(tuple(launches)))

    def loop(self, line: Line) -> None:
        count = line.integer()
        line.end()
        self.instructions.append(Loop(self.block("end"), count))

    def while_(self, line: Line) -> None:
        holds = self.view(line)
        line.end()
        self.instructions.append(While(self.block("do"), holds, self.block("end")))

    def branch(self, line: Line) -> None:
        holds = self.view(line)
        line.end()
        self.instructions.append(Branch(holds, self.block("otherwise"), self.block("end")))

    def block(self, last: str) -> tuple[Instruction, ...]:
        """Take the instructions up to a line that is `last`."""
        kinds = {
            "segment": self.segment,
            "call": self.call,
            "loop": self.loop,
            "while": self.while_,
            "branch": self.branch,
        }
        outside, self.instructions = self.instructions, []
        self.nesting += 1
        while True:
            if self.at >= len(self.lines):
                raise ProgramError(
                    "the text of a program ends inside a loop or branch",
                    expected=f"a line {last!r}",
                    found="the end of the text",
                    where=f"line {len(self.lines)}",
                    mend=COMPILE_AGAIN,
                )
            line = self.next_line()
            word = line.name()
            if word == last:
                line.end()
                break
            if word not in kinds or self.nesting > DEEPEST:
                line.refuse(
                    f"{word!r} begins no line inside a loop or branch",
                    f"{last} or one of {', '.join(kinds)}, at most {DEEPEST} in each other",
                    repr(word),
                )
            kinds[word](line)
        self.nesting -= 1
        made, self.instructions = tuple(self.instructions), outside
        return made

    def launch(self, line: Line) -> Launch:
        line.expect("launch")
        kernel = line.name()
        inputs, outputs = self.flow(line)
        parts = line.integer() if line.take("parts") else 1
        flops = line.integer() if line.take("flops") else 0
        origin = _origin(line)
        line.end()
        return Launch(kernel, inputs, outputs, parts, origin, flops)

    def call(self, line: Line) -> None:
        target = line.name()
        line.expect("(")
        args = tuple(line.separated(line.template, ")"))
        kwargs = _kwargs(line)
        inputs, outputs = self.flow(line)
        line.expect("results")
        results = line.integers("[", "]")
        vjp = None
        if line.take("gradient"):
            wanted = line.integers("[", "]")
            line.expect("of")
            vjp = Vjp(wanted, line.integers("[", "]"))
        through = []
        while line.take("through"):
            kind, moved, made = line.name(), line.integers("[", "]"), line.integers("[", "]")
            through.append(Layer(kind, moved, made, line.integer(), line.string()))
        origin = _origin(line)
        line.end()
        self.instructions.append(
            LibraryCall(target, args, kwargs, inputs, outputs, results, vjp, origin, tuple(through))
        )

    def output(self, line: Line) -> None:
        self.outputs.append(self.view(line))
        line.end()

    def flow(self, line: Line) -> tuple[tuple[View, ...], tuple[View, ...]]:
        inputs = self.views(line)
        line.expect("->")
        return inputs, self.views(line)

    def views(self, line: Line) -> tuple[View, ...]:
        line.expect("(")
        return tuple(line.separated(lambda: self.view(line), ")"))

    def view(self, line: Line) -> View:
        name = line.name()
        if name not in self.buffers:
            line.refuse(
                f"no buffer above has the name {name!r}",
                f"one of {', '.join(self.buffers)}" if self.buffers else "a buffer's line first",
                repr(name),
            )
        if not line.take("{"):
            return whole(self.buffers[name])
        shape = tuple(line.separated(line.integer, ";"))
        strides = tuple(line.separated(line.integer, ";"))
        offset = line.integer()
        moves = line.take(";")
        steps = tuple(line.separated(line.integer, "}")) if moves else ()
        if not moves:
            line.expect("}")
        return View(name, shape, strides, offset, steps)


def _bytes(line: Line) -> bytes:
    text = line.string()
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if base64.b64encode(data).decode("ascii") != text:
        line.refuse("the data of a constant is no base64", "canonical base64", repr(text[:40]))
    return data


def _origin(line: Line) -> Origin:
    if not line.take("origin"):
        return UNKNOWN
    return Origin(line.string(), line.integer(), line.string(), line.string())


def _kwargs(line: Line) -> tuple[tuple[str, Template], ...]:
    def pair() -> tuple[str, Template]:
        key = line.name()
        line.expect("=")
        return key, line.template()

    line.expect("{")
    return tuple(line.separated(pair, "}"))
