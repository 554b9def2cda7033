"""What a person looks at: the page of an operator, and pictures of runs."""

from tilewright.report.curves import plot_losses
from tilewright.report.operator_page import coverage, operator_page

__all__ = ["coverage", "operator_page", "plot_losses"]
