"""Over many ranks: every split of a formula as a graph for each rank, collectives and all.

The idea: what `graph.partitions` derives is a table; here a row becomes graphs that run, so that
the table is proved by execution and a plan is a choice of rows.
"""

from tilewright.parallel.menu import show
from tilewright.parallel.run import evaluate_ranks, execute
from tilewright.parallel.spread import Spread, spread

__all__ = ["Spread", "evaluate_ranks", "execute", "show", "spread"]
