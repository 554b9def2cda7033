"""Around a run: write mutated inputs back, and make what the user gets from what was computed.

The idea: the record of a capture says what each result is; here that is redone with live tensors.
This module does not know how the outputs were computed.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.capture.record import (
    Computed,
    Literal,
    Mutation,
    Result,
    SameInput,
    SameResult,
    ViewOfInput,
    ViewOfOutput,
)


def write_back(
    mutations: Sequence[Mutation], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Copy new values into mutated inputs; versions count up, as they do in eager."""
    if mutations:
        with torch.no_grad():
            for mutation in mutations:
                inputs[mutation.input].copy_(outputs[mutation.output])


def restore(
    results: Sequence[Result], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> list[Any]:
    """Return the user's results; call it after `write_back`."""
    made: list[Any] = []
    bases: dict[int, torch.Tensor] = {}
    for result in results:
        match result:
            case Computed(output=output, strides=strides):
                made.append(with_strides(outputs[output], strides))
            case SameInput(input=position):
                made.append(inputs[position])
            case SameResult(result=earlier):
                made.append(made[earlier])
            case ViewOfInput(input=position):
                made.append(_view(inputs[position], result))
            case ViewOfOutput(output=output, base_strides=strides):
                if output not in bases:
                    bases[output] = with_strides(outputs[output], strides)
                made.append(_view(bases[output], result))
            case Literal(value=value):
                made.append(value)
    return made


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor, copied only if it has other strides (where more than one element is).

    Strides by which elements overlap are not given to a copy, but for dims that repeat one element.
    """
    if tensor.stride() == strides:
        return tensor
    steps = list(zip(tensor.shape, tensor.stride(), strides, strict=True))
    if tensor.numel() == 0 or all(size == 1 or has == to for size, has, to in steps):
        return tensor
    repeated = [dim for dim, (size, _, to) in enumerate(steps) if size > 1 and to == 0]
    if repeated:
        once = tensor
        for dim in repeated:
            once = once.narrow(dim, 0, 1)
        return with_strides(once, strides).expand(tensor.shape)
    laid_out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    if torch._debug_has_internal_overlap(laid_out) == 1:
        return tensor
    return laid_out.copy_(tensor)


def _view(base: torch.Tensor, result: ViewOfInput | ViewOfOutput) -> torch.Tensor:
    seen = base if result.requires_grad else base.detach()
    return seen.as_strided(result.shape, result.strides, base.storage_offset() + result.offset)
