"""The loop: rates and batches by number, stopping between steps, and what is shown meanwhile."""

import io
import os
import signal
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console
from torch import nn

from tilewright.train import (
    LiveLine,
    Moment,
    Warmup,
    generate,
    held_out_loss,
    run,
)


@dataclass(frozen=True)
class Numbers:
    """Batches that are their own number; Ctrl-C is pressed while one of them is fetched."""

    pressed_at: int = -1

    def at(self, step: int) -> tuple[torch.Tensor]:
        if step == self.pressed_at:
            os.kill(os.getpid(), signal.SIGINT)
        return (torch.tensor(float(step)),)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)


def test_the_warm_up_rises_to_its_peak_and_stays() -> None:
    rate = Warmup(1.0, 3)
    assert [rate.at(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert Warmup(0.5).at(0) == 0.5


def test_every_step_has_its_own_batch_and_rate() -> None:
    seen = []
    with_rate = optimizer()

    def step(batch: torch.Tensor) -> torch.Tensor:
        seen.append((batch.item(), with_rate.param_groups[0]["lr"]))
        return batch * 2

    told: list[Moment] = []
    history = run(step, with_rate, Numbers(), Warmup(1.0, 3), start=2, stop=5, tell=told.append)
    assert seen == [(2.0, 0.75), (3.0, 1.0), (4.0, 1.0)]
    assert history.losses == (4.0, 6.0, 8.0)
    assert (history.stop, history.interrupted) == (5, False)
    assert [moment.step for moment in told] == [2, 3, 4]


def test_ctrl_c_ends_the_loop_after_the_step_at_hand() -> None:
    before = signal.getsignal(signal.SIGINT)
    history = run(lambda b: b, optimizer(), Numbers(pressed_at=3), Warmup(1.0), start=0, stop=9)
    assert history.losses == (0.0, 1.0, 2.0, 3.0)
    assert (history.stop, history.interrupted) == (4, True)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return batch

    with pytest.raises(KeyboardInterrupt):
        run(step, optimizer(), Numbers(pressed_at=0), Warmup(1.0), start=0, stop=9)


def test_the_loop_ends_when_its_time_is_over() -> None:
    history = run(lambda b: b, optimizer(), Numbers(), Warmup(1.0), start=0, stop=9, seconds=0.0)
    assert history.losses == (0.0,)
    assert not history.interrupted


def test_a_log_has_the_last_step_and_its_numbers() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    with LiveLine(console, "ours", start=0, stop=4, tokens=100, unit="tokens") as line:
        for step in range(4):
            line.tell(Moment(step, 2.0, 0.5 * (step + 1)))
    assert out.getvalue() == (
        "  ours       step 4/4   loss  2.0000         200 tokens/s   0:00 left\n"
    )


def test_a_log_is_written_now_and_then() -> None:
    out = io.StringIO()
    line = LiveLine(Console(file=out, width=200), "ours", start=0, stop=100, tokens=1, unit="x")
    for step in range(60):
        line.tell(Moment(step, 1.0, 0.25 * (step + 1)))
    logged = out.getvalue().splitlines()
    assert [text.split("step")[1].split("/")[0].strip() for text in logged] == ["20", "40", "60"]
    assert logged[0].endswith("0:20 left")


def test_the_held_out_loss_is_that_of_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    batches = tuple((torch.randn(3, 4), torch.randn(3, 4)) for _ in range(2))
    found = held_out_loss(model, nn.functional.mse_loss, batches)
    assert model.training
    assert model[2].num_batches_tracked == 0
    model.eval()
    expected = [nn.functional.mse_loss(model(x), y).item() for x, y in batches]
    assert found == pytest.approx(sum(expected) / 2)


class Next(nn.Module):
    """Says that after token n comes n + 1, of 8; sees at most `context` tokens."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.context = context

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert ids.shape[1] <= self.context
        return nn.functional.one_hot((ids + 1) % 8, 8) * 100.0


def test_text_goes_on_from_its_prompt_within_the_context() -> None:
    ids = generate(Next(3), torch.tensor([2, 3]), 6, context=3)
    assert ids.tolist() == [2, 3, 4, 5, 6, 7, 0, 1]


def test_the_same_seed_draws_the_same_text() -> None:
    class Even(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*ids.shape, 50)

    start = torch.tensor([1])
    texts = [generate(Even(), start, 20, context=8, seed=seed).tolist() for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
