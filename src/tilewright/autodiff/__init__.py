"""Graph to graph: reverse mode, forward mode and batches from the loops; the cut in two."""

from tilewright.autodiff.activations import activations
from tilewright.autodiff.batch import Batched, batch, batch_formula
from tilewright.autodiff.formula import (
    Adjoint,
    differentiable,
    other_terms,
    reverse_formula,
    tie_count,
)
from tilewright.autodiff.forward import Pushed, forward
from tilewright.autodiff.forward_formula import change_names, forward_formula
from tilewright.autodiff.resolve import resolve
from tilewright.autodiff.reverse import Joint, add_formula, full, reverse
from tilewright.autodiff.split import Split, own_results, split

__all__ = [
    "Adjoint",
    "Batched",
    "Joint",
    "Pushed",
    "Split",
    "activations",
    "add_formula",
    "batch",
    "batch_formula",
    "change_names",
    "differentiable",
    "forward",
    "forward_formula",
    "full",
    "other_terms",
    "own_results",
    "resolve",
    "reverse",
    "reverse_formula",
    "split",
    "tie_count",
]
