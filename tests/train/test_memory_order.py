"""A step takes images and parameters whose channels lie last as they lie, and keeps them so."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from tests.train.nets import mean_square
from torch import nn

from tilewright import Options, train_step
from tilewright.train import TrainStep, read_checkpoint, restore, save_checkpoint

LAST = torch.channels_last
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
}


class Small(nn.Module):
    """What image nets are made of: 3 x 3, by channel, 1 x 1, norms, pools, what is made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.own, self.one = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1)
        self.down, self.last = nn.Conv2d(16, 8, 3, 2, 1), nn.Linear(24, 2)
        self.scale = nn.Parameter(torch.ones(1, 16, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        wide = self.one(self.own(x)) * self.scale
        up = F.interpolate(self.down(wide), scale_factor=2, mode="bilinear")
        out: torch.Tensor = self.last(torch.cat([wide, up], 1).mean((2, 3)))
        return out


def small(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return Small().to(dtype).to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(4, 3, 8, 8, generator=source, dtype=dtype)
    return images.to(memory_format=LAST), torch.randn(4, 2, generator=source, dtype=dtype)


def lies(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[int, ...]]:
    """Return the strides of all that a step moves, of dims that are walked along."""
    state = [optimizer.state[parameter] for parameter in net.parameters()]
    tensors = [entry[name] for entry in state for name in sorted(entry)]
    every = [*net.parameters(), *net.buffers(), *tensors]
    return [
        tuple(step for step, dim in zip(each.stride(), each.shape, strict=True) if dim > 1)
        for each in every
        if isinstance(each, torch.Tensor)
    ]


@pytest.mark.parametrize("name", few(OPTIMIZERS, "momentum", "adamw"))
def test_steps_are_those_of_eager_and_leave_all_where_it_lies(name: str) -> None:
    cls, settings = OPTIMIZERS[name]
    ours, theirs = small(torch.float64), small(torch.float64)
    optimizer, other = cls(ours.parameters(), **settings), cls(theirs.parameters(), **settings)
    step = train_step(ours, mean_square, optimizer, *batch(0, torch.float64))
    places = [parameter.data_ptr() for parameter in ours.parameters()]
    for seed in range(3):
        images, targets = batch(seed, torch.float64)
        loss = step(images, targets)
        other.zero_grad()
        expected = mean_square(theirs(images), targets)
        expected.backward()
        other.step()
        torch.testing.assert_close(loss, expected.detach())
    assert places == [parameter.data_ptr() for parameter in ours.parameters()]
    assert lies(ours, optimizer) == lies(theirs, other)
    for one, two in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"accumulate": 2}, {"frozen_part": True}])
def test_clipped_parted_and_partly_frozen_steps_are_those_of_rows(settings: dict[str, Any]) -> None:
    settings = dict(settings)
    last, rows = small(), small().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for net in (last, rows):
        net.first.requires_grad_(not settings.get("frozen_part"))
    settings.pop("frozen_part", None)
    steps = [
        train_step(net, mean_square, torch.optim.AdamW(net.parameters()), *batch(0), **settings)
        for net in (last, rows)
    ]
    for seed in range(3):
        images, targets = batch(seed)
        losses = steps[0](images, targets), steps[1](images.contiguous(), targets)
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for one, two in zip(last.parameters(), rows.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_parameters_are_read_and_written_as_they_lie() -> None:
    net = small()
    step = train_step(net, mean_square, torch.optim.AdamW(net.parameters()), *batch(0))
    inputs = step.inputs(*batch(0))
    buffers = {buffer.name: buffer for buffer in step.program.buffers}
    for given, item in zip(inputs, step.program.inputs, strict=True):
        if given.dim() == 4 and item.role.kind != "argument":
            assert buffers[item.buffer].strides == given.stride()


def test_a_step_that_is_compared_with_eager_takes_them_too() -> None:
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = train_step(net, mean_square, optimizer, *batch(0), options=Options(check="eager"))
    before = step(*batch(0))
    assert step(*batch(0)) < before


def begun(net: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return train_step(net, mean_square, optimizer, *batch(0))


def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    whole = begun(small())
    for seed in range(2):
        whole(*batch(seed))
    save_checkpoint(tmp_path / "run", whole, position=2)
    again = begun(copy.deepcopy(small()))
    restore(read_checkpoint(tmp_path / "run"), again)
    for seed in range(2, 4):
        assert torch.equal(whole(*batch(seed)), again(*batch(seed)))
    assert lies(whole.module, whole.optimizer) == lies(again.module, again.optimizer)
    for one, two in zip(whole.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_net_that_is_laid_otherwise_later_goes_on() -> None:
    net, rows = small(), small().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    steps = begun(net), begun(rows)
    for seed in range(4):
        if seed == 2:
            rows.to(memory_format=LAST)
        losses = [step(*batch(seed)) for step in steps]
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
