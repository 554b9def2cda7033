"""The transforms of torch.func by our names: what a transform is inside of captured code.

The idea: Dynamo knows torch.func, and follows it into closures over values that are being captured,
where no function exists yet that could be captured by itself.
This module does not know graphs.
"""

from collections.abc import Callable
from typing import Any

import torch

Callee = Callable[..., Any]


def grad(fn: Callee, argnums: int | tuple[int, ...], *, has_aux: bool) -> Callee:
    """Return torch's gradient of a function."""
    made: Callee = torch.func.grad(fn, argnums, has_aux)
    return made


def value_and_grad(fn: Callee, argnums: int | tuple[int, ...], *, has_aux: bool) -> Callee:
    """Return torch's value and gradient of a function, the value first."""
    both = torch.func.grad_and_value(fn, argnums, has_aux)

    def swapped(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return value, gradient

    return swapped


def vmap(fn: Callee, in_dims: Any, out_dims: Any, randomness: str) -> Callee:
    """Return torch's batched function."""
    made: Callee = torch.func.vmap(fn, in_dims, out_dims, randomness)
    return made


def jvp(fn: Callee, primals: Any, tangents: Any, *, has_aux: bool) -> Any:
    """Return torch's value and directional derivative."""
    return torch.func.jvp(fn, primals, tangents, has_aux=has_aux)


def vjp(fn: Callee, primals: Any, *, has_aux: bool) -> Any:
    """Return torch's value and pullback."""
    return torch.func.vjp(fn, *primals, has_aux=has_aux)
