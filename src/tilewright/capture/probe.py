"""Ask torch itself whether it takes a call: what it refuses must not get a number from us.

The idea: fake tensors know shapes, but they let calls pass that the real kernels refuse for their
element types (a float32 matrix times a float64 one).  Such calls are few: those that mix element
types.  Each is made once on zeros, and torch's own words become the error.
This module does not know what any operator means.
"""

import functools
import math
from typing import Any

import torch
from torch import fx

from tilewright.base.errors import DTypeError, ShapeError
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.refusal import blame, not_applicable

SMALL = 1 << 16  # elements; of larger floating operands, nobody looks at the values

_TENSOR, _LIST = "tensor", "list"


def refuse_mixed_types(node: fx.Node) -> None:
    """Raise DTypeError at the user's line for an ATen call that torch refuses for its types."""
    dtypes = {argument.meta["val"].dtype for argument in _tensors(node)}
    made = node.meta.get("val")
    floats = isinstance(made, torch.Tensor) and made.is_floating_point()
    if len(dtypes) > 1 or (floats and not any(d.is_floating_point for d in dtypes) and dtypes):
        said = _refusal(node.target, _frozen(node.args), _frozen(tuple(node.kwargs.items())))
        if said and blame(said) is DTypeError:
            raise _error(node, said)


def refuse_impossible(node: fx.Node) -> None:
    """Raise at the user's line if torch refuses an ATen call for its shapes or types.

    Where a mask decides about sizes, zeros say nothing.
    """
    if any(argument.meta["val"].dtype == torch.bool for argument in _tensors(node)):
        return
    said = _refusal(node.target, _frozen(node.args), _frozen(tuple(node.kwargs.items())))
    if said and blame(said) in (ShapeError, DTypeError):
        raise _error(node, said)


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]


def _error(node: fx.Node, said: str) -> Exception:
    name = str(node.target).split(".")[1]
    operands = ", ".join(
        f"{str(fake.dtype).removeprefix('torch.')}{list(fake.shape)}"
        for fake in (argument.meta["val"] for argument in _tensors(node))
    )
    return not_applicable(name, said, operands, origin_of_meta(node.meta))


@functools.lru_cache(maxsize=4096)
def _refusal(target: Any, args: Any, kwargs: Any) -> str:
    """Return what torch says against a call on zeros; "" if it takes it."""
    if torch.Tag.nondeterministic_seeded in target.tags:
        return ""
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            target(*_thawed(args), **dict(_thawed(kwargs)))
    except (RuntimeError, TypeError, ValueError, IndexError) as reason:
        return str(reason).split("\n", 1)[0] or type(reason).__name__
    return ""


def _frozen(argument: Any) -> Any:
    """Write an argument down as something hashable."""
    if isinstance(argument, fx.Node):
        fake = argument.meta["val"]
        if isinstance(fake, torch.Tensor):
            return (_TENSOR, fake.dtype, tuple(_example(size) for size in fake.shape))
        return _frozen(list(fake)) if isinstance(fake, list | tuple) else _example(fake)
    if isinstance(argument, list):
        return (_LIST, *(_frozen(item) for item in argument))
    if isinstance(argument, tuple):
        return tuple(_frozen(item) for item in argument)
    return argument


def _example(number: Any) -> Any:
    """Return the value that a number of torch's that varies has in the example."""
    symbolic = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.hint if symbolic else number


def _thawed(argument: Any) -> Any:
    match argument:
        case ("tensor", torch.dtype() as dtype, tuple(shape)):
            if math.prod(shape) > SMALL and dtype.is_floating_point:
                return torch.empty(shape, dtype=dtype, device="cpu")
            return torch.zeros(shape, dtype=dtype, device="cpu")
        case ("list", *items):
            return [_thawed(item) for item in items]
        case tuple(items):
            return tuple(_thawed(item) for item in items)
    return argument
