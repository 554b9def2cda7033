"""The state of one walk over an ATen graph, while a Graph is made of it.

The idea: rules and the walk itself share a builder and a map from FX nodes to values, and nothing
else.  This module does not know any operator.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import CaptureError, Origin
from tilewright.capture.functionalize import Traced
from tilewright.capture.symbols import Symbols
from tilewright.capture.template import dtype_of
from tilewright.graph.build import Builder
from tilewright.graph.ir import Role, TensorType, Value

_LARGEST_CONSTANT = 1024  # elements; a longer tensor written in the model becomes an input


class Importer:
    """The state of one walk; only the walk and the table's rules change it.

    values: what FX nodes have become: one value, or one for each result (None: not a tensor).
    constants: inputs added for long constants, with what to feed them.  bodies: the ATen graphs
    of gradients written by hand, by the FX nodes that name them.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        builder: Builder,
        bodies: Mapping[str, tuple[Traced, ...]],
        symbols: Symbols | None = None,
    ) -> None:
        self.module = module
        self.bodies = bodies
        self.builder = builder
        self.symbols = symbols
        self.values: dict[fx.Node, Value | tuple[Value | None, ...]] = {}
        self.constants: list[tuple[Value, torch.Tensor]] = []

    def claim(self, name: str) -> str:
        """Let the next value take an FX node's own name, which was kept back for it."""
        self.builder.taken.discard(name)
        return name

    def type_of(self, tensor: torch.Tensor, origin: Origin) -> TensorType:
        """Return the type of a (fake) tensor, its sizes named where they vary."""
        return tensor_type(tensor, origin, self.symbols)

    def number(self, node: fx.Node) -> Any:
        """Return what an FX node that gives a number gives: one that varies is a Size."""
        value = node.meta["val"]
        if isinstance(value, torch.SymInt) and self.symbols is not None:
            return self.symbols.dim(value)
        plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
        return plain[type(value)](value) if type(value) in plain else value

    def operand(self, node: fx.Node) -> Value:
        """Return the value of an FX node that is one tensor."""
        value = self.values[node]
        assert isinstance(value, Value), f"{node} is not one tensor"
        return value


def is_number(node: object) -> bool:
    """Say whether an FX node gives a number that torch knows by name, not a tensor."""
    numbers = torch.SymInt | torch.SymFloat | torch.SymBool | int | float
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), numbers)


def add_constant(walk: Importer, tensor: torch.Tensor, wanted: str, origin: Origin) -> Value:
    """Append a constant node, or an input where the tensor is too long to be written out."""
    type_ = tensor_type(tensor, origin)
    if tensor.numel() > _LARGEST_CONSTANT:
        name = f"constant_{len(walk.constants)}"
        # Inputs added now come after all those that the caller passes.
        value = walk.builder.input(name, type_, Role("buffer", name))
        walk.constants.append((value, tensor.detach().clone()))
        return value
    wide = tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor.detach()
    return walk.builder.constant(wide.numpy(), type_.dtype, origin=origin, name=walk.claim(wanted))


def tensor_type(tensor: torch.Tensor, origin: Origin, symbols: Symbols | None = None) -> TensorType:
    """Return the type of a (fake) tensor."""
    dtype = dtype_of(tensor.dtype)
    if dtype is None:
        raise CaptureError(
            f"a tensor of element type {str(tensor.dtype).removeprefix('torch.')}",
            expected="bool, int8 to int64, uint8, float16, bfloat16, float32 or float64",
            found=str(tensor.dtype),
            where=origin,
            mend="keep it outside the captured function",
        )
    if symbols is not None:
        return TensorType(symbols.dims(tensor.shape), dtype)
    return TensorType(tuple(int(size) for size in tensor.shape), dtype)
