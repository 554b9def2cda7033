"""`Options(random="torch")`: every draw is eager's, bit for bit, on every road, backward too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.cases import uniform
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

import tilewright as tw
from tilewright.train.chance import seeded_by

TORCH = tw.Options(random="torch")

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3) + F.dropout(x * 2, 0.5),
    "dropout of half types": lambda x: F.dropout(x.bfloat16(), 0.3).float(),
    "rand": lambda x: x * torch.rand(3, 5) + torch.rand_like(x),
    "normal": lambda x: x * torch.randn(3, 5) + torch.normal(torch.zeros(3, 5), torch.ones(3, 5)),
    "bernoulli": lambda x: (
        x * torch.bernoulli(torch.full((3, 5), 0.4)) + torch.bernoulli(x.detach().sigmoid())
    ),
    "draws from what asks for gradients": lambda x: (
        x * torch.bernoulli(x.sigmoid()) + torch.normal(x, x * x) * torch.poisson(x * x)
    ),
    "draws in place of what asks for gradients": lambda x: (
        x * (x * 1).exponential_() + (x * 2).uniform_()
    ),
    "nothing but a draw": lambda x: torch.bernoulli(x.sigmoid()),
}


def _torch_compile(fn: Callable[[Tensor], Tensor], _: Tensor) -> Callable[[Tensor], Tensor]:
    compiled: Callable[[Tensor], Tensor] = torch.compile(
        fn, backend="tilewright", options={"random": "torch"}
    )
    return compiled


def _tw_compile(fn: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[Tensor], Tensor]:
    return tw.compile(fn, x, options=TORCH)


@pytest.mark.parametrize("road", [_torch_compile, _tw_compile])
@pytest.mark.parametrize("name", DRAWS)
def test_compiled_draws_are_eagers(name: str, road: Any) -> None:
    torch._dynamo.reset()
    fn = DRAWS[name]
    x = torch.randn(3, 5, requires_grad=True)
    compiled = road(fn, x)
    for seed in range(3):
        found = []
        for each in (compiled, fn):
            torch.manual_seed(seed)
            result = each(x)
            (gradient,) = torch.autograd.grad(result.sum(), x)
            found.append((result, gradient, torch.get_rng_state()))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)


def test_a_draw_does_not_change_with_what_it_is_drawn_from() -> None:
    x = torch.rand(3, 5)
    _, change = tw.jvp(lambda x: torch.bernoulli(x) + x.sin(), (x,), (torch.ones(3, 5),))
    torch.testing.assert_close(change, x.cos())


class Dropped(nn.Module):
    """Two masks of a weight, so that a step shows what was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x * self.weight, 0.5), 0.25)


def _loss(y: Tensor, _: Tensor) -> Tensor:
    return y.sum()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_draws_eagers_masks_forward_and_backward(parts: int) -> None:
    ours, theirs = Dropped(), Dropped()
    x = torch.ones(2, 64)
    step = tw.train_step(
        ours, _loss, torch.optim.SGD(ours.parameters(), lr=1.0), x, x,
        accumulate=parts, options=TORCH,
    )  # fmt: skip
    assert seeded_by(step.graph) is None
    reference = torch.optim.SGD(theirs.parameters(), lr=1.0)
    torch.manual_seed(5)
    for _ in range(3):
        step(x, x)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    for _ in range(3):
        reference.zero_grad()
        for part in x.chunk(parts):
            (_loss(theirs(part), part) / parts).backward()
        reference.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(after, torch.get_rng_state())


def test_left_out_a_steps_masks_are_a_function_of_its_seed() -> None:
    net, x = Dropped(), torch.ones(2, 64)
    step = tw.train_step(net, _loss, torch.optim.SGD(net.parameters(), lr=1.0), x, x)
    assert seeded_by(step.graph) == "seed"
    before = torch.get_rng_state()
    step(x, x)
    assert torch.equal(before, torch.get_rng_state())


class DroppedInSteps(nn.Module):
    """Masks before a scan, in its steps, and in the branches of a cond in them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            kept = F.dropout(row * self.weight, 0.5)
            chosen = torch.cond(
                row.sum() > 0, lambda r: F.dropout(r, 0.5), lambda r: F.dropout(r, 0.75), (row,)
            )
            return carry * 1, torch.cat([kept, chosen])

        first = F.dropout(x[0], 0.5)
        last, rows = scan(step, first, x)
        return torch.cat([last[None], rows.reshape(-1, 4)])


def test_masks_in_bodies_are_numbers_of_the_steps_seed() -> None:
    net, x = DroppedInSteps(), torch.ones(3, 4, dtype=torch.float64)
    x[1] *= -1
    # Every element has a bit of the loss to itself.
    bits = 2.0 ** torch.arange(28, dtype=torch.float64).reshape(7, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    step = tw.train_step(net, lambda y, _: (y * bits).sum(), optimizer, x, x)
    step.seed = 7
    before = torch.get_rng_state()
    loss = step(x, x).detach()
    assert torch.equal(before, torch.get_rng_state())
    draws = [uniform(torch.tensor(7), (4,), stream).double() for stream in range(7)]
    keeps = [0.5, 0.5, 0.5, 0.5, 0.25, 0.5, 0.5]  # the second row takes the other branch
    scales = torch.stack([(d < q) / q for d, q in zip(draws, keeps, strict=True)])
    signs = torch.tensor([1, 1, 1, -1, -1, 1, 1], dtype=torch.float64)[:, None]
    assert loss == (scales * signs * bits).sum()
    assert torch.equal(net.weight.detach(), 1 - (scales * signs * bits)[1::2].sum(0))
