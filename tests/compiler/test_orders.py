"""Short rows are sorted by counting where no library may be: ties and NaN as torch has them."""

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import LibraryCallError

OWN = tw.Options(library=False)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_sorts_are_stable(dim: int, descending: bool, dtype: torch.dtype) -> None:
    x = torch.randint(-4, 4, (5, 7, 6)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        x[1, :2, 4], x[2, 1, 1], x[2, 2, 2] = torch.nan, -0.0, 0.0

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sort(x, dim=dim, descending=descending, stable=True)

    found, expected = tw.compile(function, x, options=OWN)(x), function(x)
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [1, 3, 9])
def test_the_first_few_and_their_gradient(k: int, largest: bool) -> None:
    x = torch.randn(4, 9, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.topk(x, k, 1, largest)[0] * torch.arange(1.0, k + 1)).sum()

    (found,) = torch.autograd.grad(tw.compile(function, x, options=OWN)(x), x)
    (expected,) = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(found, expected)


def test_long_rows_are_the_library_s() -> None:
    with pytest.raises(LibraryCallError, match=r"aten\.sort"):
        tw.compile(lambda x: torch.sort(x)[1], torch.randn(2, 300), options=OWN)


@pytest.mark.parametrize("length", [65, 128, 300])
@pytest.mark.parametrize("dim", [0, 1])
def test_long_running_sums_and_their_gradients(length: int, dim: int) -> None:
    shape = (3, length) if dim else (length, 3)
    x = torch.randn(shape, requires_grad=True)
    y = tw.compile(lambda x: torch.cumsum(x, dim), x, options=OWN)(x)
    expected, tangent = torch.cumsum(x.double(), dim), torch.randn(shape)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)
    (found,) = torch.autograd.grad(y, x, tangent)
    exact = torch.flip(torch.cumsum(torch.flip(tangent.double(), (dim,)), dim), (dim,))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


def test_running_sums_of_whole_numbers_are_exact() -> None:
    x = torch.randint(-9, 9, (1000, 2), dtype=torch.int8)
    found = tw.compile(lambda x: torch.cumsum(x, 0), x, options=OWN)(x)
    assert found.dtype == torch.int64
    assert torch.equal(found, torch.cumsum(x, 0))


def test_a_mixture_of_experts_trains_without_the_library() -> None:
    from tilewright.models.moe import example_batch, loss, moe

    losses = []
    for options in (tw.Options(), OWN):
        torch.manual_seed(0)
        model = moe(vocab=64, length=48, layers=1, width=32)
        batch = example_batch(model, 2)
        step = tw.train_step(model, loss, torch.optim.AdamW(model.parameters()), *batch,
                             options=options)  # fmt: skip
        losses.append([step(*batch).item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
