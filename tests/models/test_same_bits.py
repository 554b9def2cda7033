"""A saved Program gives the same bits on every run; kernels of ours for any number of threads."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.sweep import few

import tilewright as tw
from tilewright.models import FACTORIES
from tilewright.program import Program

RUNS = (1, 2, 1, 3)
"""Threads, run after run."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def programs(name: str, *, library: bool) -> Iterator[tuple[Program, list[torch.Tensor]]]:
    """Yield a training step and an inference of a model, each with its inputs."""
    place, factory = dict(FACTORIES)[name].split(":")
    module = importlib.import_module(place)
    options = tw.Options(library=library)
    torch.manual_seed(0)
    model = getattr(module, factory)()
    x, y = module.example_batch(model, 8, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = tw.train_step(model, module.loss, optimizer, x, y, options=options)
    yield step.program, step.inputs(x, y)
    model.eval()
    with torch.no_grad():
        compiled = tw.compile(model, x, options=options)
    yield compiled.program, compiled.captured.bind((x,), {})


@pytest.mark.parametrize("library", [True, False], ids=["library", "ours"])
@pytest.mark.parametrize("name", few([name for name, _ in FACTORIES], "mlp", "gpt-small"))
def test_runs_and_threads_change_no_bit(name: str, library: bool, tmp_path: Path) -> None:
    for program, given in programs(name, library=library):
        file = tmp_path / "one.program"
        program.save(file)
        loaded, first = tw.load(file), None
        for count in RUNS:
            torch.set_num_threads(count)
            inputs = [tensor.detach().clone() for tensor in given]
            found = [*loaded.run(inputs), *inputs]  # what is written in place counts too
            first = first or found
            for one, other in zip(first, found, strict=True):
                assert torch.equal(bits(one), bits(other)), f"{program.name}, {count} threads"
