"""An operator applied to operands of a typical size: what its page is about.

The idea: an operator's first sample says which operands go together; where nothing speaks against
it, its sizes are made larger, so that cost and intensity mean something.

This module does not know what is derived from an instance.
"""

from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import BOOL, F32, I64
from tilewright.base.errors import TilewrightError
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph, Node, TensorType, Value
from tilewright.graph.passes import run
from tilewright.ops import PAGES, TABLE, Operator, Sample, across
from tilewright.ops.operator import apply, operand_names
from tilewright.ops.samples import arrays
from tilewright.optimize import simplifications

SCALE = 64
SCALED_PAGES = (
    "pointwise", "activations", "reduce", "extreme", "contract", "norms", "losses", "optimizer",
    "collective",
)  # fmt: skip
RANKS = (0, 1, 2, 3)  # the group of an example of a collective
# Operators whose samples say little about how large their operands usually are.
TYPICAL: dict[str, tuple[tuple[int, ...], ...]] = {
    "conv1d": ((8, 64, 128), (64, 64, 3)),
    "conv2d": ((8, 64, 32, 32), (64, 64, 3, 3)),
    "attention": ((8, 4, 128, 32), (8, 4, 128, 32), (8, 4, 128, 32)),
    "embedding": ((256, 128), (8, 128)),
    "dropout": ((1024, 128), ()),
}
_SHOWN_AS = {"float64": F32, "int64": I64, "bool": BOOL}


@dataclass(frozen=True, slots=True)
class Instance:
    """An operator in a graph of its own: inputs named as its operands, results y, y1, ..."""

    operator: Operator
    graph: Graph

    @property
    def node(self) -> Node:
        return self.graph.nodes[-1]

    @property
    def differentiable(self) -> tuple[Value, ...]:
        """The operands that may have a gradient."""
        return tuple(v for v in self.graph.inputs if v.type.dtype.kind == "float")


def instance_of(name: str) -> Instance | None:
    """Return an operator applied to operands of a typical size; None where it has no sample."""
    operator = TABLE[name]
    if not operator.samples:
        return None
    sample = operator.samples[0]
    for scale in (SCALE, 1) if page_of(name) in SCALED_PAGES else (1,):
        try:
            return _instance(operator, sample, scale)
        except (TilewrightError, AssertionError, IndexError):
            if scale == 1:
                raise
    raise AssertionError("the sample itself is always tried")


def simplified(graph: Graph) -> Graph:
    """Return a graph without composites, simplified; collectives stay: no rank alone has theirs."""
    return run(graph, simplifications(lambda node: across(node) is not None))


def page_of(name: str) -> str:
    """Return the page of the table that an operator stands on."""
    return next(page for page, rows in PAGES if any(row.name == name for row in rows))


def _instance(operator: Operator, sample: Sample, scale: int) -> Instance:
    builder = Builder(operator.name)
    given = arrays(sample)
    typical = TYPICAL.get(operator.name)
    operands: list[Value | bool | int | float] = []
    for at, (name, item) in enumerate(zip(operand_names(operator, len(given)), given, strict=True)):
        if isinstance(item, bool | int | float):
            operands.append(item)
            continue
        shape = tuple(size if size == 1 else size * scale for size in item.shape)
        if typical is not None:
            shape = typical[at]
        operands.append(builder.input(name, TensorType(shape, _SHOWN_AS[item.dtype.name])))
    attrs: dict[str, Any] = dict(sample.attrs)
    if operator.across is not None:
        attrs["group"] = RANKS
    count = len(apply(Builder(), operator, *operands, **attrs))
    names = ("y", *(f"y{k}" for k in range(1, count)))
    return Instance(
        operator, builder.finish(apply(builder, operator, *operands, names=names, **attrs))
    )
