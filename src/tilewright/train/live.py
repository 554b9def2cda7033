"""One live line while a loop runs: step, loss, tokens per second, time left.

The idea: on a terminal the line is redrawn in place; anywhere else a line is printed now and then,
so that a log reads well too.

This module does not know what a step does.
"""

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tilewright.train.loop import Moment

LOGGED = 5.0  # seconds between two lines of a log


class LiveLine:
    """A context manager; `tell` it every moment of a loop.  Mutable: it keeps a mean loss."""

    def __init__(
        self, console: Console, title: str, *, start: int, stop: int, tokens: int, unit: str
    ) -> None:
        """Show steps `start` to `stop` of `tokens` each; unit: what is counted ("tokens")."""
        self.console = console
        self.title = title
        self.start, self.stop = start, stop
        self.tokens, self.unit = tokens, unit
        self.mean: float | None = None
        self._live: Live | None = None
        self._logged = 0.0

    def __enter__(self) -> "LiveLine":
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, moment: Moment) -> None:
        """Show a moment."""
        self.mean = moment.loss if self.mean is None else 0.9 * self.mean + 0.1 * moment.loss
        line = self.line(moment)
        if self._live is not None:
            self._live.update(Text(line))
        elif moment.seconds - self._logged >= LOGGED or moment.step + 1 == self.stop:
            self._logged = moment.seconds
            self.console.print(line, highlight=False)

    def line(self, moment: Moment) -> str:
        """Return the line of a moment."""
        made = moment.step - self.start + 1
        speed = made * self.tokens / moment.seconds if moment.seconds else 0.0
        left = moment.seconds / made * (self.stop - moment.step - 1)
        mean = moment.loss if self.mean is None else self.mean
        return (
            f"  {self.title:<10} step {moment.step + 1:>{len(str(self.stop))}}/{self.stop}"
            f"   loss {mean:7.4f}   {speed:>9,.0f} {self.unit}/s   {_clock(left)} left"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
