"""Tilewright: give it a PyTorch model and a machine; it makes the model fast, and shows why.

The idea: this is only the front door.  A public name is imported when it is first used, so that
`import tilewright` costs nothing and a saved Program runs without the compile side.
This module does not know what any of the names does.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.capture import capture as capture
    from tilewright.compiler import Options as Options
    from tilewright.compiler import compile as compile
    from tilewright.compiler import explain as explain
    from tilewright.compiler import grad as grad
    from tilewright.compiler import jvp as jvp
    from tilewright.compiler import value_and_grad as value_and_grad
    from tilewright.compiler import vjp as vjp
    from tilewright.compiler import vmap as vmap
    from tilewright.cost import Machine as Machine
    from tilewright.graph.ir import Graph as Graph
    from tilewright.parallel import ParallelPlan as ParallelPlan
    from tilewright.parallel.planning import plan as plan
    from tilewright.program import Program as Program
    from tilewright.runtime import load as load
    from tilewright.train import train_step as train_step

__version__ = "0.1.0"

# Public name -> the module it comes from.
PUBLIC = {
    "compile": "tilewright.compiler",
    "capture": "tilewright.capture",
    "grad": "tilewright.compiler",
    "value_and_grad": "tilewright.compiler",
    "vjp": "tilewright.compiler",
    "jvp": "tilewright.compiler",
    "vmap": "tilewright.compiler",
    "train_step": "tilewright.train",
    "explain": "tilewright.compiler",
    "load": "tilewright.runtime",
    "Graph": "tilewright.graph.ir",
    "Machine": "tilewright.cost",
    "plan": "tilewright.parallel.planning",
    "ParallelPlan": "tilewright.parallel",
    "Program": "tilewright.program",
    "Options": "tilewright.compiler",
}

__all__ = [*PUBLIC]


class _FrontDoor(ModuleType):
    """A module whose public names win over a sub-package of the same name (`capture`).

    The import system binds a sub-package as an attribute of its parent; for a public name that
    would put a module where the function belongs, and only sometimes.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in PUBLIC and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    value = getattr(importlib.import_module(PUBLIC[name]), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])


sys.modules[__name__].__class__ = _FrontDoor
