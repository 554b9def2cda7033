"""The page of pads: dims made longer by elements of their own.

The idea: one dim after the other; each element of the result is a choice of three reads.

This module does not know padding with numbers (`shape`).
"""

from tilewright.base.errors import Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import index, limited, loops, numbers, sizes
from tilewright.ops.operator import Attrs, Operator, Sample, Tangents, Types, Vjp, sample, write


def _edged(kind: str, shape: tuple[int, ...], dim: int, before: int, after: int) -> str:
    """Return the loops that make one dim longer at both ends."""
    size, names = shape[dim], loops(len(shape))
    loop = names[dim]
    reflects = kind == "reflect"
    assert not reflects or max(before, after) < size, f"a dim of {size} reflects less than its size"
    first, last = ("0", str(size - 1)) if not reflects else (
        f"{before}-{loop}", f"{2 * (size - 1) + before}-{loop}")  # fmt: skip

    def read(at: str) -> str:
        entries = list(names)
        entries[dim] = at
        return f"x[{index(entries)}]"

    inside = loop if before == 0 else f"{loop}-{before}" if before > 0 else f"{loop}+{-before}"
    text = read(inside)
    if after > 0:
        text = f"{text} if {loop} < {size + before} else {read(last)}"
    if before > 0:
        text = f"{read(first)} if {loop} < {before} else {text}"
    target = list(shape)
    target[dim] = size + before + after
    return f"y[{limited(target)}] = {text}"


def _pairs(types: Types, attrs: Attrs) -> list[tuple[int, int, int]]:
    pads, rank = numbers(attrs["pad"]), types[0].rank
    found = [(rank - 1 - at, pads[2 * at], pads[2 * at + 1]) for at in range(len(pads) // 2)]
    return [(dim, before, after) for dim, before, after in found if before or after]


def _replicate_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    (x,) = node.inputs
    pairs = _pairs((x.type,), dict(node.attrs))
    if dy is None:
        return (None,)
    shape = list(sizes(dy.type.shape))
    for dim, before, after in reversed(pairs):
        shape[dim] -= before + after
        dy = _folded(builder, dy, shape, dim, before, node.origin)
    return (dy,)


def _folded(
    builder: Builder, dy: Value, shape: list[int], dim: int, before: int, origin: Origin
) -> Value:
    """Add what lies beyond the ends of one dim of `shape` to its first and its last element."""
    names, size = loops(len(shape)), shape[dim]
    loop, longer = names[dim], sizes(dy.type.shape)[dim]
    target = limited(shape)

    def read(at: str) -> str:
        entries = list(names)
        entries[dim] = at
        return index(entries)

    operands, text = {"dy": dy}, f"(dy[{read(f'{loop}+{before}')}] ?? 0)"
    for name, end, first, count in (
        ("b", 0, 0, before),
        ("a", size - 1, size + before, longer - size - before),
    ):
        if count > 0:
            limits = [f"{one}<{n}" for one, n in zip(names, shape, strict=True) if one != loop]
            tail = ", ".join([*limits, f"{loop}<{count}"])
            body = f"y[{read('0')}] += dy[{read(f'{loop}+{first}')}] for {tail}"
            operands[name] = write(builder, body, dy=dy, name="beyond", origin=origin)
            text += f" + ({name}[{read('0')}] if {loop} == {end} else 0)"
    dtype = dy.type.dtype
    return write(builder, f"y[{target}] = {text}", operands, dtype=dtype, origin=origin)


def _edge_row(
    kind: str,
    first: str,
    last: str,
    doc: str,
    *samples: Sample,
    vjp: Vjp | None = None,
) -> Operator:
    def declare(types: Types, attrs: Attrs) -> str | None:
        pairs = _pairs(types, attrs)
        if not pairs:
            return "y[...] = x[...]"
        return _edged(kind, sizes(types[0].shape), *pairs[0]) if len(pairs) == 1 else None

    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        (x,) = inputs
        for pair in _pairs((x.type,), attrs):
            x = write(builder, _edged(kind, sizes(x.type.shape), *pair), x=x, name="edged")
        return (x,)

    return Operator(
        f"{kind}_pad(x; pad)  y[i] = x[{first}] if i < left else x[i-left] if i < left + n "
        f"else x[{last}]",
        doc,
        declare=declare,
        expand=expand,
        vjp=vjp,
        vjp_reason="what lies beyond an end is summed once, not written through" if vjp else "",
        eager=f"torch.nn.functional.pad({{x}}, {{pad}}, mode='{kind}')",
        samples=samples,
    )


EDGES = (
    _edge_row(
        "reflect",
        "left-i",
        "2*(n-1)+left-i",
        "Dims made longer by their own elements backwards; pairs (before, after), the last first.",
        sample("f[2, 3, 4]", pad=(2, 1)),
        sample("f[1, 2, 4, 5]", pad=(1, 2, 3, 0)),
        sample("f[1, 3, 3, 3, 4]", pad=(1, 2, 0, 1, 2, 1)),
    ),
    _edge_row(
        "replicate",
        "0",
        "n-1",
        "Dims made longer by their first and last element; pairs (before, after), the last first.",
        sample("f[2, 3, 4]", pad=(2, 1)),
        sample("f[1, 2, 4, 5]", pad=(1, 7, 3, 0)),
        sample("f[1, 2, 5]", pad=(-1, 2)),
        sample("f[1, 2, 5]", pad=(2, -3)),
        sample("f[1, 3, 3, 3, 4]", pad=(1, 2, 0, 1, 2, 1)),
        vjp=_replicate_vjp,
    ),
)
