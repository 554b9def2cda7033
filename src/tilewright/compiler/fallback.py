"""What cannot be compiled runs in eager: counted, and said aloud.

The idea: a right result with a warning is worth more than an error, but never silently, and never
where the user has forbidden it.  This module does not know what is compiled.
"""

import traceback
import warnings

from tilewright.base.errors import (
    CaptureError,
    FallbackWarning,
    LibraryCallError,
    OptionError,
    TilewrightError,
)
from tilewright.compiler.options import Options

FALLBACKS: list[str] = []
"""The reason of everything that was left to eager in this process, in order."""


def leave_to_eager(error: Exception, options: Options) -> None:
    """Count and tell why a graph is left to eager; raise the error where that was forbidden, or
    where options cannot be followed."""
    forbidden = isinstance(error, LibraryCallError) and not options.library
    if forbidden or isinstance(error, OptionError):
        raise error
    if isinstance(error, TilewrightError):
        reason = str(error)
    else:
        said = str(error).strip() or "no message"
        reason = (
            f"a mistake of Tilewright's own, not of yours: {type(error).__name__}: {said}\n"
            f"  where     {_innermost(error)}\n"
            "  mend      results are eager's and right; please report this message with the model"
        )
    FALLBACKS.append(reason)
    warnings.warn(f"a graph is left to eager: {reason}", FallbackWarning, stacklevel=2)


def under_a_transform() -> CaptureError:
    """The reason of a call with tensors that torch's transforms have wrapped."""
    return CaptureError(
        "a compiled function is called under a transform of functions",
        expected="tensors that hold numbers",
        found="tensors of torch.vmap, torch.func or forward-mode differentiation",
        mend="transform the function that is not compiled, and compile what comes out",
    )


def _innermost(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
