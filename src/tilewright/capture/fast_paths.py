"""torch's fast paths of attention modules, taken apart.

The idea: in evaluation `nn.TransformerEncoderLayer` calls one operator of ATen's for a whole layer,
as eager `nn.MultiheadAttention` does for its part; nothing could be fused with what is inside.
Here they are what modules compute without them: projections, attention, norms: operators of ours.
This module does not know the trace that asks for it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

_SRC_MASK, _PADDING_MASK = 0, 1
"""ATen's mask types: of queries and keys for all, or of keys for each of the batch; others are of
each head."""


def fast_paths() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Return what takes the place of each operator, with its arguments and results."""
    return {
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        torch.ops.aten._native_multi_head_attention.default: _attention,
    }


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if type(src.shape[-1]) is not int:
        return NotImplemented  # no guard of Dynamo's says that the weights fit a width that varies

    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attended(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        sizes = (embed_dim, num_heads)
        made: torch.Tensor = _attention(x, x, x, *sizes, *weights, mask, False, True, mask_type)[0]
        return made

    def fed(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        inner = F.gelu(inner) if use_gelu else F.relu(inner)
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attended(normed(src, *first))
        return x + fed(normed(x, *second))
    x = normed(src + attended(src), *first)
    return normed(x + fed(x), *second)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Return the result and the weights, which are empty where nobody needs them."""
    if any(type(x.shape[-1]) is not int for x in (query, key, value)):
        return NotImplemented
    if query is key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        pairs = zip(qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        sources = (query, key, value)
        q, k, v = (F.linear(x, *pair) for x, pair in zip(sources, pairs, strict=True))
    q, k, v = (x.unflatten(-1, (num_head, -1)).transpose(1, 2) for x in (q, k, v))
    absent = None if mask is None else _of_heads(mask, mask_type)
    if not need_weights:
        present = None if absent is None else absent.logical_not()
        made = F.scaled_dot_product_attention(q, k, v, present)
        if absent is not None:  # of no key at all it is 0 there, while ATen's softmax is NaN
            made = made.masked_fill(absent.all(-1, keepdim=True), math.nan)
        weights = query.new_empty(0)
    else:
        scores = (q / math.sqrt(embed_dim // num_head)) @ k.mT
        if absent is not None:
            scores = scores.masked_fill(absent, -math.inf)
        share = scores.softmax(-1)
        made = share @ v
        weights = share.mean(1) if average_attn_weights else share
    return F.linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _of_heads(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Return what is masked out, as (batch, heads, queries, keys) or dims of 1."""
    absent = mask.to(torch.bool)
    if mask_type == _SRC_MASK:
        return absent[None, None]
    return absent[:, None, None] if mask_type == _PADDING_MASK else absent
