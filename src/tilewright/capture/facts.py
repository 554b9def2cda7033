"""What Dynamo's guards look at, as facts: while they hold, the guards do.

The idea: each guard says by a Python expression over the locals `L` and the globals `G` what it
looks at, and by its kind what it asks of it; what is asked of few kinds follows from which objects
are found on the way.  Of a guard of any other kind, or an expression of any other form, nothing is
known, and then of all.

This module does not know when the guards are asked.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _device

from tilewright.base.facts import Facts
from tilewright.capture.questions import ARGUMENTS

# What follows from which object is found; from its type; from all that a dict holds; and from an
# object that cannot change, if it is such.
_OF_IDENTITY = frozenset({"ID_MATCH", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NOT_NONE"})
_OF_CONTENT = frozenset({"DICT_LENGTH", "DICT_CONTAINS", "DICT_VERSION", "MAPPING_KEYS_CHECK"})
_OF_VALUE = frozenset({"EQUALS_MATCH", "LENGTH_CHECK"})
_CONSTANT = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, CodeType)
# What the arguments of a call are, whoever asks knows; torch's modes are asked for by name below.
_OF_CALLS = frozenset({"TYPE_MATCH", "LENGTH_CHECK", "DICT_LENGTH"})
_OF_MODES = frozenset({"TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE"})
_MANAGERS = frozenset({"RootGuardManager", "GuardManager", "DictGuardManager"})
_MADE_IN_PYTHON = 1 << 9  # of a class; others keep no dict where C looks for it
_MODES: Callable[[], int] = torch._C._len_torch_function_stack


class _Unknown(Exception):
    """Nothing is known of what is looked at."""


def facts_of(
    root: Any, places: Iterable[str], scope: dict[str, Any], names: dict[str, Any]
) -> Facts | None:
    """Return what the guards under `root` and the reading of `places` look at, for calls that are
    tensors in their places; None where that is not known.

    scope: the locals, names: the globals.
    """
    found = _Found(scope, names)
    try:
        if root is not None:
            found.add_ambient(root)
            found.add_guards(root)
        for place in places:
            found.at(ast.parse(place, mode="eval").body)
    except (_Unknown, AttributeError, LookupError, SyntaxError, ValueError):
        return None
    return found.facts()


class _Own:
    """The dict of a class, which Python only shows."""

    def __init__(self, of: Any) -> None:
        if not isinstance(of, type) or not of.__flags__ & _MADE_IN_PYTHON:
            raise _Unknown
        self.of = of


class _Found:
    """Collects facts on the way to objects.  Mutable: that is what it is for."""

    def __init__(self, scope: dict[str, Any], names: dict[str, Any]) -> None:
        self._known = {"L": scope, "G": names}
        self._free = scope  # what each call makes anew: no fact, but who asks knows what is in it
        self._dicts: dict[int, tuple[Any, dict[Any, Any] | None]] = {}
        self._types: dict[int, tuple[Any, type]] = {}
        self._attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._answers: list[tuple[Callable[[], Any], Any]] = []

    def facts(self) -> Facts:
        dicts = []
        for held, items in self._dicts.values():
            pairs = (held if items is None else items).items()
            dicts.append((held, items is None, tuple(part for pair in pairs for part in pair)))
        types, attributes = tuple(self._types.values()), tuple(self._attributes.values())
        return Facts(tuple(dicts), types, attributes, tuple(self._answers))

    # ---- guards -----------------------------------------------------------------------------

    def add_ambient(self, root: Any) -> None:
        """Add what the root asks of torch, and of two objects whether they are one."""
        if not {_kind(guard) for guard in root.get_leaf_guards()} <= _OF_MODES or _MODES():
            raise _Unknown
        self._answers.append((_MODES, 0))
        self._item(vars(_device), "CURRENT_DEVICE")
        for guard in root.get_epilogue_lambda_guards():
            for part in guard.verbose_code_parts():
                match ast.parse(part.strip(), mode="eval").body:
                    case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                        if any(ast.unparse(side).startswith(ARGUMENTS) for side in (left, right)):
                            raise _Unknown  # another argument is another answer
                        self.at(left), self.at(right)
                    case _:
                        raise _Unknown

    def add_guards(self, manager: Any) -> None:
        """Add what the guards of all below a manager look at."""
        for below in _below(manager):
            source = below.get_source()
            kinds = {_kind(guard) for guard in below.get_leaf_guards()}
            if source.startswith(ARGUMENTS):
                if not kinds <= (_OF_CALLS if source in ARGUMENTS else frozenset()):
                    raise _Unknown
            else:
                value = self.at(ast.parse(source, mode="eval").body)
                self._add_kinds(kinds, value)
                if _kind(below) == "DictGuardManager":
                    self._whole(value)
            self.add_guards(below)

    def _add_kinds(self, kinds: set[str], value: Any) -> None:
        if "TYPE_MATCH" in kinds:
            self._type(value)
        if kinds & _OF_CONTENT:
            self._whole(value)
        if kinds & _OF_VALUE and not _is_constant(value):
            raise _Unknown
        if kinds - _OF_IDENTITY - _OF_CONTENT - _OF_VALUE - {"TYPE_MATCH"}:
            raise _Unknown

    # ---- the way to an object ---------------------------------------------------------------

    def at(self, node: ast.expr) -> Any:
        """Return what an expression finds, with all that is on the way as facts."""
        match node:
            case ast.Name(id="L" | "G" as name):
                return self._known[name]
            case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
                return self._subscript(self.at(owner), key)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.at(owner), name)
            case ast.Call(func=ast.Name(id="type"), args=[value]):
                return self._type(self.at(value))
            case ast.Call(
                func=ast.Name(id="dict"), args=[ast.Attribute(value=owner, attr="__dict__")]
            ):
                return _Own(self.at(owner))
        raise _Unknown

    def _type(self, value: Any) -> type:
        self._types[id(value)] = value, type(value)
        return type(value)

    def _subscript(self, owner: Any, key: Any) -> Any:
        if owner is self._free:
            return owner[key]
        if type(owner) is tuple:
            return owner[key]
        if type(owner) is _Own:
            return self._item(vars(owner.of), key, owner.of)
        if type(owner).__getitem__ is not dict.__getitem__ or type(key) not in (str, int):
            raise _Unknown
        return self._item(owner, key)

    def _attribute(self, owner: Any, name: str) -> Any:
        if type(owner) is ModuleType and name in vars(owner):
            return self._item(vars(owner), name)
        value = getattr(owner, name)
        kind = type(owner)
        found: Any = kind.__getattribute__
        plain = found is object.__getattribute__ and not hasattr(kind, name)
        # Of a module, guards look in its dict only; of others, at what a class puts before it too.
        if plain and isinstance(owner, torch.nn.Module) and name in vars(owner):
            return self._item(self._attribute(owner, "__dict__"), name)
        if type(value) is MethodType and self._is_of_class(owner, name, value):
            return value
        self._attributes[id(owner), name] = owner, name, value
        return value

    def _is_of_class(self, owner: Any, name: str, value: MethodType) -> bool:
        """Say whether a method is bound when it is asked for: another object each time, of the same
        function while its class has that, and its owner nothing of its own by that name."""
        kind, own = type(owner), getattr(owner, "__dict__", {})
        if value.__self__ is not owner or name in own:
            return False
        if getattr(kind, name, None) is not value.__func__:
            raise _Unknown
        if hasattr(owner, "__dict__"):
            self._whole(self._attribute(owner, "__dict__"))
        self._attributes[id(kind), name] = kind, name, value.__func__
        self._type(owner)
        return True

    def _item(self, held: Mapping[Any, Any], key: Any, of: type | None = None) -> Any:
        """Return an item of a dict, or of a class's own."""
        owner: Any = held if of is None else of
        _, items = self._dicts.setdefault(id(owner), (owner, {}))
        if items is not None:
            items[key] = held[key]
        return held[key]

    def _whole(self, owner: Any) -> None:
        if not isinstance(owner, dict):
            raise _Unknown
        self._dicts[id(owner)] = owner, None


def _below(manager: Any) -> Iterator[Any]:
    """Yield the managers right below one; keys of dicts are their content."""
    if _kind(manager) not in _MANAGERS:
        raise _Unknown
    yield from manager.get_child_managers()
    if _kind(manager) == "DictGuardManager":
        yield from (value for _, value in manager.get_key_value_managers().values() if value)


def _kind(item: Any) -> str:
    return type(item).__name__


def _is_constant(value: Any) -> bool:
    """Say whether an object is always equal to what it is equal to now."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return isinstance(value, type) or type(value) in _CONSTANT
