"""A sub-graph cut in two for its gradient, and the node of control flow that keeps what it needs.

The idea: differentiate the sub-graph as any graph, and split it; what the forward half keeps for
the backward half becomes results of the node.

This module does not know scans from conds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.autodiff.reverse import reverse
from tilewright.autodiff.split import Split, split
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph, Node, TensorType, Value

Tangents = tuple[Value | None, ...]
Pull = Callable[[Builder, Node, Tangents], Tangents]
"""Adds the backward node; takes the tangents of all results, gives those of all operands."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A sub-graph cut in two.

    wrt: positions of the inputs that it was differentiated for.  cut: forward and backward.
    """

    wrt: tuple[int, ...]
    cut: Split

    @property
    def results(self) -> tuple[Value, ...]:
        """What the sub-graph gives by itself."""
        return self.cut.forward.outputs[: self.cut.outputs]

    @property
    def made(self) -> tuple[Value, ...]:
        """What the forward gives beside its results: values that the backward needs."""
        return self.cut.forward.outputs[self.cut.outputs :]

    def kept_inputs(self, inputs: Sequence[Value]) -> tuple[int, ...]:
        """The positions of the inputs that the backward needs."""
        names = {name for _, name in self.cut.kept}
        return tuple(at for at, value in enumerate(inputs) if value.name in names)

    def depends_on(self, position: int) -> bool:
        """Say whether there is a gradient of the input at a position."""
        return self.cut.gradients[self.wrt.index(position)] is not None

    def gradient(self, outputs: Sequence[Value], position: int) -> Value | None:
        """Pick the gradient of the input at a position from the backward's outputs."""
        if position not in self.wrt:
            return None
        at = self.cut.gradients[self.wrt.index(position)]
        return None if at is None else outputs[at]


def halves(graph: Graph, wrt: Sequence[int], dear: Sequence[Value]) -> Halves:
    """Differentiate a sub-graph for inputs.  dear: inputs that are not there later unless kept."""
    joint = reverse(graph, [graph.inputs[at].name for at in wrt])
    return Halves(tuple(wrt), split(joint, dear=frozenset(value.name for value in dear)))


def with_results(builder: Builder, node: Node, body: Sequence[Graph], types: Sequence[TensorType],
                  names: Sequence[str]) -> Node:  # fmt: skip
    """Return the node with other sub-graphs, and with more results."""
    more = tuple(Value(builder.fresh(n), t) for n, t in zip(names, types, strict=True))
    return replace(node, graphs=tuple(body), outputs=(*node.outputs, *more))
