"""The graph of a step, evaluated by the oracle in float64, is what torch's optimizers compute."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.sweep import few
from torch import nn

from tilewright.compiler import Options
from tilewright.compiler.derived import Derived
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph, Node
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify
from tilewright.ops import TABLE
from tilewright.ops.operator import expansion
from tilewright.train.step import TrainStep

STEPS = 6

SETTINGS: tuple[tuple[type[torch.optim.Optimizer], dict[str, Any]], ...] = (
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.2}),
    (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True}),
)


class Net(nn.Module):
    """Two layers, one of them without bias, and a parameter that the loss never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 2, bias=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return out


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return (
        torch.randn(4, 3, generator=source, dtype=torch.float64),
        torch.randn(4, 2, generator=source, dtype=torch.float64),
    )


def groups(net: Net) -> list[dict[str, Any]]:
    return [
        {"params": [net.first.weight, net.unused], "weight_decay": 0.0},
        {"params": [net.second.weight, net.first.bias], "lr": 0.003},
    ]


def expanded(node: Node) -> Graph:
    return expansion(TABLE[node.op], tuple(value.type for value in node.inputs), node.attrs)


@dataclass(frozen=True)
class ByTheOracle:
    """Stands where the compiled Program would: the same tensors, NumPy instead of kernels."""

    source: Graph

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        arrays = [tensor.detach().numpy() for tensor in inputs]
        outputs = evaluate(self.source, arrays, expand=expanded)
        by_name = dict(zip((value.name for value in self.source.inputs), inputs, strict=True))
        updated = {position for _, position in self.source.updates}
        with torch.no_grad():
            for name, position in self.source.updates:
                by_name[name].copy_(torch.from_numpy(np.ascontiguousarray(outputs[position])))
        return tuple(torch.tensor(o) for k, o in enumerate(outputs) if k not in updated)

    def settled(self, inputs: Sequence[torch.Tensor]) -> None:
        """No run is quicker than another."""


def by_the_oracle(
    net: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None = None
) -> TrainStep:

    def compiler(_: Graph, __: str, derive: Callable[[], Derived], ___: Options) -> Any:
        derived = derive()
        return (ByTheOracle(derived.parts[0][0]),), derived.about

    return TrainStep(net, mean_square, optimizer, batch(0), clip_norm, Options(), compiler)


@pytest.mark.parametrize("clip_norm", few([None, 0.05], 0.05))
@pytest.mark.parametrize(("cls", "settings"), SETTINGS)
def test_the_graph_of_a_step_is_the_optimizer_s_own_step(
    cls: type[torch.optim.Optimizer], settings: dict[str, Any], clip_norm: float | None
) -> None:
    ours = Net().double()
    theirs = copy.deepcopy(ours)
    optimizer = cls(groups(ours), **settings)
    reference = cls(groups(theirs), **settings)
    step = by_the_oracle(ours, optimizer, clip_norm)
    for seed in range(STEPS):
        inputs, targets = batch(seed)
        loss = step(inputs, targets)
        reference.zero_grad()
        expected = mean_square(theirs(inputs), targets)
        expected.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        reference.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)
    assert ours.unused not in optimizer.state
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine_state, other_state = optimizer.state.get(mine, {}), reference.state.get(other, {})
        assert {k for k, v in mine_state.items() if v is not None} == {
            k for k, v in other_state.items() if v is not None
        }
        for name, value in other_state.items():
            torch.testing.assert_close(mine_state[name], value, rtol=1e-11, atol=1e-13)


def test_the_graph_of_a_step_verifies_and_reads_back() -> None:
    net = Net().double()
    graph = by_the_oracle(net, torch.optim.AdamW(net.parameters()), clip_norm=1.0).graph
    verify(graph)
    assert parse(show(graph, brief=False)) == graph


def test_a_clipped_gradient_that_is_not_a_number_stays_one_everywhere() -> None:
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = batch(0)
    step = by_the_oracle(net, optimizer, clip_norm=1.0)
    step(inputs, torch.full_like(targets, float("nan")))
    assert all(p.isnan().all() for p in (*net.first.parameters(), *net.second.parameters()))
    assert not net.unused.isnan().any()
