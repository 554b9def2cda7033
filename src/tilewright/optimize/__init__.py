"""Graph to an equal graph that is cheaper: simplified, shared, folded, split and fused.

The idea: one pass per module, each a frozen value that maps a graph to an equal graph, sound for
NaN, infinities and signed zeros; what moves the least memory wins.
This package does not know torch, kernels or machines.
"""

from tilewright.optimize.algebraic import Algebraic
from tilewright.optimize.chunk import ChunkRows
from tilewright.optimize.constants import FoldConstants
from tilewright.optimize.dead_code import DeadCode
from tilewright.optimize.epilogues import FuseEpilogues, parted
from tilewright.optimize.expand import Expand
from tilewright.optimize.fuse import Fuse, FusionPlan, Region, plan_fusion
from tilewright.optimize.memory_order import channels_last, follow_memory, followed
from tilewright.optimize.order import simplifications
from tilewright.optimize.roll import RollLoops
from tilewright.optimize.split_reductions import SplitReductions
from tilewright.optimize.staying import Apart, prepared, staying
from tilewright.optimize.subexpressions import CommonSubexpressions
from tilewright.optimize.tables import TabulateProducts
from tilewright.optimize.views import SimplifyViews
from tilewright.optimize.wide_sums import WideSums

__all__ = [
    "Algebraic",
    "Apart",
    "ChunkRows",
    "CommonSubexpressions",
    "DeadCode",
    "Expand",
    "FoldConstants",
    "Fuse",
    "FuseEpilogues",
    "FusionPlan",
    "Region",
    "RollLoops",
    "SimplifyViews",
    "SplitReductions",
    "TabulateProducts",
    "WideSums",
    "channels_last",
    "follow_memory",
    "followed",
    "parted",
    "plan_fusion",
    "prepared",
    "simplifications",
    "staying",
]
