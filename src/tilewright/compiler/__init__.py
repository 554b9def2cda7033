"""The whole pipeline: a graph to a Program that runs, its options, and the reasons it gives."""

from tilewright.compiler.buckets import Bucketed
from tilewright.compiler.built import Built
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.entry import compile
from tilewright.compiler.options import Options
from tilewright.compiler.pipeline import build
from tilewright.compiler.report import explain
from tilewright.compiler.transforms import Transformed, grad, jvp, value_and_grad, vjp, vmap
from tilewright.compiler.usual import begin_usual

__all__ = [
    "Bucketed",
    "Built",
    "Compiled",
    "Options",
    "Transformed",
    "begin_usual",
    "build",
    "compile",
    "explain",
    "grad",
    "jvp",
    "value_and_grad",
    "vjp",
    "vmap",
]
