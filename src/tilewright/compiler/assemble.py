"""From an optimized graph to a Program: who computes each node, where each value lives.

The idea: one walk in the graph's order.  A value is a view of a buffer; a strided view of another
value costs nothing; a fused region is a kernel launch; a contraction is a matrix call on strided
views; a sub-graph is a block of instructions (`control`); what has no loops is a library call.
Then lifetimes give the arena its addresses.

This module takes decisions and writes each down (`Decision`); it does not optimize.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtypes import I64, DType
from tilewright.base.errors import LibraryCallError, Origin
from tilewright.base.expr import Expr, Read, Sym
from tilewright.base.sizes import Sizes, nominal
from tilewright.compiler import control
from tilewright.compiler.accumulate import place_accumulated
from tilewright.compiler.attention import place_attention
from tilewright.compiler.choices import Choices, last_cache
from tilewright.compiler.depthwise import place_depthwise
from tilewright.compiler.epilogue import place_followed, place_product
from tilewright.compiler.inplace import updates_in_place
from tilewright.compiler.joined import Slot, slots
from tilewright.compiler.library import Call, reason_of, serve
from tilewright.compiler.options import Options
from tilewright.compiler.refusals import unrefused
from tilewright.compiler.report import Decision
from tilewright.compiler.slices import Lay
from tilewright.compiler.sources import Begin, Sources
from tilewright.compiler.strided import is_contiguous
from tilewright.compiler.varying import sizes_of
from tilewright.compiler.winograd import place_winograd
from tilewright.graph.build import as_body, names
from tilewright.graph.control import sizes_vary
from tilewright.graph.ir import (
    CONSTANT,
    CONTROL,
    FUSED,
    Formula,
    Graph,
    Loop,
    Node,
    TensorType,
    Value,
)
from tilewright.graph.notation import normal
from tilewright.graph.views import view_of
from tilewright.kernels import Emitted, emit
from tilewright.memory import Block, MemoryPlan, pack, stacked
from tilewright.optimize import prepared, staying
from tilewright.program import (
    ARENA,
    INPUT,
    KEPT,
    LIBRARY,
    OUTPUT,
    SIZES,
    Buffer,
    Input,
    Instruction,
    Launch,
    LibraryCall,
    Program,
    View,
    contiguous,
    lifetimes,
    reach,
    whole,
)
from tilewright.program import CONSTANT as CONSTANT_BUFFER

_PRODUCTS = (place_winograd, place_accumulated, place_product, place_depthwise)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A Program, the reasons it is as it is, its memory plan, and its kernels by name."""

    program: Program
    decisions: tuple[Decision, ...]
    memory: MemoryPlan
    emitted: Mapping[str, Emitted]


def assemble(
    graph: Graph,
    options: Options,
    choices: Choices,
    lying: Mapping[str, View] | None = None,
    begin: Begin | None = None,
) -> Assembled:
    """Turn an optimized graph into a Program.

    Results come in the order of the graph's outputs, without those that are updates: these are
    written into their inputs.  choices: what was measured.  lying: how inputs lie that are not
    contiguous; such a one is given as flat memory.  begin: is told of each kernel once it is
    written.  Raises LibraryCallError under `Options(library=False)`.
    """
    assembly = Assembly(graph, options, choices, Sources(begin))
    for value in graph.inputs:
        assembly.places[value.name] = assembly.input(value, (lying or {}).get(value.name))
    updated = {position for _, position in graph.updates}
    if options.frozen:
        assembly.keep()
    assembly.results = {v.name for k, v in enumerate(graph.outputs) if k not in updated}
    assembly.run()
    outputs = assembly.deliver()
    return assembly.finish(outputs)


class Assembly:
    """The Program in the making, or that part of it that comes from a sub-graph; final.

    Mutable: owned by `assemble`.  places: where each value lies.  results: values that are no views
    of others.  targets: where some of them have to lie.  named: the graph's own names, which no
    other buffer takes.  prefix, depth: of the names of buffers, and how many loops that count are
    around.  around, lasting, carried: of a loop's body, the assembly that the loop is part of, the
    buffers that hold the same in all steps, and values made of carries; of what runs again and
    again, the assembly of what is prepared (the values `early`), and the inputs that stay.  kind:
    of the buffers of its values.
    """

    def __init__(self, graph: Graph, options: Options, choices: Choices, kernels: Sources):
        self.graph = graph
        self.options, self.cache = options, last_cache(options)
        self.choices = choices
        self.places: dict[str, View] = {}
        self.buffers: dict[str, Buffer] = {}
        self.kernels = kernels
        self.emitted: dict[str, Emitted] = {}
        self.steps: list[control.Step] = []
        self.decisions: list[Decision] = []
        self.results: set[str] = set()
        self.targets: dict[str, View] = {}
        self.in_place: dict[str, str] = {}
        self.slots: dict[str, Slot] = {}
        self.sizes: Sizes | None = None
        self.sizes_view: View | None = None
        self.named = names(graph)
        self.prefix = ""
        self.depth = 0
        self.around: Assembly | None = None
        self.lasting = self.early = self.carried = frozenset[str]()
        self.kind = ARENA

    def keep(self) -> None:
        """Let what depends on inputs that stay alone be prepared once, in buffers that are kept."""
        self.around = self._beside(self.graph)
        self.around.places, self.around.kind = self.places, KEPT
        self.lasting, self.early = staying(self.graph), prepared(self.graph)

    def _beside(self, graph: Graph) -> "Assembly":
        made = Assembly(graph, self.options, self.choices, self.kernels)
        made.buffers, made.decisions, made.emitted = self.buffers, self.decisions, self.emitted
        made.named, made.kind = self.named, self.kind
        return made

    def inside(
        self, graph: Graph, places: Sequence[View], targets: dict[str, View], *, depth: int
    ) -> "Assembly":
        """Return the assembly of a sub-graph whose inputs lie at `places`."""
        made = self._beside(graph)
        made.places = dict(zip((value.name for value in graph.inputs), places, strict=True))
        made.results, made.targets = set(targets), targets
        made.prefix, made.depth = f"{self.prefix}{graph.name}.", depth
        return made

    def run(self) -> None:
        """Go through the nodes."""
        self.in_place = updates_in_place(self.graph, 0 if self.prefix else unrefused(self.graph))
        self.sizes = sizes_of(self.graph)
        self.slots = slots(self.graph, {*self.results, *self.in_place, *self.early})
        for node in self.graph.nodes:
            if node.op in CONTROL and self.sizes is not None:
                raise sizes_vary(node.op, self.sizes.describe(), node.origin)
            early = self.around if node.outputs[0].name in self.early else None
            (early or self).node(node)

    def block(self) -> tuple[Instruction, ...]:
        """Return the instructions so far."""
        return control.in_segments(self.steps)

    # ---------------------------------------------------------------------------- one node

    def node(self, node: Node) -> None:
        """Decide how a node is computed, and add what does it."""
        if node.op == CONSTANT:
            self._constant(node)
        elif node.outputs[0].name in self.places:
            pass  # computed along with another, or part by part
        elif node.op == FUSED:
            if not place_followed(self, node):
                self._kernel(node, node.graphs[0], "fused region")
        elif node.op in CONTROL:
            reason = control.PLACED[node.op](self, node)
            self.decide(node, "control", reason)
        elif node.formula is not None:
            if not (self._alias(node) or any(place(self, node) for place in _PRODUCTS)):
                self._kernel(node, as_body(node), "one formula")
        elif not place_attention(self, node):
            self._library(node)

    def _constant(self, node: Node) -> None:
        value = node.output
        data = np.array(node.attr("value"), dtype=value.type.dtype.numpy)
        self.places[value.name] = self.buffer(value, CONSTANT_BUFFER, data.tobytes())
        self.decide(node, "constant", f"{data.nbytes} bytes in the program")

    def _alias(self, node: Node) -> bool:
        """A strided view of its operand is no work, unless it has to be handed out."""
        value, formula = node.output, node.formula
        if formula is None or len(node.inputs) != 1 or value.name in self.results:
            return False
        if value.type.dtype != node.inputs[0].type.dtype or value.name in self.in_place:
            return False
        found = view_of(formula, {formula.operands[0]: node.inputs[0].type})
        source = self.places[node.inputs[0].name]
        place = None if found is None else found.strided(source.strides, source.offset)
        if place is None:
            return False
        # Nothing has no place: where it would begin may lie behind the end of the buffer.
        empty = 0 in [dim for dim in value.type.shape if type(dim) is int]
        offset = source.offset if empty else place.offset
        view = replace(source, shape=_shape(value), strides=place.strides, offset=offset)
        self.places[value.name] = view
        self.decide(node, "view", f"strides {view.strides} of {view.buffer}")
        return True

    def call(
        self,
        made: Emitted,
        function: tuple[str, str],
        inputs: tuple[View, ...],
        outputs: tuple[View, ...],
        origin: Origin,
    ) -> None:
        """Add the launch of a kernel, and the function (its name and text) that it calls."""
        self.kernels.add(*function)
        self.kernel(made)
        self.steps.append(Launch(made.name, inputs, outputs, made.parts, origin, made.flops))

    def _library(self, node: Node) -> None:
        call = serve(node)
        assert call is not None, f"{node.op} has neither loops nor a library call: expand it first"
        if not self.options.library:
            raise LibraryCallError(
                f"{call.target} is a library call",
                expected="operators that Tilewright has loops for, under Options(library=False)",
                found=call.target,
                where=node.origin,
                mend="allow library calls: Options(library=True)",
            )
        views = [self._dense(self.places[value.name]) for value in node.inputs]
        self._call(node, call, views, reason_of(node))

    def _call(self, node: Node, call: Call, views: Sequence[View], reason: str) -> None:
        outputs = []
        for value in node.outputs:
            self.places[value.name] = self.buffer(value, LIBRARY)
            outputs.append(self.places[value.name])
        step = LibraryCall(
            call.target,
            call.args,
            call.kwargs,
            tuple(views),
            tuple(outputs),
            call.results,
            call.vjp,
            node.origin,
            call.through,
        )
        self.steps.append(step)
        for value in node.outputs if self.kind == KEPT else ():
            self.places[value.name] = self.scratch(f"{value.name}_kept", value.type)
            self.copy(outputs.pop(0), self.places[value.name], "a library's result is kept")
        suffix = " (gradient by torch)" if call.vjp is not None else ""
        suffix += "".join(f" ({layer.kind} by torch)" for layer in call.through)
        self.decide(node, "library", f"{reason}: {call.target}{suffix}")

    def _kernel(self, node: Node, body: Graph, reason: str) -> None:
        views = [self.places[value.name] for value in node.inputs]
        outputs = tuple(self.place(value) for value in node.outputs)
        pairs = zip((*body.inputs, *body.outputs), (*views, *outputs), strict=True)
        strides = {inner.name: view.strides for inner, view in pairs if not is_contiguous(view)}
        near = self.in_place.keys() | self.slots.keys()  # what it reads, or what reads it next
        cache = 0 if any(value.name in near for value in node.outputs) else self.cache
        made = emit(body, strides, check=self.options.verify, cache=cache)
        self.kernel(made)
        inputs = (*views, *([self._sizes()] if made.sizes else []))
        self.steps.append(Launch(made.name, inputs, outputs, made.parts, node.origin, made.flops))
        reason += f": {made.name}{made.written}"
        self.decide(node, "kernel", reason, made.flops, made.bytes, made.nest)

    def kernel(self, made: Emitted) -> None:
        """Add a kernel to the Program, if it does not have it."""
        self.kernels.add(made.name, made.text)
        self.emitted.setdefault(made.name, made)

    def _sizes(self) -> View:
        """Return where kernels find the values of the sizes that vary."""
        assert self.sizes is not None, "a kernel that asks for sizes computes with some"
        if self.sizes_view is None:
            name, type_ = self.fresh("sizes"), TensorType((len(self.sizes.values),), I64)
            made = self.buffers[name] = Buffer(name, type_, SIZES)
            self.sizes_view = whole(made)
        return self.sizes_view

    # ------------------------------------------------------------------------------ places

    def place(self, value: Value) -> View:
        """Choose where a value lies: where it has to, in its input if updated in place, in what it
        is a part of, in an output, or in the arena."""
        if value.name in self.targets:
            place = self.targets[value.name]
        elif value.name in self.in_place:
            place = self.places[self.in_place[value.name]]
        elif (slot := self.slots.get(value.name)) is not None:
            whole = self.places.get(slot.whole.name) or self.place(slot.whole)
            place = slot.of(whole, _shape(value))
        else:
            place = self.buffer(value, OUTPUT if value.name in self.results else self.kind)
        self.places[value.name] = place
        return place

    def buffer(self, value: Value, kind: str, data: bytes = b"") -> View:
        """Add the buffer of a value; those of the graph itself have its name."""
        name = self.fresh(f"{self.prefix}{value.name}") if self.prefix else value.name
        made = self.buffers[name] = Buffer(name, value.type, kind, data=data)
        return whole(made)

    def input(self, value: Value, lying: View | None) -> View:
        """Add the buffer of an input: as its type says, or so much memory as a view reaches."""
        if lying is None:
            return self.buffer(value, INPUT)
        low, high = reach(lying.shape, lying.strides)
        flat = Value(value.name, TensorType((high - low,), value.type.dtype))
        return replace(
            self.buffer(flat, INPUT), shape=lying.shape, strides=lying.strides, offset=-low
        )

    def fresh(self, wish: str) -> str:
        """Return a name that neither a buffer nor a value has."""
        wishes = (f"{wish}_{count}" if count else wish for count in itertools.count())
        return next(name for name in wishes if name not in self.buffers and name not in self.named)

    def _dense(self, view: View) -> View:
        """Library calls take strides in which the last dim is dense; others are copied."""
        if not view.strides or view.shape[-1] == 1 or view.strides[-1] == 1:
            return view
        loops = _loops(view.shape)
        return self.gathered(view, [Sym(loop.name) for loop in loops], loops)

    def gathered(self, view: View, index: Sequence[Expr], loops: Sequence[Loop]) -> View:
        """Copy `view[index]` to a dense tensor over `loops`."""
        dtype = self.buffers[view.buffer].type.dtype
        target = self.scratch(f"{view.buffer}_dense", _over(loops, dtype))
        target_index = tuple(Sym(loop.name) for loop in loops)
        value = Read("x", tuple(index))
        formula = Formula(("x",), tuple(loops), target_index, "=", value, _over(loops, dtype))
        self.launch(normal(formula), view, target, f"{view.buffer} made dense for its reader")
        return target

    def before(self, view: View) -> tuple["Assembly", View]:
        """Return the assembly that has to read a view least often, before the loops that do not
        change it, or where values are prepared; and the view there."""
        around = self.around
        if around is None or any(view.steps[around.depth :]):
            return self, view
        if view.buffer not in self.lasting and self.buffers[view.buffer].kind != KEPT:
            return self, view
        return around.before(replace(view, steps=view.steps[: around.depth]))

    def hoisted(
        self, view: View, index: Sequence[Expr], loops: Sequence[Loop], lay: Lay | None
    ) -> View | None:
        """Copy as `gathered` or `lay` does, once before the loop; None where steps change it."""
        before, there = self.before(view)
        if before is self:
            return None
        return before.gathered(there, index, loops) if lay is None else lay(before, there)

    def copy(self, source: View, target: View, reason: str) -> None:
        """Copy one view to another."""
        loops = _loops(source.shape)
        index = tuple(Sym(loop.name) for loop in loops)
        type_ = _over(loops, self.buffers[source.buffer].type.dtype)
        formula = Formula(("x",), loops, index, "=", Read("x", index), type_)
        self.launch(normal(formula), source, target, reason)

    def launch(self, formula: Formula, source: View, target: View, reason: str) -> None:
        type_ = TensorType(source.shape, self.buffers[source.buffer].type.dtype)
        node = Node("copy", (Value("x", type_),), (Value("y", formula.type),), formula=formula)
        strides = {} if is_contiguous(source) else {"x": source.strides}
        made = emit(as_body(node), strides, check=self.options.verify, cache=self.cache)
        self.kernel(made)
        inputs = (source, *([self._sizes()] if made.sizes else []))
        self.steps.append(Launch(made.name, inputs, (target,), made.parts))
        reason += made.written
        self.decisions.append(Decision(target.buffer, "copy", reason, bytes=made.bytes))

    def scratch(self, wish: str, type_: TensorType) -> View:
        """Add a buffer, in the arena unless all is kept, that is no value's own."""
        name = self.fresh(wish)
        made = self.buffers[name] = Buffer(name, type_, self.kind)
        return whole(made)

    # ------------------------------------------------------------------------- the results

    def deliver(self) -> tuple[View, ...]:
        """Bring every result into a buffer that can be handed out, every update into its input.

        Results first, then the values that updates take from inputs: these are about to change.
        """
        updated = dict((position, name) for name, position in self.graph.updates)
        handed, outputs = set[str](), list[View]()
        for position, value in enumerate(self.graph.outputs):
            if position in updated:
                continue
            place = self.places[value.name]
            kind = self.buffers[place.buffer].kind
            if kind not in (OUTPUT, LIBRARY) or place.buffer in handed or not is_contiguous(place):
                target = self.scratch(f"{value.name}_result", value.type)
                self.buffers[target.buffer] = replace(self.buffers[target.buffer], kind=OUTPUT)
                self.copy(place, target, "a result has memory of its own")
                place = target
            handed.add(place.buffer)
            outputs.append(place)
        self.write_updates({name: self.graph.outputs[at] for at, name in updated.items()})
        return tuple(outputs)

    def write_updates(self, updates: Mapping[str, Value]) -> None:
        """Write each input's new value; what is read from another updated input is copied first."""
        places = {name: self.places[value.name] for name, value in updates.items()}
        targets = {name: self.places[name] for name in updates}
        written = {target.buffer for target in targets.values()}
        for name, place in places.items():
            if place.buffer in written and place != targets[name]:
                places[name] = self.scratch(f"{name}_new", updates[name].type)
                self.copy(place, places[name], f"{place.buffer} is written before {name} is")
        for name, place in places.items():
            if place != targets[name]:
                self.copy(place, targets[name], f"{name} is written at the end")

    def finish(self, outputs: tuple[View, ...]) -> Assembled:
        """Give the arena its addresses and put the Program together."""
        program = Program(
            self.graph.name,
            tuple(self.buffers.values()),
            tuple(self.kernels),
            self.block(),
            tuple(Input(value.name, self.graph.role(value.name)) for value in self.graph.inputs),
            outputs,
            tuple(name for name, _ in self.graph.updates),
            prepare=() if self.around is None else self.around.block(),
        )
        alive = lifetimes(program)
        blocks = [
            Block(buffer.name, nominal(buffer.bytes), *alive[buffer.name])
            for buffer in program.buffers
            if buffer.kind == ARENA and buffer.name in alive
        ]
        plan = pack(blocks)
        if self.sizes is not None:
            above = stacked(plan, blocks)
            stacks = tuple(replace(b, above=above.get(b.name, ())) for b in program.buffers)
            program = replace(program, buffers=stacks, sizes=self.sizes)
            return Assembled(program, tuple(self.decisions), plan, self.emitted)
        offsets = dict(plan.offsets)
        placed = tuple(replace(b, offset=offsets.get(b.name, 0)) for b in program.buffers)
        program = replace(program, buffers=placed, arena_bytes=plan.bytes)
        return Assembled(program, tuple(self.decisions), plan, self.emitted)

    def decide(
        self, node: Node, how: str, reason: str, flops: int = 0, bytes_: int = 0, nest: str = ""
    ) -> None:
        reason = f"prepared, {reason}" if self.kind == KEPT else reason
        for value in node.outputs[:1]:
            made = Decision(value.name, how, reason, node.origin, flops, bytes_, nest)
            self.decisions.append(made)


def _loops(shape: Sequence[int]) -> tuple[Loop, ...]:
    return tuple(Loop(f"i{k}", extent) for k, extent in enumerate(shape))


def _over(loops: Sequence[Loop], dtype: DType) -> TensorType:
    return TensorType(tuple(loop.extent for loop in loops), dtype)


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.type.shape if isinstance(dim, int))


__all__ = ["Assembled", "Decision", "assemble", "contiguous"]
