"""Dims turned round: values, gradients and sizes that vary, beside eager."""

import numpy as np
import pytest
import torch

import tilewright as tw


def rolls() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Shapes, shifts and dims: of size 1, empty, named twice, in any order, and by any distance."""
    rng = np.random.default_rng(0)
    found = [((7,), (0,), (0,)), ((1,), (3,), (0,)), ((0, 4), (1, 1), (0, 1)), ((4, 0), (2,), (1,))]
    for rank in (1, 2, 3, 2, 3, 4):
        shape = tuple(int(n) for n in rng.choice([1, 2, 5, 33, 70], rank))
        count = int(rng.integers(1, rank + 2))
        dims = tuple(int(dim) for dim in rng.integers(-rank, rank, count))
        found.append((shape, tuple(int(n) for n in rng.integers(-99, 99, count)), dims))
    return found


@pytest.mark.parametrize(("shape", "shifts", "dims"), rolls())
def test_rolls_and_their_gradients_are_torchs(
    shape: tuple[int, ...], shifts: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(shape).to(dtype).requires_grad_()
        for lying in (x, x.mT if len(shape) > 1 else x.flip(0)):
            expected = torch.roll(lying, shifts, dims)
            found = tw.compile(lambda x: torch.roll(x, shifts, dims), lying)(lying)
            assert torch.equal(found, expected)
            dy = torch.randn(expected.shape).to(dtype)
            mine, theirs = (
                torch.autograd.grad(y, x, dy, retain_graph=True)[0] for y in (found, expected)
            )
            assert torch.equal(mine, theirs)


def test_rolls_along_a_dim_that_varies() -> None:
    compiled = torch.compile(
        lambda x: torch.roll(x, (2, -3), (0, 1)), backend="tilewright", dynamic=True
    )
    for shape in ((5, 7), (9, 4), (3, 40)):
        x = torch.randn(shape, requires_grad=True)
        expected, found = torch.roll(x, (2, -3), (0, 1)), compiled(x)
        assert torch.equal(found, expected)
        dy = torch.randn(shape)
        mine, theirs = (torch.autograd.grad(y, x, dy)[0] for y in (found, expected))
        assert torch.equal(mine, theirs)
