"""Over many ranks: every split of a formula as a graph for each rank, collectives and all.

The idea: what `graph.partitions` derives is a table; here a row becomes graphs that run, so that
the table is proved by execution and a plan is a choice of rows.
"""

from tilewright.parallel.course import Course, courses, spread_graph
from tilewright.parallel.menu import show, show_graph
from tilewright.parallel.run import evaluate_ranks, execute, execute_graph
from tilewright.parallel.spread import Spread, spread

__all__ = [
    "Course",
    "Spread",
    "courses",
    "evaluate_ranks",
    "execute",
    "execute_graph",
    "show",
    "show_graph",
    "spread",
    "spread_graph",
]
