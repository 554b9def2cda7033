"""From PyTorch to a Graph: the only package of the compile side that knows torch.

The idea: one importer for `tw.capture`, `tw.compile`, `tw.train_step` and `torch.compile`; what has
a derivative formula of its own stays whole, what has no operator yet becomes a library call, and
what cannot be right is refused at the user's line.
This package does not know how a graph is differentiated, made cheaper or run.
"""

from tilewright.capture.batches import batch_of, cut, with_batch
from tilewright.capture.calls import Kept
from tilewright.capture.coverage import BEYOND, Entry, core_coverage
from tilewright.capture.entry import Captured, capture, capture_to_run
from tilewright.capture.functionalize import Functional, Prepared, functionalize, prepare_dynamo
from tilewright.capture.importer import Imported, import_functional
from tilewright.capture.mends import mend_torch
from tilewright.capture.parameters import has_image_kernels
from tilewright.capture.record import (
    Computed,
    Input,
    Literal,
    Mutation,
    Result,
    SameResult,
    ViewOfOutput,
)
from tilewright.capture.replay import drawing_again, replay, run_library, run_loops
from tilewright.capture.restore import restore, write_back
from tilewright.capture.symbols import Symbols, Varying, varying_of
from tilewright.capture.watch import Watch

# Now: Dynamo traces before it calls a back end, but looks its name up, and so imports us, first.
mend_torch()

__all__ = [
    "BEYOND",
    "Captured",
    "Computed",
    "Entry",
    "Functional",
    "Imported",
    "Input",
    "Kept",
    "Literal",
    "Mutation",
    "Prepared",
    "Result",
    "SameResult",
    "Symbols",
    "Varying",
    "ViewOfOutput",
    "Watch",
    "batch_of",
    "capture",
    "capture_to_run",
    "core_coverage",
    "cut",
    "drawing_again",
    "functionalize",
    "has_image_kernels",
    "import_functional",
    "prepare_dynamo",
    "replay",
    "restore",
    "run_library",
    "run_loops",
    "varying_of",
    "with_batch",
    "write_back",
]
