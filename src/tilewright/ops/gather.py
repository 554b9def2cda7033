"""The page of gathers: elements chosen by the values of an index tensor.

The idea: an index that holds a read is indirect: `table[ids[...], d]`.  Out of range it raises
IndexError; where torch lets indices count from the end, the formula says so by a select.

This module does not know scatters (`scatter`), where the result is chosen by values.
"""

import itertools

from tilewright.base.dtypes import I64, DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Node, TensorType, Value
from tilewright.ops.nest import index, limited, loops, number, numbers, one_dim, sizes
from tilewright.ops.operator import (
    Attrs,
    Operator,
    Tangents,
    Types,
    dtype_attribute,
    sample,
    write,
)


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


def _searchsorted(types: Types, attrs: Attrs) -> str:
    after = ">" if attrs["right"] else ">="
    if types[0].rank == 1:  # one row for all
        return f"y[...] += {attrs['dtype']}(0 if sorted[j] {after} x[...] else 1)"
    return f"y[..., i] += {attrs['dtype']}(0 if sorted[..., j] {after} x[..., i] else 1)"


def _one_hot(builder: Builder, operands: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    """y[..., ids[...]] = 1: a write, and no comparison, so that an index out of range is found."""
    (ids,) = operands
    names, shape = loops(ids.type.rank), (*ids.type.shape, number(attrs["classes"]))
    place = f"ids[{index(names)}]"
    body = f"y[{index([*names, place])}] = 1"
    return (write(builder, body, ids=ids, dtype=I64, shape=shape, name="one_hot"),)


# Every order of two of three dims, for the sweep: slices between the tensors move their dims.
_PLACES = tuple(itertools.combinations(range(3), 2))

PAGE = (
    Operator(
        "embedding(table, ids; padding_idx=-1)  y[..., d] = table[ids[...], d]",
        "Rows of a table.",
        dtype=_first,
        vjp=_embedding_vjp,
        vjp_reason="the row of the padding gets no gradient, though it is read",
        forward_derived=True,  # reading is linear: torch's forward mode reads the padding too
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
        "one_hot(ids; classes)",
        "1 at the index, 0 elsewhere; an index that is no class is out of range.",
        expand=_one_hot,
        eager="torch.nn.functional.one_hot({ids}, {classes})",
        samples=(sample("i[2, 3] < 4", classes=4), sample("i[] = 1", classes=3),
                 sample("i[2, 0] < 4", classes=4)),
    ),
    Operator(
        "searchsorted(sorted, x; right=False, dtype='i64')  "
        "y[..., i] += 0 if sorted[..., j] >= x[..., i] else 1",
        "How many of a row in order come before each element (`right`: or equal it); NaN is last.",
        declare=_searchsorted,
        dtype=dtype_attribute,
        eager="torch.searchsorted({sorted}, {x}, right={right}).to({dtype})",
        samples=(
            sample("c[5] = -1, 0, 0, 2, 3", "c[2, 3] = 0, 5, -2, 2, 2.5, nan"),
            sample("c[5] = -1, 0, 0, 2, 3", "c[6] = 0, 5, -2, 2, 2.5, nan", right=True),
            sample("c[2, 3] = 0, 1, 2, 3, 4, 5", "c[2, 2]", dtype="i32"),
        ),
    ),
)  # fmt: skip
