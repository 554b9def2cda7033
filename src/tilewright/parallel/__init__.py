"""Over many ranks: plans and their prices, pipelines' timetables, splits of formulas that run.

The idea: what `graph.partitions` derives is a table; here a row becomes graphs that run, so that
the table is proved by execution and a plan is a choice of rows.
"""

from tilewright.parallel.course import Course, courses, spread_graph
from tilewright.parallel.menu import show, show_graph
from tilewright.parallel.plan import SETTINGS, ParallelPlan, read_fix, show_value
from tilewright.parallel.plan_check import check_plan, even_stages
from tilewright.parallel.planning import plan as make_plan
from tilewright.parallel.predict import predict
from tilewright.parallel.prediction import Breakdown, MemoryBytes, Prediction, show_seconds
from tilewright.parallel.run import evaluate_ranks, execute, execute_graph
from tilewright.parallel.spread import Spread, spread
from tilewright.parallel.timetables import (
    TIMETABLES,
    Action,
    Bubble,
    Budget,
    Pass,
    Problem,
    Searched,
    Simulation,
    Times,
    Timetable,
    even_times,
    in_flight,
    kind_named,
    lower_bound,
    make_timetable,
    peak_activations,
    prove_timetable,
    read_times,
    read_timetable,
    search_timetable,
    show_timetable,
    simulate,
    ticks,
    verify_timetable,
)

__all__ = [
    "TIMETABLES",
    "Action",
    "Bubble",
    "Budget",
    "Course",
    "Pass",
    "Problem",
    "Searched",
    "Simulation",
    "Spread",
    "Times",
    "Timetable",
    "courses",
    "evaluate_ranks",
    "even_times",
    "execute",
    "execute_graph",
    "in_flight",
    "kind_named",
    "lower_bound",
    "make_timetable",
    "peak_activations",
    "prove_timetable",
    "read_times",
    "read_timetable",
    "show",
    "show_graph",
    "search_timetable",
    "show_timetable",
    "simulate",
    "spread",
    "spread_graph",
    "ticks",
    "verify_timetable",
    "SETTINGS",
    "Breakdown",
    "MemoryBytes",
    "ParallelPlan",
    "Prediction",
    "check_plan",
    "even_stages",
    "make_plan",
    "predict",
    "read_fix",
    "show_seconds",
    "show_value",
]
