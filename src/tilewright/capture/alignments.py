"""The loss of alignments (CTC), which torch has no trace of.

The idea: `F.ctc_loss` is made of an operator whose second result, which users do not see, has a
size that depends on values; Dynamo breaks there.  What users see has a known size: where Dynamo
meets the call, one operator of ours stands for the whole, with torch's numbers and torch's
gradient, and `library_call` reads it as the call that it stands for.
This module does not know our graph.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

_MEAN = 1
"""torch's number of the mean; 0 is none of it, 2 the sum."""

_SCHEMA = "(Tensor x, {}Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank,"
_SCHEMA += " int reduction, bool zero_infinity) -> Tensor"

_HALVES = (torch.float16, torch.bfloat16)


def trace_alignments() -> None:
    """Let Dynamo take calls of the loss into its graphs."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    def inlined(stands_for: Any) -> Any:
        def take(_: object, tracer: Any, *args: Any, **kwargs: Any) -> Any:
            library()
            function = VariableTracker.build(tracer, stands_for)
            return tracer.inline_user_function_return(function, list(args), kwargs)

        return take

    special = TorchInGraphFunctionVariable._get_handlers()
    special.setdefault(F.ctc_loss, inlined(_by_name))
    special.setdefault(torch.ctc_loss, inlined(_by_number))


def _by_name(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """`F.ctc_loss`, as Dynamo reads it."""
    how = {"none": 0, "mean": 1, "sum": 2}[reduction]
    lengths = input_lengths, target_lengths
    return _by_number(log_probs, targets, *lengths, blank, how, zero_infinity)


def _by_number(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """`torch.ctc_loss`, as Dynamo reads it; under autocast eager computes it in float32."""
    if torch.is_autocast_enabled("cpu") and log_probs.dtype in _HALVES:
        log_probs = log_probs.float()
    return torch.ops.tilewright.ctc_loss.default(  # type: ignore[no-any-return]
        log_probs,
        targets,
        torch.as_tensor(input_lengths),
        torch.as_tensor(target_lengths),
        blank,
        reduction,
        bool(zero_infinity),
    )


@functools.cache
def library() -> torch.library.Library:
    """Declare the operator and its gradient under `torch.ops.tilewright`."""
    declared = torch.library.Library("tilewright", "FRAGMENT")
    declared.define("ctc_loss" + _SCHEMA.format(""))
    declared.define("ctc_loss_backward" + _SCHEMA.format("Tensor dy, "))
    declared.impl("ctc_loss", torch.ctc_loss, "CPU")
    declared.impl("ctc_loss_backward", _backward, "CPU")
    torch.library.register_fake("tilewright::ctc_loss", _fake, lib=declared)
    torch.library.register_fake("tilewright::ctc_loss_backward", _fake_gradient, lib=declared)
    torch.library.register_autograd(
        "tilewright::ctc_loss", _pull, setup_context=_keep, lib=declared
    )
    return declared


def _fake(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    if x.dtype in _HALVES:
        raise NotImplementedError(f"ctc_loss is not implemented for {x.dtype}")
    *_, reduction, _ = rest
    return x.new_empty(x.shape[1:-1] if reduction == 0 else ())


def _fake_gradient(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Sequence[Any], **_: Any) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.rest = inputs[4:]


def _pull(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, *given = ctx.saved_tensors
    return torch.ops.tilewright.ctc_loss_backward.default(x, dy, *given, *ctx.rest), *(None,) * 6


def _backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """Return torch's gradient of `x`: that of the loss's parts, each given its share of `dy`."""
    batch = x if x.dim() == 3 else x.unsqueeze(1)
    lengths = input_lengths.reshape(-1), target_lengths.reshape(-1)
    share = dy.expand(batch.shape[1])
    if reduction == _MEAN:
        share = share / lengths[1].clamp(min=1).to(dy.dtype) / batch.shape[1]
    losses, paths = torch.ops.aten._ctc_loss.Tensor(batch, targets, *lengths, blank, zero_infinity)
    made: torch.Tensor = torch.ops.aten._ctc_loss_backward.Tensor(
        share, batch, targets, *lengths, losses, paths, blank, zero_infinity
    )
    return made.reshape(x.shape)
