"""The page of gradients written by hand.

The idea: a custom `autograd.Function` is a forward that no gradient goes through, and the identity
on what it gives, whose node holds the gradient as a graph: `(tangents, saved) -> gradients`.

This module does not know where these graphs come from (`capture`).
"""

from tilewright.base.dtypes import BOOL
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.constants import PAGE as CONSTANTS
from tilewright.ops.nest import number, sizes
from tilewright.ops.operator import Attrs, Operator, Tangents, apply

(_FULL,) = (operator for operator in CONSTANTS if operator.name == "full")


def _first_values(_: Builder, operands: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    return operands[: number(attrs["results"])]


def _inline_backward(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    """The graph is applied to the tangents (zeros where there is none) and the saved values."""
    results, arguments = number(node.attr("results")), number(node.attr("arguments"))
    (backward,) = node.graphs
    saved = node.inputs[results + arguments :]
    given = (
        _zeros(builder, value) if tangent is None else tangent
        for value, tangent in zip(node.outputs, tangents, strict=True)
    )
    gradients = builder.inline(backward, (*given, *saved), origin=node.origin)
    return (*(None,) * results, *gradients, *(None,) * len(saved))


def _zeros(builder: Builder, like: Value) -> Value:
    dtype = like.type.dtype
    zero = False if dtype == BOOL else 0
    (made,) = apply(builder, _FULL, shape=sizes(like.type.shape), value=zero, dtype=dtype.name)
    return made


PAGE = (
    Operator(
        "custom_gradient(*values; results, arguments)",
        "The first `results` values as they are; their tangents reach the next `arguments` values"
        " by the node's graph, which also takes the rest: what was saved.",
        expand=_first_values,
        vjp=_inline_backward,
        vjp_reason="it is what its author wrote, be it the derivative or not",
    ),
)
