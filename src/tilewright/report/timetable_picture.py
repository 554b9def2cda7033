"""A timetable as a picture: a row for each rank, a bar for each action, SVG or PNG by its suffix.

The idea: colour says the kind, and the shade of a forward or backward the stage it is on; bars of
one kind and shade are one collection, so thousands are drawn at once.  Numbers stand in bars only
where they can be read.

This module does not know how a timetable was made.
"""

from collections import defaultdict
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tilewright.base.errors import OptionError
from tilewright.parallel import Simulation

COLOURS = {"F": "#5b9bd5", "B": "#f2b04c", "W": "#8cbf6a", "BW": "#e0784a", "U": "#555555"}
MEANING = {
    "F": "forward",
    "B": "gradient of the input",
    "W": "gradient of the weights",
    "BW": "backward, both gradients",
}
INK, PALEST = "#222222", 0.55
SUFFIXES = (".svg", ".png")
READABLE = 900  # bars, up to which each has its number
INCHES = (12.0, 0.45)  # width, height of a row


def plot_timetable(path: Path, simulation: Simulation) -> None:
    """Draw a simulated timetable into a file; the same timetable gives the same bytes.

    Raises OptionError if the file's name ends neither in .svg nor in .png.
    """
    if path.suffix not in SUFFIXES:
        raise OptionError(
            f"a timetable cannot be drawn as {path.suffix or 'a file without a suffix'}",
            expected=" or ".join(SUFFIXES),
            found=str(path),
            mend=f"name the file {path.with_suffix('.svg').name}",
        )
    ranks = len(simulation.timetable.ranks)
    figure = Figure(figsize=(INCHES[0], 1.6 + INCHES[1] * ranks), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw_bars(axes, simulation)
    _draw_frame(axes, simulation)
    with rc_context({"svg.hashsalt": "tilewright", "svg.fonttype": "none"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=120, metadata=metadata)


def _draw_bars(axes: Axes, simulation: Simulation) -> None:
    table = simulation.timetable
    count = sum(map(len, table.ranks))
    for rank, actions in enumerate(table.ranks):
        bars = defaultdict(list)
        stages = table.stages_of(rank)
        for at, action in enumerate(actions):
            start, end = simulation.starts[rank][at], simulation.ends[rank][at]
            for lane, part in enumerate(action):
                height = 0.8 / len(action)
                low = rank - 0.4 + lane * height
                shade = 1.0 - PALEST * stages.index(part.stage) / len(stages)
                bars[part.kind, low, height, shade].append((start, end - start))
                if count <= READABLE and part.kind != "U":
                    axes.text(
                        (start + end) / 2,
                        low + height / 2,
                        str(part.micro_batch),
                        ha="center",
                        va="center",
                        fontsize=6,
                        color=INK,
                        clip_on=True,
                    )
        for (kind, low, height, shade), spans in bars.items():
            axes.broken_barh(
                spans,
                (low, height),
                facecolor=COLOURS[kind],
                alpha=shade,
                edgecolor="white",
                linewidth=0.4,
            )


def _draw_frame(axes: Axes, simulation: Simulation) -> None:
    table = simulation.timetable
    kinds = {part.kind for actions in table.ranks for action in actions for part in action}
    axes.set_title(
        f"{table.name}: {table.stages} stages, {table.micro_batches} micro-batches, "
        f"bubble {simulation.bubble.of_total:.2%} of the total",
        fontsize=10,
        loc="left",
    )
    axes.set_yticks(range(len(table.ranks)), [f"rank {k}" for k in range(len(table.ranks))])
    axes.invert_yaxis()
    axes.set_xlabel("time")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    patches = [
        Patch(color=COLOURS[kind], label=meaning)
        for kind, meaning in MEANING.items()
        if kind in kinds
    ]
    axes.legend(
        handles=patches,
        frameon=False,
        ncols=4,
        fontsize=8,
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )
