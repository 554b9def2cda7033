"""Graphs of ranks that meet, and that do not: collectives at lines of a user's file."""

from collections.abc import Mapping

from tilewright.base.dtypes import F64, DType
from tilewright.base.errors import Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Attr, Graph, TensorType, Value
from tilewright.ops import TABLE
from tilewright.ops.operator import apply

Attrs = Mapping[str, Attr]
Collective = tuple[str, tuple[int, ...], Attrs]
SUM: Collective = ("all_reduce", (0, 1), {"op": "sum"})
GATHER: Collective = ("all_gather", (0, 1), {"dim": 0})


def program_of(*nodes: Collective, dtype: DType = F64) -> Graph:
    """Return a rank's graph: collectives one after the other."""
    builder = Builder("rank")
    value: Value = builder.input("x", TensorType((4,), dtype))
    for line, (name, group, attrs) in enumerate(nodes, 1):
        origin = Origin("model.py", line, f"x = {name}(x)")
        (value,) = apply(builder, TABLE[name], value, origin=origin, **{"group": group, **attrs})
    return builder.finish([value])
