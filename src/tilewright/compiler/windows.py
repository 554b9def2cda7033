"""Convolutions as products of matrices: each of the three sums, over images that have a border.

The idea: once the border is there, no position of a window is outside, and where an element lies is
a sum of what rows, columns and terms add.  That is a matrix product without windows laid out::

    y[n, o, h, w] += x[n, c, h*s+i*d-p, w*s+j*d-p] * k[o, c, i, j]
    -->  b[n, c, h, w] = x[n, c, h-p, w-p] ?? 0
         y[n, o, h, w] += b[n, c, h*s+i*d, w*s+j*d] * k[o, c, i, j]

In the gradient of an image whose windows are s apart, neighbours h*s, h*s+1, .. have taps of their
own: each is an image h of its own, a product of these taps, and a last step puts them side by side.
Where there are few channels, those of all neighbours are the channels of one smaller image, and a
tap that one of them lacks is zero in its kernel.

This module does not know which convolutions are better computed so.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod

from tilewright.base.errors import Origin
from tilewright.graph.build import Builder
from tilewright.graph.convolution import Convolution
from tilewright.graph.ir import Value
from tilewright.graph.total import fixed
from tilewright.kernels import is_rounded
from tilewright.ops.operator import write

MANY = 1024
"""Places of an image over which a copy of the kernel pays, in which channels lie together."""

FEW = 4
"""Channels of an image up to which it is better to have those of all neighbours in one product."""
MOST = 16
"""Neighbours of a place that a product for each is made of."""

_PLACES, _TAPS, _NEIGHBOURS = ("f", "h", "w"), ("t", "i", "j"), ("p", "q", "r")


def is_product(c: Convolution) -> bool:
    """Say whether elements are used more than once, as in a product of matrices."""
    x, w, y = c.shapes
    numbers = (*x, *w, *y)
    if c.n > len(_PLACES) or any(type(number) is not int for number in numbers):
        return False
    out, own, positions = w[0] // c.groups, prod(w[1:]), x[0] * prod(y[2:])
    if c.kind == "input":
        own, positions = w[1] * prod(c.stride), x[0] * prod(x[2:]) // prod(c.stride)
    return out > 1 and own > 1 and positions > 1


def has_phases(c: Convolution) -> bool:
    """Say whether the gradient of an image is a product for each neighbour: better than one of all,
    with zeros for the taps that some lack."""
    dims, used = tuple(zip(c.shapes[1][2:], c.stride, strict=True)), prod(c.shapes[1][2:])
    made = prod(-(-taps // s) * s for taps, s in dims)
    if max(c.stride) == 1 or prod(min(dim) for dim in dims) > MOST:
        return False
    return c.shapes[1][1] > FEW or made > 2 * used


def is_apart(c: Convolution) -> bool:
    """Say whether sums of all neighbours are made side by side, in one product."""
    return c.kind == "input" and max(c.stride) > 1 and not has_phases(c)


def multiply(
    builder: Builder,
    c: Convolution,
    one: Value,
    two: Value,
    result: Value,
    origin: Origin,
    *,
    even: bool = False,
    bias: Value | None = None,
) -> None:
    """Add the nodes that compute a convolution.

    one, two: x and the weight, or of the gradients the tangent and the other operand.  even:
    whether an image of odd sizes is made one larger first.  bias: what the sums of each channel
    begin with, forward in a half type.
    """
    writer = _Writer(builder, c, result, origin, 2 if even else 1, bias)
    made = {"forward": writer.forward, "weight": writer.weight, "input": writer.input}
    made[c.kind](one, two)
    builder.nodes.append(replace(builder.nodes.pop(), outputs=(result,)))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes one convolution's nodes; the last one computes the result.

    by: of what the sizes of an image that is made are multiples at first.  bias: of the channels.
    """

    builder: Builder
    c: Convolution
    result: Value
    origin: Origin
    by: int
    bias: Value | None

    @property
    def places(self) -> tuple[str, ...]:
        return _PLACES[-self.c.n :]

    @property
    def taps(self) -> tuple[str, ...]:
        return _TAPS[-self.c.n :]

    @property
    def neighbours(self) -> tuple[str, ...]:
        return _NEIGHBOURS[-self.c.n :]

    def grouped(self, channel: str) -> str:
        """Return the index of all channels, from that of those in a group."""
        return channel if self.c.groups == 1 else f"(g {channel})"

    def add(self, body: str, limits: dict[str, int], name: str, **operands: Value) -> Value:
        dtype = self.result.type.dtype
        target, is_sum, value = body.partition(" += ")
        apart = re.sub(r"\((\w+) (\w+)\)", r"\1, \2", target)
        if is_sum and is_rounded(dtype) and apart != target:
            # What rounds sums wants a dim for each of their loops.
            made = self.add(f"{apart} += {value}", limits, f"{name}_apart", **operands)
            return self.add(f"{target} = x{apart.removeprefix('y')}", {}, name, x=made)
        if self.c.groups > 1 and "(g " in body:
            limits = {**limits, "g": self.c.groups}
        ends = ", ".join(f"{loop}<{extent}" for loop, extent in limits.items())
        name = f"{self.result.name}_{name}"
        body = f"{body} for {ends}" if ends else body
        return write(self.builder, body, operands, dtype=dtype, name=name, origin=self.origin)

    def bordered(self, x: Value, before: Sequence[int], sizes: Sequence[int]) -> Value:
        """Put an image into one of `sizes`, so many zeros before it; some may be cut off."""
        have = (fixed(dim) for dim in x.type.shape[2:])
        if not any(before) and all(size <= own for size, own in zip(sizes, have, strict=True)):
            return x
        read = ", ".join(_sum({loop: 1}, -b) for loop, b in zip(self.places, before, strict=True))
        body = f"y[n, c, {', '.join(self.places)}] = x[n, c, {read}] ?? 0"
        limits = dict(zip(self.places, sizes, strict=True))
        return self.add(body, limits, "bordered", x=x)

    def whole(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes that are made at first."""
        return tuple(-(-size // self.by) * self.by for size in sizes)

    def image(self, x: Value, counts: Sequence[int]) -> Value:
        """Return the image with a border wherever so many windows need one."""
        c = self.c
        windows = zip(counts, c.stride, c.shapes[1][2:], c.dilation, strict=True)
        sizes = [(count - 1) * s + (taps - 1) * d + 1 for count, s, taps, d in windows]
        return self.bordered(x, c.padding, sizes)

    @property
    def read(self) -> str:
        """Return the index of a bordered image, at each tap of each place."""
        steps = zip(self.places, self.c.stride, self.taps, self.c.dilation, strict=True)
        return ", ".join(_sum({place: s, tap: d}) for place, s, tap, d in steps)

    def forward(self, x: Value, k: Value) -> None:
        o, places, taps = self.grouped("o"), ", ".join(self.places), ", ".join(self.taps)
        read = f"n, {self.grouped('c')}, {self.read}"
        body = f"y[n, {o}, {places}] += x[{read}] * k[{o}, c, {taps}]"
        counts = self.whole(self.c.shapes[2][2:])
        limits = dict(zip(self.places, counts, strict=True))
        operands = {"x": self.image(x, counts), "k": k}
        if self.bias is not None:
            each = "o" if self.c.groups == 1 else "g, o"
            spread = f"y[n, {each}, {places}] = b[{o}]"
            ends = {"n": fixed(x.type.shape[0]), **limits}
            operands["e"] = self.add(spread, ends, "bias", b=self.bias)
            body = f"{body} from e"
        self.cropped(self.add(body, limits, "sum", **operands))

    def weight(self, dy: Value, x: Value) -> None:
        o, places, taps = self.grouped("o"), ", ".join(self.places), ", ".join(self.taps)
        read = f"n, {self.grouped('c')}, {self.read}"
        body = f"y[{o}, c, {taps}] += dy[n, {o}, {places}] * x[{read}]"
        limits = dict(zip(self.taps, self.c.shapes[1][2:], strict=True))
        self.add(body, limits, "sum", dy=dy, x=self.image(x, self.c.shapes[2][2:]))

    def input(self, dy: Value, k: Value) -> None:
        c = self.c
        if has_phases(c):
            self.phases(dy, k)
            return
        sizes = self.whole(c.shapes[0][2:])
        dims = [_Dim.of(c, at, size) for at, size in enumerate(sizes)]
        inside = {dim.tap: dim.taps for dim in dims}
        apart = {dim.neighbour: dim.stride for dim in dims if dim.stride > 1}
        o, channel = self.grouped("o"), self.grouped("c")
        kernel = ", ".join((o, "c", *inside))
        if apart or c.shapes[0][0] * prod(c.shapes[0][2:]) >= MANY:
            kernel = ", ".join((o, *inside, "c", *apart))
            body = f"y[{kernel}] = k[{o}, c, {', '.join(dim.weight for dim in dims)}] ?? 0"
            k = self.add(body, {**inside, **apart}, "kernel", k=k)
        reach = [dim.count + (dim.taps - 1) * dim.dilation for dim in dims]
        dy = self.bordered(dy, [dim.before for dim in dims], reach)
        target = ", ".join(f"({d.place} {d.neighbour})" if d.stride > 1 else d.place for d in dims)
        read = ", ".join(dim.tangent for dim in dims)
        body = f"y[n, {channel}, {target}] += dy[n, {o}, {read}] * k[{kernel}]"
        made = self.add(body, {dim.place: dim.count for dim in dims}, "sum", dy=dy, k=k)
        self.cropped(made)

    def phases(self, dy: Value, k: Value) -> None:
        """A product for the neighbours of each place, and then all of them side by side."""
        c, o, channel = self.c, self.grouped("o"), self.grouped("c")
        dims = [[_Phase.of(c, at, q) for q in range(c.stride[at])] for at in range(c.n)]
        before = [max(phase.before for phase in dim if phase.taps) for dim in dims]
        after = [max(phase.reach for phase in dim if phase.taps) for dim in dims]
        counts = [-(-size // s) for size, s in zip(c.shapes[0][2:], c.stride, strict=True)]
        sizes = map(sum, zip(before, counts, after, strict=True))
        dy, places = self.bordered(dy, before, tuple(sizes)), ", ".join(self.places)
        limits = dict(zip(self.places, counts, strict=True))
        made: dict[str, Value] = {}
        for at, own in enumerate(product(*dims)):
            taps = {tap: phase.taps for tap, phase in zip(self.taps, own, strict=True)}
            if 0 in taps.values():
                continue  # no window reads such a neighbour
            names = zip(own, self.taps, self.places, before, strict=True)
            tangent = ", ".join(phase.tangent(tap, place, b) for phase, tap, place, b in names)
            kernel = ", ".join(phase.kernel(tap) for phase, tap in zip(own, self.taps, strict=True))
            body = f"y[n, {channel}, {places}] += dy[n, {o}, {tangent}] * k[{o}, c, {kernel}]"
            made[f"y{at}"] = self.add(body, limits | taps, "phase", dy=dy, k=k)
        apart = dict(zip(self.neighbours, c.stride, strict=True))
        target = ", ".join(f"({place} {q})" for place, q in zip(limits, apart, strict=True))
        body = f"y[n, c, {target}] = {self.chosen(made.keys(), 0, 0)}"
        self.cropped(self.add(body, limits | apart, "sum", **made))

    def chosen(self, made: Collection[str], dim: int, at: int) -> str:
        """Return what an element is: of the neighbours numbered `at`, that of the dims from `dim`
        on."""
        if dim == self.c.n:
            return f"y{at}[n, c, {', '.join(self.places)}]" if f"y{at}" in made else "0"
        stride, name = self.c.stride[dim], self.neighbours[dim]
        values = [self.chosen(made, dim + 1, at * stride + q) for q in range(stride)]
        text = "0" if "0" in values else values.pop()
        for q, value in reversed(list(enumerate(values))):
            text = text if value == "0" else f"({value} if {name} == {q} else {text})"
        return text

    def cropped(self, made: Value) -> None:
        """Let what was made for whole places end where the image does."""
        if made.type.shape != self.result.type.shape:
            whole = ", ".join(self.places)
            sizes = map(fixed, self.result.type.shape[2:])
            limits = dict(zip(self.places, sizes, strict=True))
            self.add(f"y[n, c, {whole}] = x[n, c, {whole}]", limits, "part", x=made)


@dataclass(frozen=True, slots=True)
class _Phase:
    """The taps that meet one neighbour of each place, in one dim.

    taps: how many; they are `step` apart from `first` on.  The window that the first is of lies
    `reach` after the place, that of each other `back` before it.
    """

    taps: int
    first: int
    step: int
    reach: int
    back: int

    @staticmethod
    def of(c: Convolution, at: int, q: int) -> "_Phase":
        """Solve place*s + q = window*s + tap*d - p for the window."""
        s, p, d = c.stride[at], c.padding[at], c.dilation[at]
        taps = [tap for tap in range(c.shapes[1][2 + at]) if (q + p - tap * d) % s == 0]
        first, common = taps[0] if taps else 0, gcd(s, d)
        return _Phase(len(taps), first, s // common, (q + p - first * d) // s, d // common)

    @property
    def before(self) -> int:
        """How many windows before the first place are met."""
        return (self.taps - 1) * self.back - self.reach

    def tangent(self, tap: str, place: str, before: int) -> str:
        return _sum({place: 1, tap: -self.back}, before + self.reach)

    def kernel(self, tap: str) -> str:
        return _sum({tap: self.step}, self.first)


@dataclass(frozen=True, slots=True)
class _Dim:
    """One dim of the gradient of an image: `stride` neighbours are one of `count` places.

    tap, place, neighbour: loops.  dilation: what a tap moves the tangent by.  before: of its
    border.  weight, tangent: the indices of the kernel and of the bordered tangent.
    """

    tap: str
    place: str
    neighbour: str
    taps: int
    count: int
    stride: int
    dilation: int
    before: int
    weight: str
    tangent: str

    @staticmethod
    def of(c: Convolution, at: int, size: int) -> "_Dim":
        """Solve h*s + i*d - p for the place h, of one dim of which the image has `size`."""
        tap, place, neighbour = (own[-c.n :][at] for own in (_TAPS, _PLACES, _NEIGHBOURS))
        taps = c.shapes[1][2 + at]
        s, p, d = c.stride[at], c.padding[at], c.dilation[at]
        reach = (taps - 1) * d
        if s == 1:
            tangent = _sum({place: 1, tap: -d}, reach)
            return _Dim(tap, place, "", taps, size, 1, d, reach - p, tap, tangent)
        # The window at place + u has place * s + q at its tap (q + p - u * s) / d.
        low, high = -((reach - p) // s), (s - 1 + p) // s
        weight = _sum({neighbour: 1, tap: -s}, p - low * s)
        weight = weight if d == 1 else f"({weight})/{d}"
        count, taps = -(-size // s), high - low + 1
        tangent = _sum({place: 1, tap: 1})
        return _Dim(tap, place, neighbour, taps, count, s, 1, -low, weight, tangent)


def _sum(terms: dict[str, int], constant: int = 0) -> str:
    """Write a sum: {"h": 2, "i": -1} and 3 give `h*2-i+3`."""
    text = ""
    for name, factor in terms.items():
        text += ("-" if factor < 0 else "+" if text else "") + name
        text += f"*{abs(factor)}" if abs(factor) != 1 else ""
    return f"{text}{constant:+d}" if constant else text
