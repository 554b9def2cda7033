"""From PyTorch to a Graph: the only package of the compile side that knows torch.

The idea: one importer for `tw.capture`, `tw.compile`, `tw.train_step` and `torch.compile`; what has
a derivative formula of its own stays whole, what has no operator yet becomes a library call, and
what cannot be right is refused at the user's line.
This package does not know how a graph is differentiated, made cheaper or run.
"""

from tilewright.capture.coverage import BEYOND, Entry, core_coverage
from tilewright.capture.entry import Captured, capture
from tilewright.capture.functionalize import Functional, Prepared, functionalize, prepare_dynamo
from tilewright.capture.importer import Imported, import_functional
from tilewright.capture.record import Computed, Input, Mutation
from tilewright.capture.replay import drawing_again, replay, run_library
from tilewright.capture.restore import restore, write_back
from tilewright.capture.symbols import Symbols, Varying, varying_of
from tilewright.capture.watch import Watch

__all__ = [
    "BEYOND",
    "Captured",
    "Computed",
    "Entry",
    "Functional",
    "Imported",
    "Input",
    "Mutation",
    "Prepared",
    "Symbols",
    "Varying",
    "Watch",
    "capture",
    "core_coverage",
    "drawing_again",
    "functionalize",
    "import_functional",
    "prepare_dynamo",
    "replay",
    "restore",
    "run_library",
    "varying_of",
    "write_back",
]
