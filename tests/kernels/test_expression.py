"""Indices that are computed where they are read: truth values above all, beside eager."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import tilewright as tw

INDICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "compared": lambda t: (t > 0).long(),
    "chosen": lambda t: torch.where(t > 0, 0, 1),
    "chosen from 2": lambda t: torch.where(t > 0, 2, 3),
    "both": lambda t: ((t > 0) & (t < 1)).int(),
    "moved": lambda t: (t > 0).long() + 2,
    "from the end": lambda t: (t > 0).long() - 2,
    "sought": lambda t: torch.bucketize(t, torch.zeros(1)),
    "not zero": lambda t: (t.long() != 0).long(),
    "whole": lambda t: (t.abs() * 1.5).long().clamp(max=4),
}


@pytest.mark.parametrize("which", INDICES)
@pytest.mark.parametrize("count", [7, 300])
def test_indices_that_are_computed(which: str, count: int) -> None:
    torch.manual_seed(0)
    t, table = 2 * torch.randn(count), torch.randn(5)
    for dtype in (torch.float32, torch.float64):
        given = t, table.to(dtype)

        def fn(t: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return table[INDICES[which](t)]

        assert torch.equal(tw.compile(fn, *given)(*given), fn(*given))


def test_indices_that_are_truth_values_in_memory() -> None:
    torch.manual_seed(0)
    truth, table = torch.rand(300) > 0.5, torch.randn(5)

    def fn(truth: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[truth.long()]

    assert torch.equal(tw.compile(fn, truth, table)(truth, table), fn(truth, table))


@pytest.mark.parametrize("count", [7, 300])
def test_labels_that_are_comparisons(count: int) -> None:
    torch.manual_seed(0)
    scores, t, weight = torch.randn(count, 2), torch.randn(count), torch.rand(2)

    def loss(scores: torch.Tensor, t: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores, (t > 0).long(), weight=weight)

    found = tw.compile(loss, scores, t, weight)(scores, t, weight)
    torch.testing.assert_close(found, loss(scores, t, weight))
