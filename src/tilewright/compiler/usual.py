"""What the Programs of most models call, begun before a model is known.

The idea: the function that multiplies blocks of matrices takes a compiler two seconds, once a
machine, and to trace a model takes Python as long, with a processor idle beside it.  Whether a
model has convolutions is seen in the shapes of its parameters.

This module does not know models.
"""

from tilewright.base.dtypes import F32
from tilewright.capture import has_image_kernels
from tilewright.compiler.options import Options
from tilewright.compiler.winograd import TAPS, winograd_functions
from tilewright.kernels import tiles
from tilewright.program import KernelSource
from tilewright.runtime.ahead import begin_early


def begin_usual(options: Options, given: object) -> None:
    """Begin to compile what the Programs of most models call; return at once.

    given: the model, or what it is called with, its parameters among it.
    """
    functions = [tiles(F32)]
    if options.winograd:
        found, trained = has_image_kernels(given, TAPS)
        for kind in ("forward",) * found + ("weight",) * trained:
            functions += winograd_functions(kind, F32)
    begin_early(options.target, [KernelSource(*function) for function in dict.fromkeys(functions)])
