"""The page of windows: convolutions and pooling.

The idea: a window is an affine index, `h*stride + i*dilation - padding`, and what lies outside the
image is absent from the sum or the maximum.  A group is the outer digit of a mixed-radix channel.

This module does not know how a convolution is computed fast.
"""

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


def conv_body(types: Types, attrs: Attrs) -> str:
    """Return the loops of a convolution over any number of dims."""
    image, kernel = sizes(types[0].shape), sizes(types[1].shape)
    rank = len(image) - 2
    outs, ins = _OUT[-rank:], _IN[-rank:]
    stride, padding = spread(attrs["stride"], rank), spread(attrs["padding"], rank)
    dilation = spread(attrs["dilation"], rank)
    limits, entries = [], []
    for at in range(rank):
        window = (kernel[2 + at], stride[at], padding[at], dilation[at])
        limits.append(f"{outs[at]}<{places(image[2 + at], *window)}")
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


# ----------------------------------------------------------------------------------------- pooling


def _pool_size(size: int, attrs: Attrs, window: int, stride: int, padding: int) -> int:
    dilation = spread(attrs.get("dilation", 1), 1)[0]
    if not attrs["ceil_mode"]:
        return places(size, window, stride, padding, dilation)
    reach = size + 2 * padding - dilation * (window - 1) - 1
    found = -(-reach // stride) + 1
    # A window must begin inside the image or its left padding.
    return found - 1 if (found - 1) * stride >= size + padding else found


def _pool(types: Types, attrs: Attrs) -> tuple[list[str], list[str], list[str]]:
    """Return the limits of the places, the index entries, and the limits of the taps."""
    shape = sizes(types[0].shape)
    window = spread(attrs["kernel_size"], 2)
    stride = spread(attrs["stride"], 2) if attrs["stride"] not in (None, ()) else window
    padding = spread(attrs["padding"], 2)
    dilation = spread(attrs.get("dilation", 1), 2)
    limits, entries, taps = [], [], []
    for at, (out, tap) in enumerate((("h", "i"), ("w", "j"))):
        one = {**attrs, "dilation": dilation[at]}
        size = _pool_size(shape[at - 2], one, window[at], stride[at], padding[at])
        limits.append(f"{out}<{size}")
        entries.append(entry(out, tap, stride[at], padding[at], dilation[at]))
        taps.append(f"{tap}<{window[at]}")
    return limits, entries, taps


def _max_pool2d(types: Types, attrs: Attrs) -> str:
    limits, entries, taps = _pool(types, attrs)
    return f"y[..., {', '.join(limits)}] max= x[..., {', '.join(entries)}] for {', '.join(taps)}"


def _max_pool_indices(types: Types, attrs: Attrs) -> str:
    limits, entries, taps = _pool(types, attrs)
    height, width = sizes(types[0].shape)[-2:]
    del height
    at = f"({entries[0]}) * {width} + {entries[1]}"
    return (
        f"y[..., {', '.join(limits)}] argmax= x[..., {', '.join(entries)}] at {at} "
        f"for {', '.join(taps)}"
    )


def _indices(builder: Builder, node: Node) -> Value:
    body = _max_pool_indices((node.inputs[0].type,), dict(node.attrs))
    return write(builder, body, x=node.inputs[0], name="indices", origin=node.origin)


def _max_pool_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    dy = tangents[0]
    if dy is None:
        return (None,)
    (x,) = node.inputs
    at = node.outputs[1] if len(node.outputs) > 1 else _indices(builder, node)
    width = sizes(x.type.shape)[-1]
    read = "a[..., h, w]"
    body = f"y[..., {read}//{width}, {read}%{width}] += dy[..., h, w]"
    shape, dtype = x.type.shape, x.type.dtype
    return (write(builder, body, a=at, dy=dy, shape=shape, dtype=dtype, origin=node.origin),)


def _max_pool_both(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = inputs
    best = write(builder, _max_pool2d((x.type,), attrs), x=x, name="max_pool2d")
    return best, write(builder, _max_pool_indices((x.type,), attrs), x=x, name="indices")


def _avg_pool2d(types: Types, attrs: Attrs) -> str:
    limits, entries, taps = _pool(types, attrs)
    shape = sizes(types[0].shape)
    window = spread(attrs["kernel_size"], 2)
    stride = spread(attrs["stride"], 2) if attrs["stride"] not in (None, ()) else window
    padding = spread(attrs["padding"], 2)
    forced = attrs["divisor_override"]
    parts = []
    for at, out in enumerate(("h", "w")):
        step, pad, size, taken = stride[at], padding[at], shape[at - 2], window[at]
        start = f"({out} * {step} - {pad})"
        if not attrs["count_include_pad"]:
            parts.append(f"(min({start} + {taken}, {size}) - max({start}, 0))")
        elif attrs["ceil_mode"]:
            parts.append(f"(min({start} + {taken}, {size + pad}) - {start})")
        else:
            parts.append(str(taken))
    divisor = str(number(forced)) if forced is not None else " * ".join(parts)
    target, read = ", ".join(limits), ", ".join(entries)
    return f"y[..., {target}] += x[..., {read}] / ({divisor}) for {', '.join(taps)}"


def _adaptive_avg_pool2d(types: Types, attrs: Attrs) -> str:
    """Windows from floor(h * size / out) to ceil((h + 1) * size / out)."""
    shape = sizes(types[0].shape)
    outs = spread(attrs["output_size"], 2)
    height, width = shape[-2:]
    if height % outs[0] == 0 and width % outs[1] == 0:
        rows, columns = height // outs[0], width // outs[1]
        read = f"h*{rows}+i, w*{columns}+j"
        tail = f"/ {rows * columns} for i<{rows}, j<{columns}"
        return f"y[..., h<{outs[0]}, w<{outs[1]}] += x[..., {read}] {tail}"
    limits, inside, counts = [], [], []
    for out, tap, size, number_ in (("h", "i", height, outs[0]), ("w", "j", width, outs[1])):
        first = f"{out} * {size} // {number_}"
        last = f"(({out} + 1) * {size} + {number_ - 1}) // {number_}"
        limits.append(f"{out}<{number_}")
        inside.append(f"{tap} >= {first} and {tap} < {last}")
        counts.append(f"({last} - {first})")
    target, count = ", ".join(limits), " * ".join(counts)
    return f"y[..., {target}] += x[..., i, j] / ({count}) where {' and '.join(inside)}"


_CONV = "stride=1, padding=0, dilation=1, groups=1"


def _conv_eager(rank: int) -> str:
    call = f"torch.nn.functional.conv{rank}d"
    return call + "({x}, {k}, {bias}, {stride}, {padding}, {dilation}, {groups})"


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
        "max_pool2d(x; kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False)  "
        "y[..., h, w] max= x[..., h*s+i*d-p, w*s+j*d-p]",
        "The largest element of every window.",
        declare=_max_pool2d,
        vjp=_max_pool_vjp,
        vjp_reason="the first of several largest takes all of the gradient, as in torch",
        kink="the first of several takes all of the gradient",
        eager="torch.nn.functional.max_pool2d("
        "{x}, {kernel_size}, {stride}, {padding}, {dilation}, {ceil_mode})",
        samples=(
            sample("f[2, 3, 6, 6]", kernel_size=2),
            sample("f[1, 1, 4, 4] = 1, 1, 0, 2, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0", kernel_size=2),
            sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1),
            sample("f[2, 6, 5]", kernel_size=(3, 2), stride=2, ceil_mode=True),
            sample("f[1, 1, 6, 7]", kernel_size=2, stride=1, dilation=2),
            sample("f[1, 1, 4, 2] = 0, 2, 2, 0, 1, 1, 1, 1", kernel_size=2),
        ),
    ),
    Operator(
        "max_pool2d_with_indices("
        "x; kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False)",
        "The largest element of every window, and its position in the image.",
        expand=_max_pool_both,
        vjp=_max_pool_vjp,
        vjp_reason="the first of several largest takes all of the gradient, as in torch",
        kink="the first of several takes all of the gradient",
        eager="torch.nn.functional.max_pool2d("
        "{x}, {kernel_size}, {stride}, {padding}, {dilation}, {ceil_mode}, return_indices=True)",
        samples=(
            sample("f[1, 1, 4, 4] = 1, 1, 0, 2, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0", kernel_size=2),
            sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1),
        ),
    ),
    Operator(
        "avg_pool2d(x; kernel_size, stride=None, padding=0, ceil_mode=False, "
        "count_include_pad=True, divisor_override=None)  "
        "y[..., h, w] += x[..., h*s+i-p, w*s+j-p] / n",
        "The mean of every window.",
        declare=_avg_pool2d,
        eager="torch.nn.functional.avg_pool2d({x}, {kernel_size}, {stride}, {padding}, "
        "{ceil_mode}, {count_include_pad}, {divisor_override})",
        samples=(
            sample("f[2, 3, 6, 6]", kernel_size=2),
            sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1),
            sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1, count_include_pad=False),
            sample("f[1, 2, 6, 8]", kernel_size=(3, 2), stride=3, padding=1, ceil_mode=True),
            sample("f[2, 4, 4]", kernel_size=2, divisor_override=3),
        ),
    ),
    Operator(
        "adaptive_avg_pool2d(x; output_size)  y[..., h, w] += x[..., h*r+i, w*s+j] / (r s)",
        "Means of as many windows as are asked for.",
        declare=_adaptive_avg_pool2d,
        eager="torch.nn.functional.adaptive_avg_pool2d({x}, {output_size})",
        samples=(
            sample("f[2, 3, 4, 6]", output_size=(1, 1)),
            sample("f[1, 2, 4, 6]", output_size=(2, 3)),
            sample("f[1, 2, 5, 7]", output_size=(3, 2)),
        ),
    ),
)
