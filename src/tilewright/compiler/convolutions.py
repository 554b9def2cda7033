"""Convolutions: products of our own, or library calls, both gradients of one in a single call.

The idea: whatever form a convolution's formula has, it is recognised by what it computes::

    {y[n, o, h, w] += x[n, c, h+i-1, w+j-1] * k[o, c, i, j]}(x, k)   -->   aten.convolution(x, k)
    dx = {...}(dy, k), dk = {...}(dy, x)   -->   dx, dk = aten.convolution_backward(dy, x, k)

or, where that is as fast, sums of products over an image with a border (`windows`).  In a half type
both take the bias that is added to their result, so that the sum is rounded once.

This module does not know buffers, nor how the library computes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.autodiff import full
from tilewright.base.dtypes import F64, DType
from tilewright.base.expr import Call, Const, Read, Sym
from tilewright.compiler.choices import OWN, Asked, Choices, alone
from tilewright.compiler.depthwise import is_depthwise
from tilewright.compiler.options import Options
from tilewright.compiler.varying import sizes_of
from tilewright.compiler.windows import has_phases, is_apart, is_product, multiply
from tilewright.compiler.winograd import is_winograd, winograd_functions
from tilewright.graph.build import Builder, sort, users
from tilewright.graph.convolution import Convolution, classify_convolution
from tilewright.graph.ir import LIBRARY, Attr, Graph, Node, TensorType, Value
from tilewright.kernels import PRODUCT_DTYPES, is_rounded
from tilewright.optimize import Expand, prepared, staying
from tilewright.program import KernelSource
from tilewright.tune import LIBRARY as BY_LIBRARY

FORWARD = "aten.convolution.default"
BACKWARD = "aten.convolution_backward.default"
_OPERANDS = {
    "forward": ("input", "weight"),
    "weight": ("output", "input"),
    "input": ("output", "weight"),
}


@dataclass(frozen=True, slots=True)
class PlaceConvolutions:
    """Turn convolution formulas into products, or library calls where these are allowed and faster;
    gradients of one convolution share a call.

    vector: bytes of the vectors that products of ours have.  leads: whether they take no more time
    than the library, of whatever sizes.  squares: whether both multiply those of bfloat16 at once.
    """

    library: bool = True
    winograd: bool = True
    frozen: bool = False
    choices: Choices = field(default_factory=Choices, compare=False)
    vector: int = 16
    leads: bool = False
    squares: bool = False
    name: str = "place_convolutions"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        """Formulas that are convolutions --> products and library nodes with the same results."""
        found = dict(_find(graph))
        kept = _kept(graph, frozen=self.frozen)
        if not self.library:
            found = {name: one for name, one in found.items() if self._is_product(one, kept)}
        if not found:
            return graph
        builder = Builder.extending(replace(graph, nodes=()))
        builder.reserve(value.name for node in graph.nodes for value in node.outputs)
        done: set[str] = set()
        products = {name for name, one in found.items() if self._is_product(one, kept)}
        apart = {
            name for name in products if is_depthwise(found[name].convolution, found[name].dtype)
        }
        biased = _biased(graph, [one for name, one in found.items() if name not in apart])
        done.update(sum_.output.name for sum_, _ in biased.values())
        for node in graph.nodes:
            one = found.get(node.outputs[0].name)
            if node.outputs[0].name in done:
                continue
            if one is None:
                builder.nodes.append(node)
            elif node.output.name in apart:
                builder.nodes.append(node)  # as it stands, for a kernel of its own
            elif node.output.name in products:
                first, second = _OPERANDS[one.kind]
                operands = one.values[first], one.values[second]
                sum_, bias = biased.get(node.output.name, (one.node, None))
                multiply(
                    builder,
                    one.convolution,
                    *operands,
                    sum_.output,
                    one.node.origin,
                    even=self._is_fast(one, kept),
                    bias=bias,
                )
            elif one.node.output.name in biased:
                builder.nodes.append(_call(builder, [one], (), biased[one.node.output.name]))
            else:
                halves = [one, *_partners(one, found, products | done)]
                known = [other.values for other in found.values() if one.pairs_with(other)]
                builder.nodes.append(_call(builder, halves, known))
                done.update(half.node.output.name for half in halves)
        return sort(builder.finish(graph.outputs, graph.updates))

    def _is_fast(self, one: "_Found", kept: Collection[str]) -> bool:
        """Say whether a convolution is computed by Winograd's algorithm, if it is a product."""
        stays = one.stays(kept)
        return self.winograd and is_winograd(one.convolution, one.dtype, kept=stays)

    def _is_product(self, one: "_Found", kept: Collection[str]) -> bool:
        """Say whether a convolution is computed as a product of matrices.

        kept: values that stay from run to run.
        """
        c, dtype = one.convolution, one.dtype
        alone_each = is_depthwise(c, dtype)
        if not (alone_each or is_product(c)):
            return False
        # What rounds sums goes through memory in the order of their loops.
        able = dtype in PRODUCT_DTYPES and not (is_rounded(dtype) and is_apart(c))
        ours = able and (self.squares or not is_rounded(dtype))
        stays = one.stays(kept)
        fast = self._is_fast(one, kept)
        if fast and stays:
            return True  # what was measured transformed the kernels each time
        if not self.library:
            return fast or able
        leads = ours and self.leads and _leads(c, dtype)
        usual = fast or alone_each or leads
        usual = usual or _is_better_product(c, self.vector if ours else 0, dtype)
        if not ours:
            return usual
        asked = Asked(
            describe(c, dtype, fast=fast),
            f"convolution, {c.kind}: {_listed(c.shapes[0])} by {_listed(c.shapes[1])}",
            RECIPE,
            OWN if usual else BY_LIBRARY,
            (OWN, BY_LIBRARY),
            _operations(c),
            alone(one.node),
        )
        return self.choices.take(asked).choice == OWN


def foreseen(graph: Graph, options: Options) -> tuple[KernelSource, ...]:
    """Return the functions that a graph's convolutions will most likely be computed by.

    They take the compiler longest, and what calls them is written when all else is decided.  Where
    something else was measured to be faster, they are compiled for nothing.
    """
    if not options.winograd or sizes_of(graph) is not None:
        return ()
    graph = as_sums(graph)
    kept = _kept(graph, frozen=options.frozen)
    kinds = {
        (one.kind, one.dtype)
        for _, one in _find(graph)
        if is_product(one.convolution)
        and is_winograd(one.convolution, one.dtype, kept=one.stays(kept))
    }
    functions = (
        function
        for kind in sorted(kinds, key=str, reverse=True)
        for function in winograd_functions(*kind)
    )
    return tuple(KernelSource(*function) for function in dict.fromkeys(functions))


def as_sums(graph: Graph) -> Graph:
    """Write convolutions with a bias as two formulas: the sum itself, and what follows."""
    return Expand(lambda node: "conv" not in node.op)(graph)


def _kept(graph: Graph, *, frozen: bool) -> frozenset[str]:
    """Return the values that stay from run to run."""
    return staying(graph) | prepared(graph) if frozen else frozenset()


RECIPE = 6
"""Grows when what was measured of convolutions no longer holds."""


def describe(c: Convolution, dtype: DType, *, fast: bool) -> str:
    """Return a convolution in words; fast: whether ours is Winograd's."""
    x, w, y = map(_listed, c.shapes)
    steps = (c.stride, c.padding, c.dilation)
    stride, padding, dilation = map(_listed, steps)
    own = " winograd" if fast else ""
    return (
        f"convolution {c.kind} {dtype.name} {x} {w} {y} stride {stride} padding {padding} "
        f"dilation {dilation} groups {c.groups}{own}"
    )


def _listed(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def _partners(one: "_Found", found: Mapping[str, "_Found"], taken: set[str]) -> list["_Found"]:
    """Return the gradient that shares the call of another, if there is one."""
    others = (other for name, other in found.items() if name not in taken and other is not one)
    return [other for other in others if one.pairs_with(other)][:1]


@dataclass(frozen=True, slots=True)
class _Found:
    """A node that is a convolution or a gradient of one; values: what it reads, by part."""

    node: Node
    convolution: Convolution
    values: Mapping[str, Value]

    @property
    def kind(self) -> str:
        return self.convolution.kind

    @property
    def dtype(self) -> DType:
        return self.node.output.type.dtype

    def stays(self, kept: Collection[str]) -> bool:
        """Say whether its kernels are among the values that stay from run to run."""
        return "weight" in self.values and self.values["weight"].name in kept

    def pairs_with(self, other: "_Found") -> bool:
        """Say whether both are gradients of the same convolution, given the same tangent."""
        mine, theirs = self.convolution, other.convolution
        same = self.values.get("output") == other.values.get("output")
        kinds = {self.kind, other.kind} == {"input", "weight"}
        return same and kinds and _geometry(mine) == _geometry(theirs)


def _geometry(c: Convolution) -> tuple[object, ...]:
    return c.stride, c.padding, c.dilation, c.groups, c.shapes


def _find(graph: Graph) -> Iterator[tuple[str, _Found]]:
    for node in graph.nodes:
        if node.formula is None or len(node.inputs) != 2 or 0 in node.output.type.shape:
            continue
        operands = dict(zip(node.formula.operands, node.inputs, strict=True))
        types = {name: value.type for name, value in operands.items()}
        made = classify_convolution(node.formula, types)
        if made is not None and not made.last:
            parts = {"input": made.input, "weight": made.weight, "output": made.output}
            values = {part: operands[name] for part, name in parts.items() if name}
            yield node.output.name, _Found(node, made, values)


FEW_POSITIONS = 512
"""Positions over which our sums are at least as fast as the library's, forward and of a weight."""
FEW_TERMS = 150
"""Terms of an element up to which ours is so: those of a net's first layer."""
FEW_ZEROS = 1.5
"""How many times its products ours may have there, for the zeros in steps that windows lack."""
FEW_CHANNELS = 4
"""Channels of an image whose gradient is worth any zeros: the library computes more of them."""
FEW_A_GROUP = 8
"""Channels of a group below which the library's sums are too short for its vectors: ours take .2 to
.9 of its time, forward and both gradients (3 to 7 channels, windows of 1 and 3, AVX2)."""
WORTH_PACKING = 64
"""Channels that windows two apart are packed for, forward; for fewer it would take too long."""
WIDE = 64
"""Bytes of a vector with which ours takes .72 to .98 of the library's time where windows are two
apart, and .5 to .97 where they are one element."""
WORTH_WIDE = 16
"""Channels of an image from which that is so of windows two apart: from .88 to 1.13 for fewer."""
FEW_TAPS = 16
"""Elements of windows two apart up to which the gradient of the kernels is: .34 to 1.01 of the
library's time, but to 1.2 for more (AVX-512)."""
APART = 1 << 30
"""Operations of windows two apart up to which that is so in bfloat16, forward: .5 to 1.0 of the
library's time, but 1.1 to 1.8 with more; the gradient of the kernels takes 1.0 to 1.2 (AMX)."""
MUCH = 1 << 21
"""Elements of kernels that phases of an image read in turn; of more, up to 1.5 of its time."""


def _operations(c: Convolution) -> int:
    return 2 * prod(c.shapes[2]) * prod(c.shapes[1][1:])


def _leads(c: Convolution, dtype: DType) -> bool:
    """Say whether a product of ours takes no more time where the library has vectors of 32 bytes as
    we have, and was not written for this processor.

    In float32 windows of more elements that are one apart take up to 1.3 of its time as plain sums.
    """
    channels, *taps = c.shapes[1][1:]
    if prod(taps) == 1:
        return True
    if max(c.stride) == 1:
        return dtype == F64
    if c.kind == "forward":
        few = all(many <= 2 * step for many, step in zip(taps, c.stride, strict=True))
        return few and (channels > FEW_CHANNELS or channels * prod(taps) > FEW_TERMS)
    return c.kind == "weight" or prod(c.shapes[1]) <= MUCH


def _is_better_product(c: Convolution, vector: int, dtype: DType) -> bool:
    """Say whether a convolution is better a product of matrices than a call to the library.

    A weight's gradient over few positions is: the call would hand it over in memory of its own.
    So are both gradients of windows of one element, as the call copies what is read as it lies, and
    all three where groups have few channels.  Gradients of an image whose windows are apart are, in
    phases.
    vector: bytes of the vectors with which a kernel of ours can compute it; 0 if none can.
    dtype: its values' type; of bfloat16 counts what was measured in squares.
    """
    x, w, y = c.shapes
    ours, wide = vector > 0, vector >= WIDE
    positions = x[0] * prod(y[2:])
    few, terms = (FEW_POSITIONS, FEW_TERMS) if ours else (0, 0)
    if c.groups > 1:
        return ours and min(w[1], w[0] // c.groups) < FEW_A_GROUP
    first = prod(w[1:]) <= terms
    one = ours and prod(w[2:]) == 1
    short = not is_rounded(dtype) or _operations(c) <= APART
    if c.kind == "forward":
        packed = w[0] >= WORTH_PACKING and max(c.stride) <= 2
        first = first and (packed or prod(c.stride) == 1)
        apart = wide and max(c.stride) == 2 and w[1] >= WORTH_WIDE and short
        return positions <= few or first or apart or (one and (wide or prod(c.stride) > 1))
    taps = zip(w[2:], c.stride, strict=True)
    made = prod(-(-taken // step) * step for taken, step in taps)
    spared = made <= FEW_ZEROS * prod(w[2:])
    if c.kind == "input":
        phased = ours and has_phases(c) and prod(w) <= MUCH
        return one or phased or (first and (spared or w[1] <= FEW_CHANNELS))
    apart = ours and max(c.stride) == 2 and prod(w[2:]) <= FEW_TAPS and not is_rounded(dtype)
    return positions <= max(few, w[0] // 2) or (first and spared) or apart or one


def _biased(graph: Graph, given: Sequence[_Found]) -> dict[str, tuple[Node, Value]]:
    """Return what is added to convolutions in half types, and by which node, where nothing else
    reads their results; by the names of these."""
    read_by, made = users(graph), {value.name for value in graph.outputs}
    found = {}
    for one in given:
        name = one.node.output.name
        if one.kind == "forward" and is_rounded(one.dtype) and name not in made:
            match read_by[name]:
                case [sum_] if (bias := _bias(sum_, name)) is not None:
                    found[name] = sum_, bias
    return found


def _bias(node: Node, name: str) -> Value | None:
    """Return what a node adds to the channels of a value, if that is all it does."""
    formula = node.formula
    if formula is None or len(node.inputs) != 2 or formula.op != "=" or formula.where is not None:
        return None
    if len(formula.loops) != node.output.type.rank:
        return None
    operands = dict(zip(formula.operands, node.inputs, strict=True))
    target = tuple(Sym(loop.name) for loop in formula.loops)
    plain = tuple(
        Const(0) if extent == 1 else entry
        for entry, extent in zip(target, formula.type.shape, strict=True)
    )
    match formula.value:
        case Call("add", (Read() as a, Read() as b)) if formula.index in (target, plain):
            image, bias = (a, b) if operands[a.tensor].name == name else (b, a)
            added = operands[bias.tensor]
            whole = image == Read(image.tensor, plain) and bias == Read(bias.tensor, plain[1:2])
            types = {added.type.dtype, operands[image.tensor].type.dtype, node.output.type.dtype}
            if whole and added.type.shape == node.output.type.shape[1:2] and len(types) == 1:
                return added
    return None


def _call(
    builder: Builder,
    halves: list[_Found],
    known: Sequence[Mapping[str, Value]],
    biased: tuple[Node, Value] | None = None,
) -> Node:
    """biased: what the result of a forward convolution is added to, and the node that does it."""
    c = halves[0].convolution
    parts = (c.stride, c.padding, c.dilation)
    spatial: tuple[Attr, ...] = tuple(("list", *part) for part in parts)
    zeros: Attr = ("list", *(0 for _ in c.stride))
    tail = (*spatial, False, zeros, c.groups)
    given = (*known, *(half.values for half in halves))
    values = {part: value for own in given for part, value in own.items()}
    origin = halves[0].node.origin
    if c.kind == "forward":
        args: tuple[Attr, ...] = (("%", 0), ("%", 1), ("%", 2) if biased else None, *tail)
        operands = (values["input"], values["weight"], *([biased[1]] if biased else []))
        made = _library(operands, halves, FORWARD, args, ())
        return replace(made, outputs=biased[0].outputs) if biased else made
    dtype = values["output"].type.dtype
    for part, shape in zip(("input", "weight"), c.shapes, strict=False):
        if part not in values:
            # The call reads nothing but its shape: the gradient that would read it is not asked.
            formula = full(TensorType(shape, dtype), 0.0)
            values[part] = builder.formula(formula, origin=origin, name=f"{part}_shape")
    halves.sort(key=lambda half: half.kind)
    mask = tuple(any(half.kind == kind for half in halves) for kind in ("input", "weight"))
    args = (("%", 0), ("%", 1), ("%", 2), None, *tail, ("list", *mask, False))
    kept = tuple(at for at, asked in enumerate(mask) if asked)
    operands = (values["output"], values["input"], values["weight"])
    return _library(operands, halves, BACKWARD, args, kept)


def _library(
    operands: tuple[Value, ...],
    halves: list[_Found],
    target: str,
    args: tuple[Attr, ...],
    kept: tuple[int, ...],
) -> Node:
    attrs: list[tuple[str, Attr]] = [("target", target), ("args", args), ("kwargs", ())]
    if kept:
        attrs.append(("outputs", kept))
    outputs = tuple(half.node.output for half in halves)
    return Node(LIBRARY, operands, outputs, tuple(attrs), origin=halves[0].node.origin)
