"""What the Programs of most models call, begun before a model is known.

The idea: the function that multiplies blocks of matrices takes a compiler two seconds, once a
machine, and to trace a model takes Python as long, with a processor idle beside it.

This module does not know models.
"""

from tilewright.base.dtypes import F32
from tilewright.compiler.options import Options
from tilewright.kernels import tiles
from tilewright.program import KernelSource
from tilewright.runtime.ahead import begin_early


def begin_usual(options: Options) -> None:
    """Begin to compile what the Programs of most models call; return at once."""
    begin_early(options.target, (KernelSource(*tiles(F32)),))
