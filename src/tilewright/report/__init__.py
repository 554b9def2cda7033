"""What a person looks at: the page of an operator, and pictures of runs."""

from tilewright.report.cost_page import graph_page, model_page
from tilewright.report.curves import plot_losses
from tilewright.report.message_picture import plot_messages
from tilewright.report.operator_page import core_lines, coverage, operator_page
from tilewright.report.textbook import textbook
from tilewright.report.timetable_picture import plot_timetable

__all__ = [
    "core_lines",
    "coverage",
    "graph_page",
    "model_page",
    "operator_page",
    "plot_losses",
    "plot_messages",
    "plot_timetable",
    "textbook",
]
