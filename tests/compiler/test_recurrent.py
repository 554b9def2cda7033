"""Recurrent nets are library calls, and have gradients."""

import pytest
import torch

import tilewright as tw


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_net_has_eager_s_gradient(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = model(x)[0].pow(2).sum()
        return total

    expected = torch.autograd.grad(loss(x), list(model.parameters()))
    found = torch.autograd.grad(tw.compile(loss, x)(x), list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
