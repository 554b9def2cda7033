"""Models that were compiled are let go of with what was made of them: Dynamo keeps each back end
that it has met for as long as the process lives."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tilewright.base.errors import TilewrightError

Tensor = torch.Tensor


def _for_inference(model: nn.Module, x: Tensor, _: Tensor) -> object:
    with torch.no_grad():
        compiled = tw.compile(model, x, options=tw.Options(frozen=True))
        for _ in range(6):
            compiled(x)
    return compiled


def _with_gradients(model: nn.Module, x: Tensor, _: Tensor) -> object:
    compiled = tw.compile(model, x)
    for _ in range(3):
        compiled(x).sum().backward()
    return compiled


def _trained(model: nn.Module, x: Tensor, targets: Tensor) -> object:
    optimizer = torch.optim.AdamW(model.parameters())
    step = tw.train_step(model, F.cross_entropy, optimizer, x, targets)
    for _ in range(3):
        step(x, targets)
    return step


def _refused(model: nn.Module, x: Tensor, _: Tensor) -> object:
    def broken(x: Tensor) -> Tensor:
        y = model(x)
        return y if y.sum() > 0 else -y.nonzero()

    with pytest.raises(TilewrightError):
        tw.compile(broken, x)
    return broken


MADE: tuple[Callable[..., object], ...] = (_for_inference, _with_gradients, _trained, _refused)


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__.strip("_"))
def test_a_model_and_its_parameters_are_let_go_of(make: Callable[..., object]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    made = make(model, torch.randn(2, 8), torch.tensor([0, 1]))
    known = [weakref.ref(one) for one in (model, *model.parameters())]
    del model, made
    gc.collect()
    assert not any(ref() is not None for ref in known)
