"""Whole training steps as C that runs without Python: each buffer between walls, sanitized."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.standalone import run_standalone
from tests.sweep import swept
from torch import nn

import tilewright as tw
from tilewright.models import gpt, lstm, mlp
from tilewright.runtime import observe, write_standalone

Tensor = torch.Tensor


def squares(found: Tensor, wanted: Tensor) -> Tensor:
    return ((found - wanted) ** 2).mean()


def windows() -> nn.Module:
    """Convolutions of odd extents: strided, padded, in groups, transposed; pools, a batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(6, 9, 3, groups=3, padding=2, dilation=2),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(9, 4, 3, stride=2),
        nn.Flatten(),
        nn.LazyLinear(7),
    )


def of_windows() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    model, x = windows(), torch.randn(3, 3, 29, 33)
    wanted = torch.randn(model(x).shape)
    return model, squares, (x, wanted)


def of_winograd() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    """Many squares, whose kernels are transformed first, and few, whose kernels are not."""
    many, few = nn.Conv2d(128, 40, 3, padding=1), nn.Conv2d(40, 17, 3, padding=1)
    model = nn.Sequential(many, nn.AvgPool2d(7), few)
    return model, squares, (torch.randn(8, 128, 28, 28), torch.randn(8, 17, 4, 4))


def of_recurrences() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([nn.LSTM(5, 7, num_layers=2), nn.GRU(7, 3), nn.RNN(3, 9)])

        def forward(self, x: Tensor) -> Tensor:
            for cell in self.cells:
                x, _ = cell(x)
            return x[-1]

    return Last(), squares, (torch.randn(11, 3, 5), torch.randn(3, 9))


def of_mlp() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    model = mlp.mlp()
    return model, mlp.loss, mlp.example_batch(model, 5)


def of_gpt() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    model = gpt.gpt_small()
    return model, gpt.loss, gpt.example_batch(model, 2)


def of_lstm() -> tuple[nn.Module, Any, Sequence[Tensor]]:
    model = lstm.lstm()
    return model, lstm.loss, lstm.example_batch(model, 2)


@pytest.mark.parametrize(
    "make",
    [
        of_mlp,
        swept(of_windows),
        swept(of_winograd),
        swept(of_recurrences),
        swept(of_gpt),
        swept(of_lstm),
    ],
)
def test_training_steps_pass_the_sanitizers(
    make: Callable[[], tuple[nn.Module, Any, Sequence[Tensor]]], tmp_path: Path
) -> None:
    model, loss, batch = make()
    optimizer = torch.optim.AdamW(model.parameters())
    options = tw.Options(library=False)
    step = tw.train_step(model, loss, optimizer, *batch, clip_norm=1.0, options=options)
    inputs = [value.detach().numpy() for value in step.inputs(*batch)]
    program = step.built.program
    winograd = any("winograd" in kernel.name for kernel in program.kernels)
    assert winograd == (make is of_winograd)
    write_standalone(program, observe(program, inputs), tmp_path)
    assert run_standalone(tmp_path, "sanitize") == ""
