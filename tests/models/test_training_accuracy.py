"""The models train as exactly as float32 allows: judged by eager in float64."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.sweep import few
from torch import nn

import tilewright as tw
from tilewright.models import convnet, gpt, lstm, mlp, moe

Tensor = torch.Tensor
Batch = tuple[Tensor, Tensor]

# Name -> module of models, factory, examples in a batch.
MODELS: dict[str, tuple[Any, Callable[[], nn.Module], int]] = {
    "mlp": (mlp, mlp.mlp, 32),
    "gpt small": (gpt, gpt.gpt_small, 4),
    "gpt": (gpt, gpt.gpt, 1),
    "moe": (moe, moe.moe, 2),
    "lstm": (lstm, lstm.lstm, 4),
    "convnet": (convnet, convnet.convnet, 4),
}


class WithLoss(nn.Module):
    """A model and its loss as one function of the batch."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.model(inputs), targets)


def _doubled(batch: Batch) -> Batch:
    inputs, targets = batch
    return (inputs.double() if inputs.is_floating_point() else inputs), targets


def _build(name: str, seed: int) -> tuple[WithLoss, Callable[[int], Batch]]:
    module, factory, size = MODELS[name]
    torch.manual_seed(seed)
    model = factory()
    return WithLoss(model, module.loss), lambda at: module.example_batch(model, size, seed=at)


# Where a ReLU is so near to its kink that rounding opens or shuts it, a gradient is off by a
# thousandth, in eager's float32 as in ours (docs/decisions/0007): which starts are free of that
# differs from machine to machine.  Of one example most are; GOOD of them have to be.
STARTS = {"convnet": range(4)}
GOOD = 2


@pytest.mark.parametrize("name", few(MODELS, "mlp", "gpt small"))
def test_gradients_of_the_first_step_are_float64s_to_five_digits(name: str) -> None:
    _assert_exact(name, tw.Options())


# Which experts come first is what torch's topk says.
@pytest.mark.parametrize("name", few([name for name in MODELS if name != "moe"], "mlp"))
def test_so_are_gradients_without_the_library(name: str) -> None:
    _assert_exact(name, tw.Options(library=False))


def _assert_exact(name: str, options: tw.Options) -> None:
    starts = STARTS.get(name, (0,))
    wanted = min(GOOD, len(starts))
    found = []
    for start in starts:
        found.append(_largest_error(name, start, options))
        if sum(error <= 1e-5 for _, error in found) == wanted:
            return
    raise AssertionError(f"the largest errors by start: {found}")


def _largest_error(name: str, start: int, options: tw.Options) -> tuple[str, float]:
    ours, batches = _build(name, start)
    exact = copy.deepcopy(ours).double()
    inputs, targets = batches(0)
    batch = (inputs[:1], targets[:1]) if name in STARTS else (inputs, targets)
    tw.compile(ours, *batch, options=options)(*batch).backward()
    exact(*_doubled(batch)).backward()
    errors = {}
    for (key, mine), true in zip(ours.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None, key
        assert true.grad is not None, key
        errors[key] = ((mine.grad.double() - true.grad).norm() / true.grad.norm()).item()
    return max(errors.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])


@pytest.mark.sweep
def test_where_no_kink_intervenes_gradients_are_as_exact_as_eagers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One ReLU that another rounding opens or shuts moves a gradient by a thousandth, in eager as
    # in ours.  With a smooth function in its place what is left is the rounding itself.
    monkeypatch.setattr(convnet.F, "relu", torch.nn.functional.softplus)
    ours, batches = _build("convnet", 0)
    exact = copy.deepcopy(ours).double()
    # Eager's two convolutions differ from each other by more than a tenth of their errors.
    eager = [copy.deepcopy(ours), copy.deepcopy(ours).to(memory_format=torch.channels_last)]  # type: ignore[call-overload]
    batch = batches(0)
    tw.compile(ours, *batch)(*batch).backward()
    for net in eager:
        net(*batch).backward()
    exact(*_doubled(batch)).backward()

    def errors(net: nn.Module) -> torch.Tensor:
        grads = [[p.grad for p in each.parameters()] for each in (net, exact)]
        assert all(grad is not None for grad in grads[0])
        return torch.stack([(g.double() - true).norm() for g, true in zip(*grads, strict=True)])

    ratios = errors(ours) / torch.maximum(*map(errors, eager))
    assert ratios.max() <= 2
    assert ratios.mean() <= 1.1


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "convnet":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def _eager_losses(
    net: WithLoss, optimizer: torch.optim.Optimizer, batches: Callable[[int], Batch], *, wide: bool
) -> Iterator[float]:
    for at in range(30):
        batch = _doubled(batches(at)) if wide else batches(at)
        optimizer.zero_grad()
        loss = net(*batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


def _nudged(net: WithLoss, seed: int) -> WithLoss:
    """Return a copy whose weights are a rounding away."""
    nudged = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in nudged.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.mul_(1 + noise * 2**-23)
    return nudged


def _as_eager(net: WithLoss) -> list[WithLoss]:
    """Return copies of a network that eager runs with different roundings.

    Of a network with kinks one float32 run proves nothing: an activation that another rounding
    opens or shuts changes the loss of the next step by more than rounding does, and each step
    multiplies that by about ten.  PyTorch's own two convolutions then differ from each other by a
    hundred times their distance from float64 one step before (docs/decisions/0007).  A router that
    stands between two experts is such a kink: of six eager runs from weights one rounding apart,
    two change to the other expert at step 24 of seed 2, and lose what ours does.
    """
    copies = [copy.deepcopy(net)]
    convolves, routes = (
        any(isinstance(module, kind) for module in net.modules())
        for kind in (nn.Conv2d, moe.Experts)
    )
    if convolves:
        copies.append(copy.deepcopy(net).to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    copies += [_nudged(net, seed) for seed in range(6 if routes else convolves)]
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_thirty_steps_stay_as_close_to_float64_as_eager(name: str, seed: int) -> None:
    ours, batches = _build(name, seed)
    exact = copy.deepcopy(ours).double()
    runs = [
        _eager_losses(net, _optimizer(name, net), batches, wide=False) for net in _as_eager(ours)
    ]
    module = MODELS[name][0]
    step = tw.train_step(ours.model, module.loss, _optimizer(name, ours.model), *batches(0))
    truths = _eager_losses(exact, _optimizer(name, exact), batches, wide=True)
    widest = 0.0
    for at, (truth, *losses) in enumerate(zip(truths, *runs, strict=True)):
        widest = max(widest, *(abs(loss - truth) for loss in losses))
        found = step(*batches(at)).item()
        assert abs(found - truth) <= 2 * widest + 1e-6 * abs(truth), f"step {at}"
