"""A Program as plain values comes back as it was, and what stood in two places as one is one."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.program import from_plain, to_plain

from .samples import EVERYTHING


def test_programs_come_back_as_they_were() -> None:
    another = replace(EVERYTHING, name="another")
    first, second = from_plain(to_plain((EVERYTHING, another)))
    assert first == EVERYTHING
    assert repr(first) == repr(EVERYTHING)
    assert second == another
    assert all(x is y for x, y in zip(first.buffers, second.buffers, strict=True))


def test_a_number_that_is_none_of_python_s_is_no_plain_value() -> None:
    with pytest.raises(AssertionError, match="int64 is no record of a Program"):
        to_plain((replace(EVERYTHING, arena_bytes=np.int64(64)),))  # type: ignore[arg-type]
