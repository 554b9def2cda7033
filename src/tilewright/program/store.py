"""Programs on disk: a line that says what the file is and what it must contain, then the text.

The idea: the first line holds the format's number and the sha256 of all that follows, so that a
file cut short, altered, or written by another version is refused before anything of it is read.
The sum guards against accidents, not against people: a Program is code, and whoever can write the
file can write the sum.  Loading runs nothing and unpickles nothing.
"""

import hashlib
import os
import re
import tempfile
from pathlib import Path

from tilewright.base.errors import ProgramError
from tilewright.program.ir import Program
from tilewright.program.refusal import COMPILE_AGAIN, placed
from tilewright.program.syntax import read
from tilewright.program.text import show
from tilewright.program.verify import verify

FORMAT = 4
HEADER = re.compile(rb"tilewright program ([0-9]{1,9}) sha256 ([0-9a-f]{64})\n")


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write the Program; the file is there in full or, if anything fails, as it was before."""
    verify(program)
    data = to_bytes(program)
    place = Path(path)
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Program:
    """Return the saved Program; raise `ProgramError` unless it is whole and breaks no rule."""
    return from_bytes(Path(path).read_bytes(), source=os.fspath(path))


def to_bytes(program: Program) -> bytes:
    """Return what `save` writes."""
    body = show(program).encode("utf-8")
    return b"tilewright program %d sha256 %s\n" % (FORMAT, _sum(body)) + body


def from_bytes(data: bytes, *, source: str = "") -> Program:
    """Return the Program that `to_bytes` wrote; raise `ProgramError` unless it is whole.

    source: named in errors.
    """
    match = HEADER.match(data)
    if match is None:
        raise ProgramError(
            "this is no saved program",
            expected="a first line 'tilewright program <format> sha256 <sum>'",
            found=repr(data[:40]),
            where=source,
            mend=COMPILE_AGAIN,
        )
    if int(match.group(1)) != FORMAT:
        raise ProgramError(
            "a saved program is of another format",
            expected=f"format {FORMAT}",
            found=f"format {int(match.group(1))}",
            where=source,
            mend=COMPILE_AGAIN,
        )
    body = data[match.end() :]
    if _sum(body) != match.group(2):
        raise ProgramError(
            "a saved program is truncated or altered",
            expected=f"sha256 {match.group(2).decode()}",
            found=f"sha256 {_sum(body).decode()}",
            where=source,
            mend=COMPILE_AGAIN,
        )
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProgramError(
            "a saved program is no text",
            expected="UTF-8",
            found=f"{body[error.start : error.start + 8]!r} at byte {match.end() + error.start}",
            where=source,
            mend=COMPILE_AGAIN,
        ) from error
    try:
        program = read(text)
        verify(program)
    except ProgramError as refusal:
        raise placed(refusal, source) from None
    except RecursionError:
        raise ProgramError(
            "a saved program is nested too deep",
            expected="buffers and instructions that a compiler of this package would write",
            found="more than Python can follow",
            where=source,
            mend=COMPILE_AGAIN,
        ) from None
    return program


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")


def _umask() -> int:
    """Return the process's file mode mask (there is no way to read it without setting it)."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
