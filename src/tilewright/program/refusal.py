"""Where a refusal of a Program happened, and what to do about it.

The idea: the rule that is broken knows the step or the line, whoever asked knows the file or the
Program's name; an error says both.  This module does not know any rule.
"""

from typing import NoReturn

from tilewright.base.errors import UNKNOWN, Origin, ProgramError

COMPILE_AGAIN = "compile the model again and save it"


def placed(error: ProgramError, place: str) -> ProgramError:
    """Return the error with a place before its own, and with a mend if it has none."""
    return ProgramError(
        error.summary,
        expected=error.expected,
        found=error.found,
        known=error.known,
        where="   ".join(part for part in (place, error.where) if part),
        mend=error.mend or COMPILE_AGAIN,
    )


def refuse(summary: str, expected: str, found: object, where: Origin = UNKNOWN) -> NoReturn:
    """Raise for a rule that is broken."""
    raise ProgramError(summary, expected=expected, found=str(found), where=where)


def require(holds: bool, summary: str, expected: str, found: object) -> None:
    """Raise unless a rule holds."""
    if not holds:
        refuse(summary, expected, found)
