"""The page of gathers and scatters: elements chosen by the values of an index tensor.

The idea: an index that holds a read is indirect: `table[ids[...], d]`.  Out of range it raises
IndexError; where torch lets indices count from the end, the formula says so by a select.

This module does not know how a scatter is kept free of races.
"""

import itertools

from tilewright.base.dtypes import DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Node, TensorType
from tilewright.ops.nest import index, limited, loops, number, numbers, one_dim, sizes
from tilewright.ops.operator import Attrs, Operator, Tangents, Types, sample, write
from tilewright.ops.shape import slice_bounds


def _first(types: Types, _: Attrs) -> DType:
    return types[0].dtype


def _embedding_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return None, None
    table, ids = node.inputs
    padding = number(node.attr("padding_idx"))
    body = f"y[ids[...], d] += dy[..., d] where ids[...] != {padding}"
    if padding < 0:
        body = "y[ids[...], d] += dy[..., d]"
    shape, dtype = table.type.shape, table.type.dtype
    made = write(builder, body, ids=ids, dy=dy, dtype=dtype, shape=shape, origin=node.origin)
    return made, None


def _gather(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[1].shape)
    entries = loops(len(shape))
    dim = one_dim(attrs["dim"], len(shape)) if shape else 0
    place = f"ids[{index(entries)}]"
    if shape:
        entries[dim] = place
    return f"y[{limited(shape)}] = x[{index(entries)}]"


def _index_select(types: Types, attrs: Attrs) -> str:
    shape = list(sizes(types[0].shape))
    dim = one_dim(attrs["dim"], len(shape))
    entries = loops(len(shape))
    (shape[dim],) = sizes(types[1].shape)
    target = limited(shape)
    entries[dim] = f"ids[{entries[dim]}]"
    return f"y[{target}] = x[{index(entries)}]"


# ---------------------------------------------------------------------- indexing by several tensors


class Indexing:
    """Where `x[..., at0, ..., at1]` puts its dims: those the tensors broadcast to stand where the
    first of them stood, or in front if slices lie between; final."""

    def __init__(self, x: TensorType, tensors: Types, dims: Attr) -> None:
        self.shape = sizes(x.shape)
        self.dims = tuple(one_dim(dim, len(self.shape)) for dim in numbers(dims))
        assert len(self.dims) == len(tensors), f"{len(tensors)} tensors index dims {self.dims}"
        shapes = [sizes(type_.shape) for type_ in tensors]
        rank = max(len(shape) for shape in shapes)
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        joint = [max(column, key=lambda size: size != 1) for column in zip(*padded, strict=True)]
        together = self.dims == tuple(range(self.dims[0], self.dims[0] + len(self.dims)))
        front = self.dims[0] if together else 0
        rest = [dim for dim in range(len(self.shape)) if dim not in self.dims]
        self.target = [self.shape[dim] for dim in rest]
        self.target[front:front] = joint
        names = loops(len(self.target))
        self.names = names
        chosen, others = names[front : front + rank], names[:front] + names[front + rank :]
        self.entries = [""] * len(self.shape)
        for dim, name in zip(rest, others, strict=True):
            self.entries[dim] = name
        for at, (dim, shape) in enumerate(zip(self.dims, shapes, strict=True)):
            read = [
                "0" if size == 1 else name
                for name, size in zip(chosen[rank - len(shape) :], shape, strict=True)
            ]
            place = f"ids{at}[{index(read)}]"
            size = self.shape[dim]
            self.entries[dim] = f"({place}+{size} if {place} < 0 else {place})"


def _index(types: Types, attrs: Attrs) -> str:
    found = Indexing(types[0], types[1:], attrs["dims"])
    return f"y[{limited(found.target)}] = x[{index(found.entries)}]"


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


# -------------------------------------------------------------------------------------- scattering


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
    assert sizes(types[1].shape)[dim] == len(range(start, stop, step)), "the slice has that size"
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


# Every order of two of three dims, for the sweep: slices between the tensors move their dims.
_PLACES = tuple(itertools.combinations(range(3), 2))

PAGE = (
    Operator(
        "embedding(table, ids; padding_idx=-1)  y[..., d] = table[ids[...], d]",
        "Rows of a table.",
        dtype=_first,
        vjp=_embedding_vjp,
        vjp_reason="the row of the padding gets no gradient, though it is read",
        eager="torch.nn.functional.embedding("
        "{ids}, {table}, None if {padding_idx} < 0 else {padding_idx})",
        samples=(
            sample("f[5, 3]", "i[2, 4] < 5"),
            sample("f[5, 3]", "i[6] = 0, 2, 2, 4, 2, 0", padding_idx=2),
            sample("f[5, 3]", "i[] = 3"),
        ),
    ),
    Operator(
        "gather(x, ids; dim)  y[i, j] = x[i, ids[i, j]]",
        "Elements along a dim, at an index of their own each.",
        declare=_gather,
        dtype=_first,
        eager="torch.gather({x}, {dim}, {ids})",
        samples=(
            sample("f[3, 5]", "i[3, 2] < 5", dim=1),
            sample("f[4, 3, 2]", "i[5, 2, 2] < 4", dim=0),
        ),
    ),
    Operator(
        "index_select(x, ids; dim)  y[i, j] = x[ids[i], j]",
        "Whole slices of a dim, in the order of an index.",
        declare=_index_select,
        dtype=_first,
        eager="torch.index_select({x}, {dim}, {ids})",
        samples=(sample("f[3, 5]", "i[4] < 5", dim=1), sample("f[3, 2]", "i[5] < 3", dim=0)),
    ),
    Operator(
        "index(x, *ids; dims)  y[i, j] = x[ids0[i], ids1[i], j]",
        "Elements at positions that several tensors give together; they may count from the end.",
        declare=_index,
        dtype=_first,
        eager="{x}[tuple(dict(zip([d % {x}.dim() for d in {dims}], [{ids}])).get(d, slice(None)) "
        "for d in range({x}.dim()))]",
        samples=(
            sample("f[4, 3]", "i[5] = 0, -1, 2, 2, -4", dims=(0,)),
            sample("f[4, 3, 2]", "i[5] < 4", "i[5] < 3", dims=(0, 1)),
            sample("f[4, 3, 2]", "i[2, 1] < 4", "i[3] < 2", dims=(0, 2)),
            *(sample("f[3, 3, 3]", "i[2] < 3", "i[2] < 3", dims=dims) for dims in _PLACES),
            sample("f[2, 4, 3]", "i[2, 2] < 4", dims=(1,)),
            sample("f[2, 4, 3]", "i[2] < 4", dims=(-2,)),
        ),
    ),
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
    Operator(
        "one_hot(ids; classes)  y[..., c<classes] = i64(ids[...] == c)",
        "1 at the index, 0 elsewhere.",
        dtype="i64",
        eager="torch.nn.functional.one_hot({ids}, {classes})",
        samples=(sample("i[2, 3] < 4", classes=4), sample("i[] = 1", classes=3)),
    ),
)  # fmt: skip
