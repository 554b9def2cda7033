"""Ctrl-C at any moment of a loop of steps leaves weights, state and counts of one step."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tilewright import train_step
from tilewright.runtime.unchanged import Unchanged
from tilewright.train.interrupts import uninterrupted


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Let Ctrl-C be a KeyboardInterrupt, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _net(library: bool) -> nn.Module:
    """One native call, or one with a library call (a sort) before the last updates."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(32, 300), nn.Linear(300, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            scores: Tensor = self.last(h.sort(1).values if library else h)
            return scores

    return Net()


@pytest.mark.usefixtures("keyboard")
@pytest.mark.parametrize("library", [False, True])
def test_an_interrupted_loop_has_made_whole_steps(library: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = _net(library), _net(library)
    theirs.load_state_dict(ours.state_dict())
    x, y = torch.randn(64, 32), torch.randint(4, (64,))
    loss = nn.CrossEntropyLoss()
    mine, its = (torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (ours, theirs))
    step, other = (
        train_step(net, loss, optimizer, x, y) for net, optimizer in ((ours, mine), (theirs, its))
    )
    main = threading.main_thread().ident
    assert main is not None
    generator = torch.Generator().manual_seed(7)
    interrupted = 0
    for _ in range(25):
        wait = 0.02 * float(torch.rand((), generator=generator))
        timer = threading.Timer(wait, signal.pthread_kill, (main, signal.SIGINT))
        end = time.monotonic() + 10
        try:
            timer.start()
            while time.monotonic() < end:
                step(x, y)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        while other.count < step.count:
            other(x, y)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(p, q)
            assert float(mine.state[p]["step"]) == step.count
            assert torch.equal(mine.state[p]["exp_avg"], its.state[q]["exp_avg"])
    # One that falls into code that drops exceptions outside a step, as finalizers do, is lost.
    assert interrupted >= 23
    assert step.count > 25


@pytest.mark.usefixtures("keyboard")
@pytest.mark.parametrize("guards", ["reaches", "unchanged"])
def test_guards_that_drop_exceptions_lose_no_interrupt(
    guards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _net(library=guards == "unchanged")
    x, y = torch.randn(64, 32), torch.randint(4, (64,))
    step = train_step(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters()), x, y)
    for _ in range(3):
        step(x, y)
    step._active.unchanged = Unchanged()  # so that Python is asked
    step._active.unmoved = Unchanged()
    step._active.front.forget()
    asked: list[bool] = []

    def guard(*_: object, **__: object) -> bool:
        asked.append(True)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return False
        return True

    monkeypatch.setattr(type(step._active.captured.watch), guards, guard)
    with pytest.raises(KeyboardInterrupt):
        step(x, y)
    assert asked == [True]


@pytest.mark.usefixtures("keyboard")
def test_an_interrupt_is_handled_once_what_runs_has_ended() -> None:
    ended = []

    def run() -> int:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.001)
        ended.append(True)
        return 3

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(run)
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert uninterrupted(lambda: 3) == 3


@pytest.mark.usefixtures("keyboard")
def test_what_handles_an_interrupt_itself_is_asked_after_it_even_where_the_run_fails() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))

    def run() -> None:
        signal.raise_signal(signal.SIGINT)
        assert not seen
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - ours, without words
        uninterrupted(run)
    assert seen == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert uninterrupted(lambda: 4) == 4
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("keyboard")
def test_what_handles_interrupts_after_the_run_is_what_it_has_set() -> None:
    assert uninterrupted(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) is not None
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_run_as_they_are() -> None:
    made: list[int] = []
    thread = threading.Thread(target=lambda: made.append(uninterrupted(lambda: 5)))
    thread.start()
    thread.join()
    assert made == [5]
