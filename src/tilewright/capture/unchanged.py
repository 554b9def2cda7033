"""Python objects that a function changes and puts back: that is no side effect.

The idea: Dynamo counts every attribute that is set while it traces; one that holds in the end what
it held before has not changed.  (Transformers marks in a global object that a model is running,
spectral normalization writes a buffer and puts the buffer in its own place.)  So does what a module
notes for its next call, and would note anew there.
This module does not know the graph.
"""

from typing import Any

import torch
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import ConstDictVariable, UserDefinedObjectVariable
from torch._dynamo.variables.base import ValueMutationExisting, VariableTracker

# What a recurrent module notes of its weights: each call compares it with them, and notes it anew
# where they are others, as under `torch.func.functional_call`.
_SEEN = ("_flat_weights", "_flat_weight_refs")


def forget_what_is_as_before(effects: SideEffects) -> None:
    """Take objects that are as they were out of what Dynamo believes to be changed.

    To be called when all has been traced, before Dynamo writes code that repeats the changes.
    """
    changed = effects.store_attr_mutations
    for variable, attributes in list(changed.items()):
        if isinstance(variable, UserDefinedObjectVariable) and all(
            _is_as_before(variable.value, name, now) for name, now in attributes.items()
        ):
            del changed[variable]
    for other in list(effects.id_to_variable.values()):
        # A module's tensors lie in dicts of its own.
        kind = other.mutation_type
        if isinstance(other, ConstDictVariable) and isinstance(kind, ValueMutationExisting):
            kind.is_modified = kind.is_modified and not _holds_what_it_held(other)


def _is_as_before(owner: object, name: str, now: Any) -> bool:
    if isinstance(owner, torch.nn.RNNBase) and name in _SEEN:
        return True
    if not now.is_python_constant() or name not in getattr(owner, "__dict__", {}):
        return False
    return _is_equal(vars(owner)[name], now.as_python_constant())


def _is_equal(before: object, now: object) -> bool:
    return type(before) is type(now) and bool(before == now)


def _holds_what_it_held(variable: ConstDictVariable) -> bool:
    before = [(key, value.realize()) for key, value in variable.original_items.items()]
    now = [(key.vt, value.realize()) for key, value in variable.items.items()]
    return len(before) == len(now) and all(
        _is_same(old, new) and _is_same(was, is_now)
        for (old, was), (new, is_now) in zip(before, now, strict=True)
    )


def _is_same(old: VariableTracker, new: VariableTracker) -> bool:
    """Say whether two variables are one thing: a name, or the tensor that a call has written."""
    if old.is_tensor() and new.is_tensor():
        first, second = (item.as_proxy().node.meta["example_value"] for item in (old, new))
        return first is second
    if old.is_python_constant() and new.is_python_constant():
        return _is_equal(old.as_python_constant(), new.as_python_constant())
    return old is new
