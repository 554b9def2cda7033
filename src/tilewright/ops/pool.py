"""The page of pooling: the largest element or the mean of every window.

The idea: a window is an affine index, as in a convolution; what lies outside the image is absent
from the maximum and from the sum.  One function gives the loops for lines, images and volumes.

This module does not know convolutions (`window`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import number, sizes
from tilewright.ops.operator import (
    Attrs,
    Declare,
    Expand,
    Operator,
    Sample,
    Tangents,
    Types,
    Vjp,
    sample,
    write,
)
from tilewright.ops.shape import unravel
from tilewright.ops.window import entry, places, spread

_OUT, _IN = ("f", "h", "w"), ("t", "i", "j")  # loops over places, and inside a window
_LINES = {1: "line", 2: "image", 3: "volume"}


@dataclass(frozen=True, slots=True)
class _Windows:
    """Where windows lie: how many along each dim, what they read, and what they are made of.

    taps: the loops inside a window with their extents; inside: which taps belong to it, where that
    differs from window to window.  gaps: whether a window may hold no element, as one that lies in
    the padding or steps over the image.
    """

    counts: tuple[int, ...]
    entries: tuple[str, ...]
    taps: tuple[str, ...]
    inside: str = ""
    gaps: bool = False

    @property
    def target(self) -> str:
        outs = _OUT[-len(self.counts) :]
        return ", ".join(f"{out}<{n}" for out, n in zip(outs, self.counts, strict=True))

    @property
    def read(self) -> str:
        return f"x[..., {', '.join(self.entries)}]"

    @property
    def tail(self) -> str:
        where = f" where {self.inside}" if self.inside else ""
        return f"{where} for {', '.join(self.taps)}" if self.taps else where

    def tail_else(self, value: str) -> str:
        """Return the tail with what a window that holds no element gives."""
        if not self.gaps:
            return self.tail
        return f" else {value} for {', '.join(self.taps)}"


def _windows(rank: int, types: Types, attrs: Attrs) -> _Windows:
    shape = sizes(types[0].shape)[-rank:]
    window, stride = spread(attrs["kernel_size"], rank), _stride(rank, attrs)
    padding, dilation = spread(attrs["padding"], rank), spread(attrs.get("dilation", 1), rank)
    counts, entries, taps, gaps = [], [], [], False
    for at, (out, tap) in enumerate(zip(_OUT[-rank:], _IN[-rank:], strict=True)):
        one = (window[at], stride[at], padding[at], dilation[at])
        counts.append(_count(shape[at], *one, ceil=bool(attrs["ceil_mode"])))
        entries.append(entry(out, tap, *one[1:]))
        taps.append(f"{tap}<{window[at]}")
        gaps = gaps or any(_is_empty(place, shape[at], *one) for place in range(counts[-1]))
    return _Windows(tuple(counts), tuple(entries), tuple(taps), gaps=gaps)


def _is_empty(place: int, size: int, window: int, stride: int, padding: int, dilation: int) -> bool:
    start = place * stride - padding
    first = start if start >= 0 else start % dilation  # the first tap that is not left of the image
    return not start <= first <= min(start + (window - 1) * dilation, size - 1)


def _stride(rank: int, attrs: Attrs) -> tuple[int, ...]:
    given = attrs["stride"]
    return spread(attrs["kernel_size"] if given in (None, ()) else given, rank)


def _count(size: int, window: int, stride: int, padding: int, dilation: int, *, ceil: bool) -> int:
    if not ceil:
        return places(size, window, stride, padding, dilation)
    reach = size + 2 * padding - dilation * (window - 1) - 1
    found = -(-reach // stride) + 1
    # A window must begin inside the image or its left padding.
    return found - 1 if (found - 1) * stride >= size + padding else found


def _adaptive(rank: int, types: Types, attrs: Attrs) -> tuple[_Windows, str]:
    """Windows from floor(h * size / out) to ceil((h + 1) * size / out), and how large each is."""
    shape, wanted = sizes(types[0].shape)[-rank:], spread(attrs["output_size"], rank)
    entries, taps, inside, counts = [], [], [], []
    for out, tap, size, n in zip(_OUT[-rank:], _IN[-rank:], shape, wanted, strict=True):
        if n and size % n == 0:
            each = size // n
            entries.append(out if each == 1 else f"{out}*{each}+{tap}")
            taps += [f"{tap}<{each}"] if each > 1 else []
            counts += [str(each)] if each > 1 else []
            continue
        first, last = f"{out} * {size} // {n}", f"(({out} + 1) * {size} + {n - 1}) // {n}"
        entries.append(tap)
        inside.append(f"{tap} >= {first} and {tap} < {last}")
        counts.append(f"({last} - {first})")
    found = _Windows(wanted, tuple(entries), tuple(taps), " and ".join(inside))
    return found, " * ".join(counts)


# ------------------------------------------------------------------------------------- the largest


def _largest(windows: _Windows, dtype: DType) -> str:
    tail = windows.tail_else("-inf" if dtype.kind == "float" else "0")
    return f"y[..., {windows.target}] max= {windows.read}{tail}"


def _where(windows: _Windows, shape: Sequence[int]) -> str:
    position = "0"
    for one, size in zip(windows.entries, shape, strict=True):
        position = f"({one})" if position == "0" else f"({position}) * {size} + ({one})"
    return f"y[..., {windows.target}] argmax= {windows.read} at {position}{windows.tail_else('-1')}"


def _max_pool(rank: int) -> Declare:
    return lambda types, attrs: _largest(_windows(rank, types, attrs), types[0].dtype)


def _found(rank: int, types: Types, attrs: Attrs) -> _Windows:
    if "output_size" in attrs:
        return _adaptive(rank, types, attrs)[0]
    return _windows(rank, types, attrs)


def _both(rank: int) -> Expand:
    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        (x,) = inputs
        windows = _found(rank, (x.type,), attrs)
        best = write(builder, _largest(windows, x.type.dtype), x=x, name="largest")
        where = _where(windows, sizes(x.type.shape)[-rank:])
        return best, write(builder, where, x=x, name="indices")

    return expand


def _max_vjp(rank: int) -> Vjp:
    def vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
        dy = tangents[0]
        if dy is None:
            return (None,)
        (x,), origin = node.inputs, node.origin
        shape = sizes(x.type.shape)[-rank:]
        windows = _found(rank, (x.type,), dict(node.attrs))
        if len(node.outputs) > 1:
            at = node.outputs[1]
        else:
            where = _where(windows, shape)
            at = write(builder, where, x=x, name="indices", origin=origin)
        outs = ", ".join(_OUT[-rank:])
        place = ", ".join(unravel(f"a[..., {outs}]", shape))
        guard = f" where a[..., {outs}] >= 0" if windows.gaps else ""
        body = f"y[..., {place}] += dy[..., {outs}]{guard}"
        dtype = x.type.dtype
        made = write(builder, body, a=at, dy=dy, shape=x.type.shape, dtype=dtype, origin=origin)
        return (made,)

    return vjp


# ---------------------------------------------------------------------------------------- the mean


def _avg_pool(rank: int) -> Declare:
    def declare(types: Types, attrs: Attrs) -> str:
        windows = _windows(rank, types, attrs)
        divisor = _divisor(rank, types, attrs)
        return f"y[..., {windows.target}] += {windows.read} / ({divisor}){windows.tail}"

    return declare


def _divisor(rank: int, types: Types, attrs: Attrs) -> str:
    """Return how many elements a window is said to have; one that leaves the padding has fewer."""
    if attrs.get("divisor_override") is not None:
        return str(number(attrs["divisor_override"]))
    shape, window = sizes(types[0].shape)[-rank:], spread(attrs["kernel_size"], rank)
    stride, padding = _stride(rank, attrs), spread(attrs["padding"], rank)
    parts = []
    for at, out in enumerate(_OUT[-rank:]):
        step, pad, size, taken = stride[at], padding[at], shape[at], window[at]
        start = f"({out} * {step} - {pad})"
        if not attrs["count_include_pad"]:
            parts.append(f"(min({start} + {taken}, {size}) - max({start}, 0))")
        elif attrs["ceil_mode"]:
            parts.append(f"(min({start} + {taken}, {size + pad}) - {start})")
        else:
            parts.append(str(taken))
    return " * ".join(parts)


def _adaptive_avg(rank: int) -> Declare:
    def declare(types: Types, attrs: Attrs) -> str:
        windows, size = _adaptive(rank, types, attrs)
        divisor = f" / ({size})" if size else ""
        op = "+=" if size else "="
        return f"y[..., {windows.target}] {op} {windows.read}{divisor}{windows.tail}"

    return declare


# ---------------------------------------------------------------------------------------- the rows

_FIRST = "the first of several takes all of the gradient"
_REASON = "the first of several largest takes all of the gradient, as in torch"
_MAX = "kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False"
_MEAN = "kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True"
_INDEX = {1: "w*s+j*d-p", 2: "h*s+i*d-p, w*s+j*d-p", 3: "f*s+t*d-p, h*s+i*d-p, w*s+j*d-p"}
_PLACE = {1: "w", 2: "h, w", 3: "f, h, w"}


def _max_row(rank: int, *samples: Sample) -> Operator:
    call = f"torch.nn.functional.max_pool{rank}d("
    return Operator(
        f"max_pool{rank}d(x; {_MAX})  y[..., {_PLACE[rank]}] max= x[..., {_INDEX[rank]}]",
        f"The largest element of every window of a {_LINES[rank]}.",
        declare=_max_pool(rank),
        vjp=_max_vjp(rank),
        vjp_reason=_REASON,
        kink=_FIRST,
        eager=call + "{x}, {kernel_size}, {stride}, {padding}, {dilation}, {ceil_mode})",
        samples=samples,
    )


def _both_row(rank: int, *samples: Sample) -> Operator:
    call = f"torch.nn.functional.max_pool{rank}d("
    return Operator(
        f"max_pool{rank}d_with_indices(x; {_MAX})",
        f"The largest element of every window, and its position in the {_LINES[rank]}.",
        expand=_both(rank),
        vjp=_max_vjp(rank),
        vjp_reason=_REASON,
        kink=_FIRST,
        eager=call + "{x}, {kernel_size}, {stride}, {padding}, {dilation}, {ceil_mode}, "
        "return_indices=True)",
        samples=samples,
    )


def _mean_row(rank: int, *samples: Sample) -> Operator:
    forced = "" if rank == 1 else ", divisor_override=None"
    passed = "" if rank == 1 else ", {divisor_override}"
    return Operator(
        f"avg_pool{rank}d(x; {_MEAN}{forced})  "
        f"y[..., {_PLACE[rank]}] += x[..., {_INDEX[rank].replace('*d', '')}] / n",
        f"The mean of every window of a {_LINES[rank]}.",
        declare=_avg_pool(rank),
        eager=f"torch.nn.functional.avg_pool{rank}d("
        "{x}, {kernel_size}, {stride}, {padding}, {ceil_mode}, {count_include_pad}"
        f"{passed})",
        samples=samples,
    )


def _adaptive_mean_row(rank: int, *samples: Sample) -> Operator:
    inside = _INDEX[rank].replace("*d-p", "")
    return Operator(
        f"adaptive_avg_pool{rank}d(x; output_size)  y[..., {_PLACE[rank]}] += x[..., {inside}] / n",
        "Means of as many windows as are asked for.",
        declare=_adaptive_avg(rank),
        eager=f"torch.nn.functional.adaptive_avg_pool{rank}d({{x}}, {{output_size}})",
        samples=samples,
    )


def _adaptive_max_row(rank: int, *samples: Sample) -> Operator:
    call = f"torch.nn.functional.adaptive_max_pool{rank}d"
    return Operator(
        f"adaptive_max_pool{rank}d(x; output_size)",
        "The largest elements of as many windows as are asked for, and their positions.",
        expand=_both(rank),
        vjp=_max_vjp(rank),
        vjp_reason=_REASON,
        kink=_FIRST,
        eager=call + "({x}, {output_size}, return_indices=True)",
        samples=samples,
    )


_TIES = "f[1, 1, 4, 4] = 1, 1, 0, 2, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0"

PAGE = (
    _max_row(1, sample("f[2, 3, 7]", kernel_size=3, stride=2, padding=1),
             sample("f[3, 6] = 1, 1, 0, 2, 2, 2, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 1, 1",
                    kernel_size=2)),
    _max_row(
        2,
        sample("f[2, 3, 6, 6]", kernel_size=2),
        sample(_TIES, kernel_size=2),
        sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1),
        sample("f[2, 6, 5]", kernel_size=(3, 2), stride=2, ceil_mode=True),
        sample("f[1, 1, 6, 7]", kernel_size=2, stride=1, dilation=2),
        sample("f[1, 1, 4, 2] = 0, 2, 2, 0, 1, 1, 1, 1", kernel_size=2),
    ),
    _max_row(3, sample("f[1, 2, 4, 4, 4]", kernel_size=2),
             sample("f[2, 3, 5, 4]", kernel_size=(1, 3, 2), stride=2, padding=(0, 1, 1))),
    _both_row(2, sample(_TIES, kernel_size=2),
              sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1)),
    _both_row(3, sample("f[1, 1, 4, 5, 3]", kernel_size=(2, 3, 2), stride=1, padding=1)),
    _mean_row(1, sample("f[2, 3, 7]", kernel_size=3, stride=2, padding=1),
              sample("f[3, 8]", kernel_size=3, ceil_mode=True, count_include_pad=False)),
    _mean_row(
        2,
        sample("f[2, 3, 6, 6]", kernel_size=2),
        sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1),
        sample("f[1, 2, 7, 7]", kernel_size=3, stride=2, padding=1, count_include_pad=False),
        sample("f[1, 2, 6, 8]", kernel_size=(3, 2), stride=3, padding=1, ceil_mode=True),
        sample("f[2, 4, 4]", kernel_size=2, divisor_override=3),
    ),
    _mean_row(3, sample("f[1, 2, 4, 4, 4]", kernel_size=2),
              sample("f[1, 3, 4, 5]", kernel_size=(1, 2, 3), padding=(0, 1, 1), stride=1)),
    _adaptive_mean_row(1, sample("f[2, 3, 6]", output_size=3), sample("f[2, 7]", output_size=3)),
    _adaptive_mean_row(
        2,
        sample("f[2, 3, 4, 6]", output_size=(1, 1)),
        sample("f[1, 2, 4, 6]", output_size=(2, 3)),
        sample("f[1, 2, 5, 7]", output_size=(3, 2)),
        sample("f[1, 2, 3, 4]", output_size=(3, 4)),
        sample("f[1, 2, 3, 4]", output_size=(6, 3)),
    ),
    _adaptive_mean_row(3, sample("f[1, 2, 4, 3, 5]", output_size=(2, 3, 2))),
    _adaptive_max_row(2, sample("f[1, 2, 5, 7]", output_size=(3, 2)),
                      sample(_TIES, output_size=(2, 2))),
    _adaptive_max_row(3, sample("f[1, 2, 4, 3, 5]", output_size=(2, 3, 2))),
)  # fmt: skip
