"""A step that refuses an index has moved nothing: parameters, buffers, state and counts."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilewright import train_step
from tilewright.base.errors import IndexRangeError
from tilewright.compiler import Options

WORDS, CLASSES = 13, 5
Kind = Callable[[nn.Module], torch.optim.Optimizer]


class Reader(nn.Module):
    """Statistics are written first, the table's gradient is made last."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 24)
        self.norm = nn.BatchNorm1d(24)
        self.hidden = nn.Linear(24, 200)
        self.last = nn.Linear(200, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.norm(self.table(ids).mean(1))
        scores: Tensor = self.last(torch.relu(self.hidden(rows)))
        return scores


class Late(nn.Module):
    """Chooses rows by numbers that it computes itself, behind statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.scores = nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(WORDS, CLASSES))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(ids.to(self.table.dtype).reshape(-1, 8))
        rows = (self.scores(x).argmax(1) + 10 * (ids.amax() >= WORDS)).clamp_min(0)
        return self.table[rows] + 0 * self.scores(x).sum()


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, dampening=0.3)


def _adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def _batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (6, 8), generator=generator)
    return ids, torch.randint(CLASSES, (6,), generator=generator)


def _all(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return copies of all that a step may write."""
    tensors = [*module.state_dict().items()]
    state = optimizer.state_dict()["state"]
    tensors += [(f"{at}.{k}", v) for at, held in state.items() for k, v in held.items()]
    return [
        (name, value.clone() if isinstance(value, Tensor) else value) for name, value in tensors
    ]


def _same(one: list[Any], other: list[Any]) -> bool:
    if [name for name, _ in one] != [name for name, _ in other]:
        return False
    pairs = [(a, b) for (_, a), (_, b) in zip(one, other, strict=True)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def _spoilt(batch: tuple[Tensor, Tensor], which: int, value: int) -> tuple[Tensor, ...]:
    copies = [tensor.clone() for tensor in batch]
    copies[which].view(-1)[-1] = value
    return tuple(copies)


@pytest.mark.parametrize(
    ("model", "kind", "how", "library"),
    [
        (Reader, _sgd, "plain", True),
        (Reader, _adamw, "plain", False),
        (Reader, _adamw, "scaled", True),
        (Reader, _sgd, "in parts", True),
        (Late, _adamw, "plain", True),
        (Late, _sgd, "plain", False),
    ],
)
def test_a_refused_step_moves_nothing_and_the_next_is_as_if_it_had_not_been(
    model: type[nn.Module], kind: Kind, how: str, library: bool
) -> None:
    torch.manual_seed(3)
    ours, theirs = model().double(), model().double()
    theirs.load_state_dict(ours.state_dict())
    mine, its = kind(ours), kind(theirs)
    loss, before = nn.CrossEntropyLoss(), torch.get_num_threads()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if how == "scaled" else None
    parts = 2 if how == "in parts" else 1
    step = train_step(
        ours,
        loss,
        mine,
        *_batch(0),
        scaler=scaler,
        accumulate=parts,
        options=Options(library=library),
    )
    try:
        for seed in range(4):
            torch.set_num_threads(1 + seed % 2)
            for which, value in [(0, WORDS), (0, 10**12), (1, CLASSES), (1, -7)] * (1 + seed):
                found, count = _all(ours, mine), step.count
                with pytest.raises(IndexRangeError):
                    step(*_spoilt(_batch(seed), which, value))
                assert _same(_all(ours, mine), found)
                assert step.count == count
                assert scaler is None or scaler.get_scale() == 64.0
            step(*_batch(seed))
            its.zero_grad()
            for ids, targets in zip(*(t.chunk(parts) for t in _batch(seed)), strict=True):
                (loss(theirs(ids), targets) / parts).backward()
            its.step()
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-11)
    finally:
        torch.set_num_threads(before)


def test_what_a_state_held_before_a_step_that_overflows_is_there_again() -> None:
    """Older checkpoints hold a momentum that has not begun as None."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"momentum_buffer": None, "mine": 1}
    batch = 1e3 * torch.randn(5, 4), torch.randn(5, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    step = train_step(net, nn.MSELoss(), optimizer, *batch, scaler=scaler)
    before = copy.deepcopy(net.state_dict())
    step(*batch)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    for parameter in net.parameters():
        assert optimizer.state[parameter] == {"momentum_buffer": None, "mine": 1}
    for _ in range(20):  # each that overflows halves the scale
        step(*batch)
    for parameter in net.parameters():
        assert optimizer.state[parameter]["momentum_buffer"] is not None
        assert optimizer.state[parameter]["mine"] == 1
