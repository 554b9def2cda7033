"""Attention: softmax(q k' scale + mask) v, and its gradient without the matrix kept.

The idea: backward makes the probabilities again from q and k, as forward did, so that nothing of
the size of the matrix is saved.  The logarithm of each row's sum of exponentials is there for
kernels that make them from it, `exp(s - l)`: the rounding of that grows with the scores.
A row that is masked everywhere gives 0, and so do its gradients.

Heads: k and v may have fewer than q; query head h reads head `h // (heads of q / heads of k)`.
This module does not know how attention is computed in blocks: `compiler/attention` places that.
"""

import math
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import BOOL, DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import decimal, sizes
from tilewright.ops.operator import Attrs, Operand, Operator, Tangents, Types, apply, sample, write


@dataclass(frozen=True, slots=True)
class _Problem:
    """Operands and how their leading dims are read.

    lead: the leading index of q and the result.  shared: that of k and v.
    """

    q: Value
    k: Value
    v: Value
    mask: Value | None
    scale: float
    causal: bool
    lead: str
    shared: str
    origin: Origin

    @property
    def compute(self) -> DType:
        return self.q.type.dtype.compute


def _problem(inputs: tuple[Value, ...], attrs: Attrs, origin: Origin = UNKNOWN) -> _Problem:
    q, k, v, *mask = inputs
    width = sizes(q.type.shape)[-1]
    scale = 1 / math.sqrt(width) if attrs["scale"] is None else decimal(attrs["scale"])
    lead, shared = "...", "..."
    if q.type.rank >= 4 and q.type.shape[-3] != k.type.shape[-3]:
        heads, groups = sizes(q.type.shape)[-3], sizes(k.type.shape)[-3]
        assert heads % groups == 0, f"{heads} query heads do not share {groups} heads evenly"
        lead, shared = "..., h", f"..., h//{heads // groups}"
    given = mask[0] if mask else None
    causal = bool(attrs["causal"])
    return _Problem(q, k, v, given, scale, causal, lead, shared, origin)


def _scores(builder: Builder, at: _Problem) -> Value:
    """The scaled products, -inf where the mask or causality forbids."""
    body = f"y[{at.lead}, m, n] += q[{at.lead}, m, e] * k[{at.shared}, n, e]"
    product = write(
        builder, body, q=at.q, k=at.k, dtype=at.compute, name="product", origin=at.origin
    )
    given: dict[str, Operand] = {"p": product, "c": at.scale}
    body = "y[...] = p[...] * c"
    if at.mask is not None:
        given["b"] = at.mask
        masked = at.mask.type.dtype == BOOL
        body += " if b[...] else -inf" if masked else " + b[...]"
    scores = write(builder, body, given, dtype=at.compute, name="scores", origin=at.origin)
    if not at.causal:
        return scores
    body = "y[..., m, n] = s[..., m, n] if n <= m else -inf"
    return write(builder, body, s=scores, name="causal_scores", origin=at.origin)


def _probabilities(builder: Builder, at: _Problem) -> tuple[Value, Value, Value]:
    """The softmax of the scores; of each row the largest, and the sum of exponentials less it."""
    scores = _scores(builder, at)
    top = write(builder, "y[..., m] max= s[..., m, n]", s=scores, name="top")
    body = "y[..., m, n] = 0 if s[..., m, n] == -inf else exp(s[..., m, n] - t[..., m])"
    powers = write(builder, body, s=scores, t=top, name="powers")
    total = write(builder, "y[..., m] += e[..., m, n]", e=powers, name="total")
    body = "y[..., m, n] = 0 if t[..., m] == 0 else e[..., m, n] / t[..., m]"
    share = write(builder, body, e=powers, t=total, name="probabilities")
    return share, top, total


def _attention(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    at = _problem(inputs, attrs)
    share, top, total = _probabilities(builder, at)
    body = f"y[{at.lead}, m, d] += p[{at.lead}, m, n] * v[{at.shared}, n, d]"
    out = write(builder, body, p=share, v=at.v, dtype=at.q.type.dtype, name="out")
    body = "y[..., m] = -inf if t[..., m] == 0 else log(t[..., m]) + m0[..., m]"
    return out, write(builder, body, t=total, m0=top, name="logsumexp")


def _attention_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    dy, dl = tangents
    if dl is not None:
        return _both_vjp(builder, node, dy, dl)
    if dy is None:
        return (None,) * len(node.inputs)
    mask = node.inputs[3:]
    how: dict[str, Any] = {"causal": node.attr("causal"), "scale": node.attr("scale")}
    how["origin"] = node.origin
    dq, dk, dv = apply(builder, ATTENTION_GRAD, dy, *node.outputs, *node.inputs, **how)
    if not mask:
        return dq, dk, dv
    if mask[0].type.dtype.kind != "float":
        return dq, dk, dv, None
    (dmask,) = apply(builder, MASK_GRAD, dy, *node.inputs, **how)
    return dq, dk, dv, dmask


def _both_vjp(builder: Builder, node: Node, dy: Value | None, dl: Value) -> Tangents:
    """The gradient where the logarithms have a tangent too, which no kernel takes."""
    if dy is None:
        dy = write(builder, "y[...] = 0.0 * o[...]", o=node.outputs[0], origin=node.origin)
    at = _problem(node.inputs, dict(node.attrs), node.origin)
    share, ds = _score_grad(builder, at, dy, dl)
    found = _operand_grads(builder, at, dy, share, ds)
    if at.mask is None:
        return found
    floating = at.mask.type.dtype.kind == "float"
    return (*found, _folded(builder, ds, at.mask) if floating else None)


def _score_grad(
    builder: Builder, at: _Problem, dy: Value, dl: Value | None = None
) -> tuple[Value, Value]:
    """The probabilities p, and the gradient of the scores: p (dp - rowsum(p dp) + dl) where dp is
    dy v'."""
    share, _, _ = _probabilities(builder, at)
    body = f"y[{at.lead}, m, n] += dy[{at.lead}, m, d] * v[{at.shared}, n, d]"
    dp = write(builder, body, dy=dy, v=at.v, dtype=at.compute, name="d_probabilities")
    body = "y[..., m] += p[..., m, n] * dp[..., m, n]"
    inner = write(builder, body, p=share, dp=dp, name="inner")
    if dl is not None:
        inner = write(builder, "y[...] = s[...] - dl[...]", s=inner, dl=dl, name="inner")
    body = "y[..., m, n] = p[..., m, n] * (dp[..., m, n] - s[..., m])"
    return share, write(builder, body, p=share, dp=dp, s=inner, name="d_scores")


def _attention_grad(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    dy, _, _, *rest = inputs
    at = _problem(tuple(rest), attrs)
    share, ds = _score_grad(builder, at, dy)
    return _operand_grads(builder, at, dy, share, ds)


def _operand_grads(
    builder: Builder, at: _Problem, dy: Value, share: Value, ds: Value
) -> tuple[Value, ...]:
    body = f"y[{at.lead}, m, e] += ds[{at.lead}, m, n] * c * k[{at.shared}, n, e]"
    dq = write(builder, body, ds=ds, k=at.k, c=at.scale, dtype=at.q.type.dtype, name="dq")
    dk = _shared_grad(builder, at, "a[{}, m, n] * c * b[{}, m, e]", ds, at.q, at.k, "dk")
    dv = _shared_grad(builder, at, "a[{}, m, n] * b[{}, m, e]", share, dy, at.v, "dv")
    return dq, dk, dv


def _shared_grad(
    builder: Builder, at: _Problem, value: str, a: Value, b: Value, like: Value, name: str
) -> Value:
    """Sum over queries, and over the query heads that share a head of k and v."""
    given: dict[str, Operand] = {"a": a, "b": b}
    if "* c *" in value:
        given["c"] = at.scale
    if at.lead == "...":
        body = f"y[..., n, e] += {value.format('...', '...')}"
        return write(builder, body, given, dtype=like.type.dtype, name=name)
    groups = sizes(like.type.shape)[-3]
    lead = "..., (g r)"
    body = f"y[..., g, n, e] += {value.format(lead, lead)} for g<{groups}"
    return write(builder, body, given, dtype=like.type.dtype, name=name)


def _mask_grad(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    dy, *rest = inputs
    at = _problem(tuple(rest), attrs)
    assert at.mask is not None, "there is a mask to differentiate for"
    _, ds = _score_grad(builder, at, dy)
    return (_folded(builder, ds, at.mask),)


def _folded(builder: Builder, x: Value, like: Value) -> Value:
    """Sum x over the dims that `like` was broadcast along."""
    names = list("abcdefghijkl"[: x.type.rank])
    shape = sizes(like.type.shape)
    kept = names[len(names) - len(shape) :]
    target = ["0" if size == 1 else name for name, size in zip(kept, shape, strict=True)]
    body = f"y[{', '.join(target)}] += x[{', '.join(names)}]"
    return write(builder, body, x=x, dtype=like.type.dtype, name="d_mask")


ATTENTION_GRAD = Operator(
    "attention_grad(dy, out, logsumexp, q, k, v, mask?; causal=False, scale=None)",
    "The gradients of q, k and v; out and logsumexp are what a kernel of its own reads.",
    expand=_attention_grad,
)
MASK_GRAD = Operator(
    "attention_mask_grad(dy, q, k, v, mask; causal=False, scale=None)",
    "The gradient of a mask that is added.",
    expand=_mask_grad,
)


def _lead(types: Types, attrs: Attrs, flags: tuple[bool, ...]) -> Attrs | None:
    """Dims in front of the heads are the batch's: one more is read as they are.

    A rank of 3 has no heads, and one of 4 would take its first dim for them.
    """
    same = len({type_.rank for type_ in types[:3]}) == 1
    grouped = types[0].rank == 3 and types[0].shape[0] != types[1].shape[0]
    return attrs if all(flags[:3]) and not any(flags[3:]) and same and not grouped else None


_SDPA = (
    "torch.nn.functional.scaled_dot_product_attention({q}, {k}, {v}, {mask}, 0.0, {causal}, "
    "scale={scale}, enable_gqa={q}.dim() > 3 and {q}.shape[-3] != {k}.shape[-3])"
)

PAGE = (
    Operator(
        "attention(q, k, v, mask?; causal=False, scale=None)",
        "softmax(q k' scale + mask) v, and the logarithm of each row's sum.",
        expand=_attention,
        lead=_lead,
        vjp=_attention_vjp,
        vjp_reason="the probabilities are recomputed, so that no matrix is kept between the two",
        kink="a row masked everywhere gives 0 with the gradient 0",
        eager=_SDPA,
        samples=(
            sample("f[2, 2, 3, 4]", "f[2, 2, 5, 4]", "f[2, 2, 5, 3]"),
            sample("f[2, 2, 5, 4]", "f[2, 2, 5, 4]", "f[2, 2, 5, 4]", causal=True),
            sample("f[2, 3, 4]", "f[2, 5, 4]", "f[2, 5, 4]", "f[3, 5]", scale=0.5),
            sample("f[1, 2, 2, 4]", "f[1, 2, 3, 4]", "f[1, 2, 3, 4]", "b[2, 3] = 1, 0, 1, 0, 0, 0"),
            sample("f[2, 1, 2, 4]", "f[2, 1, 3, 4]", "f[2, 1, 3, 4]", "f[2, 1, 1, 3]"),
            sample("f[2, 4, 3, 4]", "f[2, 2, 3, 4]", "f[2, 2, 3, 4]", causal=True),
        ),
    ),
    ATTENTION_GRAD,
    MASK_GRAD,
)
