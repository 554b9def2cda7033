"""Timetables of pipelines: what each rank computes when, as data.

The idea: a timetable is a value; making, checking, simulating, searching and drawing one are
functions of it.
"""

from tilewright.parallel.timetables.activations import in_flight, peak_activations
from tilewright.parallel.timetables.bounds import lower_bound
from tilewright.parallel.timetables.draw import draw_timetable
from tilewright.parallel.timetables.line import Budget, Problem
from tilewright.parallel.timetables.names import TIMETABLES, Kind, kind_named, make_timetable
from tilewright.parallel.timetables.prove import prove_timetable
from tilewright.parallel.timetables.rendezvous import (
    Line,
    Receive,
    Send,
    check_rendezvous,
    place_messages,
    run_rendezvous,
)
from tilewright.parallel.timetables.search import Searched, follow_briefly, search_timetable
from tilewright.parallel.timetables.simulate import Bubble, Simulation, Step, simulate
from tilewright.parallel.timetables.slices import TokenSlices, cut_tokens
from tilewright.parallel.timetables.syntax import read_timetable
from tilewright.parallel.timetables.ticks import Ticked, ticks
from tilewright.parallel.timetables.times import Times, even_times, read_times
from tilewright.parallel.timetables.timetable import Action, Pass, Timetable, show_timetable
from tilewright.parallel.timetables.verify import verify_timetable
from tilewright.parallel.timetables.versions import Trace, trace_versions, versions_held

__all__ = [
    "TIMETABLES",
    "Action",
    "Bubble",
    "Budget",
    "Kind",
    "Line",
    "Pass",
    "Problem",
    "Receive",
    "Searched",
    "Send",
    "Simulation",
    "Step",
    "Ticked",
    "Times",
    "Timetable",
    "TokenSlices",
    "Trace",
    "check_rendezvous",
    "cut_tokens",
    "draw_timetable",
    "even_times",
    "follow_briefly",
    "in_flight",
    "kind_named",
    "lower_bound",
    "make_timetable",
    "peak_activations",
    "place_messages",
    "prove_timetable",
    "read_times",
    "read_timetable",
    "run_rendezvous",
    "search_timetable",
    "show_timetable",
    "simulate",
    "ticks",
    "trace_versions",
    "verify_timetable",
    "versions_held",
]
