"""The page of windows: convolutions, and windows laid out as columns.

The idea: a window is an affine index, `h*stride + i*dilation - padding`, and what lies outside the
image is absent from the sum or the maximum.  A group is the outer digit of a mixed-radix channel.

This module does not know pooling (`pool`), nor how a convolution is computed fast.
"""

from dataclasses import dataclass

from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Node, Value
from tilewright.ops.nest import number, numbers, sizes
from tilewright.ops.operator import Attrs, Operator, Tangents, Types, sample, write

_OUT, _IN = ("f", "h", "w"), ("t", "i", "j")  # loops over places, and inside a window


def spread(attr: Attr, rank: int) -> tuple[int, ...]:
    """Return one number per dim from a number, or from a tuple of one or of all."""
    found = (attr,) if isinstance(attr, int) else numbers(attr)
    return found * rank if len(found) == 1 else found


def places(size: int, window: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many windows lie in a dim of `size`, padded on both sides."""
    found = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    assert found > 0, f"a window of {window} does not fit a dim of {size}"
    return found


def entry(out: str, inside: str, stride: int, padding: int, dilation: int) -> str:
    """Return `out*stride+inside*dilation-padding`, without what is not needed."""
    text = out if stride == 1 else f"{out}*{stride}"
    text += f"+{inside}" if dilation == 1 else f"+{inside}*{dilation}"
    return text if padding == 0 else f"{text}-{padding}"


# ------------------------------------------------------------------------------------ convolutions


def conv_body(types: Types, attrs: Attrs, counts: tuple[int, ...] = ()) -> str:
    """Return the loops of a convolution over any number of dims.

    counts: of the windows in each dim; all that fit, where none are given.
    """
    image, kernel = sizes(types[0].shape), sizes(types[1].shape)
    rank = len(image) - 2
    outs, ins = _OUT[-rank:], _IN[-rank:]
    stride, padding = spread(attrs["stride"], rank), spread(attrs["padding"], rank)
    dilation = spread(attrs["dilation"], rank)
    limits, entries = [], []
    for at in range(rank):
        window = (kernel[2 + at], stride[at], padding[at], dilation[at])
        count = counts[at] if counts else places(image[2 + at], *window)
        limits.append(f"{outs[at]}<{count}")
        entries.append(entry(outs[at], ins[at], *window[1:]))
    groups = number(attrs["groups"])
    read, target = ", ".join(entries), ", ".join(limits)
    taps = ", ".join(ins)
    if groups == 1:
        return f"y[n, o, {target}] += x[n, c, {read}] * k[o, c, {taps}]"
    return f"y[n, (g o), {target}] += x[n, (g c), {read}] * k[(g o), c, {taps}] for g<{groups}"


def _conv(types: Types, attrs: Attrs) -> str | None:
    return conv_body(types, attrs) if len(types) == 2 else None


def _conv_bias(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, kernel, bias = inputs
    body = conv_body((x.type, kernel.type), attrs)
    product = write(builder, body, x=x, k=kernel, name="product")
    body = "y[n, c, ...] = p[n, c, ...] + b[c]"
    return (write(builder, body, p=product, b=bias, name="conv"),)


# --------------------------------------------------------------------- transposed convolutions


def _transposed_body(types: Types, attrs: Attrs) -> str:
    """Return the loops of a convolution's own gradient: each result asks which windows hold it."""
    image, kernel = sizes(types[0].shape), sizes(types[1].shape)
    rank = len(image) - 2
    outs, ins = _OUT[-rank:], _IN[-rank:]
    stride, padding = spread(attrs["stride"], rank), spread(attrs["padding"], rank)
    dilation, more = spread(attrs["dilation"], rank), spread(attrs["output_padding"], rank)
    limits, entries = [], []
    for at in range(rank):
        reach = dilation[at] * (kernel[2 + at] - 1)
        size = (image[2 + at] - 1) * stride[at] - 2 * padding[at] + reach + more[at] + 1
        limits.append(f"{outs[at]}<{size}")
        steps = ins[at] if dilation[at] == 1 else f"{ins[at]}*{dilation[at]}"
        start = f"{outs[at]}+{padding[at]}-{steps}" if padding[at] else f"{outs[at]}-{steps}"
        entries.append(start if stride[at] == 1 else f"({start})/{stride[at]}")
    groups = number(attrs["groups"])
    read, target, taps = ", ".join(entries), ", ".join(limits), ", ".join(ins)
    if groups == 1:
        return f"y[n, o, {target}] += x[n, c, {read}] * k[c, o, {taps}]"
    return f"y[n, (g o), {target}] += x[n, (g c), {read}] * k[(g c), o, {taps}] for g<{groups}"


def _transposed(types: Types, attrs: Attrs) -> str | None:
    return _transposed_body(types, attrs) if len(types) == 2 else None


def _transposed_bias(
    builder: Builder, inputs: tuple[Value, ...], attrs: Attrs
) -> tuple[Value, ...]:
    x, kernel, bias = inputs
    body = _transposed_body((x.type, kernel.type), attrs)
    product = write(builder, body, x=x, k=kernel, name="product")
    body = "y[n, c, ...] = p[n, c, ...] + b[c]"
    return (write(builder, body, p=product, b=bias, name="conv_transpose"),)


def _transposed_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    """The gradient of x is the convolution itself, that of the kernel as for a convolution."""
    (dy,) = tangents
    if dy is None:
        return (None,) * len(node.inputs)
    x, kernel, *bias = node.inputs
    attrs, origin = dict(node.attrs), node.origin
    # Where the output is padded by a stride or more, more windows would fit than there are places.
    body = conv_body((dy.type, kernel.type), attrs, sizes(x.type.shape)[2:])
    dx = write(builder, body, x=dy, k=kernel, dtype=x.type.dtype, origin=origin)
    rank = x.type.rank - 2
    outs, ins = _OUT[-rank:], _IN[-rank:]
    steps = [spread(attrs[name], rank) for name in ("stride", "padding", "dilation")]
    read = ", ".join(entry(outs[at], ins[at], *(s[at] for s in steps)) for at in range(rank))
    taps = sizes(kernel.type.shape)[2:]
    target = ", ".join(f"{tap}<{size}" for tap, size in zip(ins, taps, strict=True))
    groups, places_ = number(attrs["groups"]), ", ".join(outs)
    c, o, tail = ("c", "o", "") if groups == 1 else ("(g c)", "(g o)", f" for g<{groups}")
    body = f"y[{c}, o, {target}] += dy[n, {o}, {read}] * x[n, {c}, {places_}]{tail}"
    dk = write(builder, body, dy=dy, x=x, dtype=kernel.type.dtype, origin=origin)
    if not bias:
        return dx, dk
    dtype = bias[0].type.dtype
    return dx, dk, write(builder, "y[c] += dy[n, c, ...]", dy=dy, dtype=dtype, origin=origin)


# ------------------------------------------------------------------------------ windows as columns


@dataclass(frozen=True, slots=True)
class _Columns:
    """How the windows of an image are laid out as columns.

    image: the index of the image.  limits: of the loops inside a window and over the places.
    """

    image: str
    limits: str


def _columns(height: int, width: int, attrs: Attrs) -> _Columns:
    window, stride = spread(attrs["kernel_size"], 2), spread(attrs["stride"], 2)
    padding, dilation = spread(attrs["padding"], 2), spread(attrs["dilation"], 2)
    entries, limits = [], [f"i<{window[0]}", f"j<{window[1]}"]
    for at, (out, tap, size) in enumerate((("h", "i", height), ("w", "j", width))):
        count = places(size, window[at], stride[at], padding[at], dilation[at])
        limits.append(f"{out}<{count}")
        entries.append(entry(out, tap, stride[at], padding[at], dilation[at]))
    return _Columns(", ".join(entries), ", ".join(limits))


def _im2col(types: Types, attrs: Attrs) -> str:
    height, width = sizes(types[0].shape)[-2:]
    found = _columns(height, width, attrs)
    return f"y[..., (c i j), (h w)] = x[..., c, {found.image}] for {found.limits}"


def _col2im(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    height, width = spread(attrs["output_size"], 2)
    window = spread(attrs["kernel_size"], 2)
    *batch, rows, _ = sizes(x.type.shape)
    channels = rows // (window[0] * window[1])
    found = _columns(height, width, attrs)
    body = f"y[..., c, {found.image}] += x[..., (c i j), (h w)] for c<{channels}, {found.limits}"
    shape, dtype = (*batch, channels, height, width), x.type.dtype
    return (write(builder, body, x=x, shape=shape, dtype=dtype, name="col2im"),)


_CONV = "stride=1, padding=0, dilation=1, groups=1"


def _conv_eager(rank: int) -> str:
    call = f"torch.nn.functional.conv{rank}d"
    return call + "({x}, {k}, {bias}, {stride}, {padding}, {dilation}, {groups})"


_TRANSPOSED = "stride=1, padding=0, output_padding=0, groups=1, dilation=1"
_COLUMNS = "kernel_size, dilation=1, padding=0, stride=1"


def _transposed_eager(rank: int) -> str:
    call = f"torch.nn.functional.conv_transpose{rank}d("
    return call + "{x}, {k}, {bias}, {stride}, {padding}, {output_padding}, {groups}, {dilation})"


PAGE = (
    Operator(
        f"conv1d(x, k, bias?; {_CONV})  y[n, o, w] += x[n, c, w*s+j*d-p] * k[o, c, j]",
        "Products of a kernel with every window of a line.",
        declare=_conv,
        expand=_conv_bias,
        eager=_conv_eager(1),
        samples=(
            sample("f[2, 3, 7]", "f[4, 3, 3]"),
            sample("f[2, 4, 7]", "f[4, 1, 3]", "f[4]", padding=2, groups=4),
            sample("f[2, 4, 8]", "f[6, 2, 3]", stride=2, padding=1, dilation=2, groups=2),
        ),
    ),
    Operator(
        f"conv2d(x, k, bias?; {_CONV})  "
        "y[n, (g o), h, w] += x[n, (g c), h*s+i*d-p, w*s+j*d-p] * k[(g o), c, i, j]",
        "Products of a kernel with every window of an image.",
        declare=_conv,
        expand=_conv_bias,
        eager=_conv_eager(2),
        samples=(
            sample("f[2, 3, 5, 6]", "f[4, 3, 3, 3]"),
            sample("f[2, 3, 5, 6]", "f[4, 3, 3, 2]", "f[4]", stride=(2, 1), padding=(1, 0)),
            sample("f[1, 4, 6, 6]", "f[6, 2, 3, 3]", stride=2, padding=1, groups=2),
            sample("f[1, 2, 7, 7]", "f[2, 2, 2, 2]", dilation=(3, 2), padding=2),
            sample("f[1, 3, 4, 4]", "f[3, 1, 1, 1]", "f[3]", groups=3, stride=2),
            sample("f[1, 3, 8, 8]", "f[2, 3, 4, 4]", stride=4),
        ),
    ),
    Operator(
        f"conv3d(x, k, bias?; {_CONV})  "
        "y[n, (g o), f, h, w] += x[n, (g c), f*s+t*d-p, h*s+i*d-p, w*s+j*d-p] "
        "* k[(g o), c, t, i, j]",
        "Products of a kernel with every window of a volume.",
        declare=_conv,
        expand=_conv_bias,
        eager=_conv_eager(3),
        samples=(
            sample("f[1, 2, 3, 4, 4]", "f[2, 2, 2, 3, 2]", "f[2]", padding=1, stride=(1, 2, 1)),
            sample("f[1, 2, 3, 3, 3]", "f[2, 1, 2, 2, 2]", groups=2),
        ),
    ),
    Operator(
        f"conv_transpose1d(x, k, bias?; {_TRANSPOSED})  "
        "y[n, (g o), w] += x[n, (g c), (w+p-j*d)/s] * k[(g c), o, j]",
        "The gradient of a convolution over lines, as an operator of its own.",
        declare=_transposed,
        expand=_transposed_bias,
        vjp=_transposed_vjp,
        vjp_reason="the gradient of x is the convolution itself, which no quotient hides",
        eager=_transposed_eager(1),
        samples=(
            sample("f[2, 3, 4]", "f[3, 2, 3]"),
            sample(
                "f[2, 4, 3]", "f[4, 2, 3]", "f[4]", stride=2, padding=1, output_padding=1, groups=2
            ),
            sample("f[1, 2, 3]", "f[2, 2, 2]", stride=2, output_padding=2, dilation=3),
        ),
    ),
    Operator(
        f"conv_transpose2d(x, k, bias?; {_TRANSPOSED})  "
        "y[n, (g o), h, w] += x[n, (g c), (h+p-i*d)/s, (w+p-j*d)/s] * k[(g c), o, i, j]",
        "The gradient of a convolution over images, as an operator of its own.",
        declare=_transposed,
        expand=_transposed_bias,
        vjp=_transposed_vjp,
        vjp_reason="the gradient of x is the convolution itself, which no quotient hides",
        eager=_transposed_eager(2),
        samples=(
            sample("f[1, 3, 3, 4]", "f[3, 2, 2, 3]", "f[2]", stride=2, padding=(0, 1)),
            sample(
                "f[1, 2, 3, 3]",
                "f[2, 3, 3, 2]",
                stride=(2, 3),
                output_padding=1,
                dilation=2,
                padding=1,
            ),
            sample("f[2, 4, 3, 2]", "f[4, 1, 2, 2]", groups=2),
        ),
    ),
    Operator(
        f"conv_transpose3d(x, k, bias?; {_TRANSPOSED})  y[n, (g o), f, h, w] += "
        "x[n, (g c), (f+p-t*d)/s, (h+p-i*d)/s, (w+p-j*d)/s] * k[(g c), o, t, i, j]",
        "The gradient of a convolution over volumes, as an operator of its own.",
        declare=_transposed,
        expand=_transposed_bias,
        vjp=_transposed_vjp,
        vjp_reason="the gradient of x is the convolution itself, which no quotient hides",
        eager=_transposed_eager(3),
        samples=(sample("f[1, 2, 2, 3, 2]", "f[2, 2, 2, 2, 2]", "f[2]", stride=2, padding=1),),
    ),
    Operator(
        f"im2col(x; {_COLUMNS})  y[..., (c i j), (h w)] = x[..., c, h*s+i*d-p, w*s+j*d-p]",
        "Every window of an image as a column.",
        declare=_im2col,
        eager="torch.nn.functional.unfold({x}, {kernel_size}, {dilation}, {padding}, {stride})",
        samples=(
            sample("f[2, 3, 4, 5]", kernel_size=(2, 3)),
            sample("f[1, 2, 5, 5]", kernel_size=3, stride=2, padding=1),
            sample("f[2, 5, 6]", kernel_size=2, dilation=2),
        ),
    ),
    Operator(
        f"col2im(x; output_size, {_COLUMNS})",
        "Columns added up where their windows lie: the gradient of im2col.",
        expand=_col2im,
        eager="torch.nn.functional.fold("
        "{x}, {output_size}, {kernel_size}, {dilation}, {padding}, {stride})",
        samples=(
            sample("f[2, 18, 9]", output_size=(4, 5), kernel_size=(2, 3)),
            sample("f[1, 8, 8]", output_size=(5, 6), kernel_size=2, stride=2, padding=(0, 1)),
            sample("f[4, 6]", output_size=(3, 4), kernel_size=2),
        ),
    ),
)
