"""The vocabulary: every operator declared once, as its loops, on a page of formulas."""

from tilewright.ops.collective import across, meets_ranks, sent
from tilewright.ops.expand import composites, expand_where, is_composite
from tilewright.ops.operator import Operator, Sample
from tilewright.ops.table import PAGES, TABLE, eager, emit, expand

__all__ = [
    "PAGES",
    "TABLE",
    "Operator",
    "Sample",
    "across",
    "composites",
    "eager",
    "emit",
    "expand",
    "expand_where",
    "is_composite",
    "meets_ranks",
    "sent",
]
