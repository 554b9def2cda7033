"""The page of resampling: images of another size, at other places, or with another edge.

The idea: the place in the image of an element of the result is a quotient of whole numbers,
`s = (h*a + b) / q`, so that its floor is an index and the rest a weight, both exact.  Between two
neighbours, one dim after the other is summed by a table of both, and so is the gradient.  A place
that is computed from values (`grid_sample`) becomes an index by a tensor of its own.

This module does not know filters that smooth before they shrink.
"""

from dataclasses import dataclass
from fractions import Fraction

from tilewright.base.dtypes import I64, DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Node, Value
from tilewright.ops.nest import index, limited, loops, number, sizes
from tilewright.ops.operator import (
    Attrs,
    Expand,
    Operator,
    Sample,
    Tangents,
    Types,
    Vjp,
    sample,
    write,
)
from tilewright.ops.pads import EDGES
from tilewright.ops.window import spread

_FINEST = 1 << 16  # the largest denominator of a scale that a user writes down


@dataclass(frozen=True, slots=True)
class _Line:
    """One dim: of `size` elements, `count` are made; the place of element o is (o*a + b) / q."""

    size: int
    count: int
    a: int
    b: int
    q: int

    def numerator(self, loop: str) -> str:
        head = loop if self.a == 1 else f"{loop}*{self.a}"
        return head if self.b == 0 else f"{head}+{self.b}" if self.b > 0 else f"{head}-{-self.b}"

    def floor(self, loop: str) -> str:
        """The element at or before the place, as an index."""
        return f"({self.numerator(loop)})//{self.q}" if self.q > 1 else f"({self.numerator(loop)})"

    def place(self, loop: str) -> str:
        return f"(({self.numerator(loop)}) / {self.q})"


@dataclass(frozen=True, slots=True)
class _Tables:
    """Along one dim, [depth, count]: the elements that are summed, and their weights.

    padded: whether there are fewer elements than `depth` for some; what is too much weighs nothing
    and may lie outside.
    """

    at: Value
    weights: Value
    depth: int
    padded: bool


def _lines(rank: int, types: Types, attrs: Attrs) -> tuple[_Line, ...]:
    shape = sizes(types[0].shape)[-rank:]
    scales = attrs["scales"] if isinstance(attrs["scales"], tuple) else (None,) * rank
    wanted = spread(attrs["output_size"], rank)
    aligned = bool(attrs["align_corners"])
    return tuple(
        _line(size, count, scale, aligned=aligned)
        for size, count, scale in zip(shape, wanted, scales, strict=True)
    )


def _line(size: int, count: int, scale: Attr, *, aligned: bool) -> _Line:
    """Return the places: corners on corners, or each element in the middle of its own share."""
    if aligned:
        step = Fraction(size - 1, count - 1) if count > 1 else Fraction(0)
        return _Line(size, count, step.numerator, 0, step.denominator)
    step = Fraction(size, count)
    if isinstance(scale, float) and scale > 0:
        exact = Fraction(scale)
        step = 1 / exact.limit_denominator(_FINEST)
        assert abs(1 / step - exact) < 1e-15 * exact, f"{scale} is no quotient of small numbers"
    p, q = step.numerator, step.denominator
    return _Line(size, count, 2 * p, p - q, 2 * q)


# ------------------------------------------------------------------------------------------ linear


def _linear_tables(builder: Builder, line: _Line, dtype: DType, origin: Origin) -> _Tables:
    """Return which two elements are beside each place, those at the ends from within."""
    held, last = f"max({line.place('o')}, 0)", line.size - 1
    low = f"min(max({line.floor('o')}, 0), {last})"
    body = f"y[z<2, o<{line.count}] = i64(min({low} + z, {last}))"
    at = write(builder, body, dtype=I64, origin=origin, name="taps")
    rest = f"min({held} - {low}, 1)"
    body = f"y[z<2, o<{line.count}] = 1 - {rest} if z == 0 else {rest}"
    weights = write(builder, body, dtype=dtype, origin=origin, name="weights")
    return _Tables(at, weights, 2, padded=False)


def _linear_tables_back(builder: Builder, line: _Line, dtype: DType, origin: Origin) -> _Tables:
    """Return which places are less than one element away from each; others weigh nothing."""
    if line.a == 0:
        first, depth = "0*o", line.count
    else:
        first, depth = f"((o-1)*{line.q}-({line.b}))//{line.a}+1", -(-2 * line.q // line.a)
    place = f"({first} + z)"
    body = f"y[z<{depth}, o<{line.size}] = i64({place})"
    at = write(builder, body, dtype=I64, origin=origin, name="taps")
    held = f"min(max(({line.numerator(place)}) / {line.q}, 0), {line.size - 1})"
    inside = f"{place} >= 0 and {place} < {line.count}"
    body = f"y[z<{depth}, o<{line.size}] = max(1 - abs({held} - o), 0) if {inside} else 0"
    weights = write(builder, body, dtype=dtype, origin=origin, name="weights")
    return _Tables(at, weights, depth, padded=True)


def _pass(builder: Builder, x: Value, back: int, tables: _Tables, origin: Origin) -> Value:
    """Make one dim, `back` from the last, of sums of the elements that the tables name."""
    names = [f"d{dim}" for dim in range(back)]
    body = f"y[{index(['...', 'o', *names])}] += x[{index(['...', 'a[z, o]', *names])}] * w[z, o]"
    body += f"{' where w[z, o] > 0' if tables.padded else ''} for z<{tables.depth}"
    dtype = x.type.dtype.compute
    operands = {"x": x, "a": tables.at, "w": tables.weights}
    return write(builder, body, operands, dtype=dtype, origin=origin, name="resampled")


def _passes(lines: tuple[_Line, ...]) -> tuple[int, ...]:
    """Return the dims, counted from the last, in the order that costs least.

    Elements of the last dim are gathered one by one, those of another row by row: the last dim
    has its turn while the others are small.
    """
    others = tuple(range(len(lines) - 1, 0, -1))
    grows = all(line.a <= line.q for line in lines[:-1])
    return (0, *others) if grows else (*others, 0)


def _linear(rank: int) -> Expand:
    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        (x,) = inputs
        made, lines, dtype = x, _lines(rank, (x.type,), attrs), x.type.dtype
        for back in _passes(lines):
            tables = _linear_tables(builder, lines[-1 - back], dtype.compute, UNKNOWN)
            made = _pass(builder, made, back, tables, UNKNOWN)
        return (write(builder, "y[...] = m[...]", m=made, dtype=dtype, name="resized"),)

    return expand


def _linear_vjp(rank: int) -> Vjp:
    def vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
        (made,) = tangents
        if made is None:
            return (None,)
        x = node.inputs[0].type
        lines, dtype = _lines(rank, (x,), dict(node.attrs)), x.dtype
        for back in reversed(_passes(lines)):
            tables = _linear_tables_back(builder, lines[-1 - back], dtype.compute, node.origin)
            made = _pass(builder, made, back, tables, node.origin)
        return (write(builder, "y[...] = m[...]", m=made, dtype=dtype, origin=node.origin),)

    return vjp


# ------------------------------------------------------------------------------------------- cubic

_CUBIC = 0.75  # minus the slope at 1, as in torch


def _weight(distance: str) -> str:
    """Return the cubic convolution kernel at a distance (Keys, 1981)."""
    a, d = -_CUBIC, f"abs({distance})"
    near = f"(({a + 2} * {d} - {a + 3}) * {d} * {d} + 1)"
    far = f"((({a} * {d} - {5 * a}) * {d} + {8 * a}) * {d} - {4 * a})"
    return f"({near} if {d} <= 1 else {far})"


def _cubic_pass(builder: Builder, x: Value, dim: int, line: _Line) -> Value:
    """Resample one dim; elements beyond an end are the one at the end."""
    names = loops(x.type.rank)
    shape = list(sizes(x.type.shape))
    shape[dim] = line.count
    floor = line.floor(names[dim])

    def read(at: str) -> str:
        entries = list(names)
        entries[dim] = at
        return f"x[{index(entries)}]"

    tap = f"{floor}+z-1"
    chosen = f"({read('0')} if {tap} < 0 else {read(str(line.size - 1))} "
    chosen += f"if {tap} >= {line.size} else {read(tap)})"
    weight = _weight(f"({line.place(names[dim])} - ({tap}))")
    body = f"y[{limited(shape)}] += {chosen} * {weight} for z<4"
    return write(builder, body, x=x, dtype=x.type.dtype.compute, name="resampled")


def _cubic_pass_back(builder: Builder, dy: Value, dim: int, line: _Line, node: Node) -> Value:
    names, shape = loops(dy.type.rank), list(sizes(dy.type.shape))
    shape[dim] = line.size
    tap = f"{line.floor(names[dim])}+z-1"
    weight = _weight(f"({line.place(names[dim])} - ({tap}))")
    value, parts = f"dy[{index(names)}] * {weight}", []
    for at, where in ((tap, ""), ("0", f" where {tap} < 0"),
                      (str(line.size - 1), f" where {tap} >= {line.size}")):  # fmt: skip
        entries = list(names)
        entries[dim] = at
        body = f"y[{index(entries)}] += {value}{where} for z<4"
        compute = dy.type.dtype.compute
        parts.append(write(builder, body, dy=dy, shape=tuple(shape), dtype=compute,
                           origin=node.origin))  # fmt: skip
    body = "y[...] = a[...] + b[...] + c[...]"
    a, b, c = parts
    return write(builder, body, a=a, b=b, c=c, origin=node.origin)


def _cubic(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    high, wide = _lines(2, (x.type,), attrs)
    made = _cubic_pass(builder, x, x.type.rank - 1, wide)
    made = _cubic_pass(builder, made, x.type.rank - 2, high)
    return (write(builder, "y[...] = m[...]", m=made, dtype=x.type.dtype, name="cubic"),)


def _cubic_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,) = node.inputs
    high, wide = _lines(2, (x.type,), dict(node.attrs))
    made = _cubic_pass_back(builder, dy, x.type.rank - 2, high, node)
    made = _cubic_pass_back(builder, made, x.type.rank - 1, wide, node)
    dtype = x.type.dtype
    return (write(builder, "y[...] = m[...]", m=made, dtype=dtype, origin=node.origin),)


# -------------------------------------------------------------------------------------- grid sample


def _coordinate(builder: Builder, grid: Value, axis: int, size: int, attrs: Attrs) -> Value:
    """Return the place along one dim that the grid names, from -1 at one end to 1 at the other."""
    compute = grid.type.dtype.compute
    at = f"g[n, h, w, {axis}]"
    aligned = bool(attrs["align_corners"])
    place = f"({at} + 1) * {(size - 1) / 2}" if aligned else f"(({at} + 1) * {size} - 1) / 2"
    made = write(builder, f"y[n, h, w] = {place}", g=grid, dtype=compute, name="place")
    padding = attrs["padding_mode"]
    assert padding in ("zeros", "border", "reflection"), f"there is no padding {padding!r}"
    if padding == "zeros":
        return made
    if padding == "reflection":
        made = _reflected(builder, made, size, aligned=aligned)
    body = f"y[...] = 0 if p[...] <= 0 else {size - 1} if p[...] >= {size - 1} else p[...]"
    return write(builder, body, p=made, name="held")


def _reflected(builder: Builder, place: Value, size: int, *, aligned: bool) -> Value:
    low, span = (0.0, size - 1) if aligned else (-0.5, size)
    if span == 0:
        return write(builder, "y[...] = 0 * p[...]", p=place, name="reflected")
    away = f"(p[...] - {low} if p[...] >= {low} else {low} - p[...])"
    body = f"y[...] = {away}"
    far = write(builder, body, p=place, name="away")
    rest = f"fmod(a[...], {float(span)})"
    body = f"y[...] = {rest} + {low} if floor(a[...] / {float(span)}) % 2 == 0 "
    body += f"else {float(span)} - {rest} + {low}"
    return write(builder, body, a=far, name="reflected")


def _grid_sample(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, grid = inputs
    height, width = sizes(x.type.shape)[-2:]
    py = _coordinate(builder, grid, 1, height, attrs)
    px = _coordinate(builder, grid, 0, width, attrs)
    mode, compute = attrs["mode"], x.type.dtype.compute
    assert mode in ("bilinear", "nearest"), f"grid_sample has no form {mode!r}"
    step = "floor" if mode == "bilinear" else "round"
    y0, x0 = (
        write(builder, f"y[...] = i64({step}(p[...]))", p=p, dtype=I64, name="corner")
        for p in (py, px)
    )
    at = "n, h, w"
    if mode == "nearest":
        # The places themselves say what is inside, so that their gradient is zero, not absent.
        row, column = f"round(q[{at}])", f"round(p[{at}])"
        inside = f"{row} >= 0 and {row} < {height} and {column} >= 0 and {column} < {width}"
        body = f"y[n, c, h, w] = x[n, c, b[{at}], a[{at}]] if {inside} else 0"
        operands = {"x": x, "p": px, "q": py, "a": x0, "b": y0}
        return (write(builder, body, operands, dtype=x.type.dtype, name="sampled"),)
    row, column = f"b[{at}] + i", f"a[{at}] + j"
    inside = f"{row} >= 0 and {row} < {height} and {column} >= 0 and {column} < {width}"
    down = f"(1 - (q[{at}] - b[{at}]) if i == 0 else q[{at}] - b[{at}])"
    across = f"(1 - (p[{at}] - a[{at}]) if j == 0 else p[{at}] - a[{at}])"
    body = f"y[n, c, h, w] += x[n, c, {row}, {column}] * {down} * {across} where {inside} "
    body += "for i<2, j<2"
    made = write(builder, body, x=x, p=px, q=py, a=x0, b=y0, dtype=compute, name="sampled")
    return (write(builder, "y[...] = m[...]", m=made, dtype=x.type.dtype, name="grid_sample"),)


# ---------------------------------------------------------------------------------- shuffles


def _pixel_shuffle(types: Types, attrs: Attrs) -> str:
    factor, shape = number(attrs["factor"]), sizes(types[0].shape)
    assert shape[-3] % factor**2 == 0, (
        f"{shape[-3]} channels do not make {factor} x {factor} pixels"
    )
    return f"y[..., c, (h i), (w j)] = x[..., (c i j), h, w] for i<{factor}, j<{factor}"


def _pixel_unshuffle(_: Types, attrs: Attrs) -> str:
    factor = number(attrs["factor"])
    return f"y[..., (c i j), h, w] = x[..., c, (h i), (w j)] for i<{factor}, j<{factor}"


def _channel_shuffle(_: Types, attrs: Attrs) -> str:
    return f"y[n, (k g), ...] = x[n, (g k), ...] for g<{number(attrs['groups'])}"


_SIZES = "output_size, align_corners=False, scales=None"
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
_ATEN = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}


def _interpolate(name: str, rank: int) -> str:
    size = "[{output_size}] if isinstance({output_size}, int) else {output_size}"
    scales = f"*({{scales}} or ({'None, ' * rank}))"
    return f"torch.ops.aten.{name}({{x}}, {size}, {{align_corners}}, {scales})"


def _linear_row(rank: int, *samples: Sample) -> Operator:
    return Operator(
        f"resize_{_MODES[rank]}(x; {_SIZES})",
        "Another size: each element from those beside its place, the nearer the more.",
        expand=_linear(rank),
        vjp=_linear_vjp(rank),
        vjp_reason="which places are near an element is known: terms are gathered, not scattered",
        eager=_interpolate(_ATEN[rank], rank),
        samples=samples,
    )


PAGE = (
    _linear_row(1, sample("f[2, 3, 5]", output_size=8),
                sample("f[1, 2, 5]", output_size=3, align_corners=True)),
    _linear_row(
        2,
        sample("f[1, 2, 4, 5]", output_size=(8, 10)),
        sample("f[2, 1, 5, 7]", output_size=(3, 4)),
        sample("f[1, 2, 4, 5]", output_size=(7, 1), align_corners=True),
        sample("f[1, 1, 3, 4]", output_size=(4, 6), scales=(1.5, 1.5)),
        sample("f[1, 1, 1, 4]", output_size=(3, 5)),
    ),
    _linear_row(3, sample("f[1, 2, 2, 3, 4]", output_size=(4, 5, 3)),
                sample("f[1, 1, 2, 3, 2]", output_size=(3, 4, 4), align_corners=True)),
    Operator(
        f"resize_bicubic(x; {_SIZES})",
        "Another size, by cubic convolution over four by four elements.",
        expand=_cubic,
        vjp=_cubic_vjp,
        vjp_reason="the terms are added where they were read: no division finds the places that "
        "read an element",
        eager=_interpolate("upsample_bicubic2d", 2),
        samples=(
            sample("f[1, 2, 4, 5]", output_size=(8, 7)),
            sample("f[1, 1, 5, 6]", output_size=(3, 4)),
            sample("f[1, 2, 4, 5]", output_size=(6, 9), align_corners=True),
        ),
    ),
    Operator(
        "grid_sample(x, grid; mode='bilinear', padding_mode='zeros', align_corners=False)",
        "An image read at places that a grid names, from -1 to 1.",
        expand=_grid_sample,
        kink="at a pixel the gradient is that of the side of larger coordinates",
        eager="torch.nn.functional.grid_sample({x}, {grid}, {mode}, {padding_mode}, "
        "{align_corners})",
        samples=(
            sample("f[2, 3, 4, 5]", "f[2, 3, 2, 2]"),
            sample("f[1, 2, 4, 5]", "f[1, 3, 3, 2]", align_corners=True, padding_mode="border"),
            sample("f[1, 2, 4, 5]", "f[1, 3, 3, 2]", padding_mode="reflection"),
            sample("f[1, 2, 4, 5]", "f[1, 3, 3, 2]", align_corners=True,
                   padding_mode="reflection"),
            sample("f[1, 2, 4, 5]", "f[1, 3, 3, 2]", mode="nearest"),
        ),
    ),
    *EDGES,
    Operator(
        "pixel_shuffle(x; factor)  y[..., c, (h i), (w j)] = x[..., (c i j), h, w]",
        "Channels become pixels.",
        declare=_pixel_shuffle,
        eager="torch.pixel_shuffle({x}, {factor})",
        samples=(sample("f[2, 8, 3, 2]", factor=2), sample("f[9, 2, 2]", factor=3)),
    ),
    Operator(
        "pixel_unshuffle(x; factor)  y[..., (c i j), h, w] = x[..., c, (h i), (w j)]",
        "Pixels become channels.",
        declare=_pixel_unshuffle,
        eager="torch.pixel_unshuffle({x}, {factor})",
        samples=(sample("f[2, 2, 6, 4]", factor=2), sample("f[1, 3, 6]", factor=3)),
    ),
    Operator(
        "channel_shuffle(x; groups)  y[n, (k g), ...] = x[n, (g k), ...]",
        "Channels of several groups, one of each in turn.",
        declare=_channel_shuffle,
        eager="torch.channel_shuffle({x}, {groups})",
        samples=(sample("f[2, 6, 3, 2]", groups=3),),
    ),
)  # fmt: skip
