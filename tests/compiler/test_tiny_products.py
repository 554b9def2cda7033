"""Products of many tiny matrices are plain loops: tiles of sums would take longer to set up."""

from collections.abc import Callable

import pytest
import torch
from tests.compiler.threads import assert_threads_change_no_bit
from tests.kernels.harness import runnable
from torch import Tensor

import tilewright as tw
from tilewright.runtime import NATIVE, segments

SHAPES = [(3, 3, 3), (4, 4, 4), (5, 7, 6), (3, 16, 3), (16, 3, 3), (2, 1, 9), (1, 8, 32)]
ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NN": lambda a, b: a @ b,
    "NT": lambda a, b: a @ b.mT.contiguous().mT,
    "TN": lambda a, b: a.mT.contiguous().mT @ b,
    "batch last": lambda a, b: torch.einsum("mkz,knz->zmn", a.permute(1, 2, 0), b.permute(1, 2, 0)),
    "scaled, and more": lambda a, b: torch.relu(a @ b * 0.5 + 1),
}


def operands(batch: int, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m * 100 + k * 10 + n)
    a = torch.randn(batch, m, k, generator=generator, dtype=torch.float64)
    b = torch.randn(batch, k, n, generator=generator, dtype=torch.float64)
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", [NATIVE, "x86-64-v3"])
def test_products_of_tiny_matrices_are_right(order: str, target: str) -> None:
    if target != NATIVE:
        runnable(target)
    pairs = [operands(67, *shape, torch.float32) for shape in SHAPES]
    numbers = [number for pair in pairs for number in pair]

    def all_of_them(*numbers: Tensor) -> list[Tensor]:
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [ORDERS[order](a, b) for a, b in pairs]

    compiled = tw.compile(all_of_them, *numbers, options=tw.Options(library=False, target=target))
    assert "contract" not in compiled.explain()
    exact = all_of_them(*(number.double() for number in numbers))
    for mine, other in zip(compiled(*numbers), exact, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_are_right_too(dtype: torch.dtype) -> None:
    a, b = operands(64, 4, 4, 4, dtype)
    found = tw.compile(torch.matmul, a, b)(a, b)
    assert found.dtype == dtype
    exact = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(found, exact, rtol=1e-12 if dtype.itemsize == 8 else 2**-8, atol=0)


def test_gradients_of_tiny_products_are_right() -> None:
    a, b = operands(70, 3, 5, 4, torch.float32)
    leaves = [a.requires_grad_(), b.requires_grad_()]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found = torch.autograd.grad(tw.compile(torch.matmul, a, b)(a, b).square().sum(), leaves)
    wanted = torch.autograd.grad((exact[0] @ exact[1]).square().sum(), exact)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_spreads_as_in_eager() -> None:
    a, b = operands(64, 3, 3, 3, torch.float32)
    a[0, 0, 0], a[1, 1, 1], b[2, 0, 0] = float("nan"), float("inf"), float("-inf")
    b[1, 1] = 0
    found = tw.compile(torch.matmul, a, b)(a, b)
    torch.testing.assert_close(found, a @ b, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    a, b = operands(4096, 4, 4, 4, torch.float32)
    compiled = tw.compile(torch.matmul, a, b)
    assert segments.is_wide(compiled.program)
    assert_threads_change_no_bit(lambda: [compiled(a, b)])


def test_few_products_keep_their_tiles() -> None:
    a, b = operands(2, 4, 4, 4, torch.float32)
    assert "contract" in tw.compile(torch.matmul, a, b, options=tw.Options(library=False)).explain()
