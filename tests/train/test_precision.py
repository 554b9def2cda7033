"""Lower precision in a step: autocast as the user has it, and the scale of a float16 loss."""

import copy
from typing import Any

import pytest
import torch
from tests.sweep import swept
from tests.train.nets import Net, adamw, assert_same, batch, mean_square, sgd
from torch.amp.grad_scaler import GradScaler

import tilewright as tw
from tilewright.models import gpt


def eager_scaled(
    net: Net, optimizer: torch.optim.Optimizer, scaler: GradScaler, tensors: Any, clip: float
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = mean_square(net(tensors[0]), tensors[1])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def overflowing() -> tuple[torch.Tensor, torch.Tensor]:
    x, target = batch(5)
    target[1, 1] = torch.inf
    return x, target


@pytest.mark.parametrize("make", [adamw, swept(sgd), swept(lambda net: sgd(net, dampening=0.5))])
def test_a_scaled_step_is_torchs_and_moves_nothing_where_the_gradient_overflows(make: Any) -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizer, reference = make(ours), make(theirs)
    mine, other = (GradScaler("cpu", init_scale=2.0**10, growth_interval=3) for _ in range(2))
    step = tw.train_step(ours, mean_square, optimizer, *batch(), clip_norm=0.5, scaler=mine)
    for seed in range(10):
        tensors = overflowing() if seed in (0, 4, 5) else batch(seed)
        loss = step(*tensors)
        expected = eager_scaled(theirs, reference, other, tensors, 0.5)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        assert_same(ours, theirs)
        assert mine.get_scale() == other.get_scale()
        assert mine.state_dict()["_growth_tracker"] == other.state_dict()["_growth_tracker"]
    steps = [entry["step"].item() for entry in optimizer.state.values() if "step" in entry]
    assert all(count == 7 for count in steps)


def test_the_scale_is_part_of_what_a_resumed_run_needs() -> None:
    net = Net()
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2)
    step = tw.train_step(net, mean_square, adamw(net), *batch(), scaler=scaler)
    for seed in range(3):
        step(*batch(seed))
    kept = copy.deepcopy(step.state_dict())
    for seed in range(3):
        step(*batch(seed))
    assert scaler.get_scale() == 64.0
    step.load_state_dict(kept)
    assert scaler.get_scale() == 16.0
    assert step.state_dict() == kept


def test_a_scaler_that_is_off_changes_nothing() -> None:
    net = Net()
    step = tw.train_step(
        net, mean_square, sgd(net), *batch(), scaler=GradScaler("cpu", enabled=False)
    )
    plain = tw.train_step(net, mean_square, sgd(net), *batch())
    assert str(step.graph) == str(plain.graph)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_master_weights_and_stays_as_close_to_float64_as_eager(
    dtype: torch.dtype,
) -> None:
    # Of one start proves nothing: a loss may be off by little by chance, and what one step is off
    # by moves the next.  Single starts have .8 to 1.8 of eager's distance.
    starts = [_losses(dtype, start) for start in range(5)]
    found, eager, exact = (
        torch.tensor(losses, dtype=torch.float64) for losses in zip(*starts, strict=True)
    )
    assert (found - exact).norm() <= 1.5 * (eager - exact).norm()


def _losses(dtype: torch.dtype, start: int) -> tuple[list[float], list[float], list[float]]:
    """Return the losses of ten steps of ours, of eager's, and of eager's in float64."""
    torch.manual_seed(start)
    ours = gpt.gpt(vocab=32, length=16, layers=1, width=32, heads=2)
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    made = [torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (ours, eager, exact)]
    scalers = [GradScaler("cpu", enabled=dtype == torch.float16) for _ in range(2)]
    with torch.autocast("cpu", dtype):
        step = tw.train_step(
            ours, gpt.loss, made[0], *gpt.example_batch(ours, 4), scaler=scalers[0]
        )
    losses: tuple[list[float], list[float], list[float]] = [], [], []
    for seed in range(10):
        ids, targets = gpt.example_batch(ours, 4, seed=seed)
        with torch.autocast("cpu", dtype):
            losses[0].append(step(ids, targets).item())
            loss = gpt.loss(eager(ids), targets)
        made[1].zero_grad()
        scalers[1].scale(loss).backward()
        scalers[1].step(made[1])
        scalers[1].update()
        made[2].zero_grad()
        truth = gpt.loss(exact(ids), targets)
        truth.backward()
        made[2].step()
        losses[1].append(loss.item())
        losses[2].append(truth.item())
    assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())
    assert any(str(value.type).startswith(("bf16", "f16")) for node in step.graph.nodes
               for value in node.outputs)  # fmt: skip
    return losses
