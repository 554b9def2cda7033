"""A compiled module follows its module: mode, parameters, gradients, autocast."""

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import ShapeError


def test_training_mode_is_followed_both_ways() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
    model.train()
    torch.manual_seed(1)
    dropped = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(dropped, model(x))


def test_another_parameter_in_the_place_of_one_is_used() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    model.weight = torch.nn.Parameter(torch.zeros(4, 4))
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.weight.grad is not None


def test_autocast_is_followed() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    compiled = tw.compile(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
    assert compiled(x).dtype == torch.float32


def test_what_was_compiled_without_gradients_has_them_when_they_are_on() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = tw.compile(model, x)
    compiled(x).sum().backward()
    assert model.weight.grad is not None


def test_a_call_that_does_not_fit_is_refused_after_a_change_too() -> None:
    model = torch.nn.Dropout(0.5)
    compiled = tw.compile(model, torch.randn(3, 4))
    model.eval()
    with pytest.raises(ShapeError, match="another shape"):
        compiled(torch.randn(2, 4))
