"""What a model costs, as a page: one by its numbers, or a captured graph.

The idea: every line says what is counted and for how much; nothing is estimated.
This module does not know how anything is counted, nor seconds.
"""

from collections import Counter
from collections.abc import Iterator

from tilewright.autodiff import activations
from tilewright.cost import (
    ModelSpec,
    Split,
    active_parameters,
    embedding_parameters,
    graph_cost,
    head_activation_bytes,
    head_flops,
    head_parameters,
    kv_cache_bytes,
    layer_activation_bytes,
    layer_flops,
    layer_parameters,
    model_flops,
    parameters,
    recomputed_flops,
    state_bytes,
)
from tilewright.graph.ir import Graph

LARGEST = 5  # how many of the values that are kept are named
_UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def model_page(spec: ModelSpec, batch: int) -> list[str]:
    """Return what a model costs on `batch` sequences of its longest; raises ModelSpecError."""
    seq = spec.positions
    lines = [str(spec), *_row("", f"{batch} x {seq} tokens, two bytes a number")]
    lines += _parameter_rows(spec)
    lines += _flops_rows(spec, batch, seq)
    lines += _activation_rows(spec, batch, seq)
    lines += _state_rows(spec)
    cache = kv_cache_bytes(spec, 1, 1)
    lines += _row("KV cache", f"{_short(cache)}B a token, {_short(cache * seq)}B a sequence")
    return lines


def graph_page(graph: Graph) -> list[str]:
    """Return what a captured graph costs, and what its backward would keep."""
    cost = graph_cost(graph)
    lines = _row("parameters", f"{cost.parameters:,}   {_short(cost.parameter_bytes)}B")
    lines += _row("products", f"{_short(cost.products)}FLOP   of matrices and windows")
    lines += _row("operations", f"{_short(cost.operations)}FLOP   all of them")
    lines += _row(
        "bytes", f"{_short(cost.bytes)}B   each node reads and writes once, views nothing"
    )
    if cost.unknown:
        lines += _row("uncounted", ", ".join(cost.unknown))
    roles = dict(graph.roles)
    learned = [v.name for v in graph.inputs if v.name in roles and roles[v.name].kind == "parameter"
               and v.type.dtype.kind == "float"]  # fmt: skip
    if learned and not {name for name, _ in graph.updates} & set(learned):  # no training step
        lines += _kept_rows(graph, learned)
    return lines


def _kept_rows(graph: Graph, learned: list[str]) -> Iterator[str]:
    kept = activations(graph, learned)
    total = sum(size for _, size in kept)
    yield from _row("activations", f"{_short(total)}B   kept for the backward")
    makers = {value.name: node.op for node in graph.nodes for value in node.outputs}
    sizes: Counter[str] = Counter()
    for value, size in kept:
        sizes[makers.get(value.name, "statistics")] += size
    for name, size in sizes.most_common(LARGEST):
        yield from _row("", f"{_short(size)}B of {name}")


def _parameter_rows(spec: ModelSpec) -> Iterator[str]:
    layer = layer_parameters(spec)
    head = "tied" if spec.tied else f"{head_parameters(spec):,}"
    yield from _row("parameters", f"{parameters(spec):,}")
    if spec.experts:
        yield from _row("", f"{active_parameters(spec):,} work on a token")
    yield from _row("", f"{layer.total:,} a layer, {layer.vectors:,} of them in vectors")
    yield from _row("", f"{embedding_parameters(spec):,} of the embedding; head: {head}")


def _flops_rows(spec: ModelSpec, batch: int, seq: int) -> Iterator[str]:
    layer, head = layer_flops(spec, batch, seq), head_flops(spec, batch * seq)
    step = model_flops(spec, batch, seq)
    parts = {
        "projections": spec.layers * layer.projections,
        "attention": spec.layers * layer.attention,
        "feed-forward": spec.layers * layer.ffn,
        "router": spec.layers * layer.router,
        "head": head,
    }
    yield from _row("forward", f"{_short(sum(parts.values()))}FLOP")
    for name, count in parts.items():
        if count:
            yield from _row("", f"{_short(count)}FLOP of {name}, {300 * count / step:.1f} %")
    yield from _row("step", f"{_short(step)}FLOP, forward and backward")
    for recompute in ("selective", "full"):
        again = recomputed_flops(spec, batch, seq, recompute)
        yield from _row("", f"{_short(again)}FLOP more with {recompute} recomputation")


def _activation_rows(spec: ModelSpec, batch: int, seq: int) -> Iterator[str]:
    for title, note, split in (
        ("activations", "nothing recomputed", Split()),
        ("", "fused attention", Split(fused_attention=True)),
        ("", "selective recomputation", Split(recompute="selective")),
        ("", "full recomputation", Split(recompute="full")),
    ):
        each = layer_activation_bytes(spec, batch, seq, split)
        yield from _row(title, f"{_short(each)}B a layer, {_short(each * spec.layers)}B: {note}")
    yield from _row("", f"{_short(head_activation_bytes(spec, batch, seq))}B of head and loss")


def _state_rows(spec: ModelSpec) -> Iterator[str]:
    state = state_bytes(parameters(spec))
    parts = f"{_short(state.weights)}B weights, {_short(state.gradients)}B gradients, "
    yield from _row("state", f"{parts}{_short(state.optimizer)}B Adam: {_short(state.total)}B")
    shared = [state_bytes(parameters(spec), zero=zero, data=64).total for zero in (1, 2, 3)]
    yield from _row("", f"a rank of 64, ZeRO-1, 2, 3: {'B, '.join(map(_short, shared))}B")


def _row(title: str, text: str) -> list[str]:
    return [f"  {title:<12} {text}"]


def _short(count: float) -> str:
    """Write a count with three digits or more and a prefix, in powers of a thousand."""
    for size, prefix in _UNITS:
        if count >= size:
            return f"{count / size:,.2f} {prefix}"
    return f"{count:,.0f} "
