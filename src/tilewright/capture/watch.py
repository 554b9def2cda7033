"""Has what was captured changed since?  Asked before every call, so it must be cheap.

The idea: what a capture takes as it is (which tensors and sub-modules there are, training mode,
what asks for gradients, autocast) is written down once and compared by identity.

This module does not know what is done about a change.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Watch:
    """What a module and torch's modes were.

    entries: (dict, key, value) for every tensor and sub-module.  autocast: its element type, None
    where it was off.  grad: whether gradients were on: a graph captured with them also serves calls
    without.
    """

    modes: tuple[tuple[torch.nn.Module, bool], ...]
    sizes: tuple[tuple[dict[str, Any], int], ...]
    entries: tuple[tuple[dict[str, Any], str, Any], ...]
    asking: tuple[tuple[torch.Tensor, bool], ...]
    autocast: torch.dtype | None
    grad: bool

    @staticmethod
    def over(fn: object) -> "Watch":
        """Write down what a module, or the module that a method belongs to, is now.

        Of any other function nothing is known but torch's modes.
        """
        owner = getattr(fn, "__self__", fn)
        modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
        tables = [t for m in modules for t in (m._parameters, m._buffers, m._modules)]
        return Watch(
            tuple((m, m.training) for m in modules),
            tuple((table, len(table)) for table in tables),
            tuple((table, key, value) for table in tables for key, value in table.items()),
            tuple((p, p.requires_grad) for m in modules for p in m.parameters(recurse=False)),
            _autocast(),
            torch.is_grad_enabled(),
        )

    def unchanged(self) -> bool:
        """Say whether the module still is what it was."""
        if _autocast() is not self.autocast or (torch.is_grad_enabled() and not self.grad):
            return False
        for module, training in self.modes:
            if module.training is not training:
                return False
        for table, size in self.sizes:
            if len(table) != size:
                return False
        for table, key, value in self.entries:
            if table.get(key) is not value:
                return False
        return all(tensor.requires_grad is asked for tensor, asked in self.asking)


def _autocast() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
