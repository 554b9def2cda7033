"""Functions of torch through torch.compile: values and gradients are eager's, judged by float64."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.functions import FUNCTIONS, IN_PLACE
from tests.models.agreement import disagreements, in_double, outcome
from torch import nn

import tilewright as tw

Tensor = torch.Tensor


class OfParameters(nn.Module):
    """A function of parameters alone."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(5)
        values = (torch.randn(shape, generator=source) for shape in shapes)
        self.values = nn.ParameterList([nn.Parameter(value) for value in values])
        self.function = function

    def forward(self) -> Any:
        return self.function(*self.values)


def _assert_eager(module: nn.Module, *, train: bool) -> None:
    ours, eager = copy.deepcopy(module), copy.deepcopy(module)
    exact = in_double(module, {}, train=train)
    expected = outcome(eager, eager, {}, train=train)
    found = outcome(torch.compile(ours, backend="tilewright"), ours, {}, train=train)
    assert disagreements(found, expected, exact) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_eager(name: str, train: bool) -> None:
    function, *shapes = FUNCTIONS[name]
    _assert_eager(OfParameters(function, *shapes), train=train)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_done_in_place_is_eager(name: str) -> None:
    change = IN_PLACE[name]

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x * 1, y * 1
        change(first, second)
        return first, second

    _assert_eager(OfParameters(function, (3, 4), (3, 4)), train=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_at_infinity_is_that_of_float64(dtype: torch.dtype, approximate: str) -> None:
    """Decision 0006: eager's own kernels differ here; in float32 its erf form gives NaN."""
    inf = float("inf")
    x = torch.tensor([inf, -inf, float("nan"), 1e30, -1e30, 3e38, -3e38, -0.0, 0.0]).to(dtype)
    x = x.repeat(5)  # whole vectors of a kernel and its rest

    def gelu(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate=approximate)

    found = tw.compile(gelu, x)(x)
    expected = gelu(x.double()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.nan_to_num().signbit(), expected.nan_to_num().signbit())
    assert found[:3].tolist() == pytest.approx([inf, float("nan"), float("nan")], nan_ok=True)
