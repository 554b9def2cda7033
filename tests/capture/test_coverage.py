"""The coverage of Core ATen: complete, true of the rules, and free of stale reasons."""

from typing import Any

import pytest
import torch

from tilewright.base.errors import CaptureError, DataDependentShapeError, TilewrightError
from tilewright.capture import capture, core_coverage
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
            assert entry.overload in LEFT, f"{entry.overload} says why it is not declared"


def test_no_reason_is_given_for_what_is_read_or_is_not_core() -> None:
    assert set(LEFT) <= set(ENTRIES)
    assert not set(LEFT) & set(RULES)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (torch.nonzero, DataDependentShapeError),
        (torch.fft.rfft, CaptureError),
        (lambda x: x * float(x.sum()), TilewrightError),
    ],
)
def test_what_is_said_to_be_refused_is(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        capture(call, torch.ones(4))


def test_a_resized_image_arrives_whole() -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear")

    graph = capture(resized, torch.ones(1, 2, 4, 6)).graph
    assert [node.op for node in graph.nodes] == ["resize_bilinear"]
