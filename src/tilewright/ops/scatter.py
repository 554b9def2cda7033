"""The page of scatters: a tensor with some of its elements replaced or put together with others.

The idea: the target's own index says where a term lands: `y[ids[i], j] = src[i, j] from x`; what
no term reaches is what x holds.  A place known by its position alone is a choice, not a scatter.

This module does not know how a scatter is kept free of races.
"""

from tilewright.base.dtypes import DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node
from tilewright.ops.gather import Indexing
from tilewright.ops.nest import index, limited, loops, number, one_dim, sizes, steps
from tilewright.ops.operator import Attrs, Declare, Operator, Tangents, Types, sample, write
from tilewright.ops.shape import slice_bounds


def _first(types: Types, _: Attrs) -> DType:
    return types[0].dtype


def _index_put(types: Types, attrs: Attrs) -> str:
    found = Indexing(types[0], types[2:], attrs["dims"])
    values = sizes(types[1].shape)
    offset = len(found.target) - len(values)
    assert offset >= 0, f"values of shape {values} do not fit {found.target}"
    entries = [
        "0" if size == 1 else name for name, size in zip(found.names[offset:], values, strict=True)
    ]
    op = "+=" if attrs["accumulate"] else "="
    limits = ", ".join(
        f"{name}<{size}" for name, size in zip(found.names, found.target, strict=True)
    )
    tail = f" for {limits}" if limits else ""
    return f"y[{index(found.entries)}] {op} v[{index(entries)}] from x{tail}"


def _scatter(op: str, types: Types, attrs: Attrs) -> str:
    shape = sizes(types[1].shape)
    names = loops(len(shape))
    entries = list(names)
    dim = one_dim(attrs["dim"], len(shape))
    entries[dim] = f"ids[{index(names)}]"
    limits = ", ".join(f"{name}<{size}" for name, size in zip(names, shape, strict=True))
    return f"y[{index(entries)}] {op} src[{index(names)}] from x for {limits}"


def _scatter_set(types: Types, attrs: Attrs) -> str:
    return _scatter("=", types, attrs)


def _scatter_add(types: Types, attrs: Attrs) -> str:
    return _scatter("+=", types, attrs)


def _index_add(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[2].shape)
    names = loops(len(shape))
    entries = list(names)
    dim = one_dim(attrs["dim"], len(shape))
    entries[dim] = f"ids[{names[dim]}]"
    scale = "" if attrs["alpha"] == 1 else "alpha * "
    return f"y[{index(entries)}] += {scale}src[{index(names)}] from x"


def _slice_scatter(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim = one_dim(attrs["dim"], len(shape))
    start, stop, step = slice_bounds(attrs, shape[dim])
    assert sizes(types[1].shape)[dim] == steps(start, stop, step), "the slice has that size"
    names = loops(len(shape))
    entries = list(names)
    inside = f"i - {start}".replace("i", names[dim], 1)
    condition = f"{names[dim]} >= {start} and {names[dim]} < {stop}"
    condition += f" and ({inside}) % {step} == 0" if step > 1 else ""
    entries[dim] = f"({names[dim]}-{start})//{step}"
    return f"y[{limited(shape)}] = src[{index(entries)}] if {condition} else x[{index(names)}]"


def _select_scatter(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim = one_dim(attrs["dim"], len(shape))
    names = loops(len(shape))
    entries = [name for at, name in enumerate(names) if at != dim]
    at = number(attrs["index"]) % shape[dim]
    chosen = f"src[{index(entries)}] if {names[dim]} == {at} else x[{index(names)}]"
    return f"y[{limited(shape)}] = {chosen}"


# ------------------------------------------------------------------------------------ the extremes


def _scatter_extreme(op: str) -> Declare:
    return lambda types, attrs: _scatter(op, types, attrs)


def _extreme_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    """Share the gradient evenly among all that equal the result, what x held among them."""
    (dy,) = tangents
    if dy is None:
        return None, None, None
    (x, ids, src), y, origin = node.inputs, node.output, node.origin
    names = loops(ids.type.rank)
    limits = ", ".join(f"{n}<{size}" for n, size in zip(names, sizes(ids.type.shape), strict=True))
    at, compute = list(names), x.type.dtype.compute
    at[one_dim(node.attr("dim"), len(names))] = f"ids[{index(names)}]"
    term, place = index(names), index(at)
    body = "y[...] = 1 if x[...] == r[...] else 0"
    held = write(builder, body, x=x, r=y, dtype=compute, origin=origin)
    body = f"y[{place}] += (1 if src[{term}] == r[{place}] else 0) from h for {limits}"
    count = write(builder, body, ids=ids, src=src, r=y, h=held, dtype=compute, origin=origin)
    body = "y[...] = dy[...] / n[...] if x[...] == r[...] else 0"
    dx = write(builder, body, dy=dy, n=count, x=x, r=y, dtype=x.type.dtype, origin=origin)
    body = f"y[{term}] = dy[{place}] / n[{place}] if src[{term}] == r[{place}] else 0 for {limits}"
    shape, dtype = src.type.shape, src.type.dtype
    ds = write(builder, body, dy=dy, n=count, ids=ids, src=src, r=y, shape=shape, dtype=dtype,
               origin=origin)  # fmt: skip
    return dx, None, ds


# ---------------------------------------------------------------------------------------- diagonals


def _diagonal_place(rank: int, attrs: Attrs) -> tuple[list[str], int, int, str, str]:
    """Return the loops of the result, its two dims, the condition, and the diagonal's entry."""
    names = loops(rank)
    first, second = one_dim(attrs["dim1"], rank), one_dim(attrs["dim2"], rank)
    offset = number(attrs["offset"])
    condition = f"{names[second]} - {names[first]} == {offset}"
    entry = names[first] if offset >= 0 else f"{names[first]}-{-offset}"
    return names, first, second, condition, entry


def _diag_embed(types: Types, attrs: Attrs) -> str:
    rank = types[0].rank + 1
    names, first, second, condition, entry = _diagonal_place(rank, attrs)
    *rest, length = sizes(types[0].shape)
    side = length + abs(number(attrs["offset"]))
    others = iter(rest)
    shape = [side if dim in (first, second) else next(others) for dim in range(rank)]
    read = [name for dim, name in enumerate(names) if dim not in (first, second)]
    return f"y[{limited(shape)}] = x[{index([*read, entry])}] if {condition} else 0"


def _diagonal_scatter(types: Types, attrs: Attrs) -> str:
    names, first, second, condition, entry = _diagonal_place(types[0].rank, attrs)
    read = [name for dim, name in enumerate(names) if dim not in (first, second)]
    chosen = f"src[{index([*read, entry])}] if {condition} else x[{index(names)}]"
    return f"y[{limited(sizes(types[0].shape))}] = {chosen}"


def _index_copy(types: Types, attrs: Attrs) -> str:
    names = loops(types[2].rank)
    entries = list(names)
    dim = one_dim(attrs["dim"], len(names))
    entries[dim] = f"ids[{names[dim]}]"
    return f"y[{index(entries)}] = src[{index(names)}] from x"


PAGE = (
    Operator(
        "index_put(x, v, *ids; dims, accumulate=False)  y[ids0[i], ids1[i], j] = v[i, j] from x",
        "x with values put, or added, at positions that tensors give.",
        declare=_index_put,
        dtype=_first,
        kink="of several values put at one place, which one stays is not said",
        eager="torch.ops.aten.index_put({x}, [dict(zip([d % {x}.dim() for d in {dims}], [{ids}]))"
        ".get(d) for d in range({x}.dim())], {v}, {accumulate})",
        samples=(
            sample("f[5, 3]", "f[3, 3]", "i[3] = 0, -1, 2", dims=(0,)),
            sample("f[5, 3]", "f[4]", "i[4] = 0, 1, 1, 4", "i[4] = 0, 1, 1, 2", dims=(0, 1),
                   accumulate=True),
            sample("f[5, 3]", "f[]", "i[2] = 1, 3", dims=(0,)),
            sample("f[5, 3]", "f[5, 2]", "i[2] = 2, 0", dims=(-1,)),
        ),
    ),
    Operator(
        "scatter(x, ids, src; dim)  y[i, ids[i, j]] = src[i, j] from x",
        "x with elements put along a dim, at an index of their own each.",
        declare=_scatter_set,
        dtype=_first,
        kink="of several elements put at one place, which one stays is not said",
        eager="torch.scatter({x}, {dim}, {ids}, {src})",
        samples=(sample("f[2, 5]", "i[2, 3] = 0, 4, 2, 1, 0, 3", "f[2, 3]", dim=1),),
    ),
    Operator(
        "scatter_add(x, ids, src; dim)  y[i, ids[i, j]] += src[i, j] from x",
        "x with elements added along a dim, at an index of their own each.",
        declare=_scatter_add,
        dtype=_first,
        eager="torch.scatter_add({x}, {dim}, {ids}, {src})",
        samples=(
            sample("f[2, 5]", "i[2, 3] = 0, 4, 0, 1, 1, 1", "f[2, 3]", dim=1),
            sample("f[3, 2]", "i[4, 2] < 3", "f[4, 2]", dim=0),
        ),
    ),
    Operator(
        "index_add(x, ids, src; dim, alpha=1)  y[ids[i], j] += alpha * src[i, j] from x",
        "x with whole slices added along a dim.",
        declare=_index_add,
        dtype=_first,
        eager="torch.index_add({x}, {dim}, {ids}, {src}, alpha={alpha})",
        samples=(
            sample("f[3, 2]", "i[4] < 3", "f[4, 2]", dim=0),
            sample("f[2, 5]", "i[3] < 5", "f[2, 3]", dim=1, alpha=0.5),
        ),
    ),
    Operator(
        "slice_scatter(x, src; dim=0, start=None, stop=None, step=1)  "
        "y[i] = src[(i-start)//step] if start <= i < stop else x[i]",
        "x with a slice replaced.",
        declare=_slice_scatter,
        dtype=_first,
        eager="torch.slice_scatter({x}, {src}, {dim}, {start}, {stop}, {step})",
        samples=(
            sample("f[5, 2]", "f[2, 2]", start=1, stop=3),
            sample("f[2, 7]", "f[2, 2]", dim=1, start=1, stop=6, step=3),
        ),
    ),
    Operator(
        "select_scatter(x, src; dim, index)  y[i, j] = src[j] if i == index else x[i, j]",
        "x with one element of a dim replaced.",
        declare=_select_scatter,
        dtype=_first,
        eager="torch.select_scatter({x}, {src}, {dim}, {index})",
        samples=(sample("f[3, 2]", "f[2]", dim=0, index=1), sample("f[3, 2]", "f[3]", dim=1,
                 index=-1)),
    ),
    *(
        Operator(
            f"scatter_{name}(x, ids, src; dim)  y[i, ids[i, j]] {op} src[i, j] from x",
            f"The {word} of what x holds and of all that lands on it along a dim.",
            declare=_scatter_extreme(op),
            dtype=_first,
            vjp=_extreme_vjp,
            vjp_reason="what x held takes part in a tie, which a count over terms alone misses",
            kink="ties share the gradient evenly",
            eager=f"torch.scatter_reduce({{x}}, {{dim}}, {{ids}}, {{src}}, 'a{name}')",
            samples=(
                sample("f[2, 5]", "i[2, 3] = 0, 4, 0, 1, 1, 1", "f[2, 3]", dim=1),
                sample("f[2, 3] = 1, 2, 3, 4, 5, 6", "i[2, 4] = 0, 0, 1, 1, 2, 2, 2, 2",
                       "f[2, 4] = 1, 1, 2, 0, 6, 6, 7, 7", dim=1),
            ),
        )
        for name, op, word in (("max", "max=", "largest"), ("min", "min=", "smallest"))
    ),
    Operator(
        "index_copy(x, ids, src; dim)  y[ids[i], j] = src[i, j] from x",
        "x with whole slices of a dim replaced.",
        declare=_index_copy,
        dtype=_first,
        kink="of several slices put at one place, which one stays is not said",
        eager="torch.index_copy({x}, {dim}, {ids}, {src})",
        samples=(sample("f[4, 2]", "i[2] = 3, 1", "f[2, 2]", dim=0),
                 sample("f[2, 5]", "i[3] = 4, 0, 2", "f[2, 3]", dim=1)),
    ),
    Operator(
        "diag_embed(x; offset=0, dim1=-2, dim2=-1)  "
        "y[..., i, j] = x[..., i] if j - i == offset else 0",
        "A matrix for each row, with it as a diagonal.",
        declare=_diag_embed,
        eager="torch.diag_embed({x}, {offset}, {dim1}, {dim2})",
        samples=(sample("f[2, 3]"), sample("f[2, 3]", offset=1, dim1=0, dim2=2),
                 sample("f[3]", offset=-2)),
    ),
    Operator(
        "diagonal_scatter(x, src; offset=0, dim1=0, dim2=1)  "
        "y[i, j] = src[i] if j - i == offset else x[i, j]",
        "x with a diagonal replaced.",
        declare=_diagonal_scatter,
        dtype=_first,
        eager="torch.diagonal_scatter({x}, {src}, {offset}, {dim1}, {dim2})",
        samples=(sample("f[3, 4]", "f[3]", offset=1), sample("f[2, 4, 3]", "f[2, 3]", offset=-1,
                 dim1=1, dim2=2)),
    ),
)  # fmt: skip
