"""Attention where no kernel of torch's runs in eager: its gradients are as exact as eager's."""

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few

import tilewright as tw
from tilewright.program import LibraryCall, flat

Tensor = torch.Tensor

# Many rows: where scores are large, only a few that are nearly tied have any gradient.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "of rank 3": ((256, 24, 8), None),
    "of rank 3 with a mask": ((256, 24, 8), (24, 24)),
    "with a mask": ((64, 4, 24, 8), (64, 1, 24, 24)),
}


def _gradients(call: object, operands: list[Tensor], dy: Tensor) -> list[Tensor]:
    leaves = [operand.clone().requires_grad_() for operand in operands]
    assert callable(call)
    return list(torch.autograd.grad(call(*leaves), leaves, dy.to(leaves[0].dtype)))


@pytest.mark.parametrize("size", few([1.0, 300.0], 300.0))
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_as_close_to_float64_as_eagers(
    name: str, size: float, fallbacks: list[str]
) -> None:
    shape, mask = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(shape, generator=generator) for _ in range(4))
    operands = [q * size, k, v]
    if mask is not None:
        operands.append(torch.randn(mask, generator=generator) * size)
    attention = F.scaled_dot_product_attention
    compiled = torch.compile(lambda *given: attention(*given), backend="tilewright")
    found = _gradients(compiled, operands, dy)
    eager = _gradients(attention, operands, dy)
    exact = _gradients(attention, [operand.double() for operand in operands], dy)
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert float((ours - true).norm()) <= 2 * float((theirs - true).norm())
    assert fallbacks == []


# Both sides of the size from which a library's kernel is asked where it may be.
LENGTHS = (17, 96)


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("length", few(LENGTHS, 96))
def test_attention_without_a_library_is_eager_s(length: int, causal: bool) -> None:
    q, k, v, dy = (torch.randn(2, 4, length, 64, dtype=torch.float64) for _ in range(4))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    leaves = [operand.requires_grad_() for operand in (q, k, v)]
    compiled = tw.compile(f, *leaves, options=tw.Options(library=False))
    y = compiled(*leaves)
    torch.testing.assert_close(y, f(*leaves), rtol=1e-11, atol=1e-12)
    found, expected = (torch.autograd.grad(r, leaves, dy) for r in (y, f(*leaves)))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    program = compiled.program
    assert not any(isinstance(step, LibraryCall) for step in flat(program.instructions))
