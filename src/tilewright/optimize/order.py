"""The order in which the simplifying passes run.

The idea: each pass feeds the next, and one more round catches what the last ones uncovered; all of
it is done before anything is split or fused.

This module does not know what comes before (autodiff) or after (splitting, fusion).
"""

from collections.abc import Callable

from tilewright.graph.ir import Node
from tilewright.graph.passes import Pass
from tilewright.optimize.algebraic import Algebraic
from tilewright.optimize.branches import PruneBranches
from tilewright.optimize.constants import FoldConstants
from tilewright.optimize.dead_code import DeadCode
from tilewright.optimize.expand import Expand
from tilewright.optimize.scans import TidyScans
from tilewright.optimize.subexpressions import CommonSubexpressions
from tilewright.optimize.views import SimplifyViews


def simplifications(keep: Callable[[Node], bool] = lambda _: False) -> tuple[Pass, ...]:
    """Return the passes from a differentiated graph to a simplified one.

    keep: says of a composite node whether something serves it whole.
    """
    round_: tuple[Pass, ...] = (
        FoldConstants(),
        PruneBranches(),
        SimplifyViews(),
        Algebraic(),
        CommonSubexpressions(),
        TidyScans(),
        DeadCode(),
    )
    return (DeadCode(), Expand(keep), *round_, *round_)
