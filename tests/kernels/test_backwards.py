"""What is read backwards, where only some of its elements are needed, is the right element."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import tilewright as tw

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": lambda x, y: torch.where(y.relu() <= 0, 0, x.flip(-1)) * y,
    "rounded": lambda x, y: x.bfloat16().float().flip(-1).relu() * y,
    "where": lambda x, y: torch.where(y > 0, x.flip(-1), y),
    "both": lambda x, y: torch.where(y.flip(0) > 0, x.flip(0, -1), -y),
    "padded": lambda x, y: F.pad(x.flip(-1), (2, 1))[..., 1:-2] * y,
    "reflected": lambda x, y: F.pad(x, (1, 1), mode="reflect")[..., 2:] + y,
    "rot90": lambda x, y: torch.rot90(x, 2, (-2, -1)).clamp(-0.5, 0.5) * y,
    "leaky": lambda x, y: F.leaky_relu(x.flip(-1)) + y.relu().flip(-1),
}


@pytest.mark.parametrize("shape", [(4, 1, 4), (4, 16), (3, 5, 8), (2, 100), (7, 3)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_are_eager_s(name: str, shape: tuple[int, ...]) -> None:
    fn = FUNCTIONS[name]
    draw = torch.Generator().manual_seed(len(shape))
    x, y, dy = (torch.randn(shape, generator=draw) for _ in range(3))
    inputs = [x.requires_grad_(), y.requires_grad_()]
    found, expected = tw.compile(fn, *inputs)(*inputs), fn(*inputs)
    torch.testing.assert_close(found, expected)
    asked = [torch.autograd.grad(result, inputs, dy) for result in (found, expected)]
    near = 2**-8 if name == "rounded" else 1e-6  # a gradient through bfloat16 is rounded to it
    torch.testing.assert_close(asked[0], asked[1], rtol=near, atol=near)
