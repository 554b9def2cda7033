"""What the Programs of most models call, begun before a model is known.

The idea: the function that multiplies blocks of matrices takes a compiler two seconds, once a
machine, and to trace a model takes Python as long, with a processor idle beside it.  Whether a
model has convolutions is seen in the shapes of its parameters.

This module does not know models.
"""

from collections.abc import Iterable, Iterator

import torch

from tilewright.base.dtypes import F32
from tilewright.compiler.options import Options
from tilewright.compiler.winograd import TAPS, winograd_functions
from tilewright.kernels import tiles
from tilewright.program import KernelSource
from tilewright.runtime.ahead import begin_early


def begin_usual(options: Options, given: Iterable[object] = ()) -> None:
    """Begin to compile what the Programs of most models call; return at once.

    given: tensors that the model reads, as its parameters, and what else.
    """
    functions = [tiles(F32), *(_of_convolutions(given) if options.winograd else ())]
    begin_early(options.target, [KernelSource(*function) for function in dict.fromkeys(functions)])


def _of_convolutions(given: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Return what convolutions by Winograd's algorithm call, if a tensor has the shape of their
    kernels."""
    kernels = [
        item
        for item in given
        if isinstance(item, torch.Tensor)
        and item.dim() == 4
        and item.shape[2:] == (TAPS, TAPS)
        and item.shape[1] > 1
        and item.dtype == torch.float32
    ]
    if kernels:
        yield from winograd_functions("forward", F32)
    if torch.is_grad_enabled() and any(kernel.requires_grad for kernel in kernels):
        yield from winograd_functions("weight", F32)
