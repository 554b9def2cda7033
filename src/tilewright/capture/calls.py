"""Take a user's call apart into the graph's inputs, and put the user's result together again.

The idea: nested arguments are leaves and a spec (torch's pytree).  Tensors among the leaves are
inputs and are checked on every call; everything else was compiled in, and has to be the same again.
This module does not know graphs.
"""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from tilewright.base.errors import CaptureError, DTypeError, OptionError, ShapeError
from tilewright.graph.orders import is_row_major, order_of

_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, slice)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the arguments as captured: a tensor (`dtype` is set) or a plain value.

    strides: the tensor's, where torch has any.
    """

    name: str
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype | None
    value: object
    same_as: int  # the first leaf that is the very same tensor: itself, mostly


@dataclass(frozen=True, slots=True)
class CallSpec:
    """What every call has to look like.

    plain: positional tensors only, no spec to compare.  distinct: and no two are one.
    """

    spec: pytree.TreeSpec
    leaves: tuple[Leaf, ...]
    plain: bool
    distinct: bool

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the leaves of a call, checked; raises a typed error where it does not fit."""
        if self.plain and not kwargs and len(args) == len(self.leaves):
            found: Sequence[Any] = args
        else:
            found, spec = pytree.tree_flatten((args, kwargs))
            if spec != self.spec:
                raise _other_structure(self, args, kwargs)
        for leaf, value in zip(self.leaves, found, strict=True):
            if leaf.dtype is None:
                if not _same_value(leaf.value, value):
                    raise _other_value(leaf, value)
            elif not isinstance(value, torch.Tensor):
                raise _other_kind(leaf, value)
            elif value.shape != leaf.shape:
                raise _other_shape(leaf, value)
            elif value.dtype != leaf.dtype:
                raise _other_dtype(leaf, value)
            elif value is not found[leaf.same_as]:
                raise _parted(self, leaf)
        return found

    def lies(self, leaves: Sequence[Any]) -> bool:
        """Say whether the leaves of a call lie in the example's orders of dims."""
        return all(map(_lies, self.leaves, leaves))


def describe_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[CallSpec, list[Any]]:
    """Return the spec of an example call, and its leaves."""
    found, spec = pytree.tree_flatten((args, kwargs))
    names = _leaf_names(fn, args, kwargs)
    first: dict[int, int] = {}
    leaves = []
    for at, (name, value) in enumerate(zip(names, found, strict=True)):
        if isinstance(value, torch.Tensor):
            same = first.setdefault(id(value), at)
            strides = value.stride() if value.layout == torch.strided else ()
            leaves.append(Leaf(name, value.shape, strides, value.dtype, None, same))
        else:
            leaves.append(Leaf(name, torch.Size(), (), None, value, at))
    plain = not kwargs and all(isinstance(arg, torch.Tensor) for arg in args)
    distinct = plain and all(leaf.same_as == at for at, leaf in enumerate(leaves))
    return CallSpec(spec, tuple(leaves), plain, distinct), found


def _lies(leaf: Leaf, value: Any) -> bool:
    if leaf.dtype is None or not isinstance(value, torch.Tensor):
        return True
    if len(leaf.shape) < 2 or value.layout is not torch.strided or value.stride() == leaf.strides:
        return True
    return value.shape != leaf.shape or _ordered_alike(leaf.shape, value.stride(), leaf.strides)


@functools.lru_cache(4096)
def _ordered_alike(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether eager's results lie alike for an argument with the strides `one` and the example,
    with `other`: dims in the same order, be there gaps or not; what is expanded has no place in it.

    What is dense in another order than rows after rows is not served by an example with gaps, for
    which all is copied.
    """
    order, known = order_of(shape, one), order_of(shape, other)
    if order is not None and (known is not None or not is_row_major(order)):
        return order == known
    if 0 in shape:
        return True
    steps = [
        (a, b) for extent, a, b in zip(shape, one, other, strict=True) if extent > 1 and a and b
    ]
    return all((a < c) == (b < d) for (a, b), (c, d) in itertools.combinations(steps, 2))


def _leaf_names(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Name every leaf by the parameter it is passed for, and the path inside of it."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = []
    for at in range(len(args)):
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        if at < len(parameters) and parameters[at].kind not in kinds:
            names.append(parameters[at].name)
        else:
            names.append(f"arg{at}")
    pairs, _ = pytree.tree_flatten_with_path((args, kwargs))
    found = []
    for path, _ in pairs:
        key, *rest = path[1:]
        root = names[key.idx] if isinstance(key, pytree.SequenceKey) else str(key.key)  # type: ignore[attr-defined]
        found.append(root + pytree.keystr(tuple(rest)))
    return found


def _same_value(expected: object, found: object) -> bool:
    if isinstance(expected, float) and expected != expected:
        return isinstance(found, float) and found != found
    return expected is found or (type(expected) is type(found) and bool(expected == found))


# ---------------------------------------------------------------------------- refused calls


def _other_shape(leaf: Leaf, value: torch.Tensor) -> ShapeError:
    return ShapeError(
        f"argument '{leaf.name}' has another shape than the one compiled for",
        expected=f"{leaf.name}: {list(leaf.shape)}",
        found=f"{leaf.name}: {list(value.shape)}",
        mend="compile again with an example of this shape, or use torch.compile("
        'backend="tilewright"), which compiles once per shape',
    )


def _other_dtype(leaf: Leaf, value: torch.Tensor) -> DTypeError:
    return DTypeError(
        f"argument '{leaf.name}' has another element type than the one compiled for",
        expected=f"{leaf.name}: {leaf.dtype}",
        found=f"{leaf.name}: {value.dtype}",
        mend=f"convert it with .to({leaf.dtype}), or compile again",
    )


def _other_kind(leaf: Leaf, value: object) -> DTypeError:
    return DTypeError(
        f"argument '{leaf.name}' is not a tensor",
        expected=f"a tensor of {leaf.dtype} and shape {list(leaf.shape)}",
        found=f"{value!r}, of type {type(value).__name__}",
        mend=f"pass a tensor: torch.as_tensor(..., dtype={leaf.dtype})",
    )


def _other_value(leaf: Leaf, value: object) -> OptionError:
    return OptionError(
        f"argument '{leaf.name}' has another value than the one compiled in",
        expected=f"{leaf.name} = {leaf.value!r}",
        found=f"{leaf.name} = {value!r}" if not isinstance(value, torch.Tensor) else "a tensor",
        mend="pass the same value, or compile again with this one",
    )


def _other_structure(call: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OptionError:
    return OptionError(
        "the arguments are not arranged as they were in the example call",
        expected=", ".join(leaf.name for leaf in call.leaves),
        found=f"{len(args)} positional arguments, keywords: {', '.join(kwargs) or 'none'}",
        mend="pass arguments by position or keyword as in the example call",
    )


def _parted(call: CallSpec, leaf: Leaf) -> OptionError:
    other = call.leaves[leaf.same_as].name
    return OptionError(
        f"arguments '{other}' and '{leaf.name}' were one tensor in the example call",
        expected="the same tensor for both",
        found="two different tensors",
        mend="compile again with two different tensors",
    )


# ---------------------------------------------------------------------------- the user's result


@dataclass(frozen=True, slots=True)
class Taken:
    """In a result: the argument leaf of that number, as it came in."""

    leaf: int


@dataclass(frozen=True, slots=True)
class Seen:
    """In a result: a view that Python code made of a captured result or an argument (`x.T`)."""

    base: int | Taken
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Kept:
    """In a result: a tensor that is there already (one of the model's own), or a plain value."""

    value: object


@dataclass(frozen=True, slots=True)
class Record:
    """In a result: an instance of a dataclass that torch's pytree does not know."""

    cls: type
    fields: tuple[tuple[str, "ResultSpec"], ...]


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """The structure of a result, and what is at each leaf; an int numbers a captured result."""

    spec: pytree.TreeSpec
    leaves: tuple[int | Taken | Seen | Kept | Record, ...]

    def seen(self) -> frozenset[int]:
        """Return the argument leaves that a view in the result looks into."""
        found = set()
        for leaf in self.leaves:
            match leaf:
                case Seen(base=Taken(leaf=number)):
                    found.add(number)
                case Record(fields=inner):
                    found.update(*(spec.seen() for _, spec in inner))
        return frozenset(found)

    def build(self, results: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Put the user's result together from captured results and the leaves of the call."""
        made = [_leaf(leaf, results, arguments) for leaf in self.leaves]
        return made[0] if self.spec.is_leaf() else pytree.tree_unflatten(made, self.spec)


def _leaf(
    leaf: int | Taken | Seen | Kept | Record, results: Sequence[Any], arguments: Sequence[Any]
) -> Any:
    match leaf:
        case int():
            return results[leaf]
        case Taken(leaf=number):
            return arguments[number]
        case Seen(base=base, shape=shape, strides=strides, offset=offset):
            tensor = _leaf(base, results, arguments)
            return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)
        case Kept(value=value):
            return value
    made: Any = object.__new__(leaf.cls)
    for name, spec in leaf.fields:
        object.__setattr__(made, name, spec.build(results, arguments))
    return made


def describe_result(result: Any, stand_ins: Sequence[Any], arguments: Sequence[Any]) -> ResultSpec:
    """Describe what the function gave when its captured results were `stand_ins`.

    arguments: the leaves that were passed in.
    """
    found, spec = pytree.tree_flatten(result)
    leaves: list[int | Taken | Seen | Kept | Record] = []
    for leaf in found:
        if isinstance(leaf, torch.Tensor):
            leaves.append(_describe_tensor(leaf, stand_ins, arguments))
        elif isinstance(leaf, _PLAIN):
            leaves.append(Kept(leaf))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = [field.name for field in dataclasses.fields(leaf)]
            inner = [
                (name, describe_result(getattr(leaf, name), stand_ins, arguments)) for name in names
            ]
            leaves.append(Record(type(leaf), tuple(inner)))
        else:
            raise CaptureError(
                f"the result holds an object of class {type(leaf).__name__}",
                expected="tensors, plain values, and lists, tuples, dicts or dataclasses of them",
                found=f"{type(leaf).__module__}.{type(leaf).__qualname__}",
                mend="return its tensors (for a language model: use_cache=False), or register the"
                " class with torch.utils._pytree",
            )
    return ResultSpec(spec, tuple(leaves))


def _describe_tensor(
    leaf: torch.Tensor, stand_ins: Sequence[Any], arguments: Sequence[Any]
) -> int | Taken | Seen | Kept:
    bases: list[tuple[int | Taken, Any]] = [
        *enumerate(stand_ins),
        *((Taken(at), value) for at, value in enumerate(arguments)),
    ]
    for place, value in bases:
        if leaf is value:
            return place
    for place, value in bases:
        if isinstance(value, torch.Tensor) and _storage(leaf) == _storage(value):
            offset = int(leaf.storage_offset()) - int(value.storage_offset())
            return Seen(place, tuple(leaf.shape), leaf.stride(), offset)
    assert leaf.device.type != "meta", "a stand-in has been computed with"
    return Kept(leaf)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
