"""Attention where no kernel of torch's runs in eager: its gradients are as exact as eager's."""

import pytest
import torch
import torch.nn.functional as F

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


@pytest.mark.parametrize("size", [1.0, 300.0])
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
