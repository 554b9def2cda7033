"""An optimizer without state has none after our steps either."""

import torch

import tilewright as tw


def test_plain_sgd_keeps_no_state() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    step = tw.train_step(model, torch.nn.functional.mse_loss, optimizer, x, target)
    step(x, target)
    step(x, target)
    assert optimizer.state_dict()["state"] == {}
