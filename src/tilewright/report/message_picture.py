"""A message program as a picture: time runs to the right, a line for each rank, an arrow a message.

This module does not know what a program is for, nor how long a round takes.
"""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tilewright.base.errors import OptionError
from tilewright.cost import Message, MessageProgram, show_numbers

INK, KEPT, COMBINED, LINE = "#333333", "#1f6f8b", "#e07a3f", "#bbbbbb"
MOST_MESSAGES = 4096
LABELLED = 80  # messages up to which chunks are written beside the arrows
FORMATS = (".svg", ".png")


def plot_messages(path: Path, program: MessageProgram) -> None:
    """Draw a program into an SVG or PNG file, by the path's suffix; the same bytes each time.

    Raises OptionError for another suffix, or where there are too many messages to see.
    """
    messages = list(program.messages())
    if path.suffix not in FORMATS or len(messages) > MOST_MESSAGES:
        raise OptionError(
            "a message program cannot be drawn so",
            expected=f"a file {' or '.join(FORMATS)}, and at most {MOST_MESSAGES} messages",
            found=f"{path.name}, {len(messages)} messages",
        )
    rounds, ranks = len(program.rounds), program.ranks
    size = (min(2 + 1.1 * rounds, 40), min(1.5 + 0.5 * ranks, 40))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.hlines(range(ranks), 0, rounds, color=LINE, linewidth=1)
    axes.vlines(range(rounds + 1), -0.4, ranks - 0.6, color=LINE, linewidth=0.5, linestyle=":")
    for number, round_ in enumerate(program.rounds):
        for message in round_:
            _arrow(axes, number, message, labelled=len(messages) <= LABELLED)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks([k + 0.5 for k in range(rounds)], [str(k) for k in range(rounds)])
    axes.set_xlabel("round")
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    root = f", root {program.root}" if program.root else ""
    axes.set_title(f"{program.collective} by {program.variant}{root}", color=INK)
    for color, word in ((KEPT, "kept"), (COMBINED, "combined")):
        axes.plot([], [], color=color, label=word)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    with rc_context({"svg.hashsalt": "messages"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _arrow(axes: Axes, number: int, message: Message, *, labelled: bool) -> None:
    color = COMBINED if message.reduce else KEPT
    start, end = (number + 0.04, message.source), (number + 0.96, message.target)
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    if labelled:
        # Near the sender, where arrows have not crossed yet.
        place = (0.86 * start[0] + 0.14 * end[0], 0.86 * start[1] + 0.14 * end[1])
        text = show_numbers(message.chunks).replace(" ", "")
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(text, place, fontsize=6, color=color, ha="center", va="center", bbox=paper)
