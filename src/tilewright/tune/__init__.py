"""What kernels may be tried with, what was measured of them, and where that is kept."""

from tilewright.tune.measured import LIBRARY, Measured, Timing, Verdict, judge
from tilewright.tune.processor import (
    Processor,
    has_squares,
    is_library_at_home,
    library_vector,
    this_processor,
)
from tilewright.tune.space import (
    Candidate,
    product_candidates,
    read_tiling,
    show_tiling,
    worth_trying,
)
from tilewright.tune.stopwatch import Clock, compare, summary
from tilewright.tune.store import Store

__all__ = [
    "LIBRARY",
    "Candidate",
    "Clock",
    "Measured",
    "Processor",
    "Store",
    "Timing",
    "Verdict",
    "compare",
    "has_squares",
    "is_library_at_home",
    "judge",
    "library_vector",
    "product_candidates",
    "read_tiling",
    "show_tiling",
    "summary",
    "this_processor",
    "worth_trying",
]
