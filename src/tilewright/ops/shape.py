"""The page of shapes: views, joins, pads and masks.

The idea: a view is an index map.  A result's dims are the loops `i, j, k, ...`, and the operand is
read at what they map to; row-major positions split and join dims by `//` and `%`.

This module does not know whether a view costs anything: layout is decided later.
"""

import math
from collections.abc import Callable, Sequence

from tilewright.base.sizes import larger, smaller
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node
from tilewright.ops.nest import (
    chosen_dims,
    index,
    limited,
    linear_position,
    loops,
    number,
    numbers,
    one_dim,
    sizes,
    steps,
)
from tilewright.ops.operator import Attrs, Operator, Tangents, Types, sample, write

_ANY = "f[2, 3]"
_CUBE = "f[2, 3, 4]"


def _read(shape: Sequence[int], entries: Sequence[str], tensor: str = "x") -> str:
    return f"y[{limited(shape)}] = {tensor}[{index(entries)}]"


def _placed(shape: Sequence[int], dim: int, size: int, entry: str) -> str:
    """Read with `entry` at `dim`, where the result has `size`; the other dims as they are."""
    result = list(shape)
    result[dim] = size
    entries = loops(len(shape))
    entries[dim] = entry
    return _read(result, entries)


# ------------------------------------------------------------------------------------------- views


def full_shape(wanted: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """Replace a -1 by what the other sizes leave."""
    if -1 not in wanted:
        return wanted
    rest = math.prod(size for size in wanted if size != -1)
    return tuple(elements // rest if size == -1 else size for size in wanted)


def _reshape(types: Types, attrs: Attrs) -> str:
    source = sizes(types[0].shape)
    target = full_shape(numbers(attrs["shape"]), math.prod(source))
    assert math.prod(target) == math.prod(source), f"{source} has no view of shape {target}"
    position = linear_position(target, loops(len(target)))
    return _read(target, unravel(position, source))


def unravel(position: str, shape: Sequence[int]) -> list[str]:
    """Return the index of the element at a row-major position."""
    entries = []
    stride = math.prod(shape)
    for dim, size in enumerate(shape):
        stride //= max(size, 1)
        entry = f"({position})//{stride}" if stride > 1 else f"({position})"
        entries.append(f"{entry}%{size}" if dim > 0 and size > 0 else entry)
    return entries


def _permute(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dims = tuple(one_dim(dim, len(shape)) for dim in numbers(attrs["dims"]))
    assert sorted(dims) == list(range(len(shape))), f"{dims} does not name each dim once"
    names = loops(len(shape))
    entries = [names[dims.index(dim)] for dim in range(len(shape))]
    return f"y[{index(names)}] = x[{index(entries)}]"


def _expand(types: Types, attrs: Attrs) -> str:
    shape, wanted = sizes(types[0].shape), numbers(attrs["shape"])
    offset = len(wanted) - len(shape)
    assert offset >= 0, f"{shape} cannot be expanded to fewer dims, {wanted}"
    target = [shape[at - offset] if size == -1 else size for at, size in enumerate(wanted)]
    names = loops(len(target))[offset:]
    for dim, size in enumerate(shape):
        assert size in (1, target[dim + offset]), f"{shape} does not expand to {wanted}"
    entries = ["0" if size == 1 else name for name, size in zip(names, shape, strict=True)]
    return _read(target, entries)


def _slice(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim = one_dim(attrs["dim"], len(shape))
    start, stop, step = slice_bounds(attrs, shape[dim])
    entry = f"{loops(len(shape))[dim]}*{step}+{start}"
    return _placed(shape, dim, steps(start, stop, step), entry)


def slice_bounds(attrs: Attrs, size: int) -> tuple[int, int, int]:
    """Return start, stop and step inside the dim, as Python's slices have them."""
    start, stop, step = attrs["start"], attrs["stop"], number(attrs["step"])
    assert start is None or isinstance(start, int), "a slice starts at an integer"
    assert stop is None or isinstance(stop, int), "a slice stops at an integer"
    assert step > 0, "tensors are sliced by positive steps"
    first = 0 if start is None else _inside(start, size)
    last = size if stop is None else _inside(stop, size)
    return first, last, step


def _inside(end: int, size: int) -> int:
    """Return where a slice's end lies: counted from the dim's end if negative, and in the dim."""
    moved: int = larger(0, end + size) if end < 0 else smaller(end, size)
    return moved


def _select(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim, at = one_dim(attrs["dim"], len(shape)), number(attrs["index"])
    assert -shape[dim] <= at < shape[dim], f"there is no element {at} in a dim of {shape[dim]}"
    rest = [size for place, size in enumerate(shape) if place != dim]
    entries = loops(len(rest))
    entries.insert(dim, str(at % shape[dim]))
    return _read(rest, entries)


def _squeeze(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    chosen = chosen_dims(attrs["dims"], len(shape))
    gone = [dim for dim in chosen if shape[dim] == 1]
    rest = [size for dim, size in enumerate(shape) if dim not in gone]
    entries = loops(len(rest))
    for dim in gone:
        entries.insert(dim, "0")
    return _read(rest, entries)


def _unsqueeze(types: Types, attrs: Attrs) -> str:
    shape = list(sizes(types[0].shape))
    dim = one_dim(attrs["dim"], len(shape) + 1)
    shape.insert(dim, 1)
    entries = loops(len(shape))
    del entries[dim]
    return _read(shape, entries)


def _flip(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dims = chosen_dims(attrs["dims"], len(shape)) if attrs["dims"] != () else ()
    names = loops(len(shape))
    entries = [
        f"{shape[dim] - 1}-{name}" if dim in dims else name for dim, name in enumerate(names)
    ]
    return _read(shape, entries)


def _roll(types: Types, attrs: Attrs) -> str:
    """Read the last dim in two runs, each of neighbours in memory; a remainder would hide that."""
    shape = sizes(types[0].shape)
    entries, ahead = loops(len(shape)), [0] * len(shape)
    for shift, named in zip(numbers(attrs["shifts"]), numbers(attrs["dims"]), strict=True):
        dim = one_dim(named, len(shape))
        ahead[dim] = (ahead[dim] - shift) % shape[dim] if shape[dim] else 0
    for dim in range(len(shape) - 1):
        if ahead[dim]:
            entries[dim] = f"({entries[dim]}+{ahead[dim]})%{shape[dim]}"
    if not shape or not ahead[-1]:
        return _read(shape, entries)
    *others, last = entries
    first = shape[-1] - ahead[-1]
    near, far = index([*others, f"{last}+{ahead[-1]}"]), index([*others, f"{last}-{first}"])
    return f"y[{limited(shape)}] = x[{near}] if {last} < {first} else x[{far}]"


def _roll_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    back = tuple(-shift for shift in numbers(node.attr("shifts")))
    body = _roll((dy.type,), {"shifts": back, "dims": node.attr("dims")})
    return (write(builder, body, x=dy, dtype=dy.type.dtype, origin=node.origin),)


def _repeat(types: Types, attrs: Attrs) -> str:
    shape, times = sizes(types[0].shape), numbers(attrs["repeats"])
    offset = len(times) - len(shape)
    assert offset >= 0, f"{times} repeats fewer dims than {shape} has"
    padded = (1,) * offset + shape
    target = [size * count for size, count in zip(padded, times, strict=True)]
    entries = [
        f"{name}%{size}" if size else name
        for name, size in zip(loops(len(target))[offset:], shape, strict=True)
    ]
    return _read(target, entries)


def _repeat_interleave(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim, times = one_dim(attrs["dim"], len(shape)), number(attrs["repeats"])
    return _placed(shape, dim, shape[dim] * times, f"{loops(len(shape))[dim]}//{max(times, 1)}")


def _diagonal(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    first, second = one_dim(attrs["dim1"], len(shape)), one_dim(attrs["dim2"], len(shape))
    offset = number(attrs["offset"])
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(shape[first] - down, shape[second] - right), 0)
    rest = [size for dim, size in enumerate(shape) if dim not in (first, second)]
    names = loops(len(rest) + 1)
    others = iter(names[:-1])
    entries = [
        f"{names[-1]}+{down}" if dim == first
        else f"{names[-1]}+{right}" if dim == second
        else next(others)
        for dim in range(len(shape))
    ]  # fmt: skip
    return _read([*rest, length], entries)


def _unfold(types: Types, attrs: Attrs) -> str:
    shape = list(sizes(types[0].shape))
    dim = one_dim(attrs["dim"], len(shape))
    size, step = number(attrs["size"]), number(attrs["step"])
    entries = loops(len(shape))
    window = loops(len(shape) + 1)[-1]
    entries[dim] = f"{entries[dim]}*{step}+{window}"
    shape[dim] = (shape[dim] - size) // step + 1
    return _read([*shape, size], entries)


def _as_strided(_: Types, attrs: Attrs) -> str:
    size, stride = numbers(attrs["size"]), numbers(attrs["stride"])
    steps = [f"{name}*{step}" for name, step in zip(loops(len(size)), stride, strict=True)]
    return _read(size, ["+".join([*steps, str(number(attrs["offset"]))])])


# ----------------------------------------------------------------------------------- joins and pads


def _cat(types: Types, attrs: Attrs) -> str:
    shapes = [sizes(type_.shape) for type_ in types]
    # torch lets an empty vector stand for an empty tensor of any rank.
    rank = max(len(shape) for shape in shapes)
    kept = [at for at, shape in enumerate(shapes) if shape != (0,) or rank == 1]
    shapes = [shapes[at] for at in kept]
    dim = one_dim(attrs["dim"], rank)
    target = list(shapes[0])
    for shape in shapes[1:]:
        rest = [size for at, size in enumerate(shape) if at != dim]
        assert rest == [s for at, s in enumerate(target) if at != dim], f"{shapes} do not join"
    target[dim] = sum(shape[dim] for shape in shapes)
    names = loops(rank)
    starts = [sum(shape[dim] for shape in shapes[:at]) for at in range(len(shapes))]

    def piece(at: int) -> str:
        entries = list(names)
        entries[dim] = f"{names[dim]}-{starts[at]}"
        return f"xs{kept[at]}[{index(entries)}]"

    return f"y[{limited(target)}] = {_choose(names[dim], starts, piece, 0, len(shapes))}"


def _choose(
    loop: str, starts: Sequence[int], piece: Callable[[int], str], first: int, last: int
) -> str:
    """Return the choice among pieces by the loop's value, halved: few comparisons, flat text."""
    if last - first == 1:
        return piece(first)
    middle = (first + last) // 2
    low = _choose(loop, starts, piece, first, middle)
    high = _choose(loop, starts, piece, middle, last)
    return f"({low} if {loop} < {starts[middle]} else {high})"


def _stack(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    assert all(sizes(type_.shape) == shape for type_ in types), "tensors of one shape are stacked"
    dim = one_dim(attrs["dim"], len(shape) + 1)
    target = [*shape[:dim], len(types), *shape[dim:]]
    names = loops(len(target))
    entries = index([name for at, name in enumerate(names) if at != dim])
    starts = range(len(types))
    chosen = _choose(names[dim], starts, lambda at: f"xs{at}[{entries}]", 0, len(types))
    return f"y[{limited(target)}] = {chosen}"


def _pad(types: Types, attrs: Attrs) -> str:
    shape, pads = sizes(types[0].shape), numbers(attrs["pad"])
    rank = len(shape)
    before = [0] * rank
    target = list(shape)
    for at in range(len(pads) // 2):  # pairs, the last dim first
        dim = rank - 1 - at
        before[dim] = pads[2 * at]
        target[dim] += pads[2 * at] + pads[2 * at + 1]
    entries = [
        name if shift == 0 else f"{name}-{shift}" if shift > 0 else f"{name}+{-shift}"
        for name, shift in zip(loops(rank), before, strict=True)
    ]
    return f"{_read(target, entries)} ?? value"


def _band(relation: str, types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    names = loops(len(shape))
    row, column = names[-2:]
    diagonal = number(attrs["diagonal"])
    condition = f"{column} - {row} {relation} {diagonal}"
    return f"y[{index(names)}] = x[{index(names)}] if {condition} else 0"


def _tril(types: Types, attrs: Attrs) -> str:
    return _band("<=", types, attrs)


def _triu(types: Types, attrs: Attrs) -> str:
    return _band(">=", types, attrs)


VIEWS = (
    Operator(
        "reshape(x; shape)  y[...] = x[...]",
        "The same elements in row-major order, under another shape.",
        declare=_reshape,
        eager="{x}.reshape({shape})",
        samples=(
            sample(_CUBE, shape=(6, 4)),
            sample(_CUBE, shape=(4, -1)),
            sample("f[2, 6]", shape=(2, 3, 2)),
            sample("f[1]", shape=()),
        ),
    ),
    Operator(
        "permute(x; dims)  y[k, i, j] = x[i, j, k]",
        "The dims in another order.",
        declare=_permute,
        eager="{x}.permute({dims})",
        samples=(sample(_CUBE, dims=(2, 0, 1)), sample(_ANY, dims=(1, 0))),
    ),
    Operator(
        "expand(x; shape)  y[i, j] = x[0, j]",
        "Dims of size 1 repeated, leading dims added; -1 keeps a size.",
        declare=_expand,
        eager="{x}.expand({shape})",
        samples=(sample("f[1, 3]", shape=(2, 4, 3)), sample("f[3]", shape=(2, -1))),
    ),
    Operator(
        "slice(x; dim=0, start=None, stop=None, step=1)  y[i, ...] = x[i*step+start, ...]",
        "Every step-th element of a dim, from start to before stop.",
        declare=_slice,
        eager="torch.ops.aten.slice({x}, {dim}, {start}, {stop}, {step})",
        samples=(
            sample("f[5, 3]", start=1, stop=4),
            sample("f[3, 7]", dim=1, start=1, step=3),
            sample("f[5]", start=-3, stop=9223372036854775807),
        ),
    ),
    Operator(
        "select(x; dim, index)  y[...] = x[index, ...]",
        "One element of a dim.",
        declare=_select,
        eager="{x}.select({dim}, {index})",
        samples=(sample(_CUBE, dim=1, index=-1), sample("f[3]", dim=0, index=1)),
    ),
    Operator(
        "squeeze(x; dims=None)  y[i] = x[i, 0]",
        "Without the chosen dims of size 1.",
        declare=_squeeze,
        eager="{x}.squeeze({dims})",
        samples=(sample("f[1, 3, 1]", dims=(0, 1)), sample("f[2, 1]", dims=(-1,))),
    ),
    Operator(
        "unsqueeze(x; dim)  y[i, 0] = x[i]",
        "With a dim of size 1 more.",
        declare=_unsqueeze,
        eager="{x}.unsqueeze({dim})",
        samples=(sample(_ANY, dim=1), sample("f[3]", dim=-1), sample("f[]", dim=0)),
    ),
    Operator(
        "flip(x; dims)  y[i] = x[n-1-i]",
        "Dims backwards.",
        declare=_flip,
        eager="{x}.flip({dims})",
        samples=(sample(_CUBE, dims=(0, 2)),),
    ),
    Operator(
        "roll(x; shifts, dims)  y[i] = x[(i-shift)%n]",
        "Dims turned round.",
        declare=_roll,
        vjp=_roll_vjp,
        vjp_reason="a roll back; that of two runs would be a sum of two, each with zeros",
        eager="{x}.roll({shifts}, {dims})",
        samples=(
            sample("f[5, 3]", shifts=(2, -1), dims=(0, 1)),
            sample("f[2, 4]", shifts=(3, 3, 4), dims=(-1, 1, 0)),
        ),
    ),
    Operator(
        "repeat(x; repeats)  y[i] = x[i%n]",
        "Whole dims, several times.",
        declare=_repeat,
        eager="{x}.repeat({repeats})",
        samples=(sample(_ANY, repeats=(2, 2)), sample("f[3]", repeats=(2, 2))),
    ),
    Operator(
        "repeat_interleave(x; repeats, dim)  y[i] = x[i//repeats]",
        "Each element of a dim, several times.",
        declare=_repeat_interleave,
        eager="{x}.repeat_interleave({repeats}, {dim})",
        samples=(sample(_CUBE, repeats=3, dim=1),),
    ),
    Operator(
        "diagonal(x; offset=0, dim1=0, dim2=1)  y[..., i] = x[i, i+offset, ...]",
        "The diagonal of two dims, last.",
        declare=_diagonal,
        eager="{x}.diagonal({offset}, {dim1}, {dim2})",
        samples=(sample("f[3, 4]", offset=1), sample("f[2, 4, 3]", offset=-1, dim1=-2, dim2=-1)),
    ),
    Operator(
        "as_strided(x; size, stride, offset=0)  y[i, j] = x[i*s+j*t+offset]",
        "Elements of a line at even steps, several dims of them; they may be read repeatedly.",
        declare=_as_strided,
        eager="{x}.as_strided({size}, {stride}, {offset})",
        samples=(
            sample("f[12]", size=(2, 3), stride=(5, 1), offset=1),
            sample("f[8]", size=(3, 4), stride=(1, 1)),
            sample("f[6]", size=(2, 3), stride=(0, 2)),
        ),
    ),
    Operator(
        "unfold(x; dim, size, step)  y[i, w] = x[i*step+w]",
        "Windows of a dim; their elements are the last dim.",
        declare=_unfold,
        eager="{x}.unfold({dim}, {size}, {step})",
        samples=(sample("f[7, 2]", dim=0, size=3, step=2), sample("f[6]", dim=0, size=2, step=1)),
    ),
)

JOINS = (
    Operator(
        "cat(*xs; dim=0)  y[i, ...] = xs0[i, ...] if i < n else xs1[i-n, ...]",
        "Tensors one after another along a dim.",
        declare=_cat,
        eager="torch.cat([{xs}], {dim})",
        samples=(
            sample("f[2, 3]", "f[4, 3]"),
            sample("f[2, 3]", "f[2, 1]", "f[2, 2]", dim=-1),
            sample("f[2]", "f[2]", "f[2]", "f[1]", "f[3]"),
            sample("f[2, 2]", "f[0]", "f[1, 2]"),
        ),
    ),
    Operator(
        "stack(*xs; dim=0)  y[0, ...] = xs0[...], y[1, ...] = xs1[...]",
        "Tensors side by side along a dim of their own.",
        declare=_stack,
        eager="torch.stack([{xs}], {dim})",
        samples=(sample(_ANY, _ANY, dim=1), sample("f[]", "f[]", "f[]"), sample(_ANY, dim=-1)),
    ),
    Operator(
        "pad(x; pad, value=0)  y[i, j] = x[i-top, j-left] ?? value",
        "Dims made longer by a number, or shorter; pairs (before, after), the last dim first.",
        declare=_pad,
        dtype="first",
        eager="torch.nn.functional.pad({x}, {pad}, value={value})",
        samples=(
            sample(_ANY, pad=(1, 2), value=1.5),
            sample(_ANY, pad=(-1, 2, 1, 0)),
            sample(_CUBE, pad=(0, 1, 0, 0, 2, 0)),
        ),
    ),
    Operator(
        "tril(x; diagonal=0)  y[..., i, j] = x[..., i, j] if j - i <= diagonal else 0",
        "The lower triangle of the last two dims.",
        declare=_tril,
        eager="{x}.tril({diagonal})",
        samples=(
            sample("f[3, 4]"),
            sample("f[2, 3, 3]", diagonal=-1),
            sample("b[3, 3]", diagonal=1),
        ),
    ),
    Operator(
        "triu(x; diagonal=0)  y[..., i, j] = x[..., i, j] if j - i >= diagonal else 0",
        "The upper triangle of the last two dims.",
        declare=_triu,
        eager="{x}.triu({diagonal})",
        samples=(sample("f[3, 4]"), sample("f[2, 3, 3]", diagonal=1)),
    ),
)  # fmt: skip

PAGE = (*VIEWS, *JOINS)
