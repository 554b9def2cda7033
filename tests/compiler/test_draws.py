"""Random numbers in compiled functions: their share, their seeds, and gradients through them."""

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def test_dropout_keeps_the_right_share_scaled_and_lets_gradients_through_the_same_mask() -> None:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x, 0.3)

    x = torch.ones(100, 100, requires_grad=True)
    compiled = torch.compile(f, backend="tilewright")
    first, second = compiled(x), compiled(x)
    kept = first != 0
    # Five standard deviations of a mean of 10,000 draws.
    assert abs(float(kept.float().mean()) - 0.7) < 5 * (0.21 / 10_000) ** 0.5
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / 0.7))
    assert not torch.equal(first, second)
    first.sum().backward()
    torch.testing.assert_close(x.grad, first.detach())


def test_rrelu_scales_the_gradient_by_the_slopes_that_it_drew(fallbacks: list[str]) -> None:
    x = torch.linspace(-2, 2, 40, requires_grad=True)
    made = torch.compile(lambda x: F.rrelu(x, 0.1, 0.3, True), backend="tilewright")(x)
    slopes = (made / x).detach()
    assert torch.equal(slopes[20:], torch.ones(20))
    assert bool(((slopes[:20] >= 0.1) & (slopes[:20] <= 0.3)).all())
    assert len(slopes[:20].unique()) > 1
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x)[0], slopes)
    rest = torch.compile(lambda x: F.rrelu(x, 0.1, 0.3), backend="tilewright")(x)
    torch.testing.assert_close(rest, F.rrelu(x, 0.1, 0.3))
    assert fallbacks == []


def test_equal_seeds_give_equal_masks() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tilewright")
    x = torch.ones(50)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(compiled(x))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
