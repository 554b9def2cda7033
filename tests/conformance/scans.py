"""What is not yet derived through a scan is refused by name, never wrong."""

import functools
from collections.abc import Callable

import pytest

from tilewright.base.errors import CaptureError
from tilewright.ops.operator import Operator, Sample

SCANS = frozenset({"lstm", "gru", "rnn"})
Test = Callable[[Operator, Sample], None]


def refused_through_scans(test: Test) -> Test:
    """Let a test of rows expect a typed error for those that are made of a scan."""

    @functools.wraps(test)
    def judged(operator: Operator, sample: Sample) -> None:
        if operator.name not in SCANS:
            test(operator, sample)
            return
        with pytest.raises(CaptureError, match="scan"):
            test(operator, sample)

    return judged
