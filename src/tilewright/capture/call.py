"""One ATen call, seen by the name of each argument, and what a rule may put in its place.

The idea: a rule reads arguments by the names of ATen's schema, defaults filled in, and emits
operators of our table; the last one takes the FX node's name.  A result of another type than the
trace saw is no result: the call then stays a call.
This module does not know which rule there is for which overload.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tilewright.base.dtypes import DType
from tilewright.base.errors import Origin, SizesError, TilewrightError
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.template import dtype_of
from tilewright.capture.walk import Importer, is_number
from tilewright.graph.ir import Attr, TensorType, Value
from tilewright.ops import TABLE
from tilewright.ops.operator import apply

Made = Value | tuple[Value | None, ...] | None
Read = Callable[["Call"], Made]
Operand = Value | bool | int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """How an overload is read.

    operators: what of our table may stand for it; casts that promotion asks for go without saying.
    read: adds them to the graph; gives None, where it cannot.  opaque: what part of the call stays
    one of torch's, and why; the gradient is derived all the same.
    """

    operators: tuple[str, ...]
    read: Read
    opaque: str = ""


def reads(*operators: str, opaque: str = "") -> Callable[[Read], Rule]:
    """Make a function a rule that may emit `operators`."""
    return lambda read: Rule(operators, read, opaque)


@dataclass(frozen=True, slots=True)
class Call:
    """An ATen call.  arguments: by name; tensors are values, lists of tensors lists of values."""

    walk: Importer
    node: fx.Node
    arguments: dict[str, Any]
    origin: Origin

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def result(self) -> TensorType:
        """The type of the only result, as the trace saw it."""
        return self.walk.type_of(self.node.meta["val"], self.origin)

    def fake(self, name: str) -> torch.Tensor:
        """The fake tensor that was passed for an argument."""
        node = _bind(self.node)[name]
        assert isinstance(node, fx.Node), f"{name} is not a tensor"
        fake: torch.Tensor = node.meta["val"]
        return fake

    def dtype(self, name: str) -> DType | None:
        """Our element type for an argument that is one of torch's, or that is left out."""
        return None if self[name] is None else dtype_of(self[name])

    def emit(self, operator: str, *operands: Operand, wish: str = "", **attrs: Attr) -> Value:
        """Add an operator with one result.  Without a wish it takes the FX node's own name."""
        (made,) = self.emit_all(operator, *operands, wishes=(wish,), **attrs)
        return made

    def emit_all(
        self, operator: str, *operands: Operand, wishes: tuple[str, ...], **attrs: Attr
    ) -> tuple[Value, ...]:
        """Add an operator with several results."""
        names = tuple(
            f"{self.node.name}_{wish}" if wish else self.walk.claim(self.node.name)
            for wish in wishes
        )
        return apply(
            self.walk.builder,
            TABLE[operator],
            *operands,
            origin=self.origin,
            names=names,
            **attrs,
        )

    def cast(self, value: Value, dtype: DType, wish: str = "cast") -> Value:
        """Return the value in another element type; itself if it has that already."""
        if value.type.dtype == dtype:
            return value
        return self.emit("cast", value, wish=wish, dtype=dtype.name)


def apply_rule(rule: Rule, walk: Importer, node: fx.Node) -> Made:
    """Return what a rule makes of a call; None, with nothing added, if nothing fits."""
    before = len(walk.builder.nodes)
    taken = set(walk.builder.taken)
    arguments = {name: _values(walk, value) for name, value in _bind(node).items()}
    call = Call(walk, node, arguments, origin_of_meta(node.meta))
    try:
        made = rule.read(call)
    except SizesError:
        raise  # compiled for each size, a graph need not leave this call to the library
    except (TilewrightError, AssertionError):
        made = None  # The trace ran the call on these very types: torch can do what we cannot.
    if made is not None and _fits(walk, made, node.meta["val"]):
        return made
    del walk.builder.nodes[before:]
    walk.builder.taken.clear()
    walk.builder.taken.update(taken)
    return None


def _bind(node: fx.Node) -> dict[str, Any]:
    """Return the arguments by their names in the schema, with defaults."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload), f"{node} does not call an overload"
    found = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found


def _values(walk: Importer, argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return walk.number(argument) if is_number(argument) else walk.operand(argument)
    if isinstance(argument, list | tuple):
        return [_values(walk, item) for item in argument]
    return argument


def _fits(walk: Importer, made: Value | tuple[Value | None, ...], traced: Any) -> bool:
    if isinstance(made, Value):
        return isinstance(traced, torch.Tensor) and made.type == walk.type_of(traced, Origin())
    return all(
        value is None or value.type == walk.type_of(item, Origin())
        for value, item in zip(made, traced, strict=True)
    )
