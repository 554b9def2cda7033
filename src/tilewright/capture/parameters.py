"""What the parameters of a model tell before it is traced.

This module does not know what is made of it.
"""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.parameter import is_lazy


def has_image_kernels(given: object, taps: int) -> tuple[bool, bool]:
    """Say whether a parameter, in float32, has the shape of kernels of `taps` x `taps` for images
    of several channels; and whether such a one is to have a gradient.

    given: a module, or tensors beside other things; of anything else nothing is known.
    """
    if isinstance(given, torch.nn.Module):
        given = given.parameters()
    found = [
        item
        for item in (given if isinstance(given, Iterator | Sequence) else ())
        if isinstance(item, torch.Tensor)
        and not (is_lazy(item) or item.is_nested)
        and item.dim() == 4
        and item.shape[2:] == (taps, taps)
        and item.shape[1] > 1
        and item.dtype == torch.float32
    ]
    return bool(found), torch.is_grad_enabled() and any(item.requires_grad for item in found)
