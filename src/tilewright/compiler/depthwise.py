"""Depthwise convolutions: which are computed by a kernel of ours, and what it is given.

The idea: a convolution is recognised by what it computes (`graph.convolution`), one dim as a lone
row of two; strides say where its operands lie.  Images are taken row by row or with channels last.

This module does not know how it is computed (`kernels`).
"""

from typing import TYPE_CHECKING

from tilewright.base.dtypes import DType
from tilewright.graph.compose import over_values
from tilewright.graph.convolution import Convolution, classify_convolution
from tilewright.graph.ir import Node
from tilewright.kernels import (
    DEPTHWISE_DTYPES,
    MOST_COPIED,
    Depthwise,
    depthwise_text,
    emit_depthwise,
)
from tilewright.program import View, contiguous

if TYPE_CHECKING:
    from tilewright.compiler.assemble import Assembly

Strides = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def is_depthwise(c: Convolution, dtype: DType) -> bool:
    """Say whether a kernel of ours computes a convolution channel by channel."""
    return c.n <= 2 and c.alone and _is_near(c, dtype, last=False) and _is_near(c, dtype, last=True)


def _is_near(c: Convolution, dtype: DType, *, last: bool) -> bool:
    """Say whether what a row needs is little enough to be copied.  last: channels are innermost."""
    x, w, y = c.shapes
    if any(type(number) is not int for number in (*x, *w, *y)) or 0 in (*x, *w, *y):
        return False
    if dtype not in DEPTHWISE_DTYPES:
        return False
    ways = [contiguous(x), contiguous(y)]
    if last:
        ways = [_second(contiguous((of[0], *of[2:], of[1]))) for of in (x, y)]
    return _depthwise(c, dtype, (ways[0], contiguous(w), ways[1])).copied(1) <= MOST_COPIED


def kernels_of(node: Node) -> str | None:
    """Return which operand or result of a node are kernels that meet a channel each, where a kernel
    of ours computes it so; its images may lie with channels last."""
    if node.formula is None or node.formula.op != "+=" or len(node.inputs) != 2:
        return None
    formula = over_values(node)
    c = classify_convolution(formula, {value.name: value.type for value in node.inputs})
    if c is None or c.last or not is_depthwise(c, node.output.type.dtype):
        return None
    return c.weight or node.output.name


def _second(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return numbers of dims of which channels are the last, with channels second."""
    return (numbers[0], numbers[-1], *numbers[1:-1])


def place_depthwise(assembly: "Assembly", node: Node) -> bool:
    """Add what computes a node if it is such a convolution, or a gradient of one."""
    assert node.formula is not None, "a node with loops"
    if len(node.inputs) != 2:
        return False
    dtype, operands = node.output.type.dtype, node.formula.operands
    sources = dict(zip(operands, node.inputs, strict=True))
    c = classify_convolution(node.formula, {name: v.type for name, v in sources.items()})
    if c is None or not is_depthwise(c, dtype):
        return False
    views: dict[str, View] = {}
    for part, name in (("x", c.input), ("k", c.weight), ("y", c.output)):
        there = None if name is None else assembly.places[sources[name].name]
        views[part] = there or assembly.place(node.output)
    x, y = (_second(views[of].strides) if c.last else views[of].strides for of in "xy")
    one = _depthwise(c, dtype, (x, views["k"].strides, y))
    read = {"forward": "xk", "input": "yk", "weight": "xy"}[c.kind]
    made = emit_depthwise(one)
    inputs = tuple(views[part] for part in read)
    (written,) = (views[part] for part in "xky" if part not in read)
    assembly.call(made, depthwise_text(one), inputs, (written,), node.origin)
    assembly.decide(node, "kernel", f"{made.recipe}: {made.name}", made.flops, made.bytes)
    return True


def _depthwise(c: Convolution, dtype: DType, strides: Strides) -> Depthwise:
    """Return a convolution as one of two dims."""
    x, w, y = c.shapes

    def pair(numbers: tuple[int, ...], alone: int) -> tuple[int, int]:
        return (numbers[0], numbers[1]) if len(numbers) == 2 else (alone, numbers[0])

    def steps(of: tuple[int, ...]) -> tuple[int, ...]:
        return of if c.n == 2 else (*of[:2], 0, of[2])

    kernel = steps(strides[1])
    return Depthwise(
        c.kind,
        dtype,
        x[0],
        x[1],
        pair(x[2:], 1),
        pair(w[2:], 1),
        pair(y[2:], 1),
        pair(c.stride, 1),
        pair(c.padding, 0),
        pair(c.dilation, 1),
        steps(strides[0]),
        (kernel[0], *kernel[2:]),
        steps(strides[2]),
    )
