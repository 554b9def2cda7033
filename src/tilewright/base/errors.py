"""Typed errors with one shape, and the origin (the user's line) that they name.

The idea: an error states what was expected, what was found, where, and the mend.  User mistakes
raise one of these classes, each also a builtin, so that `except ValueError` keeps working; our own
mistakes are assertions.  This module does not know any other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: the user's file and line, the code there, and the module's path."""

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        parts = (place, self.code, f"(in {self.module})" if self.module else "")
        return "   ".join(part for part in parts if part)


UNKNOWN = Origin()


class TilewrightError(Exception):
    """Base of all errors a user can cause.

    summary: one sentence naming the thing, lower case, no full stop.  expected, found, known,
    where, mend: the lines below it; an empty one is left out.
    """

    def __init__(
        self,
        summary: str,
        *,
        expected: str = "",
        found: str = "",
        known: str = "",
        where: "Origin | str" = "",
        mend: str = "",
    ) -> None:
        self.summary = summary
        self.expected = expected
        self.found = found
        self.known = known
        self.where = str(where)
        self.mend = mend
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [self.summary]
        for label in ("expected", "found", "known", "where", "mend"):
            text = getattr(self, label)
            if text:
                body = text.replace("\n", "\n" + " " * 12)
                lines.append(f"  {label:<9} {body}")
        return "\n".join(lines)


class ShapeError(TilewrightError, ValueError):
    """Extents that do not fit: inside a formula, in a user's module, or at call time."""


class DTypeError(TilewrightError, TypeError):
    """Element types that an operator cannot take, or that differ from those compiled for."""


class IndexRangeError(TilewrightError, IndexError, RuntimeError):
    """An index read from a tensor (a token id, say) that lies outside the tensor it points into.

    Torch raises an IndexError for some operators and a RuntimeError for others.
    """


class SizesError(TilewrightError, ValueError):
    """Sizes that vary in a graph that cannot be one Program for all of them."""


class IntegerDivisionError(TilewrightError, RuntimeError, ZeroDivisionError):
    """An integer divided by zero while a kernel runs (torch raises a RuntimeError)."""


class NotationError(TilewrightError, ValueError):
    """A formula that does not parse or has no meaning (a loop without an extent, say)."""


class GraphError(TilewrightError, ValueError):
    """A graph, or the text of one, that breaks a rule of the IR."""


class CaptureError(TilewrightError, NotImplementedError):
    """Something in the user's model that cannot be captured and be right."""


class DataDependentShapeError(CaptureError):
    """A shape that depends on the values of a tensor."""


class MutationError(CaptureError):
    """A mutation that the functional graph cannot express."""


class OptionError(TilewrightError, ValueError):
    """An option that does not exist, has no effect here, or has an impossible value."""


class TransformError(TilewrightError, ValueError, RuntimeError):
    """A transform (grad, vmap, ...) of a function or on arguments that it does not fit; torch.func
    raises a RuntimeError for some of these and a ValueError for others."""


class OptimizerError(TilewrightError, ValueError):
    """An optimizer that `train_step` does not know, or a setting it cannot honour (a NaN rate)."""


class ToolchainError(TilewrightError, RuntimeError):
    """No C compiler, or one that fails."""


class FallbackWarning(UserWarning):
    """A graph is left to PyTorch eager, and why."""


class CacheWarning(UserWarning):
    """The kernel cache cannot be written: Tilewright runs on without it."""


class ProgramError(TilewrightError, ValueError):
    """A saved Program that is truncated, altered, or of another version; nothing of it was run."""


class CheckpointError(TilewrightError, ValueError):
    """A checkpoint that is truncated, altered, or foreign; nothing of it was loaded."""


class LibraryCallError(TilewrightError, RuntimeError):
    """A library call where `Options(library=False)` forbids it, or one that failed."""


class CollectiveError(TilewrightError, RuntimeError):
    """Ranks that do not meet: a collective that one of them comes to and another does not, or with
    another operator, shape or element type.  On real devices they would wait for ever."""


class TimetableError(TilewrightError, ValueError):
    """A pipeline's timetable, or the text of one, that cannot be run: it does not parse, something
    waits for what no rank runs or sends, or ranks wait for each other in a circle."""


class MachineError(TilewrightError, ValueError):
    """A machine that is not known, or whose text or numbers mean none."""


class ModelSpecError(TilewrightError, ValueError):
    """A model's specification that is not known, does not parse, or describes no model."""


class MessageError(TilewrightError, ValueError):
    """A message program that does not deliver its collective, or a text that is none."""


class PlanError(TilewrightError, ValueError):
    """A parallel plan whose text does not parse, or that does not fit its model or machine."""


class LoopError(TilewrightError, ValueError):
    """A loop nest, or the text of one, that breaks a rule; or a rewrite of it that does not apply,
    and two iterations that say why."""


class DivergenceError(TilewrightError, ArithmeticError):
    """Debug mode found a node whose value differs from eager's; the first one is named."""


def expect_text(value: object, what: str, error: type[TilewrightError]) -> str:
    """Return what is given for a text; raise an error of the class that is named if it is none."""
    if not isinstance(value, str):
        raise error(
            f"{what} is read from a text",
            expected="a str",
            found=f"{type(value).__name__}: {repr(value)[:60]}" if value is not None else "None",
        )
    return value
