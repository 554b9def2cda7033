"""Which composite operators of ATen stay whole in a captured graph.

The idea: an operator stays whole if it has a derivative formula of its own, or if what ATen makes
of it depends on whether gradients are on (the trace has them off).  Everything else that torch
itself differentiates through its decomposition may be decomposed: the gradient is the same.
This module does not know the trace that it steers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import truediv
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.capture.custom_ops import library

_Override = Callable[..., Any]

_WHOLE = (
    "linear.default",
    "matmul.default",
    "conv1d.default",
    "conv2d.default",
    "conv3d.default",
    "softmax.int",
    "log_softmax.int",
    "layer_norm.default",
    "group_norm.default",
    "rms_norm.default",
    "cross_entropy_loss.default",
    "max_pool1d.default",
    "max_pool2d.default",
    "embedding_bag.padding_idx",
    "upsample_linear1d.vec",
    "upsample_bilinear2d.vec",
    "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec",
    # Their parts raise what these raise (a singular matrix), which a functional graph cannot hold.
    "linalg_inv.default",
    "linalg_solve.default",
    "linalg_cholesky.default",
    "linalg_lu_factor.default",
    "linalg_ldl_factor.default",
    "linalg_tensorinv.default",
    # Its zeroth power asks for gradients in eager, though no part of it does.
    "linalg_matrix_power.default",
    "one_hot.default",  # decomposed, it asserts its range by an operator without result
)


# Whole where they draw no masks between their layers; else one call for each layer.
_RECURRENT = ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")

# Repeated where an image grows by whole factors; else an index by rows that are constants.
_NEAREST = ("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
_NEAREST_EXACT = tuple(f"_{name.replace('nearest', 'nearest_exact')}" for name in _NEAREST)

# Their tag says that they draw random numbers; as they are kept, they do not.
QUIET = frozenset(
    {f"aten.{name}" for name in _RECURRENT} | {"aten.scaled_dot_product_attention.default"}
)


class DropoutMode(TorchFunctionMode):
    """Takes calls of dropout before the dispatcher does.

    A trace for export marks whatever aten.dropout gives as not to be changed in place; a model may
    well do that, and eager allows it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        dropped = _told(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if dropped is None else _dropout(*dropped)


class EagerMode(TorchFunctionMode):
    """Makes fake tensors as eager makes real ones, where torch's rules for fakes differ.

    A dropout that has nothing to do returns its argument (its rule for varying sizes, a copy); what
    max_unpool2d gives is laid out as its argument is (its rule says contiguous).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        dropped = _told(func, args, kwargs or {})
        if dropped is not None and _idle(*dropped):
            return dropped[0]
        made = func(*args, **(kwargs or {}))
        if func in _UNPOOL:
            given = (*args, *(kwargs or {}).values())[0]
            made = made.contiguous(memory_format=suggest_memory_format(given))
        return made


_UNPOOL = (
    torch.nn.functional.max_unpool2d,
    torch._C._nn.max_unpool2d,
    torch.ops.aten.max_unpool2d,
    torch.ops.aten.max_unpool2d.default,
)


def _told(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, float, bool] | None:
    """Return (input, p, train) of a call of dropout that is not in place; else None."""
    if func is torch.nn.functional.dropout:
        named = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        if not named.get("inplace", False):
            return named["input"], named.get("p", 0.5), named.get("training", True)
    elif func is torch.dropout:
        named = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
        return named["input"], named["p"], named["train"]
    return None


def overrides() -> dict[torch._ops.OpOverload, _Override]:
    """Return what to do with each composite operator instead of decomposing it."""
    library()
    table: dict[torch._ops.OpOverload, _Override] = {_overload(name): _whole for name in _WHOLE}
    table |= {_overload(name): _recurrent(_overload(name)) for name in _RECURRENT}
    table |= {_overload(name): _nearest for name in _NEAREST}
    table |= {_overload(name): partial(_nearest, exact=True) for name in _NEAREST_EXACT}
    table[_overload("dropout.default")] = _dropout
    table[_overload("scaled_dot_product_attention.default")] = _attention
    return table


def _overload(name: str) -> torch._ops.OpOverload:
    packet, overload = name.split(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
    return found


def _whole(*_args: object, **_kwargs: object) -> Any:
    return NotImplemented


def _recurrent(operator: torch._ops.OpOverload) -> _Override:
    """Run layer by layer, with our dropout between, where masks are drawn between the layers."""

    def keep(
        input: torch.Tensor,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if not train or dropout == 0 or num_layers == 1:
            return NotImplemented
        states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
        directions, weights = 1 + bidirectional, len(params) // num_layers
        last: list[list[torch.Tensor]] = [[] for _ in states]
        for layer in range(num_layers):
            first = [state.narrow(0, layer * directions, directions) for state in states]
            mine = params[layer * weights : (layer + 1) * weights]
            start = first[0] if isinstance(hx, torch.Tensor) else first
            flags = (has_biases, 1, 0.0, train, bidirectional, batch_first)
            input, *ends = operator(input, start, mine, *flags)
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
            if layer + 1 < num_layers:
                input = _dropout(input, dropout, train)
        return (input, *(torch.cat(kept) for kept in last))

    return keep


def _nearest(
    input: torch.Tensor,
    output_size: Sequence[int] | None,
    scale_factors: Sequence[float] | None,
    *,
    exact: bool = False,
) -> torch.Tensor:
    """Read at each place the element that eager reads there; where these are the elements in turn,
    each as often, repeat them."""
    before, scales = input.shape[2:], scale_factors or ()
    after = output_size or list(map(_scaled, before, scales))
    steps = [1 / scale for scale in scales] or list(map(truediv, before, after))
    places = partial(_places, real=_rounded_in(input, after), exact=exact)
    factors = list(map(partial(_factor, places), before, after, steps))
    if all(factors):
        made = input
        for dim, factor in enumerate(factors, start=2):
            made = made.repeat_interleave(factor, dim) if factor > 1 else made
        made = made.clone() if made is input else made
    else:
        index: list[torch.Tensor | None] = [None, None]
        for dim, line in enumerate(zip(before, after, steps, strict=True), start=1):
            index.append(places(*line).reshape(-1, *(1,) * (len(after) - dim)))
        made = torch.ops.aten._unsafe_index.Tensor(input, index)
    return made.contiguous(memory_format=suggest_memory_format(input))


def _scaled(size: int, scale: float) -> int:
    scaled: int = torch.sym_int(size * scale)
    return scaled


def _rounded_in(input: torch.Tensor, after: Sequence[int]) -> torch.dtype | None:
    """Return the type in which eager rounds the places of an image that is resized; None where it
    goes pixel by pixel: with many channels, that lie last, or if the result is small."""
    rank = len(after)
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(rank)
    by_pixel = last and input.shape[1] > 3 and input.is_contiguous(memory_format=last)
    if by_pixel or (rank == 2 and after[0] + after[1] <= 128):
        return None
    return torch.float64 if input.dtype == torch.float64 else torch.float32


def _places(
    before: int, after: int, step: float, *, real: torch.dtype | None, exact: bool
) -> torch.Tensor:
    """Return which of `before` elements eager reads at each of `after` places, `step` apart.

    Pixel by pixel (real is None), to leave and to double a size does not ask the scale.
    """
    order = torch.arange(after)
    if real is None and not exact and after == before:
        return order
    if real is None and not exact and after == 2 * before:
        return order // 2
    apart = torch.full((), step, dtype=real or torch.float32)
    if exact:
        at = (order.to(torch.float64) + 0.5) * apart
        if real is not None:
            at = (at - 0.5).to(real).clamp(min=0).to(torch.float64) + 0.5
    else:
        at = order.to(apart.dtype) * apart
    return at.to(torch.float32).to(torch.int64).clamp(max=before - 1)


def _factor(places: Callable[..., torch.Tensor], before: int, after: int, step: float) -> int:
    """Return how many times each element stands in a row; 0 where that varies, or sizes do."""
    if not type(before) is type(after) is int:
        return 0
    with _disable_current_modes():
        at = places(before, after, step).tolist()
    factor = after // before
    repeated = [place // factor for place in range(after)] if factor else []
    return factor if at == repeated else 0


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """dropout(input, p, train) --> input, or our operator.

    ATen's own is declared fresh but returns its argument when it has nothing to do: kept whole, an
    in-place operator after it would be lost.
    """
    if _idle(input, p, train):
        return input
    dropped: torch.Tensor = torch.ops.tilewright.dropout.default(input, p)
    return dropped


def _idle(input: torch.Tensor, p: float, train: bool) -> bool:
    return not train or p == 0 or input.numel() == 0


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention stays whole, but with dropout it is what torch's own reference makes of it."""
    if dropout_p == 0:
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        absent = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = absent.masked_fill(attn_mask.logical_not(), float("-inf"))
    return torch.ops.aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        None,
        scale=scale,
        enable_gqa=enable_gqa,
    )[0]
