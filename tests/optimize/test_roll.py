"""Loops that are written out become scans, equal to what they were; and nothing else does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.sweep import few
from torch import nn

import tilewright as tw
from tilewright.capture import capture
from tilewright.graph.control import scan_of
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import SCAN, Graph, Node
from tilewright.graph.passes import run
from tilewright.graph.verify import verify
from tilewright.optimize import RollLoops
from tilewright.optimize.expand import Expand

Tensor = torch.Tensor
STEPS = 9


def stacked(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(x.shape[1]):
        h = torch.tanh(h @ w + x[:, at])
        found.append(h)
    return torch.stack(found, 1)


def joined_backwards(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """From the last step to the first, one row at a time, with the last state beside."""
    h, found = torch.zeros(2, 1, 4, dtype=x.dtype), []
    for at in reversed(range(x.shape[1])):
        h = torch.sin(h @ w) * x[:, at : at + 1]
        found.append(h * 2)
    return torch.cat(found[::-1], 1), h


def two_carries(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every second step; a state that is read from two steps ago; one step is read by itself."""
    old, h, found, others = x[:, 0], x[:, 1], [], []
    for at in range(1, 2 * STEPS, 2):
        old, h = h, torch.tanh(h @ w) + old * x[:, at]
        found.append(h)
        others.append(old + 1)
    return torch.stack(found), torch.stack(others, -1), found[3].exp() + h


def like_mamba(x: Tensor, w: Tensor) -> Tensor:
    """The slow road of a state-space model: slices of four tensors, a product, a stack."""
    a, b, c = (torch.exp(-torch.sigmoid(x @ w[:, k:]))[..., :2] for k in range(3))
    state, found = torch.zeros(2, 4, 2, dtype=x.dtype), []
    for at in range(x.shape[1]):
        state = a[:, None, at, :] * state + b[:, at, None, :] * x[:, at, :, None]
        found.append(torch.matmul(state, c[:, at, :].unsqueeze(-1))[:, :, 0])
    return torch.stack(found, dim=-1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(2, 3, dtype=x.dtype)
        found = []
        for row in x.unbind(1):
            h, c = self.cell(row, (h, c))
            found.append(h)
        return torch.stack(found)


LOOPS: dict[str, Callable[..., Any]] = {
    "stacked": stacked,
    "joined backwards": joined_backwards,
    "two carries": two_carries,
    "like mamba": like_mamba,
}


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _scans(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == SCAN]


def _equal(graph: Graph, made: Graph, tensors: list[Tensor]) -> None:
    arrays = [tensor.detach().numpy() for tensor in tensors]
    expected, found = (evaluate(run(g, (Expand(),)), arrays) for g in (graph, made))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", few(LOOPS, "two carries", "like mamba"))
def test_a_loop_that_is_written_out_becomes_a_scan(name: str) -> None:
    x, w = _drawn(2, 2 * STEPS if name == "two carries" else STEPS, 4), _drawn(4, 4, seed=1)
    captured = capture(LOOPS[name], x, w)
    made = RollLoops()(captured.graph)
    verify(made)
    (scan,) = _scans(made)
    assert scan_of(scan).length == STEPS
    assert [v.type for v in made.outputs] == [v.type for v in captured.graph.outputs]
    _equal(captured.graph, made, captured.bind((x, w), {}))


@pytest.mark.sweep
def test_the_size_of_the_graph_does_not_depend_on_the_number_of_steps() -> None:
    w = _drawn(4, 4, seed=1)
    counts = []
    for steps in (8, 20):
        graph = RollLoops()(capture(like_mamba, _drawn(2, steps, 4), w).graph)
        counts.append(sum(1 + sum(len(body.nodes) for body in n.graphs) for n in graph.nodes))
    assert counts[0] == counts[1]


def test_the_last_state_alone_is_a_carry_and_is_not_stacked() -> None:
    graph = capture(joined_backwards, _drawn(2, STEPS, 4), _drawn(4, 4, seed=1)).graph
    (scan,) = _scans(RollLoops()(graph))
    assert len(scan.outputs) == 2, "the last state, and what is joined"


def test_a_cell_in_a_loop_trains_as_in_eager() -> None:
    net, x = Cell().double(), _drawn(2, STEPS, 4).requires_grad_()
    compiled = tw.compile(net, x)
    assert len(_scans(compiled._runs.graph)) == 1
    ours, theirs = compiled(x), net(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    wrt = [x, *net.parameters()]
    pairs = (torch.autograd.grad(value.pow(2).sum(), wrt) for value in (ours, theirs))
    torch.testing.assert_close(*pairs, rtol=1e-11, atol=1e-13)


def test_a_training_step_rolls_loops_too() -> None:
    ours, theirs, x = Cell().double(), Cell().double(), _drawn(2, STEPS, 4)
    theirs.load_state_dict(ours.state_dict())
    target = _drawn(STEPS, 2, 3, seed=2)
    mse = nn.functional.mse_loss
    step = tw.train_step(ours, mse, torch.optim.SGD(ours.parameters(), lr=0.5), x, target)
    mse(theirs(x), target).backward()
    torch.optim.SGD(theirs.parameters(), lr=0.5).step()
    step(x, target)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call:UserWarning")
def test_the_slow_road_of_mamba_is_a_scan_for_each_layer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        state_size=4,
        use_cache=False,
        use_associative_scan=False,
    )
    net = transformers.MambaForCausalLM(config).eval()
    ids = torch.arange(24).reshape(2, 12) % 17
    compiled = tw.compile(lambda ids: net(ids).logits, ids)
    assert len(_scans(compiled._runs.graph)) == 2
    ours, theirs = compiled(ids), net(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    wrt = list(net.parameters())
    pairs = (torch.autograd.grad(value.pow(2).sum(), wrt) for value in (ours, theirs))
    for mine, other in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


# --- what is no loop, or none that one scan computes


def short(x: Tensor, w: Tensor) -> Tensor:
    return stacked(x[:, :7], w)


def without_carry(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([torch.tanh(x[:, at] @ w) for at in range(STEPS)])


def one_step_differs(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        h = (torch.sin if at == 4 else torch.tanh)(h @ w + x[:, at])
        found.append(h)
    return torch.stack(found)


def one_number_differs(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        h = torch.tanh(h @ w + x[:, at]) * (1.0 if at == 4 else 2.0)
        found.append(h)
    return torch.stack(found)


def steps_out_of_order(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in (0, 1, 2, 4, 3, 5, 6, 7, 8):
        h = torch.tanh(h @ w + x[:, at])
        found.append(h)
    return torch.stack(found)


def joined_out_of_order(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        h = torch.tanh(h @ w + x[:, at])
        found.append(h)
    found[2], found[3] = found[3], found[2]
    return torch.stack(found)


def looks_ahead(x: Tensor, w: Tensor) -> Tensor:
    """What is joined is made of the last state, too."""
    h, states = x[:, 0], []
    for at in range(STEPS):
        h = torch.tanh(h @ w + x[:, at])
        states.append(h)
    return torch.stack([state * h.sum() for state in states])


def draws(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        h = torch.dropout(h @ w + x[:, at], 0.5, True)
        found.append(h)
    return torch.stack(found)


def draws_in_a_branch(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        drop = partial(torch.dropout, p=0.5, train=True)
        h = torch.cond(h.sum() > 0, drop, torch.sin, (h @ w + x[:, at],))
        found.append(h)
    return torch.stack(found)


def one_sign_of_zero_differs_in_a_branch(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for at in range(STEPS):
        cut = partial(nn.functional.threshold, threshold=0.0, value=-0.0 if at == 4 else 0.0)
        h = torch.cond(h.sum() > 0, cut, torch.sin, (h @ w + x[:, at],))
        found.append(h)
    return torch.stack(found)


@pytest.mark.parametrize(
    "fn",
    [
        draws_in_a_branch,
        one_sign_of_zero_differs_in_a_branch,
        short,
        without_carry,
        one_step_differs,
        one_number_differs,
        steps_out_of_order,
        draws,
    ],
)
def test_what_is_no_such_loop_stays_as_it_is(fn: Callable[..., Tensor]) -> None:
    graph = capture(fn, _drawn(2, STEPS, 4), _drawn(4, 4, seed=1)).graph
    assert RollLoops()(graph) == graph


@pytest.mark.parametrize("fn", [joined_out_of_order, looks_ahead])
def test_what_is_only_in_part_such_a_loop_is_right(fn: Callable[..., Tensor]) -> None:
    x, w = _drawn(2, STEPS, 4), _drawn(4, 4, seed=1)
    captured = capture(fn, x, w)
    made = RollLoops()(captured.graph)
    verify(made)
    _equal(captured.graph, made, captured.bind((x, w), {}))
