"""`tw.compile`: the front door of compiled functions.

The idea: an option decides what a call may look like: as the example, or of any batch.
This module does not know how a call is answered.
"""

from collections.abc import Callable
from typing import Any

from tilewright.compiler.buckets import Bucketed
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.options import Options
from tilewright.compiler.usual import begin_usual


def compile(
    fn: Callable[..., Any], *args: Any, options: Options | None = None, **kwargs: Any
) -> Compiled | Bucketed:
    """Compile a function or module for calls like `fn(*args, **kwargs)`.

    The arguments are examples: shapes, dtypes and plain values are compiled in; nothing is computed
    and nothing of them is kept but that.  Parameters, buffers and what else the function reaches by
    itself (globals, its closure) are the live tensors, read and updated in place; where something
    that it reads has changed (training mode, another parameter, a number in its closure, autocast,
    which tensors ask for gradients) it is compiled again at the next call.  Under a transform of
    `torch.func` or `torch.vmap` a call runs in eager, with a FallbackWarning.  With
    `Options(buckets=("batch",))` the first dim of the tensors may vary: see `Bucketed`.  Raises
    CaptureError (with the user's line) for what cannot be compiled.
    """
    options = options or Options()
    begin_usual(options, fn)
    if options.buckets:
        return Bucketed(fn, options, args, kwargs)
    compiled = Compiled(fn, options, args, kwargs)
    compiled.prepare([item.requires_grad for item in compiled.captured.inputs])
    return compiled
