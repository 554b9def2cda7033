"""Texts that a command leaves in a file: whole, or not at all.

The idea: written beside the file and put in its place at once, so that neither an interrupt nor a
full disk leaves half of one where there was another.
This module does not know what a text says.
"""

import os
import tempfile
from pathlib import Path

from tilewright.base.errors import OptionError


def save_text(path: Path, text: str, what: str) -> None:
    """Write a text, "the plan" say; raise OptionError where the file cannot be written."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as reason:
        raise OptionError(
            f"{what} cannot be saved",
            expected="a file that can be written",
            found=str(reason),
            mend="name a file in a folder that is there",
        ) from reason
