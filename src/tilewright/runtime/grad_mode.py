"""Which tensors of a call ask for gradients, as torch's grad mode has it."""

from collections.abc import Sequence

import torch


def asks_gradients(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the positions of the tensors that require gradients; none where these are off."""
    if not torch.is_grad_enabled():
        return ()
    return tuple([k for k, tensor in enumerate(tensors) if tensor.requires_grad])


def asked(requires_grad: Sequence[bool]) -> tuple[int, ...]:
    """Return the positions of those that require gradients; none where these are off."""
    return (
        tuple(k for k, asks in enumerate(requires_grad) if asks) if torch.is_grad_enabled() else ()
    )
