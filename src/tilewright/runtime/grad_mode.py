"""Which tensors of a call ask for gradients, as torch's grad mode has it; and in what other ways
a call may be differentiated or batched."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch.autograd import forward_ad


def asks_gradients(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the positions of the tensors that require gradients; none where these are off."""
    if not torch.is_grad_enabled() or True not in [tensor.requires_grad for tensor in tensors]:
        return ()
    return tuple([k for k, tensor in enumerate(tensors) if tensor.requires_grad])


def asked(requires_grad: Sequence[bool]) -> tuple[int, ...]:
    """Return the positions of those that require gradients; none where these are off."""
    return (
        tuple(k for k, asks in enumerate(requires_grad) if asks) if torch.is_grad_enabled() else ()
    )


def is_transforming() -> bool:
    """Say whether torch.vmap, torch.func or forward-mode differentiation is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


def gradients_on() -> AbstractContextManager[None]:
    """Return a context in which gradients are on."""
    return torch.enable_grad()
