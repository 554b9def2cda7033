"""Graph to graph: reverse mode from the operators' loops, and the cut into forward and backward."""

from tilewright.autodiff.formula import Adjoint, differentiable, reverse_formula, tie_count
from tilewright.autodiff.reverse import Joint, add_formula, full, reverse
from tilewright.autodiff.split import Split, split

__all__ = [
    "Adjoint",
    "Joint",
    "Split",
    "add_formula",
    "differentiable",
    "full",
    "reverse",
    "reverse_formula",
    "split",
    "tie_count",
]
