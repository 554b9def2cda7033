"""The page of collectives: what ranks tell each other.

The idea: seen from above, a collective is a loop nest like any other, over the values that all
ranks of its `group` hold: one more dim, in front, is the rank.  `r` receives, `s` sends; so
`all_reduce` is a sum over `s`, `all_gather` writes where `s` says, and `shift` reads from its
neighbour, with nothing to read beyond the first.  Type, meaning and gradient follow from the loops;
the gradient of each is another one of the page.

A graph is the program of one rank and names its own side alone: it cannot hold these loops, and all
ranks of a group come to the same collectives in the same order.

This module does not know how ranks are run, nor the links between them.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import CollectiveError, DTypeError, GraphError, ShapeError
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Formula, Node, Value
from tilewright.ops.constants import PAGE as CONSTANTS
from tilewright.ops.nest import one_dim, one_more_in_front, sizes
from tilewright.ops.operator import (
    Attrs,
    Operator,
    Sample,
    Tangents,
    Types,
    apply,
    loops_across,
    sample,
    write,
)

(_FULL,) = (operator for operator in CONSTANTS if operator.name == "full")
_REDUCED = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min=", "any": "any=", "all": "all="}
_REASON = "what it sends back is on other ranks: the loops turned around are a collective again"


# ------------------------------------------------------------------------------------ for everybody


def across(node: Node) -> Formula | None:
    """Return a collective's loops over the values of all ranks of its group; None for other nodes.

    Raises GraphError where its result is not of the type that its loops give.
    """
    operator = _ROWS.get(node.op)
    if operator is None:
        return None
    loops = loops_across(operator, tuple(value.type for value in node.inputs), node.attrs)
    if (loops.type.shape[1:], loops.type.dtype) != (node.output.type.shape, node.output.type.dtype):
        raise GraphError(
            f"{node.op} does not give what its type says",
            expected=f"{loops.type} over all ranks",
            found=f"{node.output.type} on each",
            where=node.origin,
        )
    return loops


def meets_ranks(node: Node) -> bool:
    """Say whether a node, or one in its bodies, waits for what other ranks hold."""
    if node.op in _ROWS:
        return len(_group(dict(node.attrs))) > 1
    return any(meets_ranks(inner) for body in node.graphs for inner in body.nodes)


def sent(node: Node) -> tuple[str, int]:
    """Return how many bytes the busiest rank sends, in symbols and as a number.

    By the algorithm that sends least: rings for what is reduced or gathered, a pipelined chain for
    what one rank gives or gets.  `R` is the number of ranks, `|x|` the bytes that a rank brings.
    """
    count = len(_group(dict(node.attrs)))
    text, share = _SENT[node.op]
    (value,) = node.inputs
    total = value.type.dtype.bytes
    for size in sizes(value.type.shape):
        total *= size
    return text, round(share(count) * total) if count > 1 else 0


_SENT: dict[str, tuple[str, Callable[[int], Fraction]]] = {
    "all_reduce": ("2 (R-1)/R |x|", lambda n: Fraction(2 * (n - 1), n)),
    "reduce_scatter": ("(R-1)/R |x|", lambda n: Fraction(n - 1, n)),
    "all_gather": ("(R-1) |x|", lambda n: Fraction(n - 1)),
    "all_to_all": ("(R-1)/R |x|", lambda n: Fraction(n - 1, n)),
    "broadcast": ("|x|", lambda _: Fraction(1)),
    "reduce": ("|x|", lambda _: Fraction(1)),
    "shift": ("|x|", lambda _: Fraction(1)),
}


# -------------------------------------------------------------------------------------- their loops


def _group(attrs: Attrs) -> tuple[int, ...]:
    group = attrs["group"]
    ranks = group if isinstance(group, tuple) else ()
    found = tuple(rank for rank in ranks if isinstance(rank, int) and rank >= 0)
    if not found or len(set(found)) < len(ranks):
        raise CollectiveError(
            "a collective joins a group of ranks",
            expected="one rank or more, each once, as a tuple of numbers from 0",
            found=f"group={group!r}",
        )
    return found


def _names(types: Types) -> list[str]:
    return [f"i{k}" for k in range(types[0].rank)]


def _dim(types: Types, dim: Attr) -> int:
    rank = types[0].rank
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ShapeError(
            f"there is no dim {dim!r} to join or part over ranks",
            expected=f"a dim of {types[0]}",
            found=repr(dim),
        )
    return one_dim(dim, rank)


def _whole(types: Types, attrs: Attrs) -> tuple[str, str]:
    """Return the target and the sent value of a collective that keeps the shape."""
    names = _names(types)
    return f"y[{', '.join((f'r<{len(_group(attrs))}', *names))}]", f"x[{', '.join(('s', *names))}]"


def _all_reduce(types: Types, attrs: Attrs) -> str:
    op = attrs["op"]
    if op not in _REDUCED:
        raise CollectiveError(
            f"ranks cannot be reduced by {op!r}", expected=", ".join(_REDUCED), found=repr(op)
        )
    if (op in ("any", "all")) != (types[0].dtype == BOOL):
        raise DTypeError(
            f"all_reduce(op={op!r}) does not take {types[0].dtype}",
            expected="any or all of truth values, anything else of numbers",
            found=f"{op} of {types[0]}",
        )
    target, value = _whole(types, attrs)
    return f"{target} {_REDUCED[str(op)]} {value}"


def _reduce(types: Types, attrs: Attrs) -> str:
    target, value = _whole(types, attrs)
    return f"{target} += {value} where r == {_root(attrs)}"


def _broadcast(types: Types, attrs: Attrs) -> str:
    target, _ = _whole(types, attrs)
    return f"{target} = x[{', '.join((str(_root(attrs)), *_names(types)))}]"


def _root(attrs: Attrs) -> int:
    group, root = _group(attrs), attrs["root"]
    if not isinstance(root, int) or root not in group:
        raise CollectiveError(
            "the root of a collective is a rank of its group",
            expected=f"one of {', '.join(map(str, group))}",
            found=repr(root),
        )
    return group.index(root)


def _shift(types: Types, attrs: Attrs) -> str:
    target, _ = _whole(types, attrs)
    return f"{target} = x[{', '.join((_from(attrs), *_names(types)))}]"


def _from(attrs: Attrs) -> str:
    by = attrs["by"]
    if not isinstance(by, int):
        raise CollectiveError(
            "ranks are shifted by a number of places", expected="an integer", found=repr(by)
        )
    return f"r - {by}" if by >= 0 else f"r + {-by}"


def _all_gather(types: Types, attrs: Attrs) -> str:
    names, dim = _names(types), _dim(types, attrs["dim"])
    target = [f"(s {name})" if at == dim else name for at, name in enumerate(names)]
    return f"y[r<{len(_group(attrs))}, {', '.join(target)}] = x[s, {', '.join(names)}]"


def _reduce_scatter(types: Types, attrs: Attrs) -> str:
    names, dim = _names(types), _dim(types, attrs["dim"])
    source = [f"(r {name})" if at == dim else name for at, name in enumerate(names)]
    return f"y[r<{len(_group(attrs))}, {', '.join(names)}] += x[s, {', '.join(source)}]"


def _all_to_all(types: Types, attrs: Attrs) -> str:
    names = _names(types)
    parted, joined = _dim(types, attrs["split"]), _dim(types, attrs["join"])
    target = [f"(s {name})" if at == joined else name for at, name in enumerate(names)]
    source = [f"(r {name})" if at == parted else name for at, name in enumerate(names)]
    return f"y[r<{len(_group(attrs))}, {', '.join(target)}] = x[s, {', '.join(source)}]"


# ------------------------------------------------------------------------------ one rank on its own


def _alone(_: Builder, operands: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    _check_alone(attrs)
    return operands


def _shifted_alone(
    builder: Builder, operands: tuple[Value, ...], attrs: Attrs
) -> tuple[Value, ...]:
    """A rank has no neighbours but itself: what comes from beyond the group is 0."""
    _check_alone(attrs)
    (x,) = operands
    if attrs["by"] == 0:
        return operands
    zero = False if x.type.dtype == BOOL else 0
    return apply(builder, _FULL, shape=sizes(x.type.shape), value=zero, dtype=x.type.dtype.name)


def _check_alone(attrs: Attrs) -> None:
    group = _group(attrs)
    if len(group) > 1:
        raise CollectiveError(
            "a Program cannot hold a collective of several ranks",
            expected="a group of one rank, or no collectives",
            found=f"a collective of ranks {', '.join(map(str, group))}",
            known="Programs that talk to each other (over torch.distributed) are not built yet",
            mend="run the graphs of all ranks together: tilewright.parallel.evaluate_ranks",
        )


# ---------------------------------------------------------------------------------------- gradients


def _put(builder: Builder, node: Node, name: str, value: Value, attrs: dict[str, Any]) -> Value:
    """Add a collective of the same ranks."""
    group = node.attr("group")
    (made,) = apply(builder, _ROWS[name], value, origin=node.origin, group=group, **attrs)
    return made


def _tangent(tangents: Tangents) -> Value:
    (tangent,) = tangents
    assert tangent is not None, "a node without a tangent is not differentiated"
    return tangent


def _all_reduce_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    tangent, op = _tangent(tangents), node.attr("op")
    if op == "prod":
        return (_product_vjp(builder, node, tangent),)
    total = _put(builder, node, "all_reduce", tangent, {"op": "sum"})
    if op == "sum":
        return (total,)
    (x,), y = node.inputs, node.output
    best = write(builder, "y[...] = 1.0 if x[...] == best[...] else 0.0", x=x, best=y,
                 dtype=x.type.dtype, origin=node.origin, name="is_best")  # fmt: skip
    ties = _put(builder, node, "all_reduce", best, {"op": "sum"})
    body = "y[...] = t[...] * is_best[...] / ties[...]"
    return (write(builder, body, t=total, is_best=best, ties=ties, origin=node.origin),)


def _product_vjp(builder: Builder, node: Node, tangent: Value) -> Value:
    """A factor's gradient is the product of the others, which no rank has: they are gathered."""
    (x,) = node.inputs
    names, origin = ", ".join(_names((x.type,))), node.origin
    comma, count = (", " if names else ""), len(_group(dict(node.attrs)))
    mine = write(builder, f"y[q<1{comma}{names}] = x[{names}]", x=x, origin=origin)
    factors = _put(builder, node, "all_gather", mine, {"dim": 0})
    others = write(builder, f"y[q<{count}{comma}{names}] *= x[s{comma}{names}] where s != q else 1",
                   x=factors, origin=origin, name="others")  # fmt: skip
    terms = write(builder, f"y[q{comma}{names}] = o[q{comma}{names}] * t[{names}]",
                  o=others, t=tangent, origin=origin)  # fmt: skip
    share = _put(builder, node, "reduce_scatter", terms, {"dim": 0})
    return write(builder, f"y[{names}] = x[0{comma}{names}]", x=share, origin=origin)


def _reduce_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    return (_put(builder, node, "broadcast", _tangent(tangents), {"root": node.attr("root")}),)


def _broadcast_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    return (_put(builder, node, "reduce", _tangent(tangents), {"root": node.attr("root")}),)


def _shift_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    by = node.attr("by")
    assert isinstance(by, int), "its type was told"
    return (_put(builder, node, "shift", _tangent(tangents), {"by": -by}),)


def _all_gather_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    return (_put(builder, node, "reduce_scatter", _tangent(tangents), {"dim": node.attr("dim")}),)


def _reduce_scatter_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    return (_put(builder, node, "all_gather", _tangent(tangents), {"dim": node.attr("dim")}),)


def _all_to_all_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    split, join = node.attr("join"), node.attr("split")
    return (_put(builder, node, "all_to_all", _tangent(tangents), {"split": split, "join": join}),)


# ---------------------------------------------------------------------------------------- batches


def _as_they_are(_: Types, attrs: Attrs, __: tuple[bool, ...]) -> Attrs:
    return attrs


def _two_dims(types: Types, attrs: Attrs, _: tuple[bool, ...]) -> Attrs:
    moved = {name: _dim(types, attrs[name]) + 1 for name in ("split", "join")}
    return {**attrs, **moved}


def _row(
    signature: str,
    summary: str,
    across: Callable[[Types, Attrs], str],
    vjp: Callable[[Builder, Node, Tangents], Tangents],
    samples: tuple[Sample, ...],
    *,
    alone: Callable[[Builder, tuple[Value, ...], Attrs], tuple[Value, ...]] = _alone,
    lead: Callable[[Types, Attrs, tuple[bool, ...]], Attrs | None] = _as_they_are,
    kink: str = "",
) -> Operator:
    return Operator(
        signature,
        summary,
        across=across,
        dtype="first",
        expand=alone,
        vjp=vjp,
        vjp_reason=_REASON,
        lead=lead,
        kink=kink,
        samples=samples,
    )


PAGE = (
    _row(
        "all_reduce(x; group, op='sum')  y[r, ...] += x[s, ...]",
        "What all ranks hold, summed (or its prod, max, min, any, all), on every rank.",
        _all_reduce,
        _all_reduce_vjp,
        (
            sample("f[4, 6]", group=(0,)),
            sample("f[3]", group=(0,), op="max"),
            sample("f[2, 3]", group=(0,), op="prod"),
            sample("b[4]", group=(0,), op="any"),
        ),
        kink="a maximum or minimum that several ranks hold is split evenly over them",
    ),
    _row(
        "reduce(x; group, root)  y[r, ...] += x[s, ...] where r == root",
        "What all ranks hold, summed, on the rank `root`; 0 on the others.",
        _reduce,
        _reduce_vjp,
        (sample("f[4, 6]", group=(0,), root=0),),
    ),
    _row(
        "broadcast(x; group, root)  y[r, ...] = x[root, ...]",
        "What the rank `root` holds, on every rank.",
        _broadcast,
        _broadcast_vjp,
        (sample("f[4, 6]", group=(0,), root=0),),
    ),
    _row(
        "all_gather(x; group, dim=0)  y[r, ..., (s i), ...] = x[s, ..., i, ...]",
        "What all ranks hold, one after the other along a dim, on every rank.",
        _all_gather,
        _all_gather_vjp,
        (
            sample("f[4, 6]", group=(0,)),
            sample("f[4, 6]", group=(0,), dim=-1),
        ),
        lead=one_more_in_front,
    ),
    _row(
        "reduce_scatter(x; group, dim=0)  y[r, ..., i, ...] += x[s, ..., (r i), ...]",
        "What all ranks hold, summed; each rank gets its part of a dim.",
        _reduce_scatter,
        _reduce_scatter_vjp,
        (sample("f[4, 6]", group=(0,)), sample("f[4, 6]", group=(0,), dim=1)),
        lead=one_more_in_front,
    ),
    _row(
        "all_to_all(x; group, split, join)  y[r, i, (s j)] = x[s, (r i), j]",
        "Each rank gets its part of the dim `split` of all ranks, joined along the dim `join`.",
        _all_to_all,
        _all_to_all_vjp,
        (
            sample("f[4, 6]", group=(0,), split=0, join=1),
            sample("f[4, 6]", group=(0,), split=1, join=1),
        ),
        lead=_two_dims,
    ),
    _row(
        "shift(x; group, by=1)  y[r, ...] = x[r-by, ...]",
        "What the rank `by` places before holds; 0 where there is none: the exchange of borders.",
        _shift,
        _shift_vjp,
        (sample("f[4, 6]", group=(0,)), sample("f[4, 6]", group=(0,), by=0)),
        alone=_shifted_alone,
    ),
)
_ROWS = {operator.name: operator for operator in PAGE}
