"""Python objects that a function changes and puts back: that is no side effect.

The idea: Dynamo counts every attribute that is set while it traces; one that holds in the end what
it held before has not changed.  (Transformers marks in a global object that a model is running.)
This module does not know the graph.
"""

from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import UserDefinedObjectVariable


def forget_what_is_as_before() -> None:
    """Take objects that are as they were out of what Dynamo believes to be changed.

    To be called while a back end has the graph: it is then that all has been traced.
    """
    changed = InstructionTranslator.current_tx().output.side_effects.store_attr_mutations
    for variable, attributes in list(changed.items()):
        if isinstance(variable, UserDefinedObjectVariable) and all(
            _is_as_before(variable.value, name, now) for name, now in attributes.items()
        ):
            del changed[variable]


def _is_as_before(owner: object, name: str, now: Any) -> bool:
    if not now.is_python_constant() or name not in vars(owner):
        return False
    before, after = vars(owner)[name], now.as_python_constant()
    return type(before) is type(after) and bool(before == after)
