"""The coverage of Core ATen: complete, true of the rules, and free of stale reasons."""

import torch

from tilewright.capture import core_coverage
from tilewright.capture.aten import RULES
from tilewright.capture.coverage import ABSENT, LEFT, LIBRARY, REFUSED
from tilewright.ops import TABLE

ENTRIES = {entry.overload: entry for entry in core_coverage()}


def test_core_is_what_torch_tags() -> None:
    assert "aten.softmax.int" not in ENTRIES
    assert torch.Tag.core in torch.ops.aten.relu.default.tags
    assert "aten.relu.default" in ENTRIES
    assert len(ENTRIES) > 150


def test_what_is_read_says_by_which_operators() -> None:
    for entry in ENTRIES.values():
        if entry.overload in RULES:
            assert set(entry.operators) <= set(TABLE)
        else:
            assert entry.how in (LIBRARY, REFUSED, ABSENT)
            assert entry.reason, f"{entry.overload} says why it is not declared"


def test_no_reason_is_given_for_what_is_read_or_is_not_core() -> None:
    assert set(LEFT) <= set(ENTRIES)
    assert not set(LEFT) & set(RULES)
