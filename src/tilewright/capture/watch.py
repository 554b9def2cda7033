"""Has what was captured changed since?  Asked before every call, so it must be cheap.

The idea: whatever a capture takes as it is (attributes, globals, what a closure holds, training
mode, hooks) Dynamo has written down as guards, which are kept and asked again; the tensors that the
function reaches by itself are read again by the same paths and compared by identity.

This module does not know what is done about a change.
"""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tilewright.base.facts import Facts
from tilewright.capture.facts import facts_of
from tilewright.capture.questions import ARGUMENTS, GRADIENTS, Questions, answers

# Compared here, in other ways: gradients being off needs no other graph than their being on, unless
# the function asks, and the number of threads is nothing that a graph knows of.
_AMBIENT = frozenset({"GRAD_MODE", "GLOBAL_STATE", "DETERMINISTIC_ALGORITHMS"})

Scope = dict[str, Any]

# What reading a place raises that Dynamo reads by functions of its own, which have no name here.
_UNREADABLE = (AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError)


# Of names that are one look-up each, since a call of a small graph costs little more than these.
_grad, _default_dtype = torch.is_grad_enabled, torch.get_default_dtype
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


@dataclass(frozen=True, slots=True)
class Guards:
    """Dynamo's guards of one compiled frame.

    check: whether they hold for the frame's locals.  root: the first of them.  code: what Dynamo
    compiled: while it lives, so do the globals that the guards read.
    """

    check: Callable[[Scope], bool]
    root: object
    code: object


def _lost(fn: Callable[..., Any]) -> "Watch":
    """Return what watches a copy of a function: nothing holds of it, so it is captured again."""
    never = Guards(_never, None, None)
    return Watch(fn, never, (), {}, _nothing, (), [], None, _default_dtype(), True, Questions(), ())


def _never(_: Scope) -> bool:
    return False


def _nothing(_: Scope) -> tuple[Any, ...]:
    return ()


def wanted_guards(guards: Sequence[Any]) -> list[bool]:
    """Choose guards, for Dynamo: none of tensors, which are compared call by call."""
    return [
        guard.guard_type not in _AMBIENT and "TENSOR" not in guard.guard_type for guard in guards
    ]


def guards_of(code: object) -> Guards | None:
    """Return the guards of what Dynamo compiled last for a code object."""
    entries = _debug_get_cache_entry_list(code)  # type: ignore[arg-type]
    if not entries:
        return None
    root = entries[0].guard_manager.root
    return Guards(root.check, root, entries[0].code)


@dataclass(frozen=True, slots=True)
class Watch:
    """What a function and torch's modes were when it was captured.

    reached: the tensors that it reaches by itself, at `places`, expressions over the locals and the
    globals, which are `names`; `read` finds them again.  asking: which of them
    asked for gradients.  autocast: its element type, None where it was off.  dtype: torch's default
    one.  grad: whether gradients were on: unless the function asks, a graph captured with them also
    serves calls without.  asked: what the trace was asked.  answers: what it said.
    """

    fn: Callable[..., Any]
    guards: Guards | None
    places: tuple[str, ...]
    names: Scope
    read: Callable[[Scope], tuple[Any, ...]]
    reached: tuple[torch.Tensor, ...]
    asking: list[bool]
    autocast: torch.dtype | None
    dtype: torch.dtype
    grad: bool
    asked: Questions
    answers: tuple[object, ...]

    @staticmethod
    def over(
        scope: Scope,
        guards: Guards | None,
        reached: Mapping[str, torch.Tensor],
        names: Scope,
        asked: Questions,
    ) -> "Watch":
        """Write down what there is now.

        scope: the locals of the frame, the function and the arguments of the example.  reached:
        tensors by Dynamo's name of the place they are read from, a Python expression over the
        locals `L` of the frame and its globals `G`, which are `names`.
        """
        leaves = _leaves(scope["args"], scope["kwargs"])
        beside = _beside(asked, scope, names, leaves)
        asked = asked.of_tensors(any(leaf is own for leaf in leaves for own in beside.values()))
        reached = {**beside, **reached}
        tensors, grad = tuple(reached.values()), torch.is_grad_enabled()
        return Watch(
            scope["fn"],
            guards,
            tuple(reached),
            names,
            reader(reached, names),
            tensors,
            [tensor.requires_grad for tensor in tensors],
            _autocast(),
            torch.get_default_dtype(),
            grad,
            asked,
            answers(asked.asked, leaves, tensors, grad),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _lost, (self.fn,)  # Dynamo's guards are of these very objects

    def unchanged(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], grad: bool | None = None
    ) -> bool:
        """Say whether the function still is what it was, for a call with these arguments; grad: in
        such a mode for gradients, if not in torch's now."""
        return self.reaches(args, kwargs, grad) and self._asks()

    def asks(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Say whether the same of the tensors that it reaches ask for gradients; of a call that
        `reaches`, or facts, say the rest of, but for what facts leave to who runs."""
        return self._asks() and (not self.answers or self.reaches(args, kwargs))

    def _asks(self) -> bool:
        return [tensor.requires_grad for tensor in self.reached] == self.asking

    def reaches(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], grad: bool | None = None
    ) -> bool:
        """Say whether it is what it was but for what `asks` says: of tensors that a run takes, as
        all of these are unless the function asks, the runtime compares that too."""
        grad = _grad() if grad is None else grad
        if (_autocast() if _any_autocast() else None) is not self.autocast:
            return False
        if _default_dtype() is not self.dtype or (not self.grad and grad):
            return False
        scope = {"fn": self.fn, "args": args, "kwargs": kwargs}
        if self.guards is not None and not self.guards.check(scope):
            return False
        if self.reached:
            try:
                found = self.read(scope)
            except _UNREADABLE:  # ValueError: of an emptied cell
                return False
            if not all(map(is_, found, self.reached)):
                return False
        return not self.answers or self.answers == answers(
            self.asked.asked, _leaves(args, kwargs), self.reached, grad
        )

    def facts(self, args: Sequence[Any], grad: bool | None = None) -> Facts | None:
        """Return what `reaches` would find again for such arguments, tensors in their places, while
        the facts hold; None where that is not known."""
        asked = self.asked.asked  # of arguments, who runs compares whether they ask for gradients
        if self.autocast is not None or asked - {GRADIENTS}:
            return None
        scope = {"fn": self.fn, "args": args, "kwargs": {}}
        root = None if self.guards is None else self.guards.root
        found = facts_of(root, self.places, scope, self.names)
        # Last: what another thread changes meanwhile is seen here, or is no fact any more.
        if found is None or not self.reaches(args, {}, grad):
            return None
        modes = [(_any_autocast, False), (_default_dtype, self.dtype)]
        modes += [(_grad, self.grad)] if grad is None and (asked or not self.grad) else []
        own = [(tensor, "requires_grad", tensor.requires_grad) for tensor in self.reached if asked]
        return found._replace(
            answers=(*found.answers, *modes), attributes=(*found.attributes, *own)
        )


def _beside(
    asked: Questions, scope: Scope, names: Scope, leaves: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """Return the tensors that are asked of and are no arguments, by the places they are read from:
    a graph need not read them."""
    found = {}
    for place in sorted(asked.places):
        try:
            (value,) = reader([place], names)(scope)
        except _UNREADABLE:
            continue
        given = place.startswith(ARGUMENTS) and any(value is leaf for leaf in leaves)
        if isinstance(value, torch.Tensor) and not given:
            found[place] = value
    return found


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    return pytree.tree_leaves((tuple(args), dict(kwargs)))


def reader(places: Iterable[str], names: Scope) -> Callable[[Scope], tuple[Any, ...]]:
    """Return what reads several places of a frame at a time; what lies on the way to more than one
    of them is read once.

    ::

        L['fn'].a.b, L['fn'].a.c   -->   v0 = L['fn']; v1 = v0.a; (v1.b, v1.c)

    places: Python expressions over the locals `L` and the globals `G`, which are `names`.
    """
    known: dict[str, str] = {}
    lines: list[str] = []

    def shared(node: ast.expr) -> ast.expr:
        match node:
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                node.value = _named(shared(owner), known, lines)
        return node

    found = [ast.unparse(shared(ast.parse(place, mode="eval").body)) for place in places]
    text = "\n    ".join(["def read(L):", *lines, f"return ({''.join(f'{at}, ' for at in found)})"])
    made: Scope = {"G": names}
    exec(text, made)
    read: Callable[[Scope], tuple[Any, ...]] = made["read"]
    return read


def _named(node: ast.expr, known: dict[str, str], lines: list[str]) -> ast.expr:
    """Return the local variable that holds what an expression reads; a name stays itself."""
    if isinstance(node, ast.Name):
        return node
    text = ast.unparse(node)
    name = known.get(text)
    if name is None:
        name = known[text] = f"v{len(known)}"
        lines.append(f"{name} = {text}")
    return ast.Name(name)


def _autocast() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
