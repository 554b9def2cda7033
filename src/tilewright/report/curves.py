"""Loss curves as a picture.

The idea: what two runs share lies on top of each other, so the second is drawn dashed over the
first, and their difference stands below on a scale of its own.

This module does not know where the numbers come from.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, FIRST, SECOND = "#333333", "#1f6f8b", "#e07a3f"


def plot_losses(
    path: Path, ours: Sequence[float], theirs: Sequence[float], *, start: int = 0, name: str
) -> None:
    """Draw two loss curves, and how far they are apart, into a PNG file.

    theirs: by whom `name` says; may be shorter.  start: the number of the first step.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = range(start + 1, start + 1 + len(ours))
    top.plot(steps, ours, color=FIRST, linewidth=2.2, label="Tilewright")
    top.plot(steps[: len(theirs)], theirs, "--", color=SECOND, linewidth=1.1, label=name)
    top.set_ylabel("training loss")
    top.legend(frameon=False)
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=False)]
    bottom.plot(steps[: len(gaps)], gaps, color=INK, linewidth=1)
    bottom.set_yscale("symlog", linthresh=1e-7)
    bottom.set_ylabel("difference")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    figure.savefig(path, dpi=120)
