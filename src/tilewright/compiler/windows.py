"""Convolutions as products of matrices: each of the three sums, over images that have a border.

The idea: once the border is there, no position of a window is outside, and where an element lies is
a sum of what rows, columns and terms add.  That is a matrix product without windows laid out::

    y[n, o, h, w] += x[n, c, h*s+i*d-p, w*s+j*d-p] * k[o, c, i, j]
    -->  b[n, c, h, w] = x[n, c, h-p, w-p] ?? 0
         y[n, o, h, w] += b[n, c, h*s+i*d, w*s+j*d] * k[o, c, i, j]

In the gradient of an image whose windows are s apart, neighbours h*s, h*s+1, .. have taps of their
own: they are channels of a smaller image, and a tap that one of them lacks is zero in its kernel.

This module does not know which convolutions are better computed so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.base.errors import Origin
from tilewright.graph.build import Builder
from tilewright.graph.convolution import Convolution
from tilewright.graph.ir import Value
from tilewright.graph.total import fixed
from tilewright.ops.operator import write

MANY = 1024
"""Places of an image over which a copy of the kernel pays, in which channels lie together."""

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


def multiply(
    builder: Builder, c: Convolution, one: Value, two: Value, result: Value, origin: Origin
) -> None:
    """Add the nodes that compute a convolution.

    one, two: x and the weight, or of the gradients the tangent and the other operand.
    """
    writer = _Writer(builder, c, result, origin)
    made = {"forward": writer.forward, "weight": writer.weight, "input": writer.input}
    made[c.kind](one, two)
    builder.nodes.append(replace(builder.nodes.pop(), outputs=(result,)))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes one convolution's nodes; the last one computes the result."""

    builder: Builder
    c: Convolution
    result: Value
    origin: Origin

    @property
    def places(self) -> tuple[str, ...]:
        return _PLACES[-self.c.n :]

    @property
    def taps(self) -> tuple[str, ...]:
        return _TAPS[-self.c.n :]

    def grouped(self, channel: str) -> str:
        """Return the index of all channels, from that of those in a group."""
        return channel if self.c.groups == 1 else f"(g {channel})"

    def add(self, body: str, limits: dict[str, int], name: str, **operands: Value) -> Value:
        if self.c.groups > 1 and "(g " in body:
            limits = {**limits, "g": self.c.groups}
        ends = ", ".join(f"{loop}<{extent}" for loop, extent in limits.items())
        name = f"{self.result.name}_{name}"
        body = f"{body} for {ends}" if ends else body
        dtype = self.result.type.dtype
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

    def image(self, x: Value) -> Value:
        """Return the image with a border wherever windows need one."""
        c = self.c
        windows = zip(c.shapes[2][2:], c.stride, c.shapes[1][2:], c.dilation, strict=True)
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
        limits = dict(zip(self.places, self.c.shapes[2][2:], strict=True))
        self.add(body, limits, "sum", x=self.image(x), k=k)

    def weight(self, dy: Value, x: Value) -> None:
        o, places, taps = self.grouped("o"), ", ".join(self.places), ", ".join(self.taps)
        read = f"n, {self.grouped('c')}, {self.read}"
        body = f"y[{o}, c, {taps}] += dy[n, {o}, {places}] * x[{read}]"
        limits = dict(zip(self.taps, self.c.shapes[1][2:], strict=True))
        self.add(body, limits, "sum", dy=dy, x=self.image(x))

    def input(self, dy: Value, k: Value) -> None:
        c = self.c
        if prod(c.shapes[1][2:]) == 1 and prod(c.stride) > 1:
            self.thinned(dy, k)
            return
        dims = [_Dim.of(c, at) for at in range(c.n)]
        inside = {dim.tap: dim.taps for dim in dims}
        apart = {dim.neighbour: dim.stride for dim in dims if dim.stride > 1}
        o, channel = self.grouped("o"), self.grouped("c")
        kernel = ", ".join((o, "c", *inside))
        if apart or c.shapes[0][0] * prod(c.shapes[0][2:]) >= MANY:
            kernel = ", ".join((o, *inside, "c", *apart))
            body = f"y[{kernel}] = k[{o}, c, {', '.join(dim.weight for dim in dims)}] ?? 0"
            k = self.add(body, {**inside, **apart}, "kernel", k=k)
        sizes = [dim.count + (dim.taps - 1) * dim.dilation for dim in dims]
        dy = self.bordered(dy, [dim.before for dim in dims], sizes)
        target = ", ".join(f"({d.place} {d.neighbour})" if d.stride > 1 else d.place for d in dims)
        read = ", ".join(dim.tangent for dim in dims)
        body = f"y[n, {channel}, {target}] += dy[n, {o}, {read}] * k[{kernel}]"
        made = self.add(body, {dim.place: dim.count for dim in dims}, "sum", dy=dy, k=k)
        if made.type.shape != self.result.type.shape:
            whole = ", ".join(self.places)
            limits = dict(zip(self.places, c.shapes[0][2:], strict=True))
            self.add(f"y[n, c, {whole}] = x[n, c, {whole}]", limits, "part", x=made)

    def thinned(self, dy: Value, k: Value) -> None:
        """Where windows are one element and some apart, no other element has a gradient."""
        c, o, channel = self.c, self.grouped("o"), self.grouped("c")
        places, taps = ", ".join(self.places), ", ".join("0" for _ in self.places)
        body = f"y[n, {channel}, {places}] += dy[n, {o}, {places}] * k[{o}, c, {taps}]"
        made = self.add(body, {}, "sum", dy=dy, k=k)
        steps = zip(self.places, c.padding, c.stride, strict=True)
        read = ", ".join(f"({_sum({place: 1}, p)})/{s}" for place, p, s in steps)
        limits = dict(zip(self.places, c.shapes[0][2:], strict=True))
        self.add(f"y[n, c, {places}] = x[n, c, {read}] ?? 0", limits, "spread", x=made)


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
    def of(c: Convolution, at: int) -> "_Dim":
        """Solve h*s + i*d - p for the place h, of one dim of a convolution."""
        tap, place, neighbour = (own[-c.n :][at] for own in (_TAPS, _PLACES, _NEIGHBOURS))
        size, taps = c.shapes[0][2 + at], c.shapes[1][2 + at]
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
