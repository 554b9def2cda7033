"""Collectives as message programs: made, proved, priced, chosen, and fitted to measurements.

The idea: an algorithm is data, who sends which chunks to whom in which round.
"""

from tilewright.cost.collectives.build import build_program, find_variant, variants_of
from tilewright.cost.collectives.draw import draw_program
from tilewright.cost.collectives.fit import Fit, bus_bandwidth, fit_times
from tilewright.cost.collectives.formulas import bus_share, lower_bound
from tilewright.cost.collectives.measured import fit_lines, read_times
from tilewright.cost.collectives.network import Level, Network, network_of
from tilewright.cost.collectives.page import Question, choice_of, collective_page, program_page
from tilewright.cost.collectives.program import COLLECTIVES, Message, MessageProgram
from tilewright.cost.collectives.select import (
    Choice,
    Crossover,
    crossovers,
    formula_price,
    price,
    prices,
    program_of,
    select,
)
from tilewright.cost.collectives.simulate import simulate
from tilewright.cost.collectives.text import parse_program, show_numbers, show_program
from tilewright.cost.collectives.verify import verify

__all__ = [
    "COLLECTIVES",
    "Choice",
    "Crossover",
    "Fit",
    "Level",
    "Message",
    "MessageProgram",
    "Network",
    "Question",
    "build_program",
    "bus_bandwidth",
    "bus_share",
    "choice_of",
    "collective_page",
    "crossovers",
    "draw_program",
    "find_variant",
    "fit_lines",
    "fit_times",
    "formula_price",
    "lower_bound",
    "network_of",
    "parse_program",
    "price",
    "prices",
    "program_of",
    "program_page",
    "read_times",
    "select",
    "show_numbers",
    "show_program",
    "simulate",
    "variants_of",
    "verify",
]
