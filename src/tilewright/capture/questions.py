"""What a function asks while it is traced, and what was answered: of gradients, and of identity.

The idea: are gradients on, does this tensor ask for them, are these two tensors one?  A trace
answers as the example does, and what branches on that is right only where the answers are these
again.  Most functions never ask, and one graph serves calls of all kinds; so it is noted where
Dynamo answers.
This module does not know what follows from a question.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dis import opmap
from typing import Any

import torch

GRADIENTS, IDENTITY = "gradients", "identity"
"""The questions: of the mode or of a tensor that asks for gradients; and whether two are one."""

_OF_GRADIENTS = ("requires_grad", "grad_fn", "is_leaf")


def answers(
    asked: Collection[str], leaves: Sequence[Any], reached: Sequence[torch.Tensor]
) -> tuple[object, ...]:
    """Return the answers to these questions in a call with such leaves; none to none.

    reached: the tensors that the function reads and that are no arguments.
    """
    tensors = [leaf for leaf in (*leaves, *reached) if isinstance(leaf, torch.Tensor)]
    found: list[object] = []
    if GRADIENTS in asked:
        found += [torch.is_grad_enabled(), *(tensor.requires_grad for tensor in tensors)]
    if IDENTITY in asked:
        first: dict[int, int] = {}
        found += [first.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)]
    return tuple(found)


_listening: list[set[str]] = []


@contextmanager
def questions() -> Iterator[set[str]]:
    """Note what is asked of Dynamo inside (by another thread's trace too, which does no harm)."""
    noted: set[str] = set()
    _listening.append(noted)
    try:
        yield noted
    finally:
        _listening[:] = [other for other in _listening if other is not noted]


def note_questions() -> None:
    """Let Dynamo tell what it is asked, in the whole process."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    variables: Any = TensorVariable
    read = variables.var_getattr

    def attribute(tensor: Any, tracer: Any, name: str) -> Any:
        if name in _OF_GRADIENTS:
            _note(GRADIENTS)
        return read(tensor, tracer, name)

    variables.var_getattr = attribute
    special = TorchInGraphFunctionVariable._get_handlers()
    answer = special[torch.is_grad_enabled]

    def mode(*args: Any) -> Any:
        _note(GRADIENTS)
        return answer(*args)

    special[torch.is_grad_enabled] = mode
    classes: list[Any] = [InstructionTranslatorBase]
    for tracing in classes:
        classes += tracing.__subclasses__()
        table, opcode = tracing.dispatch_table, opmap["IS_OP"]
        table[opcode] = functools.partial(_of_identity, table[opcode])


def _note(question: str) -> None:
    for noted in _listening:
        noted.add(question)


def _of_identity(answer: Callable[..., Any], tracer: Any, instruction: Any) -> Any:
    if all(operand.is_tensor() for operand in tracer.stack[-2:]):
        _note(IDENTITY)
    return answer(tracer, instruction)
